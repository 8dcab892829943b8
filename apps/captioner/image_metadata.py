"""Captions in the metadata of image files: a description and an alternative text.

Both are XMP properties: `dc:description`, which photo managers show, and IPTC's
`AltTextAccessibility`, which content management systems use as the `alt` of a picture.
The pixels are not encoded again.
"""

import collections
import io
import itertools
import os
import warnings
from pathlib import Path
from xml.etree import ElementTree

from keras_attention_apps.captioner.images import ImageError, is_folder_of, is_open
from keras_attention_apps.captioner.text import sentence
from keras_attention_apps.common.errors import UserError, counted, reason
from keras_attention_apps.common.files import atomic_path, check_file, read_file
from PIL import Image, ImageSequence

PROPERTIES = {
    "description": "Xmp.dc.description",
    "alternative text": "Xmp.iptc.AltTextAccessibility",
}
# Where older programs keep a description.
_OLDER_DESCRIPTIONS = ("Exif.Image.ImageDescription", "Iptc.Application2.Caption")
# The beginnings of JPEG, PNG, TIFF and WebP files.
_BEGINNINGS = (b"\xff\xd8", b"\x89PNG", b"II*\0", b"MM\0*", b"RIFF")
_DEFAULT = "x-default"

# The beginning of the segment of a JPEG that contains XMP, and the maximum length.
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_MAX_SEGMENT = 65_533

# Tags of a TIFF that are places in the file, and the XMP itself.
_PLACES = {273, 324, 330, 34665, 34853, 40965, 700}
# Those of the folders of Exif: of the photograph, and of the place.
_EXIF_FOLDERS = (34665, 34853)
# What Pillow knows of a file that depends on the places in it, or is read separately.
_SEPARATE = {"exif", "mpoffset", "xmp", "XML:com.adobe.xmp"}


def load_exiv2():
    """Return the library that writes the metadata."""
    try:
        import exiv2
    # Libraries of the system may be too old for it.
    except (ImportError, OSError) as error:
        raise UserError(
            'metadata of images need exiv2: python -m pip install ".[metadata]" '
            f"({reason(error)})"
        ) from error
    # Problems are exceptions, or found by `_check_same`.
    exiv2.LogMsg.setLevel(exiv2.LogMsg.Level.mute)
    return exiv2


def with_texts(data, text, *, overwrite=False):
    """Write a text as the description and the alternative text of an image file.

    A text that is there stays unless `overwrite`; so does a description in Exif or
    IPTC-IIM, beside which none is written. Texts in other languages always stay.
    Returns the bytes of the new file, and the list of the `PROPERTIES` that were
    written. A file that is damaged, or of which anything else would change, is an
    `ImageError`.
    """
    exiv2 = load_exiv2()
    try:
        image = exiv2.ImageFactory.open(data)
        image.readMetadata()
        xmp = image.xmpData()
        _check_xmp(image.xmpPacket(), xmp)
        written = [x for x in PROPERTIES if overwrite or not _is_there(image, x)]
        if not written:
            return data, []
        for name in written:
            key = PROPERTIES[name]
            texts = dict(xmp[key].getValue()) if _is_multilingual(xmp, key) else {}
            xmp[key] = exiv2.LangAltValue({**texts, _DEFAULT: text})
        if image.mimeType() == "image/jpeg":
            fault, packet = exiv2.XmpParser.encode(xmp)
            if fault:
                raise ImageError("its XMP cannot be written")
            found = _jpeg_with_xmp(data, packet.encode("utf-8"))
        else:
            image.writeMetadata()
            found = bytes(image.data())
    except exiv2.Exiv2Error as error:
        raise ImageError(error.message) from error
    _check_same(data, found)
    return found, written


def _jpeg_with_xmp(data, packet):
    """Return a JPEG with an XMP packet, in place of its XMP or before all other data.

    exiv2 would also move the profile of colours, and the file of a telephone may have a
    second picture whose place is counted from a segment before the profile.
    """
    segment = _XMP + packet
    if len(segment) > _MAX_SEGMENT:
        raise ImageError(f"its XMP would have more than {_MAX_SEGMENT:,} bytes")
    place = begin = end = 2
    while data[place] == 0xFF and 0xE0 <= data[place + 1] <= 0xEF:
        following = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        content = data[place + 4 : following]
        if content.startswith(_XMP):
            begin, end = place, following
            break
        if place == end and content.startswith((b"JFIF\0", b"Exif\0")):
            begin = end = following
        place = following
    length = (len(segment) + 2).to_bytes(2, "big")
    return b"".join((data[:begin], b"\xff\xe1", length, segment, data[end:]))


def _is_multilingual(xmp, key):
    return key in xmp and hasattr(xmp[key].getValue(), "keys")


def _is_there(image, name):
    """Return whether an image has a text, in any language."""
    found = [(image.xmpData(), PROPERTIES[name])]
    if name == "description":
        found += zip(
            (image.exifData(), image.iptcData()), _OLDER_DESCRIPTIONS, strict=True
        )
    for metadata, key in found:
        if key in metadata:
            multilingual = _is_multilingual(metadata, key)
            value = metadata[key].getValue()
            texts = value.values() if multilingual else [value.toString()]
            if any(text.strip("\0 \t\r\n") for text in texts):
                return True
    return False


def _check_xmp(packet, xmp):
    """Raise an `ImageError` for XMP that cannot be read, and would be lost."""
    if not packet.strip("\0 \t\r\n") or not xmp.empty():
        return
    try:
        ElementTree.fromstring(packet.strip("\0 \t\r\n"))
    except (ElementTree.ParseError, ValueError) as error:
        raise ImageError(f"its XMP cannot be read: {reason(error)}") from error


def _check_same(old, new):
    """Raise an `ImageError` if anything but the texts differs in two files."""
    try:
        with warnings.catch_warnings():
            # The image was decoded before, within the limits of this program.
            warnings.simplefilter("ignore")
            pairs = itertools.zip_longest(_contents(old), _contents(new))
            changed = next((a or b for a, b in pairs if a != b), None)
    # Pillow's readers of damaged files raise nearly every type of exception.
    except Exception as error:
        raise ImageError(f"its content cannot be compared: {reason(error)}") from error
    if changed:
        raise ImageError(f"exiv2 would change its {changed[0]}, so it stays as it is")


def _contents(data):
    """Yield pairs of a name and a value of all that must stay in a file."""
    with Image.open(io.BytesIO(data)) as image:
        yield "format", image.format
        info = {name: x for name, x in image.info.items() if name not in _SEPARATE}
        yield "other metadata", info
        exif = image.getexif()
        for tags in (exif, *map(exif.get_ifd, _EXIF_FOLDERS)):
            yield "Exif", {tag: x for tag, x in tags.items() if tag not in _PLACES}
        for frame in ImageSequence.Iterator(image):
            yield "size", (frame.mode, frame.size, frame.getpalette())
            yield "pixels", frame.tobytes()
    exiv2 = load_exiv2()
    image = exiv2.ImageFactory.open(data)
    image.readMetadata()
    xmp = [(x.key(), x.toString()) for x in image.xmpData()]
    yield "XMP", [x for x in xmp if x[0] not in PROPERTIES.values()]
    yield "IPTC", [(x.key(), x.toString()) for x in image.iptcData()]


class MetadataWriter:
    """Writes the captions of a run into its images, or into copies of them.

    `given` are the images and folders of the command, `paths` those of all images, and
    `targets` is a dict from these to the files that are written.
    """

    def __init__(self, config, given, paths):
        load_exiv2()
        self.config = config
        self._counts: collections.Counter[str | tuple[str, bool]] = (
            collections.Counter()
        )
        for path in filter(is_open, paths):
            raise UserError(
                f"metadata are written into files. Received the open file {str(path)!r}"
            )
        self.targets = {path: path for path in paths}
        if config.metadata_in_place:
            if config.write_metadata:
                raise UserError(
                    "expected --write-metadata, the folder of the copies, or "
                    "--metadata-in-place, not both"
                )
            return
        folder = config.write_metadata
        if is_folder_of(folder, given):
            raise UserError(
                "--write-metadata must be a folder other than that of the images; "
                "--metadata-in-place writes into the images themselves. Received: "
                f"{str(folder)!r}"
            )
        taken: dict[str, Path] = {}
        for path in paths:
            target = self.targets[path] = folder / path.name
            first = taken.setdefault(path.name.lower(), path)
            if os.path.abspath(first) != os.path.abspath(path):
                raise UserError(
                    "expected images of different names, since their copies are in "
                    f"one folder. Received: {str(first)!r} and {str(path)!r}"
                )
            check_file(target)

    @property
    def missing(self):
        """The set of the images that may still need their texts."""
        targets = self.targets.items()
        return {
            x for x, y in targets if self.config.metadata_in_place or not y.exists()
        }

    def write(self, path, captions):
        """Write the best of some captions, if there is one, and the model is sure."""
        config, target = self.config, self.targets[path]
        if not config.metadata_in_place and target.exists():
            self._counts["with a copy from before"] += 1
            return
        data = new = read_file(path)
        if not data.startswith(_BEGINNINGS):
            outcomes: list[str | tuple[str, bool]] = ["of another format"]
        elif not (captions and captions[0].text):
            outcomes = ["without a caption"]
        elif captions[0].unsure and not config.unsure_metadata:
            outcomes = ["unsure (--unsure-metadata writes them)"]
        else:
            text = sentence(captions[0].text)
            try:
                new, written = with_texts(
                    data, text, overwrite=config.overwrite_metadata
                )
            except ImageError as error:
                raise ImageError(
                    f"Cannot write metadata of {str(path)!r}: {error}"
                ) from error
            outcomes = [(name, name in written) for name in PROPERTIES]
        if new is not data or not config.metadata_in_place:
            with atomic_path(target) as temporary:
                temporary.write_bytes(new)
        self._counts.update(outcomes)

    def summary(self):
        """Return a line with the numbers of texts written, kept and skipped."""
        counts, parts = dict(self._counts), []
        for is_written, done in ((True, "written"), (False, "kept")):
            found = (
                counted(counts.pop((name, is_written), 0), name) for name in PROPERTIES
            )
            parts.append(f"{' and '.join(found)} {done}")
        if counts:
            skipped = (f"{count:,} {name}" for name, count in counts.items())
            parts.append(f"skipped: {', '.join(skipped)}")
        return f"captioner: metadata: {'; '.join(parts)}"
