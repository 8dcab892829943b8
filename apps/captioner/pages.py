"""Pages of HTML: alternative texts for the pictures that have none.

Tags are found as browsers find them, and all other bytes of a page stay as they are.
"""

import base64
import codecs
import collections
import contextlib
import html
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from keras_attention_apps.captioner.captions import RUNTIMES
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.captioner.text import sentence
from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.hypotheses import rounded_score
from keras_attention_apps.common.output import note

# Attribute of a picture of whose text the model is unsure.
UNSURE = 'data-alt="unsure"'

# White space of HTML; that of Python has more characters.
_SPACE = "[\t\n\f\r ]"
# A comment, a declaration, or the beginning of a tag.
_MARKUP = re.compile(
    r"<(?:!--(?:-?>|.*?(?:--!?>|\Z))|[!?][^>]*>?|/[^A-Za-z>][^>]*>?"
    r"|(/?[A-Za-z][^\t\n\f\r />]*))",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(
    rf"(?:{_SPACE}|/)*(=[^\t\n\f\r />=]*|[^\t\n\f\r />=]+)(?:{_SPACE}*={_SPACE}*(?:"
    r'"([^"]*)(?:"|\Z)'
    r"|'([^']*)(?:'|\Z)"
    r"|([^\t\n\f\r >]*)))?"
)
_TAG_END = re.compile(rf"(?:{_SPACE}|/)*>")
# Elements whose content has no tags.
_RAW = ("iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|[/\\]{2}")
_DATA = re.compile(r"data:([^,]*),(.*)", re.DOTALL | re.IGNORECASE)

# Why a picture is left as it is.
TEXT, DECORATIVE = "with a text", "decorative"
REMOTE, OUTSIDE = "on other servers", "outside of the folder"
WITHOUT_FILE, UNREADABLE = "without a file", "unreadable"
IMPROBABLE = "without a caption"


def start_tags(text):
    """Yield the place after the name of a start tag, the name, and the attributes."""
    place = 0
    while match := _MARKUP.search(text, place):
        place = match.end()
        if match[1] is None:
            continue
        name, begin = match[1].lower(), place
        attributes: dict[str, str] = {}
        while found := _ATTRIBUTE.match(text, place):
            place = found.end()
            value = next((x for x in found.groups()[1:] if x is not None), "")
            attributes.setdefault(found[1].lower(), value)
        end = _TAG_END.match(text, place)
        if end is None:
            # The page ends within a tag, which is no tag.
            return
        place = end.end()
        if name.startswith("/"):
            continue
        yield begin, name, attributes
        if name == "plaintext":
            return
        if name in _RAW:
            close = re.compile(rf"</{name}(?=[\t\n\f\r />])", re.IGNORECASE)
            found = close.search(text, place)
            if found is None:
                return
            place = found.start()


class Page:
    """A page of HTML, and the pictures that it shows.

    A page in UTF-16 or UTF-32 becomes one in UTF-8. No picture outside of the folder
    `site` is read; addresses that begin with a slash start there.

    Attributes:
        pictures: List of pairs of a place in the page and the source of a picture
            without an alternative text: a path, or bytes.
        left: Numbers of pictures that are left as they are, by the reason.
    """

    def __init__(self, data, name, folder, site):
        if data.startswith(tuple(files.MARKS)):
            data = codecs.BOM_UTF8 + files.as_utf8(data, name)
        self._encoding = files.decoded(data, name, is_html=True)[1]
        # Each byte is a character: those of tags are the same in all encodings.
        self._text = data.decode("latin-1")
        self._folder, self._site = Path(folder), Path(site)
        self.pictures = []
        self.left: collections.Counter[str] = collections.Counter()
        base = None
        for place, tag, attributes in start_tags(self._text):
            if tag == "base" and "href" in attributes and base is None:
                base = self._address(attributes["href"])
            elif tag == "img":
                try:
                    self.pictures.append((place, self._source(attributes, base)))
                except LookupError as reason:
                    self.left[reason.args[0]] += 1

    def _address(self, value):
        with contextlib.suppress(UnicodeError):
            value = value.encode("latin-1").decode(self._encoding)
        return html.unescape(value).strip("\t\n\f\r ")

    def _source(self, attributes, base):
        """Return the path or the bytes of a picture that needs a text.

        Raises:
            LookupError: With the reason why the picture is left as it is.
        """
        if attributes.get("alt", "").strip():
            raise LookupError(TEXT)
        hidden = attributes.get("aria-hidden", "").lower() == "true"
        decorates = attributes.get("role", "").lower() in ("none", "presentation")
        if "alt" in attributes or hidden or decorates:
            raise LookupError(DECORATIVE)
        address = self._address(attributes.get("src", ""))
        if not address:
            raise LookupError(WITHOUT_FILE)
        if match := _DATA.fullmatch(address):
            content = unquote_to_bytes(match[2])
            try:
                is_base64 = match[1].lower().endswith(";base64")
                return base64.b64decode(content) if is_base64 else content
            except ValueError as error:
                raise LookupError(UNREADABLE) from error
        if _SCHEME.match(address) or (base and _SCHEME.match(base)):
            raise LookupError(REMOTE)
        if base and not address.startswith("/"):
            address = "".join(re.split("[?#]", base)[0].rpartition("/")[:2]) + address
        return self._path(unquote(re.split("[?#]", address)[0].replace("\\", "/")))

    def _path(self, path):
        start = self._site if path.startswith("/") else self._folder
        try:
            found = Path(os.path.realpath(start / path.lstrip("/")))
        except ValueError as error:
            raise LookupError(WITHOUT_FILE) from error
        if not found.is_relative_to(os.path.realpath(self._site)):
            raise LookupError(OUTSIDE)
        if not found.is_file():
            raise LookupError(WITHOUT_FILE)
        return found

    def completed(self, texts):
        """Return the bytes of the page with the texts of a dict.

        It has pairs for the sources: the text, and whether it is unsure.
        """
        parts, before = [], 0
        for place, source in self.pictures:
            if source in texts:
                text, unsure = texts[source]
                alt = html.escape(text).encode("ascii", "xmlcharrefreplace").decode()
                mark = f" {UNSURE}" if unsure else ""
                parts += [self._text[before:place], f' alt="{alt}"{mark}']
                before = place
        return "".join([*parts, self._text[before:]]).encode("latin-1")


def complete_page(config):
    """Write a page with its alternative texts, as a `CaptionConfig` describes it.

    The exit code is 2 if a picture could not be read.
    """
    path = _page_of(config)
    folder = Path() if str(path) == files.STANDARD_INPUT else path.parent
    name = printable(path)
    page = Page(files.read_file(path), name, folder, config.site or folder)
    sources = list(dict.fromkeys(source for _, source in page.pictures))
    if config.output:
        files.check_file(config.output)
        pictures = [x for x in sources if isinstance(x, Path)]
        inputs = (path, *pictures, *RUNTIMES.files(config.model.name))
        files.check_distinct(inputs, config.output)
    texts = _texts(config, page, sources, name) if sources else {}
    content = page.completed(texts)
    files.write_or_print(config.output, content)
    note(_summary(page, texts, name))
    return 2 if page.left[UNREADABLE] else 0


def _page_of(config):
    """Return the page; raise a `UserError` for options that do not fit."""
    others = {
        "--overlay": config.overlay,
        "--json": config.json,
        "--n-best": config.n_best > 1,
        "--engine ray": config.bulk.engine == "ray",
    }
    for option, given in others.items():
        if given:
            raise UserError(f"--format html takes no {option}, which is for images")
    if len(config.images) > 1:
        raise UserError(
            f"--format html takes one page. Received: {len(config.images)} paths"
        )
    return config.images[0]


def _texts(config, page, sources, name):
    """Return the texts of the sources of a page; see `Page.completed`."""
    captioner = RUNTIMES.load_for(config, jit_compile=config.jit_compile)
    found = captioner.caption_each(
        sources, batch_size=config.batch_size, **config.search.given
    )
    counts, texts = collections.Counter(source for _, source in page.pictures), {}
    for source, captions in found:
        if isinstance(captions, ImageError):
            print(f"captioner: error: {name}: {printable(captions)}", file=sys.stderr)
            page.left[UNREADABLE] += counts[source]
            continue
        best, least = captions[0], config.min_score
        is_probable = least is None or rounded_score(best) >= least
        if best.text and is_probable:
            texts[source] = sentence(best.text), bool(best.unsure)
        else:
            page.left[IMPROBABLE] += counts[source]
    return texts


def _summary(page, texts, name):
    """Return a line with the numbers of texts that were written, and pictures left."""
    written = [texts[source] for _, source in page.pictures if source in texts]
    unsure = sum(is_unsure for _, is_unsure in written)
    line = f"captioner: {name}: {counted(len(written), 'alternative text')} written"
    if unsure:
        line += f", {unsure:,} of them unsure ({UNSURE})"
    if page.left:
        left = ", ".join(f"{count:,} {reason}" for reason, count in page.left.items())
        line += f"; pictures left as they are: {left}"
    return line
