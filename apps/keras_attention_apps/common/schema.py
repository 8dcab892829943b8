"""The fields of captions and translations: their names, types and descriptions.

JSON, tables, the REST servers and the types of the page in TypeScript have the names of
this module. `python -m keras_attention_apps.common.schema` prints those types; the file
`apps/browser/src/library/schema.ts` has them.

Further fields tell of what an output is: `Images` and `Lines` in the module of a
command have those of the input (`IMAGE`; `LINE` and `SOURCE`), `common.records` those
of the run (`model`, `options`), and `common.inference.json_entry` the `error`. Answers
to requests of LibreTranslate's format are declared in `nmt.serve`.
"""

import dataclasses
import textwrap
import typing
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

# Decimals of numbers in JSON.
DIGITS = 4
# Names of the fields of the input, in JSON and in tables: the path of an image; the
# number of a line, and its text.
IMAGE, LINE, SOURCE = "image", "line", "source"


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of an output.

    Attributes:
        name: Name of the attribute in Python; in TypeScript, in camel case.
        type: Type of the attribute.
        text: Description.
        key: Name in JSON; `None` if JSON does not have the field.
        json_type: Type in JSON, if it is another one.
        to_json: Function from the attribute to the value in JSON.
        is_optional: Whether JSON has the field only if it is not `None`.
        is_map: Whether it is large: servers and tables have it on request alone.
    """

    name: str
    type: Any
    text: str
    key: str | None = None
    json_type: Any = None
    to_json: Callable[[Any], Any] | None = None
    is_optional: bool = False
    is_map: bool = False


def _rounded(number):
    return round(number, DIGITS)


def _rounded_list(numbers):
    return [round(x, DIGITS) for x in numbers]


def _rounded_array(array):
    return array.astype(float).round(DIGITS).tolist()


def _pairs(pairs):
    return [f"{source}-{target}" for source, target in pairs]


def _field(name, kind, text, *, key="", **more):
    """Return a `Field` whose key in JSON is its name, unless it is given."""
    return Field(name, kind, text, key=name if key == "" else key, **more)


_SCORE = _field(
    "score", float, "Score by which the results are ranked.", to_json=_rounded
)
_LOG_PROBABILITY = _field(
    "log_probability",
    float,
    "Natural logarithm of the probability of the whole.",
    to_json=_rounded,
)
_MARKS = (
    _field(
        "confidence",
        float,
        "Probability that it is usable; absent for models without a confidence.",
        is_optional=True,
    ),
    _field(
        "unsure",
        bool,
        "Whether it is probably not usable; absent without a calibration.",
        is_optional=True,
    ),
    _field("reason", str, "Why the model is unsure, in a few words.", is_optional=True),
)
# Computed in `confidence_features.py` of each program.
_DOUBTFUL = _field(
    "doubtful",
    list[int],
    "Indices of the words that are probably wrong, counted from 0.",
    key="doubtful_words",
)

# In the order of JSON.
CAPTION = (
    _field("text", str, "The caption.", key="caption"),
    _SCORE,
    _field("words", list[str], "Its words."),
    _field(
        "probabilities",
        list[float],
        "Probability of each word, given those before it.",
        to_json=_rounded_list,
    ),
    _LOG_PROBABILITY,
    _field(
        "mean_log_probability",
        float,
        "Mean over the words and the end token: the larger, the more confident.",
        to_json=_rounded,
    ),
    _field(
        "weights",
        list[list[list[float]]],
        "Attention map of each word: rows of regions. Each map sums to one.",
        key="attention",
        to_json=_rounded_array,
        is_map=True,
    ),
    _DOUBTFUL,
    *_MARKS,
)

TRANSLATION = (
    _field("text", str, "The translation.", key="translation"),
    _SCORE,
    _field("source_words", list[str], "The words of the source."),
    _field(
        "words",
        list[str],
        "The words of the translation; subwords where words have no spaces between "
        "them.",
    ),
    _field(
        "subwords",
        list[str],
        "The subwords of the translation, with the end token of each sentence.",
    ),
    _field(
        "probabilities",
        list[float],
        "Probability of each subword, given those before it.",
        to_json=_rounded_list,
    ),
    _field(
        "word_probabilities",
        list[float],
        "Probability of each word, given those before it.",
        to_json=_rounded_list,
    ),
    _LOG_PROBABILITY,
    _field(
        "mean_log_probability",
        float,
        "Mean over the subwords and the end tokens: the larger, the more confident.",
        to_json=_rounded,
    ),
    _field(
        "alignment",
        list[tuple[int, int]],
        "Pairs of a source word and a word, counted from 0.",
        json_type=list[str],
        to_json=_pairs,
        is_map=True,
    ),
    _field(
        "weights",
        list[list[float]],
        "Attention of each word to the source words; zeros for a model without "
        "attention.",
        key="attention",
        to_json=_rounded_array,
        is_map=True,
    ),
    _field(
        "end_weights",
        list[float],
        "Attention of each word to the end of its sentence.",
        key=None,
    ),
    _field(
        "cut",
        bool,
        "Whether the text was too long, and is translated in part.",
        key=None,
    ),
    _DOUBTFUL,
    _field(
        "untranslated",
        list[int],
        "Indices of the source words that no word seems to translate, counted from 0.",
        key="untranslated_words",
    ),
    *_MARKS,
)

# Options of one call, in every language.
RUN_OPTIONS = (
    Field(
        "n_best",
        int,
        "Number of results, best first, at most the beam width of the file; 1 by "
        "default.",
    ),
)


class Output:
    """Base class of captions and translations.

    Attributes:
        schema: The fields, in the order of JSON.
        noun: What the output is, which is the key of its text in JSON.
        warnings: What the user should know of it, as texts.
    """

    schema: ClassVar[tuple[Field, ...]]
    noun: ClassVar[str]
    warnings: ClassVar[Any] = ()

    def details(self, keys: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the output, or some entries of it, as a dict that JSON can hold."""
        entries = {}
        for field in self.schema:
            if field.key is None or not (keys is None or field.key in keys):
                continue
            value = getattr(self, field.name)
            if value is not None or not field.is_optional:
                entries[field.key] = field.to_json(value) if field.to_json else value
        return entries


def json_types(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the types of all fields by key; those that JSON lacks, by name."""
    return {field.key or field.name: field.json_type or field.type for field in fields}


def typescript() -> str:
    """Return the types of the page in TypeScript."""
    interfaces = (
        ("Caption", "One caption of an image.", CAPTION, False),
        ("Translation", "One translation of a text.", TRANSLATION, False),
        ("RunOptions", "Options of a caption or a translation.", RUN_OPTIONS, True),
    )
    lines = [
        "/**",
        " * What a model returns. Written by `python -m "
        "keras_attention_apps.common.schema`.",
        " */",
    ]
    for name, text, fields, are_optional in interfaces:
        lines += ["", f"/** {text} */", f"export interface {name} {{"]
        for field in fields:
            mark = "?" if are_optional or field.is_optional else ""
            kind = _typescript_type(field.type)
            lines += [*_comment(field.text), f"  {_camel(field.name)}{mark}: {kind};"]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _comment(text):
    """Return the lines of a comment in TypeScript, of at most 92 characters."""
    if len(text) <= 82:
        return [f"  /** {text} */"]
    lines = textwrap.wrap(text, 87)
    return ["  /**", *(f"   * {line}" for line in lines), "   */"]


def _camel(name):
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _typescript_type(kind):
    names = {str: "string", bool: "boolean", int: "number", float: "number"}
    if kind in names:
        return names[kind]
    parts = [_typescript_type(part) for part in typing.get_args(kind)]
    if typing.get_origin(kind) is tuple:
        return f"[{', '.join(parts)}]"
    return f"{parts[0]}[]"


if __name__ == "__main__":
    print(typescript(), end="")
