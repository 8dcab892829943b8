"""Files that the page refuses before it decodes or unpacks them, in Node.js."""

import base64
import io
import json
import struct
import subprocess
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from attention_testing.browser_pages import SOURCE
from attention_testing.captioner.image_files import encode, noise, png, with_scans

pytestmark = pytest.mark.browser
# Without this, Pillow knows some of its formats alone.
Image.init()

WIDTH, HEIGHT = 123, 77
MODEL = b"\x1c\0\0\0TFL3" + bytes(64)


@pytest.fixture(scope="module")
def run(built, tmp_path_factory):
    """A function that runs an expression on the functions of two modules.

    It returns the result, or the message of a `ModelError`.
    """
    folder = tmp_path_factory.mktemp("modules")
    (folder / "all.ts").write_text(
        "".join(
            f"export * from {json.dumps(str(SOURCE / 'src' / 'library' / name))};\n"
            for name in ("image_headers.ts", "model_file.ts", "types.ts")
        )
    )
    command = [SOURCE / "node_modules/.bin/esbuild", folder / "all.ts", "--bundle"]
    command += ["--format=esm", f"--outfile={folder / 'all.mjs'}"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "run.mjs").write_text(
        """
        import { readFileSync } from "node:fs";
        import * as library from "./all.mjs";
        const { sizeOf, checkImage, readModelFile, ModelError } = library;
        const [code, content] = JSON.parse(readFileSync(0, "utf8"));
        const bytes = new Uint8Array(Buffer.from(content, "base64"));
        let result;
        try {
          result = await eval(code);
        } catch (error) {
          if (!(error instanceof ModelError)) throw error;
          result = error.message;
        }
        // Not maxRSS, which begins with that of the process that started this one.
        const status = readFileSync("/proc/self/status", "utf8");
        const peak = Number(/VmHWM:[^0-9]*([0-9]+)/.exec(status)[1]) / 1024;
        process.stdout.write(JSON.stringify({ result, peak }));
        """
    )

    def answer(code, content):
        output = subprocess.run(
            ["node", folder / "run.mjs"],
            input=json.dumps([code, base64.b64encode(content).decode()]),
            capture_output=True,
            text=True,
        )
        assert output.returncode == 0, output.stderr
        return json.loads(output.stdout)

    return answer


FORMATS = [
    ("JPEG", "RGB", {}),
    ("JPEG", "RGB", {"progressive": True}),
    ("PNG", "RGBA", {}),
    ("GIF", "P", {}),
    ("BMP", "RGB", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("WEBP", "RGBA", {}),
    ("AVIF", "RGB", {}),
    ("AVIF", "RGBA", {}),
    ("TIFF", "RGB", {}),
    ("JPEG2000", "RGB", {}),
    ("JPEG2000", "RGB", {"no_jp2": True}),
]


@pytest.mark.parametrize(("kind", "mode", "options"), FORMATS, ids=str)
def test_sizes_are_read_from_headers(run, kind, mode, options):
    image = Image.fromarray(noise(WIDTH, HEIGHT)).convert(mode)
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    content = encode(image, kind, **options)

    expected = {"width": WIDTH, "height": HEIGHT}
    assert run("sizeOf(bytes)", content)["result"] == expected
    assert "result" not in run("checkImage(new Blob([bytes]))", content)


def test_sizes_of_further_formats(run):
    # An icon, and the least header of JPEG XL: small, 8 x 10, and 8 x 14 by its ratio.
    icon = encode(Image.new("RGBA", (48, 48)), "ICO", sizes=[(48, 48), (32, 32)])
    bits = 1 | 9 << 1 | 0 << 6 | 13 << 9
    plain = b"\xff\x0a" + struct.pack("<I", bits)
    wide = b"\xff\x0a" + struct.pack("<I", 1 | 9 << 1 | 7 << 6)
    boxed = b"\0\0\0\x0cJXL \r\n\x87\n" + struct.pack(">I", 8 + len(plain))
    boxed += b"jxlc" + plain

    output = [run("sizeOf(bytes)", x)["result"] for x in (icon, plain, wide, boxed)]
    assert [(x["width"], x["height"]) for x in output] == [
        (48, 48),
        (8 * 14, 80),
        (160, 80),
        (8 * 14, 80),
    ]


TOO_LARGE = "This image is too large: expected at most 100000000 pixels, got "


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png(16_000, 16_000, 1, 0), f"{TOO_LARGE}16000 x 16000."),
        (
            b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
            + b"!\xfe\x02hi\0" + b"," + struct.pack("<HHHH", 0, 9, 20_000, 20_000),
            f"{TOO_LARGE}20000 x 20009.",
        ),
        (png(90_000, 3, 8, 0), "sides of at most 65535 pixels, got 90000 x 3."),
        (png(9_000, 9_000, 1, 0), "10000 pixels for each byte of the file, got 9000"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "This image cannot be read"),
        (b"\x89PNG\r\n\x1a\n", "This image cannot be read"),
        (b"", "This image cannot be read"),
        (with_scans(encode(noise(), "JPEG", progressive=True), 101), "takes too long"),
        (b"\xff\xd8" + b"\xff\xfe\0\2" * 1001, "1000 segments"),
    ],
    ids=range(9),
)  # fmt: skip
def test_images_are_refused_by_their_headers(run, content, message):
    assert message in run("checkImage(new Blob([bytes]))", content)["result"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_truncated_and_damaged_files_end_with_a_sentence(run, kind):
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    content = encode(noise(9, 9), kind)
    random = np.random.default_rng(1)
    files = [content[:n] for n in range(0, min(len(content), 400), 23)]
    for _ in range(20):
        damaged = np.frombuffer(content, "uint8").copy()
        damaged[random.integers(0, min(len(content), 300), 5)] = random.integers(256)
        files.append(damaged.tobytes())
    packed = b"".join(struct.pack("<I", len(x)) + x for x in files)
    code = """(async () => {
        const messages = [];
        for (let at = 0; at < bytes.length; ) {
            const size = new DataView(bytes.buffer, bytes.byteOffset + at)
                .getUint32(0, true);
            const one = bytes.slice(at + 4, at + 4 + size);
            at += 4 + size;
            await checkImage(new Blob([one])).catch((error) => {
                if (!(error instanceof ModelError)) throw error;
                messages.push(error.message);
            });
        }
        return messages;
    })()"""
    messages = run(code, packed)["result"]

    assert messages
    assert all(message.startswith("This image ") for message in messages)


def archive(declared=None, **files):
    """A file of a model whose archive declares another size of the last entry."""
    file = io.BytesIO(MODEL)
    file.seek(0, io.SEEK_END)
    header = {"version": 1, "kind": "translator", "model_bytes": len(MODEL)}
    header["model_crc32"] = zlib.crc32(MODEL)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("metadata.json", json.dumps(header))
        for name, content in files.items():
            writer.writestr(name.replace("_", "."), content)
    content = bytearray(file.getvalue())
    if declared is not None:
        position = content.rindex(b"PK\1\2") + 24
        content[position : position + 4] = struct.pack("<I", declared)
    return bytes(content)


LARGE = bytes(300_000_000)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (archive(subwords_model=b"abc"), 3),
        (
            archive(10, subwords_model=b"abc"),
            "subwords.model has another size than its",
        ),
        (archive(10, subwords_model=LARGE), "subwords.model has another size than its"),
        (archive(subwords_model=LARGE), "at most 67108864 bytes in its archive, and"),
        # Not read by any translator, so not unpacked either.
        (archive(10, subwords_model=b"abc", more=LARGE), 3),
        (archive(10, more=LARGE), None),
    ],
    ids=range(6),
)
def test_an_archive_is_unpacked_as_far_as_it_is_needed(run, content, expected):
    code = (
        "readModelFile(bytes).then(x => x.files.get('subwords.model')?.length ?? null)"
    )
    actual = run(code, content)

    if isinstance(expected, str):
        assert expected in actual["result"]
    else:
        assert actual["result"] == expected
    assert actual["peak"] < 250


def test_metadata_that_expand_are_refused(run):
    content = archive(subwords_model=b"abc").replace(b"metadata.json", b"metadata.jso_")
    file = io.BytesIO(content[: len(MODEL)])
    file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("metadata.json", LARGE)
    message = "at most 67108864 bytes in its archive, and metadata.json has 300000000"

    assert message in run("readModelFile(bytes)", file.getvalue())["result"]
    assert "no readable metadata" in run("readModelFile(bytes)", content)["result"]
