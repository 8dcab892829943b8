"""Throughput of translation, next to CTranslate2, ONNX Runtime and others.

Prints the sentences per second and the processor time of a sentence: of greedy search
and beam search (`--beam-size`, 4 by default), in batches of 64 and one by one, on one
core and on all. Every candidate first tries its settings (threads, batch sizes, XLA),
which are printed, too, and runs with the fastest; then the candidates take turns. The
last column compares with the fastest of ours: the median of the ratios of all turns.

All have the same network with the same weights, either random ones with 8,000 subwords,
or those of a trained model (`--model`, `--text`):

- `bahdanau`: embeddings of 256, a bidirectional GRU of 320 units, and a GRU of 320 with
  additive attention;
- `self-attention`: 4 + 4 layers of 128 with 4 heads and feed-forward layers of 256.

Random networks translate sentences of realistic length: the median is 14 subwords, the
maximum 40. END is forbidden, and all candidates stop at 1.2 subwords per source
subword, rounded up to a multiple of eight. Trained models end where they choose.

- Keras: the search of the translator on TensorFlow, as a graph or under XLA (then
  sentences are padded to multiples of 16 subwords, and compilation is not counted);
- Keras, bfloat16: the same in half precision;
- LiteRT, float16 and int8: a file with such weights, one sentence at a time; several
  sentences are translated in parallel, or one after the other with several threads;
- CTranslate2 in float32 and int8, for `self-attention`: with one thread for each of
  several batches or several threads for each batch;
- Transformers: `generate` of a `MarianMTModel` of the same sizes in float32, for random
  networks with `self-attention`;
- ONNX Runtime in float32 and int8: our network and search, converted by tf2onnx, one
  sentence at a time, as on LiteRT;
- JoeyNMT: its `search`, for random networks. In `bahdanau`, the hidden layers of its
  scores and of its output are as large as the GRU, ours have 256.

The weights of Transformers and JoeyNMT are their own.

With a trained model, all are from strings to strings; ours include alignments.
CTranslate2 has the subwords of SentencePiece, as its documentation recommends.

    python -m pip install ctranslate2 transformers torch onnxruntime tf2onnx
    python benchmarks/translation_throughput.py
    python benchmarks/translation_throughput.py --model tatoeba-multi30k-en-de \
        --text val.en

JoeyNMT needs older packages than TensorFlow, hence an environment of its own:

    python -m venv joey && joey/bin/pip install joeynmt importlib_metadata
    python benchmarks/translation_throughput.py --joeynmt joey/bin/python
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
from onnx_search import session, to_onnx

SENTENCES, VOCABULARY = 256, 8000
MEDIAN_LENGTH, SPREAD, LENGTHS = 14, 0.4, (3, 40)
LENGTH_RATIO, LENGTH_STEP = 1.2, 8
# Lengths of sentences are multiples of this if the search is compiled.
COMPILED_STEP = 16
# Depth of the embeddings, units, layers of either side, and heads.
SIZES = {"bahdanau": (256, 320, 1, 4), "self-attention": (128, 256, 4, 4)}
# Special tokens of this project; `joeynmt_search` has those of JoeyNMT.
PAD, END, SPECIAL = 0, 2, 4
# Lengths of sources of the LiteRT files.
LITERT_LENGTHS = (16, 32, 48)
# Whether the search is greedy, batch size, and n: every n-th sentence is searched.
CASES = {
    "greedy, 64 together": (True, 64, 1),
    "greedy, one by one": (True, 1, 8),
    "beam search, 64 together": (False, 64, 1),
    "beam search, one by one": (False, 1, 8),
}
OURS = ("Keras", "Keras, bfloat16", "LiteRT, float16", "LiteRT, int8")
CTRANSLATE2, JOEYNMT = ("CTranslate2, float32", "CTranslate2, int8"), "JoeyNMT"
TRANSFORMERS, ONNX = "Transformers", ("ONNX Runtime, float32", "ONNX Runtime, int8")
# Environment variables that pass the task to the processes of the candidates.
TASK, PEER_PYTHON = "TRANSLATE_TASK", "TRANSLATE_JOEYNMT"


def case_of(task, case):
    """Return beam width, batch size, and n: every n-th sentence is searched."""
    is_greedy, together, every = CASES[case]
    return 1 if is_greedy else task["beam_size"], together, every


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


def real_task(model, text, folder, precisions, beam_size, given_file=None):
    """Return the task of `random_task` for lines of a text file, network and subwords.

    The LiteRT files with weights of these precisions are written to a folder. That with
    8-bit weights is the given file, or that of the model if it has this beam width.
    """
    from keras_attention_apps.common.cli import quiet_tensorflow

    quiet_tensorflow()
    from keras_attention_apps.common.files import LITERT
    from keras_attention_apps.common.models import find_preset
    from keras_attention_apps.nmt import LiteTranslator, Translator
    from keras_attention_apps.nmt.commands.export import save_lite_translator

    lines = [line.strip() for line in text.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line][:SENTENCES]
    translator = Translator.from_preset(model)
    files = {name: str(Path(folder, f"{name}.tflite")) for name in precisions}
    own_file = find_preset(model, translator.presets) / LITERT
    has_file = given_file is None and own_file.exists()
    if has_file and LiteTranslator(own_file).search["beam_size"] == beam_size:
        given_file = own_file
    for name, file in files.items():
        if given_file is not None and name == "int8":
            files[name] = str(given_file)
            continue
        options = translator.search_options(beam_size=beam_size)
        save_lite_translator(translator, file, search=options, quantize=name)
    translator.tokenizer.save(Path(folder))
    encode = translator.tokenizer.encode
    task = {
        "attention": translator.config.attention,
        "model": model,
        "files": files,
        "subwords": str(Path(folder, translator.tokenizer.file_name)),
        "lines": lines,
        "sources": [encode(line) for line in lines],
        "steps": [
            len(encode(translation.text))
            for translation in translator.translate(lines, split=False)
        ],
    }
    return task, translator.network, translator.tokenizer.pieces


def batches_of(task, together, every, multiple=1):
    """Return pairs of an array of sources, the longest first, and a number of steps.

    The number of columns is a multiple of `multiple`.
    """
    chosen = range(0, len(task["sources"]), every)
    order = sorted(chosen, key=lambda i: -len(task["sources"][i]))
    batches = []
    for first in range(0, len(order), together):
        batch = order[first : first + together]
        sources = [task["sources"][i] for i in batch]
        columns = math.ceil(len(sources[0]) / multiple) * multiple
        array = np.full((len(batch), columns), PAD, "int32")
        for row, source in zip(array, sources, strict=True):
            row[: len(source)] = source
        batches.append((array, max(task["steps"][i] for i in batch)))
    return batches


def our_search(
    task, beam_size, together, every, *, batch, jit_compile, precision="float32"
):
    import keras

    from keras_attention_apps.common.network.decoder_network import computing_in

    if "model" in task:
        from keras_attention_apps.nmt import Translator

        translator = Translator.from_preset(
            task["model"], jit_compile=jit_compile, precision=precision
        )
        lines = task["lines"][::every]
        size = len(lines) if together > 1 else 1
        parts = [lines[i : i + size] for i in range(0, len(lines), size)]
        options = {"beam_size": beam_size, "batch_size": batch, "split": False}
        return lambda: [translator.translate(part, **options) for part in parts]

    from keras_attention import beam_search
    from keras_attention_apps.common.network.decoder_network import SearchModel

    with computing_in(precision):
        network = random_network(task["attention"])
    batches = batches_of(task, batch, every, COMPILED_STEP if jit_compile else 1)
    find = functools.partial(beam_search, beam_size=beam_size)
    searches = {
        steps: SearchModel(
            network, find, steps, banned=range(SPECIAL), jit_compile=jit_compile
        )
        for steps in {steps for _, steps in batches}
    }

    def search():
        for source, steps in batches:
            outputs = searches[steps].predict_on_batch({"source": source})
            outputs = {
                name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()
            }
            assert (outputs["lengths"] == steps).all()

    return search


def random_network(attention):
    import keras

    from keras_attention_apps.common.options import with_defaults
    from keras_attention_apps.nmt.config import RECIPES, ModelConfig
    from keras_attention_apps.nmt.network import build_network

    depth, units, layers, heads = SIZES[attention]
    sizes = {"embedding_units": depth, "units": units, "encoder_units": units}
    sizes |= {"encoder_layers": layers, "decoder_layers": layers, "heads": heads}
    keras.utils.set_random_seed(0)
    config = ModelConfig(attention=attention, **sizes)
    config = with_defaults(config, RECIPES[attention])
    return build_network(config, VOCABULARY)


def litert_search(task, beam_size, together, every, *, precision, threads, parallel):
    from ai_edge_litert.interpreter import Interpreter

    def translator():
        from keras_attention_apps.nmt import LiteTranslator

        return LiteTranslator(task["files"][precision], threads=threads)

    def runners():
        content = to_litert(task["attention"], beam_size, precision, _longest(task))
        interpreter = Interpreter(model_content=content, num_threads=threads)
        return {
            length: interpreter.get_signature_runner(f"length_{length}")
            for length in LITERT_LENGTHS
        }

    return _one_by_one(task, every, parallel, translator, runners)


def onnx_search(task, beam_size, together, every, *, precision, threads, parallel):
    def translator():
        from keras_attention_apps.nmt import LiteTranslator

        lite = LiteTranslator(task["files"]["int8"])
        sessions = {}

        def run(signature, **inputs):
            if signature not in sessions:
                length = int(signature.removeprefix("length_"))
                content = trained_onnx(task["model"], beam_size, precision, length)
                sessions[signature] = session(content, threads)
            return sessions[signature](**inputs)

        # The same subwords, from strings to strings.
        lite.runtime = run
        return lite

    def runners():
        contents = random_onnx(task["attention"], beam_size, precision, _longest(task))
        return {length: session(x, threads) for length, x in contents.items()}

    return _one_by_one(task, every, parallel, translator, runners)


def _one_by_one(task, every, parallel, translator, runners):
    """Return the search of a runtime that translates one sentence at a time.

    Each of the threads has a model of its own. `translator` returns that of a trained
    model, and `runners` a dict from a length of sources to a search of random networks.
    """
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(parallel)
    if "model" in task:
        models = [translator() for _ in range(parallel)]
        inputs = task["lines"][::every]

        def search(lines, model):
            return [model.translate(line, split=False) for line in lines]

    else:
        models = [runners() for _ in range(parallel)]
        inputs = [
            (_padded(source), np.array([steps], "int32"))
            for source, steps in batches_of(task, 1, every)
        ]

        def search(part, runners):
            for source, limit in part:
                outputs = runners[source.shape[1]](source=source, limit=limit)
                assert (outputs["lengths"] == limit).all()

    parts = [inputs[i::parallel] for i in range(parallel)]
    return lambda: list(pool.map(search, parts, models))


def _longest(task):
    return max(task["steps"])


def _padded(source):
    """Return a source, padded to a length for which the LiteRT file has a signature."""
    columns = next(x for x in LITERT_LENGTHS if x >= source.shape[1])
    return np.pad(source, ((0, 0), (0, columns - source.shape[1])))


def random_searches(attention, beam_size, longest):
    """Return the search of a random network, and its inputs, for each length."""
    import tensorflow as tf

    from keras_attention import beam_search
    from keras_attention_apps.common.network.decoder_network import SearchModel

    network = random_network(attention)
    find = functools.partial(beam_search, beam_size=beam_size)

    def search(columns):
        max_length = LENGTH_STEP * math.ceil(LENGTH_RATIO * columns / LENGTH_STEP)
        model = SearchModel(
            network,
            find,
            min(max_length, longest),
            banned=range(SPECIAL),
            limit=lambda inputs: inputs["limit"],
        )
        specs = {
            "source": tf.TensorSpec([1, columns], tf.int32),
            "limit": tf.TensorSpec([1], tf.int32),
        }
        return lambda source, limit: model({"source": source, "limit": limit}), specs

    return {columns: search(columns) for columns in LITERT_LENGTHS}


@functools.cache
def to_litert(attention, beam_size, precision, longest):
    """Return a LiteRT model of a random network, with a signature for each length."""
    from keras_attention import convert_to_litert

    searches = random_searches(attention, beam_size, longest)
    signatures = {f"length_{columns}": x for columns, x in searches.items()}
    return convert_to_litert(signatures, quantize=precision)


@functools.cache
def random_onnx(attention, beam_size, precision, longest):
    """Return an ONNX model of a random network for each length."""
    searches = random_searches(attention, beam_size, longest)
    return {columns: to_onnx(*x, precision) for columns, x in searches.items()}


@functools.cache
def trained_onnx(name, beam_size, precision, length):
    """Return an ONNX model of a trained model for sources of a length."""
    import tensorflow as tf

    from keras_attention_apps.nmt import Translator

    translator = Translator.from_preset(name)
    longest = translator.max_search_length(length, {}, step=LENGTH_STEP)
    search = translator.search_model(longest, beam_size=beam_size)
    specs = {"source": tf.TensorSpec([1, length], tf.int32)}
    return to_onnx(lambda source: search({"source": source}), specs, precision)


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


def joeynmt_search(task, beam_size, together, every, *, threads):
    from types import SimpleNamespace

    import torch
    from joeynmt.batch import Batch
    from joeynmt.model import build_model
    from joeynmt.search import search
    from joeynmt.vocabulary import Vocabulary

    torch.set_num_threads(threads)
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

    @torch.inference_mode()
    def translate():
        for batch, steps in batches:
            token_ids, _, _ = search(
                model,
                batch,
                max_output_length=steps,
                min_output_length=steps,
                beam_size=beam_size,
                beam_alpha=1.0,
            )
            assert token_ids.shape == (batch.nseqs, steps)

    return translate


def transformers_search(task, beam_size, together, every, *, threads):
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(threads)
    depth, units, layers, heads = SIZES[task["attention"]]
    sides = {}
    for side in "encoder", "decoder":
        sides |= {f"{side}_layers": layers, f"{side}_attention_heads": heads}
        sides[f"{side}_ffn_dim"] = units
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=depth,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        **sides,
    )
    model = MarianMTModel(config).eval()
    batches = [
        (torch.from_numpy(source).long(), steps)
        for source, steps in batches_of(task, together, every)
    ]

    @torch.inference_mode()
    def translate():
        for source, steps in batches:
            token_ids = model.generate(
                input_ids=source,
                attention_mask=(source != PAD).long(),
                num_beams=beam_size,
                do_sample=False,
                min_new_tokens=steps,
                max_new_tokens=steps,
            )
            # The first token is the start token.
            assert token_ids.shape == (len(source), steps + 1)

    return translate


def ctranslate2_search(
    task, beam_size, together, every, *, precision, threads, parallel, batch
):
    import ctranslate2

    translator = ctranslate2.Translator(
        task["ctranslate2"],
        compute_type=precision,
        intra_threads=threads,
        inter_threads=parallel,
    )
    if "model" in task:
        return _from_strings(translator, task, beam_size, together, every, batch)
    parts = [
        # CTranslate2 adds the end.
        ([[str(x) for x in row if x not in (PAD, END)] for row in source], steps)
        for source, steps in batches_of(task, together, every)
    ]
    options = {"beam_size": beam_size, "max_batch_size": batch}

    def translate():
        for source, steps in parts:
            limits = {"min_decoding_length": steps, "max_decoding_length": steps}
            results = translator.translate_batch(source, **options, **limits)
            assert all(len(x.hypotheses[0]) == steps for x in results)

    return translate


def _from_strings(translator, task, beam_size, together, every, batch):
    """Return the search of CTranslate2 for the lines of a trained model."""
    from sentencepiece import SentencePieceProcessor

    # Threads of its own would take longer than the subwords of a sentence.
    subwords = SentencePieceProcessor(model_file=task["subwords"], num_threads=1)
    lines = task["lines"][::every]
    # The library sorts the sentences and divides them into batches.
    size = len(lines) if together > 1 else 1
    parts = [lines[i : i + size] for i in range(0, len(lines), size)]

    def translate():
        for part in parts:
            source = subwords.encode(part, out_type=str)
            results = translator.translate_batch(
                source, beam_size=beam_size, max_batch_size=batch
            )
            subwords.decode([x.hypotheses[0] for x in results])

    return translate


def settings_of(candidate, task, together):
    """Return the options of a candidate's search, and the settings that it tries."""
    is_single, cores = together == 1, workers.CORES
    sizes = [1] if is_single else [16, 32, together]
    # Several threads for each sentence or batch, or one for each of several.
    threads = [{"threads": cores, "parallel": 1}]
    if cores > 1:
        threads.append({"threads": 1, "parallel": cores})
    if candidate in OURS[:2]:
        precision = "mixed_bfloat16" if candidate == OURS[1] else "float32"
        settings = [
            {"jit_compile": compiles, "batch": size}
            for compiles in (False, True)
            for size in sizes
        ]
        return {"precision": precision}, settings
    if candidate in (*OURS, *ONNX):
        # Sentences that come one by one cannot run in parallel.
        settings = threads[:1] if is_single else threads
        return {"precision": candidate.split(", ")[1]}, settings
    if candidate in (JOEYNMT, TRANSFORMERS):
        return {}, [{"threads": count} for count in sorted({1, cores})]
    settings = [
        {**setting, "batch": size}
        for setting in (threads[:1] if is_single else threads)
        for size in sizes
    ]
    if is_single and cores > 1:
        settings.append({"threads": 1, "parallel": 1, "batch": 1})
    return {"precision": candidate.split(", ")[1]}, settings


def work(name):
    """Run the searches of a candidate in its own process; see `workers.work`."""
    candidate, case = name.split(": ")
    python = os.environ.pop(PEER_PYTHON, None)
    if candidate == JOEYNMT and python:
        sys.exit(subprocess.call([python, __file__, "--work", name]))
    task = json.loads(Path(os.environ[TASK]).read_text())
    searches = {
        **dict.fromkeys(OURS[:2], our_search),
        **dict.fromkeys(OURS[2:], litert_search),
        **dict.fromkeys(CTRANSLATE2, ctranslate2_search),
        **dict.fromkeys(ONNX, onnx_search),
        TRANSFORMERS: transformers_search,
        JOEYNMT: joeynmt_search,
    }
    options, settings = settings_of(candidate, task, CASES[case][1])
    build = functools.partial(
        searches[candidate], task, *case_of(task, case), **options
    )
    workers.work(*workers.fastest(build, settings))


def can_import(python, module):
    """Return whether a Python can import a module."""
    command = [python, "-c", f"import {module}"]
    return not subprocess.run(command, capture_output=True).returncode


def candidates_of(parser, arguments):
    """Return the names of the candidates that are installed."""
    candidates = list(OURS)
    if arguments.attention == "self-attention":
        if can_import(sys.executable, "ctranslate2"):
            candidates += CTRANSLATE2
        else:
            print("CTranslate2 is not installed and left out.\n")
    if can_import(sys.executable, "onnxruntime, tf2onnx"):
        candidates += ONNX
    else:
        print("ONNX Runtime or tf2onnx is not installed: ONNX Runtime is left out.\n")
    python = arguments.joeynmt or sys.executable
    if arguments.model:
        return candidates
    if arguments.attention == "self-attention":
        if can_import(sys.executable, "transformers, torch"):
            candidates.append(TRANSFORMERS)
        else:
            print(
                "Transformers or PyTorch is not installed: Transformers is left out.\n"
            )
    if can_import(python, "joeynmt.search"):
        candidates.append(JOEYNMT)
    elif arguments.joeynmt:
        parser.error(f"{python} cannot import joeynmt")
    else:
        print("JoeyNMT is not installed and left out; --help says how to install it.\n")
    return candidates


def report(case, cores, candidates, task, rounds):
    """Time the candidates of a case on some cores, and print their rows."""
    beam_size, _, every = case_of(task, case)
    # The files of a trained model have one beam width.
    chosen = [
        x
        for x in candidates
        if not ("model" in task and beam_size == 1 and ("Lite" in x or "ONNX" in x))
    ]
    names = {candidate: f"{candidate}: {case}" for candidate in chosen}
    results = workers.take_turns(__file__, names.values(), rounds, 1, cores=cores)
    results = {candidate: results[name] for candidate, name in names.items()}
    seconds = {name: statistics.median(x.times) for name, x in results.items()}
    best = min((name for name in chosen if name in OURS), key=seconds.get)
    count = len(task["sources"][::every])
    for name, worker in results.items():
        processor = statistics.median(worker.processor_times)
        ratio = statistics.median(
            a / b for a, b in zip(worker.times, results[best].times, strict=True)
        )
        setting = worker.settings[0][0]
        print(
            f"| {case} | {cores} | {name} | {setting} | {count / seconds[name]:.1f} "
            f"| {1000 * processor / count:.2f} | {ratio:.2f} |",
            flush=True,
        )
    for name, worker in results.items():
        if len(worker.settings) > 1:
            tried = "; ".join(f"{x}: {seconds:.2f} s" for x, seconds in worker.settings)
            print(f"{name} tried {tried}", file=sys.stderr, flush=True)


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--joeynmt", metavar="PYTHON", help="Python of the environment that has JoeyNMT"
    )
    parser.add_argument("--attention", choices=SIZES, default="self-attention")
    parser.add_argument("--case", choices=CASES, help="run one case only")
    parser.add_argument(
        "--cores", type=int, nargs="+", help="numbers of cores; one and all by default"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="run these candidates only"
    )
    parser.add_argument("--model", help="a trained model: name of a preset, or folder")
    parser.add_argument(
        "--text", type=Path, help="sentences to translate, one per line"
    )
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument(
        "--litert",
        type=Path,
        metavar="FILE",
        help="LiteRT file of --model with this beam width, for LiteRT, int8; by "
        "default its own",
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return
    if (arguments.model is None) != (arguments.text is None):
        parser.error("--model and --text belong together")
    candidates = candidates_of(parser, arguments)
    if arguments.only:
        workers.check_names(parser, arguments.only, candidates)
        candidates = arguments.only
        if not set(candidates) & set(OURS):
            parser.error(
                f"--only needs one of {', '.join(OURS)}, with which the others are "
                f"compared. Received: {', '.join(candidates)}"
            )
    if arguments.joeynmt:
        os.environ[PEER_PYTHON] = arguments.joeynmt
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model:
            precisions = [x.split(", ")[1] for x in OURS[2:] if x in candidates]
            if set(candidates) & set(ONNX):
                # Its file has the subwords and the lengths of the searches.
                precisions = sorted({*precisions, "int8"})
            inputs = arguments.model, arguments.text, folder, precisions
            task, network, pieces = real_task(
                *inputs, arguments.beam_size, arguments.litert
            )
        else:
            task, network = random_task(arguments.attention), None
            pieces = [str(i) for i in range(VOCABULARY)]
        task["beam_size"] = arguments.beam_size
        if set(candidates) & set(CTRANSLATE2):
            task["ctranslate2"] = str(Path(folder, "ctranslate2"))
            Path(task["ctranslate2"]).mkdir()
            network = network or random_network(task["attention"])
            network({"source": np.ones((1, 2)), "target": np.ones((1, 2))})
            from keras_attention_apps.nmt.ctranslate2_models import specification

            specification(network, pieces).save(task["ctranslate2"])
        os.environ[TASK] = str(Path(folder, "task.json"))
        Path(os.environ[TASK]).write_text(json.dumps(task))
        print(f"{task['attention']}; medians of {arguments.rounds} rounds\n")
        print(
            "| search | cores | candidate | fastest setting | sentences a second "
            "| processor ms a sentence | time, relative to our fastest |"
        )
        print("|---|---:|---|---|---:|---:|---:|")
        for case in [arguments.case] if arguments.case else CASES:
            for cores in arguments.cores or sorted({1, workers.CORES}):
                report(case, cores, candidates, task, arguments.rounds)


if __name__ == "__main__":
    main()
