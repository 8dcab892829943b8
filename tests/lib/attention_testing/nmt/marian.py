"""Folders of Marian models with random weights, as transformers and Marian write them.

The numbers do not depend on a library of random numbers but NumPy's, so that the same
model can be made where transformers is installed, and where it is not.
"""

import io
import json
import pathlib

import numpy as np

SIZES = {"depth": 8, "units": 13, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
# A vocabulary of both languages, in the order of published ones.
SOURCE_WORDS = "a dog runs in the snow two cats sleep on red roof"
TARGET_WORDS = "ein hund rennt im schnee zwei katzen schlafen auf rotem dach"


def corpus(words, count=400):
    """Return sentences of some words, in a fixed order."""
    random = np.random.default_rng(3)
    words = words.split()
    return [" ".join(random.choice(words, 6)).capitalize() + "." for _ in range(count)]


def spm(words, size=40, **options):
    """Return a SentencePiece model of the kind of OPUS-MT: unigram, nmt_nfkc."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus(words)),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def pieces_of(model):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, len(processor))]


def vocabulary_of(source, target, languages=()):
    """Return the joint vocabulary: the end, unknown, all pieces, and padding."""
    pieces = dict.fromkeys([*pieces_of(source), *pieces_of(target)])
    return ["</s>", "<unk>", *languages, *pieces, "<pad>"]


# A vocabulary that does not depend on the version of SentencePiece.
LETTERS = ["</s>", "<unk>", *"abcdefghijklmnopqrst", "<pad>"]


def random_weights(
    vocabulary_size,
    *,
    depth,
    units,
    heads,
    encoder_layers,
    decoder_layers,
    seed=1,
    end_bias=0.0,
):
    """Return weights named as those of transformers; padding has a zero embedding.

    `end_bias` is the bias of the end token: the larger it is, the shorter are
    translations.
    """
    random = np.random.default_rng(seed)

    def normal(*shape, scale=0.4):
        return (scale * random.standard_normal(shape)).astype("float32")

    table = normal(vocabulary_size, depth, scale=depth**-0.5)
    table[-1] = 0.0
    bias = normal(1, vocabulary_size)
    bias[:, [0, -1]] = end_bias, 0.0
    weights = {"model.shared.weight": table, "final_logits_bias": bias}
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        for index in range(layers):
            name = f"model.{side}.layers.{index}"
            attentions = ["self_attn"] + ["encoder_attn"] * (side == "decoder")
            for attention in attentions:
                for part in "qkv":
                    prefix = f"{name}.{attention}.{part}_proj"
                    weights[f"{prefix}.weight"] = normal(depth, depth)
                    weights[f"{prefix}.bias"] = normal(depth)
                prefix = f"{name}.{attention}.out_proj"
                weights[f"{prefix}.weight"] = normal(depth, depth)
                weights[f"{prefix}.bias"] = normal(depth)
            weights[f"{name}.fc1.weight"] = normal(units, depth)
            weights[f"{name}.fc1.bias"] = normal(units)
            weights[f"{name}.fc2.weight"] = normal(depth, units)
            weights[f"{name}.fc2.bias"] = normal(depth)
            norms = [f"{x}_layer_norm" for x in attentions] + ["final_layer_norm"]
            for norm in norms:
                weights[f"{name}.{norm}.weight"] = 1 + normal(depth)
                weights[f"{name}.{norm}.bias"] = normal(depth)
    return weights


def safetensors(weights):
    """Return the bytes of a safetensors file."""
    header, content = {}, b""
    for name, array in weights.items():
        end = len(content) + array.nbytes
        header[name] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": [len(content), end],
        }
        content += array.tobytes()
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + content


def config_of(vocabulary, *, depth, units, heads, encoder_layers, decoder_layers):
    """Return config.json as transformers writes it, without what has no effect."""
    pad = len(vocabulary) - 1
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "d_model": depth,
        "vocab_size": len(vocabulary),
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": units,
        "decoder_ffn_dim": units,
        "activation_function": "swish",
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": 64,
        "dropout": 0.1,
        "eos_token_id": 0,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": None,
        "bad_words_ids": [[pad]],
    }


def write_transformers(
    folder,
    sizes=SIZES,
    *,
    vocabulary=None,
    languages=(),
    seed=1,
    end_bias=0.0,
    **changes,
):
    """Write the folder of a random model as transformers does; return its vocabulary.

    Without a `vocabulary`, it is that of two SentencePiece models. `changes` are other
    entries of config.json.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = target = b"-"
    if vocabulary is None:
        source, target = spm(SOURCE_WORDS), spm(TARGET_WORDS)
        vocabulary = vocabulary_of(source, target, languages)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    config = {**config_of(vocabulary, **sizes), **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = random_weights(len(vocabulary), **sizes, seed=seed, end_bias=end_bias)
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    return vocabulary


def write_separate(folder, sizes=SIZES, seed=1, end_bias=0.0):
    """Write a random model with two vocabularies; return both.

    Its tokens have the embeddings and biases that they have in the model of
    `write_transformers`. Both vocabularies are as long, as transformers needs it.
    """
    joint = write_transformers(folder, sizes, seed=seed, end_bias=end_bias)
    weights = random_weights(len(joint), **sizes, seed=seed, end_bias=end_bias)
    sides = {}
    for name in ("source", "target"):
        pieces = set(pieces_of((folder / f"{name}.spm").read_bytes()))
        # In another order than that of the joint vocabulary.
        sides[name] = sorted(pieces)
    longest = max(map(len, sides.values()))
    numbers = {piece: i for i, piece in enumerate(joint)}
    table, bias = weights.pop("model.shared.weight"), weights["final_logits_bias"]
    for (name, pieces), side, file in zip(
        sides.items(),
        ("encoder", "decoder"),
        ("vocab.json", "target_vocab.json"),
        strict=True,
    ):
        others = [f"<{i}>" for i in range(longest - len(pieces))]
        sides[name] = ["</s>", "<unk>", *pieces, *others, "<pad>"]
        ids = {piece: i for i, piece in enumerate(sides[name])}
        (folder / file).write_text(json.dumps(ids), encoding="utf-8")
        # The rest are never used.
        order = [numbers.get(piece, 0) for piece in sides[name]]
        weights[f"model.{side}.embed_tokens.weight"] = table[order]
        weights["final_logits_bias"] = bias[:, order]
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    config = config_of(sides["source"], **sizes)
    config |= {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": len(sides["target"]),
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return sides["source"], sides["target"]


def write_marian(folder, sizes=SIZES, seed=1):
    """Write the folder of the same random model as Marian does, without padding."""
    vocabulary = write_transformers(folder, sizes, seed=seed)
    weights = random_weights(len(vocabulary), **sizes, seed=seed)
    for name in ("config.json", "vocab.json", "model.safetensors"):
        (folder / name).unlink()
    arrays = {
        "Wemb": weights.pop("model.shared.weight")[:-1],
        "decoder_ff_logit_out_b": weights.pop("final_logits_bias")[:, :-1],
    }
    for name, array in weights.items():
        _, side, _, layer, *part, kind = name.split(".")
        prefix = f"{side}_l{int(layer) + 1}"
        arrays[f"{prefix}_{marian_part(part, kind)}"] = (
            array.T if array.ndim == 2 else array[None]
        )
    options = {
        "type": "transformer",
        "dim-emb": sizes["depth"],
        "transformer-dim-ffn": sizes["units"],
        "transformer-heads": sizes["heads"],
        "enc-depth": sizes["encoder_layers"],
        "dec-depth": sizes["decoder_layers"],
        "transformer-ffn-activation": "swish",
        "transformer-postprocess": "dan",
        "transformer-preprocess": '""',
        "tied-embeddings-all": "true",
    }
    text = "".join(f"{name}: {value}\n" for name, value in options.items()) + "\0"
    arrays["special:model.yml"] = np.frombuffer(text.encode(), "int8")
    np.savez(folder / "model.npz", **arrays)
    lines = [f"{json.dumps(x)}: {i}\n" for i, x in enumerate(vocabulary[:-1])]
    (folder / "vocab.yml").write_text("".join(lines), encoding="utf-8")
    (folder / "decoder.yml").write_text(
        "models:\n  - model.npz\nvocabs:\n  - vocab.yml\n  - vocab.yml\nbeam-size: 6\n",
        encoding="utf-8",
    )
    return vocabulary[:-1]


def marian_part(part, kind):
    """Return Marian's name of a weight of a layer, given that of transformers."""
    letter = {"weight": "W", "bias": "b"}[kind]
    ending = {"weight": "scale", "bias": "bias"}[kind]
    attentions = {"self_attn": "self", "encoder_attn": "context"}
    match part:
        case ["fc1" | "fc2" as name]:
            return f"ffn_{letter}{name[-1]}"
        case ["final_layer_norm"]:
            return f"ffn_ffn_ln_{ending}"
        case [norm]:
            return f"{attentions[norm.removesuffix('_layer_norm')]}_Wo_ln_{ending}"
        case [attention, projection]:
            return f"{attentions[attention]}_{letter}{projection[0]}"
