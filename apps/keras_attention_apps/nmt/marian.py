"""Published models of Marian, such as those of OPUS-MT, read without their software.

Two layouts of a folder are known: that of `save_pretrained` of transformers, and that
of Marian itself. Nothing in a file is executed: JSON, safetensors and `.npz` hold data
only, and of a pickle only tensors are read.
"""

import collections
import dataclasses
import json
import math
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_attention_apps.common.errors import UserError, listed, reason
from keras_attention_apps.common.tokenizer import END, PAD, START, UNKNOWN
from keras_attention_apps.nmt.config import ModelConfig
from keras_attention_apps.nmt.subwords import (
    WORD_BEGIN,
    Subwords,
    normalization_table,
    with_target,
)

# Special tokens in the vocabulary of Marian.
END_PIECE, UNKNOWN_PIECE, PAD_PIECE = "</s>", "<unk>", "<pad>"
# The first tokens of our vocabulary, in the order of their ids.
SPECIAL = {PAD: PAD_PIECE, START: "<start>", END: END_PIECE, UNKNOWN: UNKNOWN_PIECE}
# Target-language token of a multilingual model, such as >>deu<<.
_LANGUAGE_TOKEN = re.compile(">>[^<>]+<<$")
ACTIVATIONS = {"silu": "swish", "swish": "swish", "relu": "relu", "gelu": "gelu"}
# Maximum number of bytes of the header of a safetensors file.
MAX_HEADER = 50_000_000
# What SentencePiece subtracts from the lowest score for an unknown character.
UNKNOWN_PENALTY = 10.0
# Logit of a token that Marian does not have: far below all others.
NEVER = -30.0
# Tables of normalisation in published tokenizers are those of SentencePiece.
DEFAULT_NORMALIZATION = "nmt_nfkc"


@dataclasses.dataclass
class Published:
    """A published model.

    Attributes:
        config: The `ModelConfig` of the network.
        vocabulary: Pieces of sources in the order of their ids.
        target_vocabulary: Those of targets, the same unless there are two vocabularies.
        source, target: The SentencePiece models, bytes.
        weights: Dict of arrays, named as those of transformers.
        has_pad: Whether the padding token has an embedding. It begins translations; if
            it has none, that is zero, as in Marian.
    """

    config: ModelConfig
    vocabulary: list[str]
    target_vocabulary: list[str]
    source: bytes
    target: bytes
    weights: dict[str, np.ndarray]
    has_pad: bool


def read_published(folder: Path) -> Published:
    """Read a published model from its folder."""
    if (folder / "config.json").is_file():
        return read_transformers(folder)
    archives = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if archives:
        return read_marian(folder, archives)
    raise UserError(
        "expected the folder of a Marian model: config.json and model.safetensors of "
        f"transformers, or a .npz file of Marian. Received: {str(folder)!r}"
    )


def read_file(folder: Path, name: str) -> bytes:
    """Return the content of a file of a published model."""
    path = folder / name
    if not path.is_file():
        raise UserError(f"{str(folder)!r} has no {name}")
    return path.read_bytes()


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in a JSON file of a published model."""
    try:
        content = json.loads(read_file(folder, name))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not JSON: {reason(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{name} is not an object")
    return content


# Entries of config.json that the network presumes, with the values of OPUS-MT.
_EXPECTED: dict[str, Any] = {
    "model_type": "marian",
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "static_position_embeddings": True,
}
# Those that must be given, because they have other defaults.
_REQUIRED = ("model_type", "scale_embedding")


def read_transformers(folder: Path) -> Published:
    """Read a model that transformers has saved."""
    config = read_object(folder, "config.json")
    for name, expected in _EXPECTED.items():
        value = config.get(name, None if name in _REQUIRED else expected)
        if value != expected:
            raise UserError(
                f"expected a Marian model with {name}={expected!r} in config.json. "
                f"Received: {value!r}"
            )
    depth = _size(config, "d_model")
    units, heads = (
        _equal(config, f"encoder_{name}", f"decoder_{name}")
        for name in ("ffn_dim", "attention_heads")
    )
    model = ModelConfig(
        **_common(
            depth,
            units,
            heads,
            _size(config, "encoder_layers"),
            _size(config, "decoder_layers"),
            config.get("activation_function"),
            config.get("dropout"),
        ),
        max_length=_size(config, "max_position_embeddings"),
        epsilon=1e-5,
        separate_embeddings=not config.get("share_encoder_decoder_embeddings", True),
    )
    names = ["vocab.json"]
    if (folder / "target_vocab.json").is_file():
        if not model.separate_embeddings:
            raise UserError(
                "expected share_encoder_decoder_embeddings=False in config.json of a "
                "model with target_vocab.json. Received: True"
            )
        names.append("target_vocab.json")
    vocabularies = [_in_order(read_object(folder, x), x) for x in names]
    for file, pieces in zip(names, vocabularies, strict=True):
        for name, piece in (("eos_token_id", END_PIECE), ("pad_token_id", PAD_PIECE)):
            if piece not in pieces or config.get(name) != pieces.index(piece):
                raise UserError(
                    f"expected {name} of config.json to be that of {piece} in {file}. "
                    f"Received: {config.get(name)!r}"
                )
    start = config.get("decoder_start_token_id")
    if start != config["pad_token_id"]:
        raise UserError(
            "expected decoder_start_token_id to be pad_token_id. "
            f"Received: {start!r} and {config['pad_token_id']!r}"
        )
    return Published(
        model,
        vocabularies[0],
        vocabularies[-1],
        read_file(folder, "source.spm"),
        read_file(folder, "target.spm"),
        _transformers_weights(folder, separate=model.separate_embeddings),
        has_pad=True,
    )


def _common(depth, units, heads, encoder_layers, decoder_layers, activation, dropout):
    """Return the options that both layouts have, as arguments of `ModelConfig`."""
    if activation not in ACTIVATIONS:
        raise UserError(
            f"expected one of the activations {', '.join(ACTIVATIONS)}. "
            f"Received: {activation!r}"
        )
    if depth % 2 or depth % heads:
        raise UserError(
            f"expected a depth that is even and a multiple of {heads} heads. "
            f"Received: {depth}"
        )
    is_rate = isinstance(dropout, float) and 0 <= dropout < 1
    return {
        "decoder": "transformer",
        "attention": "self-attention",
        "embedding_units": depth,
        "units": units,
        "encoder_units": 0,
        "heads": heads,
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        "activation": ACTIVATIONS[activation],
        "dropout": dropout if is_rate else 0.1,
        "norm_first": False,
        "position_layout": "halves",
        "output_bias": True,
        # Where OPUS-MT trains attention by word alignments, if at all.
        "alignment_layer": decoder_layers - 1,
        "alignment_head": 0,
    }


def _size(config, name, largest=65_536):
    """Return a positive integer of a configuration."""
    value = config.get(name)
    if not isinstance(value, int) or not 0 < value <= largest:
        raise UserError(
            f"expected {name} to be an integer from 1 to {largest:,}. "
            f"Received: {value!r:.60}"
        )
    return value


def _equal(config, *names):
    """Return a size that encoder and decoder share."""
    sizes = [_size(config, name) for name in names]
    if len(set(sizes)) > 1:
        raise UserError(f"expected equal {' and '.join(names)}. Received: {sizes}")
    return sizes[0]


def _in_order(ids: dict[str, Any], name: str) -> list[str]:
    """Return the pieces of a dict from pieces to ids in the order of the ids."""
    numbers = list(ids.values())
    if not all(type(x) is int for x in numbers) or (
        sorted(numbers) != list(range(len(numbers)))
    ):
        raise UserError(f"expected the ids from 0 to {len(numbers) - 1:,} in {name}")
    return sorted(ids, key=ids.__getitem__)


# --- Weights ---


# Names of the embeddings in transformers.
_SHARED, _OUTPUT = "model.shared.weight", "lm_head.weight"
_OF_SOURCE, _OF_TARGET = (
    f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")
)


def _transformers_weights(folder, *, separate):
    """Return the arrays of a model of transformers.

    If the embeddings are `separate`, there are two of them.
    """
    if (folder / "model.safetensors").is_file():
        weights = read_safetensors(folder / "model.safetensors")
    elif (folder / "pytorch_model.bin").is_file():
        weights = read_pytorch(folder / "pytorch_model.bin")
    else:
        raise UserError(
            f"{str(folder)!r} has neither model.safetensors nor pytorch_model.bin"
        )
    if separate:
        tables = {
            "source_embedding": _pop_tied(weights, _OF_SOURCE),
            "embedding": _pop_tied(weights, _OF_TARGET, _OUTPUT),
        }
    else:
        names = _SHARED, _OF_SOURCE, _OF_TARGET, _OUTPUT
        tables = {"embedding": _pop_tied(weights, *names)}
    # The positions are computed.
    for side in ("encoder", "decoder"):
        weights.pop(f"model.{side}.embed_positions.weight", None)
    return {**weights, **tables}


def _pop_tied(weights, *names):
    """Remove equal arrays of some names from the weights, and return one of them."""
    tables = [weights.pop(name) for name in names if name in weights]
    if not tables:
        raise UserError(f"the weights have no {names[0]}")
    if not all(np.array_equal(x, tables[0]) for x in tables):
        raise UserError(f"expected one embedding as {', '.join(names)}")
    return tables[0]


_SAFETENSORS_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file, floats as float32."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise UserError(f"{path.name} is not a safetensors file: a wrong header")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path.name} is not a safetensors file") from error
    if size == 8 + length:
        raise UserError(f"{path.name} has no tensors")
    content = np.memmap(path, "uint8", "r", offset=8 + length)
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = _SAFETENSORS_TYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            count = math.prod(shape)
            fits = 0 <= begin <= end <= len(content)
            if not fits or count * np.dtype(dtype).itemsize != end - begin:
                raise ValueError("wrong sizes")
            array = content[begin:end].view(dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{name!r:.60} of {path.name} is not a tensor of floats: "
                f"{reason(error)}"
            ) from error
        if entry["dtype"] == "BF16":
            # The upper half of a float32.
            array = (array.astype("<u4") << 16).view("<f4")
        arrays[name] = array.astype("float32")
    return arrays


class _Storage:
    """The numbers of one tensor or of several, in a file of PyTorch."""

    def __init__(self, dtype, key, count):
        self.dtype, self.key, self.count = np.dtype(dtype), key, count
        self.numbers = np.zeros(0, self.dtype)

    def read(self, content):
        if len(content) != self.count * self.dtype.itemsize:
            raise pickle.UnpicklingError("a storage has a wrong size")
        self.numbers = np.frombuffer(content, self.dtype)


@dataclasses.dataclass
class _Tensor:
    """A tensor in a file of PyTorch: a view of a storage."""

    storage: _Storage
    offset: int
    shape: tuple
    strides: tuple

    def array(self):
        last = sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=False)
        )
        fits = len(self.shape) == len(self.strides) and min(self.shape, default=1) > 0
        fits = fits and min(self.strides, default=0) >= 0 <= self.offset
        if not fits or self.offset + last >= self.storage.count:
            raise pickle.UnpicklingError("a tensor is outside of its storage")
        numbers = self.storage.numbers[self.offset :]
        strides = [step * self.storage.dtype.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(numbers, self.shape, strides)
        return view.astype("float32")


class _TensorUnpickler(pickle.Unpickler):
    """Unpickler of dicts of tensors, which knows no other classes and functions."""

    def __init__(self, file):
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module, name):
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
            ("torch", "FloatStorage"): "<f4",
            ("torch", "HalfStorage"): "<f2",
            ("torch", "DoubleStorage"): "<f8",
            ("torch", "LongStorage"): "<i8",
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a tensor")
        return known[module, name]

    def persistent_load(self, pid):
        _, dtype, key, _, count, *_ = pid
        if key not in self.storages:
            self.storages[key] = _Storage(dtype, key, count)
        return self.storages[key]


def _rebuild(storage, offset, shape, strides, *_):
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def read_pytorch(path: Path) -> dict[str, np.ndarray]:
    """Read the tensors of a file of PyTorch, as float32, without executing its pickle.

    Files of PyTorch 1.6 and later are archives; in older ones, several pickles precede
    the numbers.
    """
    try:
        tensors = _zipped(path) if zipfile.is_zipfile(path) else _legacy(path)
        return {
            name: tensor.array()
            for name, tensor in tensors.items()
            if isinstance(tensor, _Tensor)
        }
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        AttributeError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"{path.name} is not a file of tensors: {reason(error)}"
        ) from error


def _zipped(path):
    """Return the `_Tensor` objects of an archive by their names."""
    with zipfile.ZipFile(path) as archive:
        name = next(x for x in archive.namelist() if x.endswith("/data.pkl"))
        with archive.open(name) as file:
            unpickler = _TensorUnpickler(file)
            tensors = unpickler.load()
        folder = name.removesuffix("data.pkl")
        for key, storage in unpickler.storages.items():
            storage.read(archive.read(f"{folder}data/{key}"))
    return tensors


def _legacy(path):
    """Return the `_Tensor` objects of an older file by their names."""
    with path.open("rb") as file:
        for _ in range(3):
            # A magic number, the version, and sizes of numbers.
            _TensorUnpickler(file).load()
        unpickler = _TensorUnpickler(file)
        tensors = unpickler.load()
        for key in _TensorUnpickler(file).load():
            storage = unpickler.storages[key]
            count = int.from_bytes(file.read(8), "little")
            if count != storage.count:
                raise pickle.UnpicklingError("a storage has a wrong size")
            storage.read(file.read(count * storage.dtype.itemsize))
    return tensors


# --- Marian's own files ---

# Options of Marian that the network presumes, with their values.
_MARIAN_EXPECTED = {
    "type": ("transformer",),
    "transformer-postprocess": ("dan",),
    "transformer-preprocess": ("",),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-no-projection": ("false",),
    "transformer-depth-scaling": ("false", "true"),
    "lemma-dim-emb": ("0",),
}
# Names of the parts of a layer in Marian, and in transformers.
_MARIAN_PARTS = {
    "self_Wo_ln_scale": "self_attn_layer_norm.weight",
    "self_Wo_ln_bias": "self_attn_layer_norm.bias",
    "context_Wo_ln_scale": "encoder_attn_layer_norm.weight",
    "context_Wo_ln_bias": "encoder_attn_layer_norm.bias",
    "ffn_W1": "fc1.weight",
    "ffn_b1": "fc1.bias",
    "ffn_W2": "fc2.weight",
    "ffn_b2": "fc2.bias",
    "ffn_ffn_ln_scale": "final_layer_norm.weight",
    "ffn_ffn_ln_bias": "final_layer_norm.bias",
    **{
        f"{ours}_{kind}{letter}": f"{theirs}.{projection}_proj.{name}"
        for ours, theirs in (("self", "self_attn"), ("context", "encoder_attn"))
        for kind, name in (("W", "weight"), ("b", "bias"))
        for letter, projection in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out"))
    },
}
_MARIAN_EMBEDDINGS = {
    "Wemb": "embedding",
    "decoder_Wemb": "embedding",
    "encoder_Wemb": "source_embedding",
}
_LAYER = re.compile(r"(encoder|decoder)_l(\d+)_(.+)")


def read_yaml(text: str) -> dict[str, Any]:
    """Read the YAML that Marian writes: names with a value, or with a list of values.

    >>> read_yaml("beam-size: 6\\nvocabs:\\n  - a.yml\\n  - a.yml\\n")
    {'beam-size': '6', 'vocabs': ['a.yml', 'a.yml']}
    """
    entries: dict[str, Any] = {}
    name = ""
    for line in text.splitlines():
        if match := re.match(r"\s*- (.*)", line):
            if not isinstance(entries.get(name), list):
                entries[name] = []
            entries[name].append(_unquoted(match[1]))
        elif match := re.match(r"([\w-]+):(.*)", line):
            name = match[1]
            entries[name] = _unquoted(match[2])
    return entries


def _unquoted(text):
    text = text.strip()
    return text[1:-1] if text[:1] in "\"'" and text[:1] == text[-1:] else text


def read_vocabulary(text: str, name: str) -> list[str]:
    """Read the vocabulary of Marian, lines such as `"piece": 12`."""
    ids: dict[str, int] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(.+): *(\d+)\s*", line)
        if match is None:
            continue
        piece = match[1]
        if piece.startswith('"'):
            try:
                piece = json.loads(piece)
            except ValueError:
                piece = piece[1:-1]
        elif piece.startswith("'"):
            piece = piece[1:-1].replace("''", "'")
        ids[piece] = int(match[2])
    return _in_order(ids, name)


def read_marian(folder: Path, archives: list[Path]) -> Published:
    """Read a model in the files of Marian."""
    decoder = read_yaml(_text(read_file(folder, "decoder.yml"), "decoder.yml"))
    models, vocabularies = decoder.get("models"), decoder.get("vocabs")
    if not (isinstance(models, list) and isinstance(vocabularies, list)):
        raise UserError("expected lists of models and vocabs in decoder.yml")
    if len(models) > 1 or len(vocabularies) > 2:
        raise UserError(
            "expected one model and the vocabularies of source and target in "
            f"decoder.yml. Received: {len(models)} and {len(vocabularies)}"
        )
    names = [path.name for path in archives]
    name = Path(models[0]).name
    if name not in names:
        raise UserError(f"{str(folder)!r} has no {name}. It has {listed(name, names)}")
    arrays = _marian_arrays(folder / name)
    options = read_yaml(
        _text(arrays.pop("special:model.yml").tobytes(), "special:model.yml")
        if "special:model.yml" in arrays
        else ""
    )
    for option, allowed in _MARIAN_EXPECTED.items():
        value = options.get(option, None if option == "type" else allowed[0])
        if value not in allowed:
            raise UserError(
                f"expected a model of Marian with {option} "
                f"{' or '.join(map(repr, allowed))}. Received: {value!r:.60}"
            )
    is_true = {
        name
        for name in ("tied-embeddings-all", "tied-embeddings", "tied-embeddings-src")
        if options.get(name) == "true"
    }
    separate = is_true == {"tied-embeddings"}
    if not separate and "tied-embeddings-all" not in is_true:
        raise UserError(
            "expected a model of Marian with tied-embeddings-all or tied-embeddings. "
            f"Received: {', '.join(sorted(is_true)) or 'neither'}"
        )
    vocabularies = [Path(x).name for x in vocabularies]
    if len(set(vocabularies)) > 1 and not separate:
        raise UserError(
            "expected one vocabulary for one embedding (tied-embeddings-all). "
            f"Received: {' and '.join(vocabularies)}"
        )
    sizes = {
        ours: _number(options, theirs)
        for ours, theirs in (
            ("depth", "dim-emb"),
            ("units", "transformer-dim-ffn"),
            ("heads", "transformer-heads"),
            ("encoder_layers", "enc-depth"),
            ("decoder_layers", "dec-depth"),
        )
    }
    half = sizes["depth"] // 2
    config = ModelConfig(
        **_common(
            activation=options.get("transformer-ffn-activation"), dropout=0.1, **sizes
        ),
        max_length=512,
        epsilon=1e-9,
        # Marian's wavelengths reach 10000 with the last pair of a sine and a cosine.
        max_wavelength=10_000.0 ** (half / max(half - 1, 1)),
        separate_embeddings=separate,
    )
    source, target = (
        read_vocabulary(_text(read_file(folder, x), x), x)
        for x in (vocabularies[0], vocabularies[-1])
    )
    return Published(
        config,
        source,
        target,
        read_file(folder, "source.spm"),
        read_file(folder, "target.spm"),
        _marian_weights(arrays),
        has_pad=False,
    )


def _text(content, name):
    try:
        return content.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8") from error


def _number(options, name):
    text = str(options.get(name))
    return _size({name: int(text) if text.isdigit() else text}, name)


def _marian_arrays(path):
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path.name} cannot be read: {reason(error)}") from error


def _marian_weights(arrays):
    """Return the arrays of Marian under the names of transformers."""
    weights = {}
    for name, array in arrays.items():
        if name in _MARIAN_EMBEDDINGS:
            weights[_MARIAN_EMBEDDINGS[name]] = array
            continue
        if name == "decoder_ff_logit_out_b":
            weights["final_logits_bias"] = array
            continue
        match = _LAYER.fullmatch(name)
        if match is None or match[3] not in _MARIAN_PARTS:
            raise UserError(f"the model has weights that are not known: {name!r:.60}")
        side, number, part = match.groups()
        weights[f"model.{side}.layers.{int(number) - 1}.{_MARIAN_PARTS[part]}"] = (
            array.T if part.rpartition("_")[2].startswith("W") else array.squeeze()
        )
    return {name: array.astype("float32") for name, array in weights.items()}


# --- The network and its tokenizer ---


def joint_pieces(published: Published) -> list[str]:
    """Return the pieces of our vocabulary, from the first id after `SPECIAL` on.

    Of two vocabularies, it has the pieces of both.
    """
    pieces = dict.fromkeys([*published.vocabulary, *published.target_vocabulary])
    special = PAD_PIECE, END_PIECE, UNKNOWN_PIECE
    return [piece for piece in pieces if piece not in special]


def token_order(published: Published, *, is_source: bool = False) -> list[int | None]:
    """Return for each of our token ids its number in the published target vocabulary.

    Our ids begin with PAD, START, END and UNKNOWN; `None` is for a token that the
    vocabulary does not have. If `is_source`, it is that of sources.
    """
    vocabulary = published.vocabulary if is_source else published.target_vocabulary
    numbers = {piece: i for i, piece in enumerate(vocabulary)}
    missing = [x for x in (END_PIECE, UNKNOWN_PIECE) if x not in numbers]
    if missing:
        raise UserError(f"the vocabulary has no {missing[0]}")
    # START is the padding, which begins translations.
    first = PAD_PIECE, PAD_PIECE, END_PIECE, UNKNOWN_PIECE
    return [numbers.get(piece) for piece in (*first, *joint_pieces(published))]


class _Assignment:
    """Weights of a published model, which layers take by their names."""

    def __init__(self, weights: dict[str, np.ndarray]):
        self.rest = dict(weights)

    def take(self, name: str) -> np.ndarray:
        if name not in self.rest:
            raise UserError(f"the weights have no {name}")
        return self.rest.pop(name)

    def assign(self, variable: Any, array: np.ndarray, name: str) -> None:
        if tuple(variable.shape) != array.shape:
            raise UserError(
                f"expected the shape {tuple(variable.shape)} of {name}. "
                f"Received: {array.shape}"
            )
        if not np.isfinite(array).all():
            raise UserError(f"{name} has numbers that are not finite")
        variable.assign(array)

    def dense(self, layer: Any, name: str) -> None:
        # PyTorch stores a row for each output.
        self.assign(layer.kernel, self.take(f"{name}.weight").T, name)
        self.assign(layer.bias, self.take(f"{name}.bias"), name)

    def norm(self, layer: Any, name: str) -> None:
        self.assign(layer.gamma, self.take(f"{name}.weight"), name)
        self.assign(layer.beta, self.take(f"{name}.bias"), name)

    def attention(self, attention: Any, name: str) -> None:
        step, memory = attention.step, attention.memory
        self.dense(step.query_projection, f"{name}.q_proj")
        self.dense(memory.key_projection, f"{name}.k_proj")
        self.dense(memory.value_projection, f"{name}.v_proj")
        self.dense(step.output_projection, f"{name}.out_proj")

    def layer(self, layer: Any, name: str, *, is_decoder: bool) -> None:
        self.attention(layer.self_attention, f"{name}.self_attn")
        self.norm(layer.self_attention_norm, f"{name}.self_attn_layer_norm")
        if is_decoder:
            self.attention(layer.cross_attention, f"{name}.encoder_attn")
            self.norm(layer.cross_attention_norm, f"{name}.encoder_attn_layer_norm")
        self.dense(layer.feed_forward.hidden_projection, f"{name}.fc1")
        self.dense(layer.feed_forward.output_projection, f"{name}.fc2")
        self.norm(layer.feed_forward_norm, f"{name}.final_layer_norm")


def assign_weights(network: Any, published: Published) -> None:
    """Set the weights of a `TransformerNetwork` to those of a published model."""
    weights = _Assignment(published.weights)
    if network.source_embedding is not network.embedding:
        table = weights.take("source_embedding")
        rows = _rows_of(table, token_order(published, is_source=True), 0.0)
        name = "the embedding of sources"
        weights.assign(network.source_embedding.embeddings, rows, name)
    order = token_order(published)
    table = weights.take("embedding")
    rows = _rows_of(table, order, 0.0)
    weights.assign(network.embedding.embeddings, rows, "the embedding")
    bias = weights.rest.pop("final_logits_bias", np.zeros(len(table), "float32"))
    bias = _rows_of(bias.reshape(-1).astype("float64"), order, NEVER)
    if published.has_pad:
        # Two of our tokens are this one: together, they have its probability.
        bias[[PAD, START]] -= math.log(2)
    weights.assign(network.output_bias, bias, "final_logits_bias")
    for index, layer in enumerate(network.encoder_layers):
        weights.layer(layer, f"model.encoder.layers.{index}", is_decoder=False)
    for index, layer in enumerate(network.transformer.layers):
        weights.layer(layer, f"model.decoder.layers.{index}", is_decoder=True)
    if weights.rest:
        raise UserError(
            f"the model has weights that are not known: {next(iter(weights.rest))!r}"
        )


def _rows_of(table, order, missing):
    """Return the rows of a published table in the order of our ids.

    A token that the vocabulary does not have gets a row of the number `missing`.
    """
    exists = np.array([number is not None for number in order])
    count = max(number for number in order if number is not None) + 1
    if len(table) != count:
        raise UserError(
            f"expected {count:,} embeddings and biases, one for each token. "
            f"Received: {len(table):,}"
        )
    rows = table[[number or 0 for number in order]]
    return np.where(exists.reshape(-1, *[1] * (table.ndim - 1)), rows, missing)


def subwords_of(published: Published) -> Subwords:
    """Return the tokenizer of a published model.

    Both SentencePiece models get the joint vocabulary in the order of our ids. A token
    that one of them does not know is in its list, but is produced only if it is a
    single character. A subword that is in no vocabulary is left out, so that a text is
    split into subwords that the network knows.
    """
    pieces = joint_pieces(published)
    source, target = (
        _with_vocabulary(content, pieces, set(vocabulary), name)
        for content, vocabulary, name in (
            (published.source, published.vocabulary, "source.spm"),
            (published.target, published.target_vocabulary, "target.spm"),
        )
    )
    return Subwords(with_target(source, target))


def _with_vocabulary(content, pieces, vocabulary, name):
    """Return a SentencePiece model with other pieces, in the given order.

    It produces only those that are in its `vocabulary`, a set.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

    try:
        old = ModelProto.FromString(content)
    except DecodeError as error:
        raise UserError(f"{name} is not a SentencePiece model") from error
    if not old.pieces:
        raise UserError(f"{name} is not a SentencePiece model: it has no pieces")
    kinds = ModelProto.SentencePiece
    produced = kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE
    known = {x.piece: x for x in old.pieces if x.type in produced}
    # SentencePiece gives this score to a character that it does not know.
    rare = min(x.score for x in old.pieces) - UNKNOWN_PENALTY
    new = ModelProto()
    for token, piece in SPECIAL.items():
        kind = kinds.UNKNOWN if token == UNKNOWN else kinds.CONTROL
        new.pieces.add(piece=piece, score=0.0, type=kind)
    for piece in pieces:
        if _LANGUAGE_TOKEN.match(piece):
            # With the mark of a beginning, as it is found in a text.
            kind = kinds.USER_DEFINED if piece in vocabulary else kinds.UNUSED
            new.pieces.add(piece=WORD_BEGIN + piece, score=0.0, type=kind)
        elif piece not in vocabulary:
            new.pieces.add(piece=piece, score=0.0, type=kinds.UNUSED)
        elif piece in known:
            new.pieces.add().CopyFrom(known[piece])
        elif len(piece) == 1:
            # Marian finds it in its vocabulary, although the tokenizer lacks it.
            new.pieces.add(piece=piece, score=rare, type=kinds.NORMAL)
        else:
            new.pieces.add(piece=piece, score=0.0, type=kinds.UNUSED)
    new.trainer_spec.model_type = old.trainer_spec.model_type
    if new.trainer_spec.model_type not in (TrainerSpec.UNIGRAM, TrainerSpec.BPE):
        raise UserError(f"expected {name} to be a model of the kind unigram or bpe")
    new.trainer_spec.vocab_size = len(new.pieces)
    new.trainer_spec.byte_fallback = old.trainer_spec.byte_fallback
    for token, field in ((PAD, "pad"), (START, "bos"), (END, "eos"), (UNKNOWN, "unk")):
        setattr(new.trainer_spec, f"{field}_id", token)
        setattr(new.trainer_spec, f"{field}_piece", SPECIAL[token])
    spec = new.normalizer_spec
    spec.CopyFrom(old.normalizer_spec)
    if spec.precompiled_charsmap:
        spec.name = (
            spec.name if normalization_table(spec.name) else DEFAULT_NORMALIZATION
        )
        # Never a table from a file, which could be crafted.
        spec.precompiled_charsmap = normalization_table(spec.name)
    return new.SerializeToString()


def languages_in(subwords: Subwords) -> list[str]:
    """Return the target languages of a multilingual model, such as `["deu", "fra"]`."""
    return list(subwords.languages)
