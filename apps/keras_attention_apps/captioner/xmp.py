"""XMP side files: the description of an image beside the image.

Photo managers read the description and the alternative text of `photo.jpg` from
`photo.jpg.xmp`. The properties are `dc:description` (Dublin Core) and
`Iptc4xmpCore:AltTextAccessibility` (IPTC Photo Metadata 2021.1), both with one text in
the default language. Neither pixels nor the image file are touched.

An existing side file is edited in place: the parser finds the bytes of both properties,
and all others stay.
"""

import dataclasses
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import escape

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import atomic_path, check_bytes, check_file

SUFFIX = ".xmp"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
# Prefix and namespace of each property.
DESCRIPTION = ("dc", "http://purl.org/dc/elements/1.1/", "description")
ALTERNATIVE = (
    "Iptc4xmpCore",
    "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "AltTextAccessibility",
)
PROPERTIES = (DESCRIPTION, ALTERNATIVE)
NEW = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="{RDF}">
  <rdf:Description rdf:about="">
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def side_file(image: Path, *, replace_suffix: bool = False) -> Path:
    """Return the path of the side file of an image.

    >>> side_file(Path("a/photo.jpg")).as_posix()
    'a/photo.jpg.xmp'
    >>> side_file(Path("a/photo.jpg"), replace_suffix=True).as_posix()
    'a/photo.xmp'
    """
    if replace_suffix:
        return image.with_suffix(SUFFIX)
    return image.with_name(image.name + SUFFIX)


def write_side_file(path: Path, text: str, *, overwrite: bool = False) -> bool:
    """Write a text as description and alternative text into an XMP side file.

    In an existing file, a property that has a value keeps it unless `overwrite`, and
    everything else stays as it is. Return whether the file was written.

    Raises:
        UserError: If the existing file is not an XMP file in UTF-8.
    """
    old = NEW.encode()
    if path.exists():
        check_file(path)
        check_bytes(path.stat().st_size, path)
        old = path.read_bytes()
    new = with_text(old, text, path.name, overwrite=overwrite)
    if new == old:
        return False
    with atomic_path(path) as temporary:
        temporary.write_bytes(new)
    return True


def with_text(
    content: bytes, text: str, name: str, *, overwrite: bool = False
) -> bytes:
    """Return the content of an XMP file with a text in both properties.

    `name` is that of the file, for errors.
    """
    positions = _Positions(content, name)
    edits = []
    missing = b""
    for prefix, namespace, local in PROPERTIES:
        element = _element(prefix, namespace, local, text).encode()
        span = positions.properties.get((namespace, local))
        if span is None:
            missing += b" " + element + b"\n  "
        elif overwrite or not positions.has_text(*span):
            edits.append((*span, element))
    if missing:
        edits.append(positions.insertion(missing))
    for start, end, replacement in sorted(edits, reverse=True):
        content = content[:start] + replacement + content[end:]
    return content


def _element(prefix, namespace, local, text):
    """Return the XML of a property with a text in the default language."""
    return (
        f'<{prefix}:{local} xmlns:{prefix}="{namespace}" xmlns:rdf="{RDF}"><rdf:Alt>'
        f'<rdf:li xml:lang="x-default">{escape(text)}</rdf:li>'
        f"</rdf:Alt></{prefix}:{local}>"
    )


@dataclasses.dataclass
class _Element:
    """The bytes of an element: of all of it, and of its start tag."""

    name: str
    start: int
    start_tag_end: int = 0
    end_tag: int = 0
    end: int = 0


class _Positions:
    """Where the properties of the image are in an XMP file, as offsets of bytes.

    `properties` has the start and the end of each property that has an element.
    """

    def __init__(self, content: bytes, name: str):
        self._content = content
        self._stack: list[_Element] = []
        self._description: _Element | None = None
        self._texts: list[int] = []
        self.properties: dict[tuple[str, str], tuple[int, int]] = {}
        parser = self._parser = expat.ParserCreate("UTF-8", " ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._refuse
        try:
            # The parser would read UTF-16, too, for which the edits are not made.
            content.decode("utf-8")
            parser.Parse(content, True)
        except (expat.ExpatError, UnicodeDecodeError) as error:
            raise UserError(f"{name} is not an XMP file in UTF-8: {error}") from error
        if self._description is None:
            raise UserError(f"{name} is not an XMP file: it has no rdf:Description")

    def insertion(self, elements: bytes) -> tuple[int, int, bytes]:
        """Return the edit that adds elements to the first rdf:Description."""
        element = self._description
        assert element is not None
        tag = self._content[element.start : element.start_tag_end]
        if not tag.endswith(b"/>"):
            return element.end_tag, element.end_tag, elements
        # An element without content needs an end tag.
        name = tag[1:].split(maxsplit=1)[0].removesuffix(b"/>")
        opened = tag[:-2].rstrip() + b">\n  "
        return element.start, element.end, opened + elements + b"</" + name + b">"

    def has_text(self, start: int, end: int) -> bool:
        """Return whether there is text, other than blanks, between two offsets."""
        return any(start < offset < end for offset in self._texts)

    def _text(self, text):
        if text.strip():
            self._texts.append(self._parser.CurrentByteIndex)

    def _start(self, name, attributes):
        start = self._parser.CurrentByteIndex
        self._stack.append(_Element(name, start, self._tag_end(start)))

    def _end(self, name):
        element = self._stack.pop()
        element.end_tag = self._parser.CurrentByteIndex
        element.end = element.start_tag_end
        if self._content[element.end - 2 : element.end] != b"/>":
            element.end = self._tag_end(element.end_tag)
        # The whole path would take long in a file of many nested elements.
        path = [*(x.name for x in self._stack[-2:]), name]
        if path[-2:] == [f"{RDF} RDF", f"{RDF} Description"]:
            self._description = self._description or element
        elif path[:-1] == [f"{RDF} RDF", f"{RDF} Description"]:
            namespace, _, local = name.rpartition(" ")
            self.properties[namespace, local] = element.start, element.end

    def _tag_end(self, start):
        """Return the end of the tag that starts at an offset.

        An attribute can contain `>`, but not its own quotation mark.
        """
        quote = None
        for offset in range(start, len(self._content)):
            byte = self._content[offset : offset + 1]
            if quote:
                quote = None if byte == quote else quote
            elif byte in (b'"', b"'"):
                quote = byte
            elif byte == b">":
                return offset + 1
        return len(self._content)

    def _refuse(self, *_):
        raise UserError("an XMP file with a document type is refused")
