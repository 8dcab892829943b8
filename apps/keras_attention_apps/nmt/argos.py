"""Packages of Argos Translate: a model of CTranslate2 with a sentence splitter.

Argos Translate and LibreTranslate install them from a file. A package without a
splitter downloads one before the first translation; this one has rules for it, in the
format of MiniSBD: an ONNX model that classifies each character.

Shapes: B paragraphs, L characters, C kinds of characters, F filters.
"""

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_attention import __version__
from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt import ctranslate2_models
from keras_attention_apps.nmt.languages import NAMES
from keras_attention_apps.nmt.sentences import BEFORE_NUMBERS, TITLES

SUFFIX = ".argosmodel"
# Versions of Argos Translate whose packages have this form.
ARGOS_VERSION = "1.9.0"

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüßàâáéèêëíîïóôòõúûùñçœæøåčšžłńśźżąęýřěůőű"
DIGITS = "0123456789"
MARKS, UNSPACED = ".!?…", "。！？｡"
CLOSING, OPENING = "\"'”’“‘»«›‹)]}", "\"'“„‚‘«»‹›([¿¡"
# Identifiers of MiniSBD; each of our characters has the next one.
_SPECIAL = ("<PAD>", "<UNK>", "<EMPTY>", "<ROOT>")
# Characters before the last one that a rule reads, and after it.
BEFORE, AFTER = 8, 3
# Classes of MiniSBD: within a token, at its end, at the end of a sentence.
CLASSES = 3


def write_package(
    translator: Any,
    path: Path,
    languages: tuple[str, str],
    quantize: str,
    companions: dict[str, bytes],
) -> None:
    """Write a translator between two languages as a package."""
    source, target = languages
    metadata = {
        "package_version": "1.0",
        "argos_version": ARGOS_VERSION,
        "from_code": source,
        "from_name": NAMES.get(source, source),
        "to_code": target,
        "to_name": NAMES.get(target, target),
        "written_by": f"keras-attention {__version__}",
    }
    root = f"translate-{source}_{target}-1_0"
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary)
        ctranslate2_models.write_model(translator, model, quantize)
        contents = {
            **{f"model/{name}": model / name for name in ctranslate2_models.FILES},
            "sentencepiece.model": model / ctranslate2_models.SUBWORDS,
        }
        others = {
            "metadata.json": files.to_json(metadata, indent=2).encode(),
            "minisbd/rules.onnx": sentence_splitter(),
            **companions,
        }
        with (
            files.atomic_path(path) as partial,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, file in contents.items():
                # Without a date, equal models give equal files.
                with archive.open(zipfile.ZipInfo(f"{root}/{name}"), "w") as entry:
                    entry.write(file.read_bytes())
            for name, content in others.items():
                archive.writestr(zipfile.ZipInfo(f"{root}/{name}"), content)


def package_languages(translator: Any, pair: str | None) -> tuple[str, str]:
    """Return the codes of the languages of a package, those of a `pair` if given."""
    languages = pair.split("-") if pair else translator.languages
    if len(languages) != 2 or not all(languages):
        raise UserError(
            "a package of Argos Translate needs the language pair: --pair en-de. "
            f"Received: {pair!r}"
        )
    return languages[0], languages[1]


class _Filters:
    """Filters of a convolution over characters, which count what they match.

    A filter matches if every condition holds: a set of characters is at a position,
    or is not there. Positions are relative to the last character of a possible
    sentence.
    """

    def __init__(self, identifiers: dict[str, int], upper: int, digit: int):
        self._identifiers = identifiers
        self._flags = {"upper": upper, "digit": digit}
        self._weights: list[np.ndarray] = []
        self._needed: list[float] = []
        self.channels = digit + 1

    def add(self, *conditions: tuple[int, str, bool]) -> None:
        """Add a filter of conditions: a position, characters or a flag, and whether."""
        weights = np.zeros((self.channels, BEFORE + 1 + AFTER), "float32")
        for position, characters, is_there in conditions:
            column = weights[:, BEFORE + position]
            if characters in self._flags:
                rows = [self._flags[characters]]
            else:
                rows = [self._identifiers[x] for x in characters]
            column[rows] = 1.0 if is_there else -1.0
        self._weights.append(weights)
        self._needed.append(sum(is_there for _, _, is_there in conditions))

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Kernel `(F, C, width)`, and the bias, by which matches alone are positive."""
        bias = 0.5 - np.array(self._needed, "float32")
        return np.stack(self._weights), bias


def _end_filters(filters):
    """Add filters of the last characters of sentences."""
    for closings in range(3):
        marks = [(-closings, MARKS, True)]
        marks += [(-i, CLOSING, True) for i in range(closings)]
        for openings in range(2):
            begin = [(1, " ", True)]
            begin += [(2, OPENING, True)] * openings
            for following in ("upper", "digit"):
                filters.add(*marks, *begin, (2 + openings, following, True))
    filters.add((0, UNSPACED, True))


def _exception_filters(filters):
    """Add filters of points that do not end a sentence."""
    for word in sorted(TITLES | BEFORE_NUMBERS):
        # The points of "z.B." are those of initials.
        if len(word) < BEFORE and set(word) <= set(LETTERS):
            letters = [(i - len(word), x, True) for i, x in enumerate(word)]
            before = (-len(word) - 1, LETTERS + DIGITS, False)
            number = [] if word in TITLES else [(2, "digit", True)]
            filters.add((0, ".", True), *letters, before, *number)
    filters.add((0, ".", True), (-1, LETTERS, True), (-2, LETTERS + DIGITS, False))
    # Ordinals, and numbers of lists.
    filters.add((0, ".", True), (-1, DIGITS, True), (-2, LETTERS + DIGITS, False))
    filters.add(
        (0, ".", True),
        (-1, DIGITS, True),
        (-2, DIGITS, True),
        (-3, LETTERS + DIGITS, False),
    )


def sentence_splitter() -> bytes:
    """Return the ONNX model of the rules by which sentences end.

    A sentence ends with a mark and closing quotes, before a space and a capital letter
    or a digit, unless the mark is the point of an abbreviation, an initial or an
    ordinal. Chinese and Japanese marks need no space after them.

    Its inputs are those of MiniSBD: `units` `(B, L)`, identifiers of characters, and
    `features` `(B, L, 2)`, whether each is a capital letter and a digit. The output
    `(B, L, 3)` has the largest value for the class of each character.
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    known = dict.fromkeys(" " + LETTERS + DIGITS + MARKS + UNSPACED + CLOSING + OPENING)
    vocabulary = [*_SPECIAL, *known]
    identifiers = {x: i for i, x in enumerate(vocabulary)}
    capitals = {x.upper(): identifiers[x] for x in LETTERS if len(x.upper()) == 1}
    size = len(vocabulary)
    ends, exceptions = (_Filters(identifiers, size, size + 1) for _ in range(2))
    _end_filters(ends)
    _exception_filters(exceptions)

    def constant(name, value):
        return numpy_helper.from_array(np.asarray(value), name)

    constants = [
        constant("size", np.array(size, "int64")),
        constant("one_hot", np.array([0, 1], "float32")),
        constant("is_end", np.array([0.0, 0.0, 1.0], "float32")),
    ]
    nodes = [
        helper.make_node("OneHot", ["units", "size", "one_hot"], ["known"]),
        helper.make_node("Concat", ["known", "features"], ["kinds"], axis=-1),
        helper.make_node("Transpose", ["kinds"], ["channels"], perm=[0, 2, 1]),
    ]
    for name, filters in {"end": ends, "exception": exceptions}.items():
        kernel, bias = filters.arrays
        constants += [
            constant(f"{name}_kernel", kernel),
            constant(f"{name}_bias", bias),
        ]
        nodes += [
            helper.make_node(
                "Conv",
                ["channels", f"{name}_kernel", f"{name}_bias"],
                [f"{name}_counts"],
                pads=[BEFORE, AFTER],
            ),
            helper.make_node("Relu", [f"{name}_counts"], [f"{name}_matches"]),
            # 0.5 where one matches, otherwise 0.
            helper.make_node(
                "ReduceMax", [f"{name}_matches"], [name], axes=[1], keepdims=1
            ),
        ]
    nodes += [
        helper.make_node("Sub", ["end", "exception"], ["sentence_row"]),
        helper.make_node("Transpose", ["sentence_row"], ["sentence"], perm=[0, 2, 1]),
        helper.make_node("Mul", ["sentence", "is_end"], ["classes"]),
    ]
    unknown = ["batch", "length"]
    graph = helper.make_graph(
        nodes,
        "sentence_splitter",
        [
            helper.make_tensor_value_info("units", TensorProto.INT64, unknown),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, [*unknown, 2]),
        ],
        [
            helper.make_tensor_value_info(
                "classes", TensorProto.FLOAT, [*unknown, CLASSES]
            )
        ],
        constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    helper.set_model_props(
        model,
        {
            "lang_code": "rules",
            "config": json.dumps({"feat_funcs": ["capitalized", "numeric"]}),
            "vocab": json.dumps(
                {"_unit2id": identifiers | capitals, "_id2unit": vocabulary}
            ),
        },
    )
    checker.check_model(model)
    return model.SerializeToString()
