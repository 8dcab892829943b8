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
- JoeyNMT: its `search`, with a model of these sizes from its `build_model`. In
  `bahdanau`, the hidden layers of its scores and of its output are as large as the GRU,
  ours have 256. In bfloat16 it is no faster greedily, and its beam search fails.

With a trained model, ours is `Translator` from strings to strings, including subwords
and alignments, and translations end where the model ends them. JoeyNMT, with random
weights, receives the subwords, and generates as many as our longest translation of the
batch.

JoeyNMT needs older packages than TensorFlow, hence an environment of its own:

    python -m venv joey && joey/bin/pip install joeynmt importlib_metadata
    python benchmarks/translate.py --joeynmt joey/bin/python
    python benchmarks/translate.py --joeynmt joey/bin/python \
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
# Beam, sentences together, and how many sentences there are for each that is searched.
CASES = {
    "greedy, 64 together": (1, 64, 1),
    "greedy, one by one": (1, 1, 8),
    "beam of 5, 64 together": (5, 64, 1),
    "beam of 5, one by one": (5, 1, 8),
}
OURS, HALF, COMPILED = "ours", "ours, bfloat16", "ours, XLA"
PEER = "JoeyNMT"
# How candidates, which have processes of their own, learn what there is to do.
TASK, PEER_PYTHON = "TRANSLATE_TASK", "TRANSLATE_JOEYNMT"


def random_task(attention):
    """Source sentences as token ids, and how many tokens each becomes."""
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
    """Return the same for a trained model and the first lines of a file."""
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
        "steps": [len(encode(found.text)) for found in translator.translate(lines)],
    }


def batches_of(task, together, every, multiple=1):
    """Pairs of sources, longest first, as an array, and of the number of steps.

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
    from keras_attention_apps.common.network.compiling import computing_in

    if "model" in task:
        from keras_attention_apps.nmt import Translator

        translator = Translator.from_preset(
            task["model"], jit_compile=jit_compile, precision=precision
        )
        lines = task["lines"][::every]
        size = len(lines) if together > 1 else 1
        parts = [lines[i : i + size] for i in range(0, len(lines), size)]
        options = {"beam_size": beam_size, "batch_size": together}
        return lambda: [translator.translate(part, **options) for part in parts]

    from keras_attention_apps.common.network.search_model import SearchModel
    from keras_attention_apps.nmt.config import ModelConfig, with_recipe
    from keras_attention_apps.nmt.network.building import build_network

    from keras_attention import beam_search

    attention = task["attention"]
    depth, units, layers, heads = SIZES[attention]
    sizes = {"embedding_units": depth, "units": units, "encoder_units": units}
    sizes |= {"encoder_layers": layers, "decoder_layers": layers, "heads": heads}
    config = with_recipe(ModelConfig(attention, **sizes), attention)
    with computing_in(precision):
        network = build_network(config, VOCABULARY)
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


def joeynmt_sizes(attention):
    """Return the encoder and decoder sections of its configuration."""
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


def work(name):
    """In a candidate's process: searches as often as the input asks."""
    candidate, case = name.split(": ")
    python = os.environ.pop(PEER_PYTHON, None)
    if candidate == PEER and python:
        sys.exit(subprocess.call([python, __file__, "--work", name]))
    task = json.loads(Path(os.environ[TASK]).read_text())
    searches = {
        OURS: our_search,
        HALF: functools.partial(our_search, precision="mixed_bfloat16"),
        COMPILED: functools.partial(our_search, jit_compile=True),
        PEER: joeynmt_search,
    }
    workers.work(searches[candidate](task, *CASES[case]))


def has_joeynmt(python):
    command = [python, "-c", "import joeynmt.search"]
    return not subprocess.run(command, capture_output=True).returncode


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
    candidates = [OURS, HALF, COMPILED, PEER]
    if not has_joeynmt(arguments.joeynmt or sys.executable):
        if arguments.joeynmt:
            parser.error(f"{arguments.joeynmt} cannot import joeynmt")
        print("JoeyNMT is not installed and left out; --help says how to install it.\n")
        candidates.remove(PEER)
    elif arguments.joeynmt:
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
        print(f"| search | {' | '.join(candidates)} | ratios |")
        print("|---|" + (len(candidates) + 1) * "---:|")
        for case in [arguments.case] if arguments.case else CASES:
            every = CASES[case][-1]
            names = [f"{candidate}: {case}" for candidate in candidates]
            found = workers.take_turns(__file__, names, arguments.rounds, 1)
            seconds = [statistics.median(found[name].times) for name in names]
            count = len(task["sources"][::every])
            speeds = " | ".join(f"{count / x:.1f}" for x in seconds)
            # Speed-up over the peer.
            ratios = [f"{seconds[-1] / x:.1f}" for x in seconds[:-1]]
            ratios = ", ".join(ratios) if PEER in candidates else ""
            print(f"| {case} | {speeds} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
