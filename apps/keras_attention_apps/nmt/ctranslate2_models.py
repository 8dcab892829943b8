"""Transformers as models of CTranslate2, for its engine and for Argos Translate.

Shapes: E depth of an embedding, N vocabulary size.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation

from keras_attention_apps.common import files, models
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END, PAD, START, UNKNOWN
from keras_attention_apps.nmt.network.transformer import TransformerNetwork

# Names of the special tokens in CTranslate2.
SPECIAL = {PAD: "<blank>", START: "<s>", END: "</s>", UNKNOWN: "<unk>"}
# Files of a model, beside which its subwords are written under the usual name.
FILES = ("config.json", "model.bin", "shared_vocabulary.json")
SUBWORDS = "sentencepiece.model"
ACTIVATIONS = {
    "relu": Activation.RELU,
    "swish": Activation.SWISH,
    "gelu": Activation.GELU,
}
# Logit of a token that no translation has.
NEVER = -10_000.0
# CTranslate2 cuts longer sources, END included.
MAX_INPUT_LENGTH = 1024


def check_convertible(translator: Any) -> None:
    """Raise a `UserError` if CTranslate2 has no network like that of a translator."""
    translator.check_single("CTranslate2")
    config, network = translator.config, translator.network
    kind = f"attention={config.attention}{' with copy' if config.copy else ''}"
    if isinstance(network, TransformerNetwork) and not config.copy:
        return
    raise UserError(
        "CTranslate2 runs translators with self-attention that do not copy. "
        f"Received: {kind}"
    )


def tokens(pieces: list[str]) -> list[str]:
    """Return the tokens of a vocabulary, in the order of their ids."""
    return [SPECIAL.get(i, piece) for i, piece in enumerate(pieces)]


def specification(
    network: TransformerNetwork, pieces: list[str], banned: Iterable[int] = ()
) -> TransformerSpec:
    """Return a network with the pieces of its vocabulary as CTranslate2 writes it.

    If its output layer has a bias, the `banned` tokens are never in a translation.
    CTranslate2 appends END to the sources.
    """
    config, table = network.config, _array(network.embedding.embeddings)
    sizes = config.encoder_layers, config.decoder_layers
    spec = TransformerSpec.from_config(
        sizes,
        config.heads,
        pre_norm=config.norm_first,
        activation=ACTIVATIONS[config.activation],
    )
    spec.config.layer_norm_epsilon = config.epsilon
    spec.config.add_source_eos = True
    spec.encoder.embeddings[0].weight = _array(network.source_embedding.embeddings)
    spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table
    bias = np.zeros(len(table), "float32")
    if network.output_bias is not None:
        bias = np.array(network.output_bias, "float32")
        bias[list(banned)] = NEVER
    spec.decoder.projection.bias = bias
    length = max(MAX_INPUT_LENGTH, config.max_length) + 1
    encodings = network.positions(np.zeros((1, length, table.shape[1]), "float32"))
    decoder = network.transformer
    for side, layers, last_norm in (
        (spec.encoder, network.encoder_layers, network.encoder_norm),
        (spec.decoder, decoder.layers, decoder.norm),
    ):
        side.position_encodings.encodings = _array(encodings[0])
        if config.norm_first:
            _set_norm(side.layer_norm, last_norm)
        for part, layer in zip(side.layer, layers, strict=True):
            step, memory = layer.self_attention.step, layer.self_attention.memory
            _set_norm(part.self_attention.layer_norm, layer.self_attention_norm)
            projected = step.query_projection, *_memory_projections(memory)
            _set_dense(part.self_attention.linear[0], *projected)
            _set_dense(part.self_attention.linear[1], step.output_projection)
            _set_norm(part.ffn.layer_norm, layer.feed_forward_norm)
            _set_dense(part.ffn.linear_0, layer.feed_forward.hidden_projection)
            _set_dense(part.ffn.linear_1, layer.feed_forward.output_projection)
    for part, layer in zip(spec.decoder.layer, decoder.layers, strict=True):
        step, memory = layer.cross_attention.step, layer.cross_attention.memory
        _set_norm(part.attention.layer_norm, layer.cross_attention_norm)
        _set_dense(part.attention.linear[0], step.query_projection)
        _set_dense(part.attention.linear[1], *_memory_projections(memory))
        _set_dense(part.attention.linear[2], step.output_projection)
    names = tokens(pieces)
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.validate()
    return spec


def _memory_projections(memory):
    return memory.key_projection, memory.value_projection


def _array(x):
    return np.ascontiguousarray(x, dtype="float32")


def _set_norm(spec, layer):
    spec.gamma, spec.beta = _array(layer.gamma), _array(layer.beta)


def _set_dense(spec, *layers):
    spec.weight = np.concatenate([_array(layer.kernel).T for layer in layers])
    spec.bias = np.concatenate([_array(layer.bias) for layer in layers])


def write_model(
    translator: Any, folder: Path, quantize: str = "none", *, bans: bool = True
) -> None:
    """Write the files of CTranslate2 for a translator, and its subwords.

    `quantize` is the precision of the matrices: `"none"`, `"int8"` or `"float16"`.
    Unless `bans`, the search has to ban padding and the like.
    """
    check_convertible(translator)
    tokenizer = translator.tokenizer
    banned = tokenizer.banned if bans else ()
    spec = specification(translator.network, tokenizer.pieces, banned)
    if quantize != "none":
        spec.optimize(quantization=quantize)
    spec.save(str(folder))
    (folder / SUBWORDS).write_bytes(translator.tokenizer.content)


def load_engine(translator: Any, **options: Any) -> ctranslate2.Translator:
    """Return the engine of CTranslate2 with the network of a translator.

    The options are those of `ctranslate2.Translator`.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Our searches ban them.
        write_model(translator, Path(folder), bans=False)
        return ctranslate2.Translator(folder, **options)


def older_names(folder: Path) -> set[str]:
    """Return the names of an older model in a folder; others have no digests."""
    return models.summed_names(folder) if files.holds(folder, FILES) else set()


def write_folder(
    translator: Any, folder: Path, quantize: str, companions: dict[str, bytes]
) -> None:
    """Write a translator as a folder for CTranslate2, with its card and licence."""
    with files.atomic_folder(folder, older_names) as temporary:
        write_model(translator, temporary, quantize)
        for name, content in companions.items():
            (temporary / name).write_bytes(content)
        models.write_sums(temporary)
