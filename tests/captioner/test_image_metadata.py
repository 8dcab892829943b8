"""Captions in the metadata of images; Pillow reads what exiv2 wrote."""

import io
import shutil
import sys
import types

import numpy as np
import pytest
from keras_attention_apps.captioner import image_metadata
from keras_attention_apps.captioner.config import MetadataConfig
from keras_attention_apps.captioner.image_metadata import MetadataWriter, with_texts
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.errors import UserError
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

pytest.importorskip("exiv2")
# Pillow reads XMP with it.
pytest.importorskip("defusedxml")
pytestmark = pytest.mark.usefixtures("cached_models")

SUFFIXES = (".jpg", ".png", ".webp", ".tif")
DESCRIPTION, ALTERNATIVE = "description", "AltTextAccessibility"
BOTH = ["description", "alternative text"]
ORIENTATION, IMAGE_DESCRIPTION, EXIF, PLACE = 0x0112, 0x010E, 0x8769, 0x8825
PACKET = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
 xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:own="http://example.org/own/"
 own:shelf="7"><dc:creator><rdf:Seq><rdf:li>Ana</rdf:li></rdf:Seq></dc:creator>
 <dc:description><rdf:Alt><rdf:li xml:lang="x-default">Mine.</rdf:li>
 <rdf:li xml:lang="de">Meins.</rdf:li></rdf:Alt></dc:description>
 </rdf:Description></rdf:RDF></x:xmpmeta>"""


def encoded(suffix, frames=1, description=None, xmp=b"", **options):
    """Return the bytes of a photograph with an orientation, a place and a profile."""
    random = np.random.default_rng(5)
    images = [
        Image.fromarray(random.integers(0, 256, (34, 38, 3), "uint8"))
        for _ in range(frames)
    ]
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    if description:
        exif[IMAGE_DESCRIPTION] = description
    exif.get_ifd(EXIF)[0x9003] = "2020:02:03 04:05:06"
    exif.get_ifd(PLACE)[1] = "N"
    exif.get_ifd(PLACE)[2] = (52.0, 30.0, 0.0)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    if suffix == ".png":
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_text("Title", "Mine")
        if xmp:
            options["pnginfo"].add_itxt("XML:com.adobe.xmp", xmp.decode())
    elif suffix == ".tif":
        exif.update({700: xmp} if xmp else {})
    else:
        options["xmp"] = xmp
    if frames > 1:
        options |= {"save_all": True, "append_images": images[1:]}
    file = io.BytesIO()
    images[0].save(
        file,
        Image.registered_extensions()[suffix],
        exif=exif,
        icc_profile=profile,
        **options,
    )
    return file.getvalue()


def opened(data):
    return Image.open(io.BytesIO(data))


def properties(data):
    return opened(data).getxmp()["xmpmeta"]["RDF"]["Description"]


def texts(data, name):
    """Return the texts of a property by their languages."""
    found = properties(data)[name]["Alt"]["li"]
    entries = found if isinstance(found, list) else [found]
    return {entry["lang"]: entry["text"] for entry in entries}


def check_same_photograph(old, new):
    old, new = opened(old), opened(new)
    assert (old.format, old.mode) == (new.format, new.mode)
    assert old.info["icc_profile"] == new.info["icc_profile"]
    assert old.info.get("Title") == new.info.get("Title")
    # Reading the pixels of a TIFF removes its orientation.
    assert new.getexif()[ORIENTATION] == 6
    if new.format != "TIFF":
        # Pillow writes these folders of a TIFF only with its compression libraries.
        assert new.getexif().get_ifd(EXIF) == {0x9003: "2020:02:03 04:05:06"}
    assert new.getexif().get_ifd(PLACE) == old.getexif().get_ifd(PLACE)
    assert old.tobytes() == new.tobytes()


def caption_of(name):
    """Return a caption as far as it is written, sure or not."""
    return [types.SimpleNamespace(text=name, unsure=False)]


@pytest.fixture
def folder(tmp_path):
    """A folder with a photograph in each format."""
    (tmp_path / "photos").mkdir()
    for suffix in SUFFIXES:
        (tmp_path / f"photos/one{suffix}").write_bytes(encoded(suffix))
    return tmp_path / "photos"


@pytest.fixture
def command(folder, model_folder):
    # An untrained model often gives empty captions: prefer long ones.
    return ["caption", str(folder), f"--model={model_folder}", "--length-penalty=2"]


def test_copies_have_the_caption_and_the_same_pixels(folder, command, capsys):
    copies = folder.parent / "copies"
    originals = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main([*command, "--write-metadata", str(copies)]) == 0

    out, err = capsys.readouterr()
    lines = dict(line.split("\t") for line in out.splitlines())
    assert {path.name for path in copies.iterdir()} == set(originals)
    for name, old in originals.items():
        new = (copies / name).read_bytes()
        check_same_photograph(old, new)
        caption = lines[str(folder / name)]
        text = f"{caption[0].upper()}{caption[1:]}."
        assert texts(new, DESCRIPTION) == {"x-default": text}
        assert texts(new, ALTERNATIVE) == {"x-default": text}
        assert (folder / name).read_bytes() == old
    assert err == (
        "captioner: metadata: 4 descriptions and 4 alternative texts written; "
        "0 descriptions and 0 alternative texts kept\n"
    )


def test_images_are_changed_in_place_when_asked(folder, command, capsys):
    originals = {path: path.read_bytes() for path in folder.iterdir()}
    (folder / "one.png").chmod(0o640)
    records = f"--output={folder.parent / 'captions.jsonl'}"
    assert main([*command, "--metadata-in-place", records]) == 0
    capsys.readouterr()

    written = {path: path.read_bytes() for path in folder.iterdir()}
    assert set(written) == set(originals)
    for path, old in originals.items():
        check_same_photograph(old, written[path])
        assert texts(written[path], ALTERNATIVE)["x-default"].endswith(".")
    assert (folder / "one.png").stat().st_mode & 0o777 == 0o640

    assert main([*command, "--metadata-in-place", records]) == 0
    assert "written; 4 descriptions and 4 alternative texts kept" in (
        capsys.readouterr().err
    )
    assert {path: path.read_bytes() for path in folder.iterdir()} == written


def test_other_bytes_of_a_jpeg_stay(folder):
    data = (folder / "one.jpg").read_bytes()
    new, written = with_texts(data, "A dog.")

    begin = next(i for i, (a, b) in enumerate(zip(data, new, strict=False)) if a != b)
    end = len(new) - len(data) + begin
    assert written == BOTH
    # The next segment begins with the same byte.
    assert new[:begin] + new[end:] == data
    # Readers expect JFIF and Exif first.
    assert data.index(b"Exif\0\0") < begin


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_texts_and_other_metadata_stay(suffix):
    data = encoded(suffix, xmp=PACKET.encode())
    new, written = with_texts(data, "A <dog> & a “cat”.")

    assert written == ["alternative text"]
    assert texts(new, DESCRIPTION) == {"x-default": "Mine.", "de": "Meins."}
    assert texts(new, ALTERNATIVE) == {"x-default": "A <dog> & a “cat”."}
    assert with_texts(new, "Another one.") == (new, [])

    replaced, written = with_texts(new, "Another one.", overwrite=True)
    assert written == BOTH
    assert texts(replaced, DESCRIPTION) == {"x-default": "Another one.", "de": "Meins."}
    assert texts(replaced, ALTERNATIVE) == {"x-default": "Another one."}
    for found in (new, replaced):
        assert properties(found)["shelf"] == "7"
        assert properties(found)["creator"] == {"Seq": {"li": "Ana"}}
        check_same_photograph(data, found)


def test_a_description_in_exif_stays_the_only_one():
    data = encoded(".jpg", description="Grandma in 1974")
    new, written = with_texts(data, "A woman.")
    assert written == ["alternative text"]
    assert DESCRIPTION not in properties(new)
    assert opened(new).getexif()[IMAGE_DESCRIPTION] == "Grandma in 1974"

    assert with_texts(encoded(".jpg", description=" "), "A woman.")[1] == BOTH


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif", ".mpo"])
def test_all_frames_stay(suffix):
    data = encoded(suffix, frames=2)
    new, written = with_texts(data, "A dog.")

    assert written == BOTH
    old, new = opened(data), opened(new)
    assert old.n_frames == new.n_frames == 2
    for frame in range(2):
        old.seek(frame)
        new.seek(frame)
        assert old.tobytes() == new.tobytes()


def test_a_file_that_would_lose_pages_stays_as_it_is(tmp_path, model_folder, capsys):
    """exiv2 keeps four pages of a TIFF."""
    path = tmp_path / "scan.tif"
    path.write_bytes(encoded(".tif", frames=7))
    before = path.read_bytes()
    model = f"--model={model_folder}"

    assert main(["caption", str(path), model, "--metadata-in-place"]) == 2
    copies = f"--write-metadata={tmp_path / 'copies'}"
    assert main(["caption", str(path), model, copies, "--length-penalty=2"]) == 2

    errors = capsys.readouterr().err
    assert f"Cannot write metadata of {str(path)!r}: exiv2 would change its" in errors
    assert path.read_bytes() == before
    assert [x.name for x in tmp_path.rglob("*")] == ["scan.tif"]


# Pillow warns of what it repairs.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files_are_errors_or_keep_their_pixels(suffix):
    data = encoded(suffix, xmp=PACKET.encode())
    random = np.random.default_rng(7)
    refused = 0
    for _ in range(150):
        damaged = bytearray(data)
        for place in random.integers(0, len(data), random.integers(1, 6)):
            damaged[place] = random.integers(256)
        damaged = bytes(damaged[: random.integers(len(data) // 2, 2 * len(data))])
        try:
            new, written = with_texts(damaged, "A dog.")
        except ImageError:
            refused += 1
            continue
        if written:
            assert opened(new).tobytes() == opened(damaged).tobytes()
            assert texts(new, ALTERNATIVE)["x-default"] == "A dog."
    # Every chunk of a PNG has a checksum.
    assert 10 < refused < 150 or suffix == ".png"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Failed to read input data"),
        (b"\xff\xd8", "does not look like a JPEG image"),
        (encoded(".jpg")[:300], "Failed to read image data"),
        (encoded(".jpg", xmp=b"<x:xmpmeta"), "its XMP cannot be read: unclosed token"),
        (encoded(".png", xmp=b"<x:xmpmeta"), "its XMP cannot be read: unclosed token"),
    ],
)
def test_what_cannot_be_read_is_an_error(data, message):
    with pytest.raises(ImageError, match=message):
        with_texts(data, "A dog.")


def test_unsure_captions_are_written_when_asked(folder):
    unsure = [types.SimpleNamespace(text="a dog", unsure=True)]
    paths = [folder / "one.jpg", folder / "one.png", folder / "two.gif"]
    Image.new("RGB", (8, 8)).save(paths[2])
    for also in (False, True):
        copies = folder.parent / f"copies-{also}"
        config = MetadataConfig(write_metadata=copies, unsure_metadata=also)
        writer = MetadataWriter(config, [folder], paths)
        assert writer.missing == set(paths)
        writer.write(paths[0], unsure)
        writer.write(paths[1], [])
        writer.write(paths[2], caption_of("a dog"))

        # The folder of copies is complete.
        assert writer.missing == set()
        for path in paths[int(also) :]:
            assert (copies / path.name).read_bytes() == path.read_bytes()
        written = int(also)
        done = f"{written} description{'s'[written:]}"
        assert writer.summary().startswith(f"captioner: metadata: {done} and ")
        skipped = "1 without a caption, 1 of another format"
        if not also:
            skipped = f"1 unsure (--unsure-metadata writes them), {skipped}"
        assert writer.summary().endswith(f"; skipped: {skipped}")
    new = (folder.parent / "copies-True/one.jpg").read_bytes()
    assert texts(new, ALTERNATIVE) == {"x-default": "A dog."}


def test_copies_that_are_there_stay(folder, command, capsys):
    copies = folder.parent / "copies"
    copies.mkdir()
    (copies / "one.png").write_text("something else")
    assert main([*command, "--write-metadata", str(copies)]) == 0

    assert "skipped: 1 with a copy from before" in capsys.readouterr().err
    assert (copies / "one.png").read_text() == "something else"
    assert len(list(copies.iterdir())) == 4

    # Resuming captions only what has no copy.
    (copies / "one.webp").unlink()
    records = f"--output={folder.parent / 'captions.jsonl'}"
    copies = f"--write-metadata={copies}"
    assert main([*command, records, copies]) == 0
    assert main([*command, records, copies]) == 0
    err = capsys.readouterr().err
    assert "1 description and 1 alternative text written" in err
    assert err.endswith("0 descriptions and 0 alternative texts kept\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--write-metadata", "{photos}"], "a folder other than that of the images"),
        (["--write-metadata", "{new}", "--metadata-in-place"], "not both"),
        (["{copy}", "--write-metadata", "{new}"], "images of different names"),
        (["--write-metadata", "{model}/config.json"], "expected a folder to write"),
        (["--unsure-metadata"], "--unsure-metadata needs --write-metadata or"),
        (["-", "--metadata-in-place"], "Received the open file '-'"),
        (["--metadata-in-place", "--engine=ray", "--output=a.jsonl"], "--engine ray"),
    ],
)
def test_options_that_do_not_fit_are_errors(
    folder, command, model_folder, options, message, capsys
):
    shutil.copytree(folder, folder.parent / "copy")
    before = {x: x.read_bytes() for x in folder.parent.rglob("*.*")}
    places = {name: folder.parent / name for name in ("photos", "new", "copy")}
    options = [x.format(**places, model=model_folder) for x in options]

    assert main([*command[:2], *options, *command[2:]]) == 2

    assert message in capsys.readouterr().err
    assert {x: x.read_bytes() for x in folder.parent.rglob("*.*")} == before


def test_without_the_library_the_error_says_how_to_install_it(
    command, folder, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "exiv2", None)
    assert main([*command, "--metadata-in-place"]) == 2
    assert 'python -m pip install ".[metadata]"' in capsys.readouterr().err
    with pytest.raises(UserError):
        image_metadata.load_exiv2()
