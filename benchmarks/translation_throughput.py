"""Throughput of translation, next to JoeyNMT.

Prints the median throughput of greedy search and of beam search with width 5, in
batches of sentences of similar length, and one by one. Both systems have 8,000
subwords, random weights, and either

- `bahdanau`: embeddings of 256, a bidirectional GRU of 320 units, and a GRU of 320 with
  additive attention, or
- `self-attention`: 4 + 4 layers of 128 with 4 heads and feed-forward layers of 256.

The lengths of the sentences are realistic: the median is 14 subwords, the maximum 40.
Both systems generate equally many subwords: END is forbidden, and they stop at 1.2
subwords per source subword, rounded up to a multiple of eight.

- ours: `SearchModel`, the search of the translator, as a graph;
- ours, bfloat16: the same in half precision;
- ours, XLA: with `jit_compile`, sentences padded to multiples of 16 subwords;
  compilation, which takes seconds for each length, is not counted;
- ours, LiteRT: a file with weights in float16, one sentence at a time, padded to the
  next of its lengths, for the cases one by one;
- JoeyNMT: its `search`, with a model of these sizes from its `build_model`. In
  `bahdanau`, the hidden layers of its scores and of its output are as large as the GRU,
  ours have 256. In bfloat16 it is no faster greedily, and its beam search fails;
- CTranslate2: a Transformer of the same sizes, for `self-attention`;
- CTranslate2, int8: the same with weights of eight bits.

With a trained model, ours is `Translator` from strings to strings, including subwords
and alignments, and translations end where the model ends them. JoeyNMT, with random
weights, receives the subwords, and generates as many as our longest translation of the
batch.

JoeyNMT needs older packages than TensorFlow, hence an environment of its own:

    python -m venv joey && joey/bin/pip install joeynmt importlib_metadata ctranslate2
    python benchmarks/translation_throughput.py --joeynmt joey/bin/python
    python benchmarks/translation_throughput.py --joeynmt joey/bin/python \
        --model my-model/model --text test.en
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import workers

SENTENCES, VOCABULARY = 256, 8000
MEDIAN_LENGTH, SPREAD, LENGTHS = 14, 0.4, (3, 40)
LENGTH_RATIO, LENGTH_STEP = 1.2, 8
# Lengths of sentences are multiples of this if the search is compiled.
COMPILED_STEP = 16
# Depth of the embeddings, units, layers of either side, and heads.
SIZES = {"bahdanau": (256, 320, 1, 4), "self-attention": (128, 256, 4, 4)}
# Special tokens of this project; `joeynmt_search` has those of JoeyNMT.
PAD, END, SPECIAL = 0, 2, 4
# Beam width, batch size, and n: every n-th sentence is searched.
CASES = {
    "greedy, 64 together": (1, 64, 1),
    "greedy, one by one": (1, 1, 8),
    "beam of 5, 64 together": (5, 64, 1),
    "beam of 5, one by one": (5, 1, 8),
}
OURS, HALF, COMPILED = "ours", "ours, bfloat16", "ours, XLA"
LITERT = "ours, LiteRT"
PEER, PEER_FAST, PEER_INT8 = "JoeyNMT", "CTranslate2", "CTranslate2, int8"
PEERS = (PEER, PEER_FAST, PEER_INT8)
# Environment variables that pass the task to the processes of the candidates.
TASK, PEER_PYTHON = "TRANSLATE_TASK", "TRANSLATE_JOEYNMT"


def random_task(attention):
    """Return sources as token ids, and the number of target tokens of each."""
    random = np.random.default_rng(0)
    lengths = MEDIAN_LENGTH * np.exp(SPREAD * random.normal(size=SENTENCES))
    sources = [
        [*random.integers(SPECIAL, VOCABULARY, length).tolist(), END]
        for length in np.clip(np.round(lengths), *LENGTHS).astype(int)
    ]
    steps = [
        LENGTH_STEP * math.ceil(LENGTH_RATIO * len(source) / LENGTH_STEP)
        for source in sources
    ]
    return {"attention": attention, "sources": sources, "steps": steps}


def real_task(model, text):
    """Return the sources and lengths of `random_task` for lines of a text file."""
    from keras_attention_apps.common.cli import quiet_tensorflow

    quiet_tensorflow()
    from keras_attention_apps.nmt import Translator

    lines = [line.strip() for line in text.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line][:SENTENCES]
    translator = Translator.from_preset(str(model))
    encode = translator.tokenizer.encode
    return {
        "attention": translator.config.attention,
        "model": str(model),
        "lines": lines,
        "sources": [encode(line) for line in lines],
        "steps": [
            len(encode(found.text))
            for found in translator.translate(lines, split=False)
        ],
    }


def batches_of(task, together, every, multiple=1):
    """Return pairs of an array of sources, the longest first, and a number of steps.

    The number of columns is a multiple of `multiple`.
    """
    chosen = range(0, len(task["sources"]), every)
    order = sorted(chosen, key=lambda i: -len(task["sources"][i]))
    found = []
    for first in range(0, len(order), together):
        batch = order[first : first + together]
        sources = [task["sources"][i] for i in batch]
        columns = math.ceil(len(sources[0]) / multiple) * multiple
        array = np.full((len(batch), columns), PAD, "int32")
        for row, source in zip(array, sources, strict=True):
            row[: len(source)] = source
        found.append((array, max(task["steps"][i] for i in batch)))
    return found


def our_search(
    task, beam_size, together, every, *, jit_compile=False, precision="float32"
):
    import keras
    from keras_attention_apps.common.network.base import computing_in

    if "model" in task:
        from keras_attention_apps.nmt import Translator

        translator = Translator.from_preset(
            task["model"], jit_compile=jit_compile, precision=precision
        )
        lines = task["lines"][::every]
        size = len(lines) if together > 1 else 1
        parts = [lines[i : i + size] for i in range(0, len(lines), size)]
        options = {"beam_size": beam_size, "batch_size": together, "split": False}
        return lambda: [translator.translate(part, **options) for part in parts]

    from keras_attention_apps.common.network.base import SearchModel

    from keras_attention import beam_search

    with computing_in(precision):
        network = random_network(task["attention"])
    batches = batches_of(task, together, every, COMPILED_STEP if jit_compile else 1)
    find = functools.partial(beam_search, beam_size=beam_size)
    searches = {
        steps: SearchModel(
            network, find, steps, banned=range(SPECIAL), jit_compile=jit_compile
        )
        for steps in {steps for _, steps in batches}
    }

    def search():
        for source, steps in batches:
            found = searches[steps].predict_on_batch({"source": source})
            found = {name: keras.ops.convert_to_numpy(x) for name, x in found.items()}
            assert (found["lengths"] == steps).all()

    return search


def random_network(attention):
    from keras_attention_apps.nmt.config import ModelConfig, with_recipe
    from keras_attention_apps.nmt.network.__init__ import build_network

    depth, units, layers, heads = SIZES[attention]
    sizes = {"embedding_units": depth, "units": units, "encoder_units": units}
    sizes |= {"encoder_layers": layers, "decoder_layers": layers, "heads": heads}
    config = with_recipe(ModelConfig(attention, **sizes), attention)
    return build_network(config, VOCABULARY)


def litert_search(task, beam_size, together, every):
    from ai_edge_litert.interpreter import Interpreter

    if "model" in task:
        from keras_attention_apps.nmt import LiteTranslator

        translator = LiteTranslator.from_preset(task["model"], threads=workers.CORES)
        lines = task["lines"][::every]
        options = {"beam_size": beam_size, "split": False}
        return lambda: [translator.translate(line, **options) for line in lines]

    import tensorflow as tf
    from keras_attention_apps.common.network.base import SearchModel
    from keras_attention_apps.nmt.commands.export import LENGTHS

    from keras_attention import beam_search, convert_to_litert

    network = random_network(task["attention"])
    find = functools.partial(beam_search, beam_size=beam_size)
    sentences, signatures = [], {}
    for source, steps in batches_of(task, together, every):
        columns = next(x for x in LENGTHS if x >= source.shape[1])
        padded = np.pad(source, ((0, 0), (0, columns - source.shape[1])))
        name = f"length_{columns}_{steps}"
        sentences.append((name, padded, steps))
        if name not in signatures:
            model = SearchModel(network, find, steps, banned=range(SPECIAL))
            spec = {"source": tf.TensorSpec([1, columns], tf.int32)}
            signatures[name] = functools.partial(_call, model), spec
    content = convert_to_litert(signatures)
    interpreter = Interpreter(model_content=content, num_threads=workers.CORES)
    runners = {name: interpreter.get_signature_runner(name) for name in signatures}

    def search():
        for name, source, steps in sentences:
            found = runners[name](source=source)
            assert (found["lengths"] == steps).all()

    return search


def _call(model, source):
    return model({"source": source})


def joeynmt_sizes(attention):
    """Return the encoder and decoder sections of JoeyNMT's configuration."""
    depth, units, layers, heads = SIZES[attention]
    both = {"embeddings": {"embedding_dim": depth}, "num_layers": layers}
    if attention == "self-attention":
        both |= {"type": "transformer", "num_heads": heads, "layer_norm": "pre"}
        both |= {"hidden_size": depth, "ff_size": units}
        return {"encoder": both, "decoder": both}
    both |= {"type": "recurrent", "rnn_type": "gru", "hidden_size": units}
    decoder = {"attention": "bahdanau", "init_hidden": "bridge", "input_feeding": True}
    return {
        "encoder": {**both, "bidirectional": True},
        "decoder": {**both, **decoder},
    }


def joeynmt_search(task, beam_size, together, every):
    from types import SimpleNamespace

    import torch
    from joeynmt.batch import Batch
    from joeynmt.model import build_model
    from joeynmt.search import search
    from joeynmt.vocabulary import Vocabulary

    torch.set_num_threads(workers.CORES)
    torch.manual_seed(0)
    names = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    special = {f"{name}_token": token for name, token in names.items()}
    special |= {f"{name}_id": number for number, name in enumerate(names)}
    vocabulary = Vocabulary(
        [str(i) for i in range(SPECIAL, VOCABULARY)],
        SimpleNamespace(**special, sep_token=None, lang_tags=[]),
    )
    model = build_model(
        {**joeynmt_sizes(task["attention"]), "tied_embeddings": True},
        vocabulary,
        vocabulary,
    )
    model.eval()
    batches = []
    for source, steps in batches_of(task, together, every):
        padding, end = source == PAD, source == END
        source = np.where(padding, special["pad_id"], source)
        source = np.where(end, special["eos_id"], source)
        batch = Batch(
            src=torch.from_numpy(source).long(),
            src_length=torch.from_numpy((~padding).sum(axis=1)),
            src_prompt_mask=None,
            trg=None,
            trg_prompt_mask=None,
            indices=torch.arange(len(source)),
            device=torch.device("cpu"),
            pad_index=special["pad_id"],
            eos_index=special["eos_id"],
            is_train=False,
        )
        batches.append((batch, steps))

    def translate():
        for batch, steps in batches:
            found, _, _ = search(
                model,
                batch,
                max_output_length=steps,
                min_output_length=steps,
                beam_size=beam_size,
                beam_alpha=1.0,
            )
            assert found.shape == (batch.nseqs, steps)

    return translate


def ctranslate2_search(task, beam_size, together, every, *, compute_type="float32"):
    import ctranslate2

    folder = tempfile.mkdtemp()
    _random_transformer(folder)
    translator = ctranslate2.Translator(
        folder, compute_type=compute_type, intra_threads=workers.CORES
    )
    batches = [
        ([[str(x) for x in row if x not in (PAD, END)] for row in source], steps)
        for source, steps in batches_of(task, together, every)
    ]

    def translate():
        for source, steps in batches:
            found = translator.translate_batch(
                source,
                beam_size=beam_size,
                min_decoding_length=steps,
                max_decoding_length=steps,
                max_batch_size=0,
            )
            assert all(len(x.hypotheses[0]) == steps for x in found)

    return translate


def _random_transformer(folder):
    """Write a Transformer with random weights as CTranslate2 reads it."""
    from ctranslate2.specs import TransformerSpec

    depth, units, layers, heads = SIZES["self-attention"]
    spec = TransformerSpec.from_config(layers, heads, pre_norm=True)
    random = np.random.default_rng(0)

    def fill(linear, rows, columns):
        linear.weight = random.normal(0, columns**-0.5, (rows, columns)).astype("f4")
        linear.bias = np.zeros(rows, "f4")

    def norm(layer):
        layer.gamma, layer.beta = np.ones(depth, "f4"), np.zeros(depth, "f4")

    table = random.normal(0, depth**-0.5, (VOCABULARY, depth)).astype("f4")
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table
    spec.decoder.projection.bias = np.zeros(VOCABULARY, "f4")
    for side in (spec.encoder, spec.decoder):
        norm(side.layer_norm)
        for layer in side.layer:
            norm(layer.self_attention.layer_norm)
            fill(layer.self_attention.linear[0], 3 * depth, depth)
            fill(layer.self_attention.linear[1], depth, depth)
            norm(layer.ffn.layer_norm)
            fill(layer.ffn.linear_0, units, depth)
            fill(layer.ffn.linear_1, depth, units)
    for layer in spec.decoder.layer:
        norm(layer.attention.layer_norm)
        for linear, rows in zip(layer.attention.linear, (1, 2, 1), strict=True):
            fill(linear, rows * depth, depth)
    words = ["<blank>", "<s>", "</s>", "<unk>"]
    words += [str(i) for i in range(SPECIAL, VOCABULARY)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.save(folder)


def work(name):
    """Run the searches of a candidate in its own process; see `workers.work`."""
    candidate, case = name.split(": ")
    python = os.environ.pop(PEER_PYTHON, None)
    if candidate in PEERS and python:
        sys.exit(subprocess.call([python, __file__, "--work", name]))
    task = json.loads(Path(os.environ[TASK]).read_text())
    searches = {
        OURS: our_search,
        HALF: functools.partial(our_search, precision="mixed_bfloat16"),
        COMPILED: functools.partial(our_search, jit_compile=True),
        LITERT: litert_search,
        PEER: joeynmt_search,
        PEER_FAST: ctranslate2_search,
        PEER_INT8: functools.partial(ctranslate2_search, compute_type="int8"),
    }
    workers.work(searches[candidate](task, *CASES[case]))


def can_import(python, module):
    """Return whether a Python can import a module."""
    command = [python, "-c", f"import {module}"]
    return not subprocess.run(command, capture_output=True).returncode


def candidates_of(parser, arguments):
    """Return the names of the candidates that are installed."""
    candidates = [OURS, HALF, COMPILED, LITERT]
    python = arguments.joeynmt or sys.executable
    if can_import(python, "joeynmt.search"):
        candidates.append(PEER)
    else:
        if arguments.joeynmt:
            parser.error(f"{python} cannot import joeynmt")
        print("JoeyNMT is not installed and left out; --help says how to install it.\n")
    if arguments.attention == "self-attention" and can_import(python, "ctranslate2"):
        # Its weights are random, so it is no peer of a trained model.
        candidates += [] if arguments.model else [PEER_FAST, PEER_INT8]
    return candidates


def report(case, candidates, task, rounds):
    """Time the candidates of a case, and print the row of the table."""
    _, together, every = CASES[case]
    # A LiteRT file takes one sentence at a time.
    chosen = [x for x in candidates if x != LITERT or together == 1]
    names = [f"{candidate}: {case}" for candidate in chosen]
    found = workers.take_turns(__file__, names, rounds, 1)
    seconds = {
        candidate: statistics.median(found[name].times)
        for candidate, name in zip(chosen, names, strict=True)
    }
    count = len(task["sources"][::every])
    speeds = " | ".join(
        f"{count / seconds[x]:.1f}" if x in seconds else "" for x in candidates
    )
    ratios = [
        f"{seconds[PEER] / seconds[x]:.1f}"
        for x in candidates
        if x in seconds and PEER in seconds and x != PEER
    ]
    print(f"| {case} | {speeds} | {', '.join(ratios)} |", flush=True)


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--joeynmt", metavar="PYTHON", help="Python of the environment that has JoeyNMT"
    )
    parser.add_argument("--attention", choices=SIZES, default="self-attention")
    parser.add_argument("--case", choices=CASES, help="run one case only")
    parser.add_argument("--model", type=Path, help="folder of a trained model")
    parser.add_argument(
        "--text", type=Path, help="sentences to translate, one per line"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return
    if (arguments.model is None) != (arguments.text is None):
        parser.error("--model and --text belong together")
    candidates = candidates_of(parser, arguments)
    if arguments.joeynmt:
        os.environ[PEER_PYTHON] = arguments.joeynmt
    if arguments.model:
        task = real_task(arguments.model, arguments.text)
    else:
        task = random_task(arguments.attention)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[TASK] = str(Path(folder, "task.json"))
        Path(os.environ[TASK]).write_text(json.dumps(task))
        print(
            f"{task['attention']}: sentences a second; {workers.CORES} cores; "
            f"medians of {arguments.rounds} rounds\n"
        )
        print(f"| search | {' | '.join(candidates)} | ratios to {PEER} |")
        print("|---|" + (len(candidates) + 1) * "---:|")
        for case in [arguments.case] if arguments.case else CASES:
            report(case, candidates, task, arguments.rounds)


if __name__ == "__main__":
    main()
