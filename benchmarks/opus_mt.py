"""An imported model of the size of OPUS-MT, next to Transformers and CTranslate2.

The model is a `MarianMTModel` of Transformers with random weights: 6 + 6 layers of 512,
8 heads, feed-forward layers of 2048, and 60,000 tokens. Its two unigram models of
SentencePiece are learned from the two texts. Of random weights alone, a search finds
one token again and again, without an end. So the last attention to the source is made
by hand: target position t reads source position t, and its token becomes the most
probable one. The translation is a copy of the source, with the mistakes that all other
layers, which are random, add to it.

`nmt import` reads the folder, and each part prints a table:

- `exactness`: the largest difference of a logit from that of Transformers, when a whole
  target is decoded at once. Also the largest difference of a log-probability in the
  steps of a search, and how many beam searches find the same tokens. Both networks
  compute in float32, and then in float64, with the same weights;
- `litert`: size, time and memory of the export with int8 weights, and how many
  translations of the file are those of Keras;
- `speed`: the time of one sentence, and of 64 together, with a beam width of 4, and the
  largest memory of the process. Each candidate searches as its software does, at most
  until the same number of tokens;
- `training`: the largest memory of `nmt train --from-preset`.

    python -m pip install transformers torch ctranslate2
    python benchmarks/opus_mt.py --source train.en --target train.de
    python benchmarks/opus_mt.py --source train.en --target train.de \
        --parts exactness --backend jax

With `--folder`, the model and the results of Transformers are kept for the next run.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import marian_models
import numpy as np
import workers

PARTS = ("exactness", "litert", "speed", "training")
PAIR = "en-de"
# Layers of each side, depth, and tokens; feed-forward layers are four times as wide.
LAYERS, DEPTH, VOCABULARY = 6, 512, 60_000
HEAD_DEPTH = 64
# Scales: of what a random layer adds, of the queries and keys that find a position, and
# of what is copied from there.
RANDOM, FOCUS, COPIED = 0.25, 4.0, 2.0
BEAM_SIZE, MAX_LENGTH = 4, 64
# Sentences that are searched together, and those whose logits are compared.
BATCH, COMPARED = 20, 8
SPEED = ("LiteRT, int8", "CTranslate2, int8", "CTranslate2, float32", "Transformers")
# Environment variable that passes the task to the processes of the parts.
TASK = "OPUS_MT_TASK"


def write_model(folder, texts, *, layers, depth, vocabulary_size):
    """Write the folder of a random model, with Transformers; return its vocabulary."""
    import torch

    pieces = marian_models.write_tokenizers(folder, texts, vocabulary_size * 8 // 15)
    vocabulary = marian_models.write_vocabulary(folder, pieces, vocabulary_size)
    pad, heads = len(vocabulary) - 1, depth // HEAD_DEPTH
    model = marian_models.new_model(
        vocabulary_size, depth=depth, units=4 * depth, heads=heads, layers=layers
    )
    # Numbers that encode positions with short wavelengths, as many as a head has.
    half = HEAD_DEPTH // 2
    positions = [*range(half), *range(depth // 2, depth // 2 + half)]
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name:
                continue
            if name.endswith("layer_norm.weight"):
                weight.normal_(1.0, 0.1)
            elif weight.ndim == 1:
                weight.normal_(0.0, 0.02)
            else:
                weight.normal_(0.0, weight.shape[1] ** -0.5)
            if "out_proj." in name or ".fc2." in name:
                weight *= RANDOM
                weight[positions] = 0.0
        table = model.model.shared.weight
        table[:, positions] = 0.0
        # As in published models.
        table[pad] = 0.0
        model.final_logits_bias.normal_(0.0, 0.5)
        model.final_logits_bias[0, pad] = 0.0
        attention = model.model.decoder.layers[-1].encoder_attn
        identity = torch.eye(depth)
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.copy_(FOCUS * identity[positions].repeat(heads, 1))
        attention.v_proj.weight.copy_(identity)
        attention.out_proj.weight.copy_(COPIED * identity)
    model.save_pretrained(folder)
    return vocabulary


def peer_results(folder, vocabulary, sentences):
    """Write sources, beam searches and logits of Transformers beside the model."""
    import torch
    import transformers

    tokenizer = transformers.MarianTokenizer(
        *(str(folder / x) for x in ("source.spm", "target.spm", "vocab.json"))
    )
    sources = [tokenizer(x)["input_ids"] for x in sentences]
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    pad, translations, logits = len(vocabulary) - 1, [], []
    with torch.no_grad():
        for begin in range(0, len(sources), BATCH):
            translations += transformers_search(model, sources[begin : begin + BATCH])
        for source, target in zip(sources, translations[:COMPARED], strict=False):
            outputs = model(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([[pad, *target[:-1]]]),
            )
            logits.append(outputs.logits[0].numpy())
        in_double_precision(model)
        exact = [
            model(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([[pad, *target[:-1]]]),
            )
            .logits[0]
            .numpy()
            for source, target in zip(sources, translations[:COMPARED], strict=False)
        ]
    differences = [np.abs(x - y).max() for x, y in zip(logits, exact, strict=True)]
    print(f"Its logits differ from those in double precision by {max(differences):.1e}")
    for precision, arrays in (("float32", logits), ("float64", exact)):
        np.savez(logits_file(folder, precision), *arrays)
    results = {"sentences": sentences, "sources": sources, "found": translations}
    (folder / "peer.json").write_text(json.dumps(results), encoding="utf-8")
    lengths = [len(x) for x in translations]
    ended = sum(x[-1] == 0 for x in translations)
    print(
        f"Transformers {transformers.__version__}: "
        f"{ended} of {len(translations)} searches end before {MAX_LENGTH} tokens; "
        f"median length {statistics.median(lengths)}; "
        f"{sum(map(list.__eq__, translations, sources))} are copies of the source"
    )


def in_double_precision(model):
    """Compute a `MarianMTModel` in float64 from now on, with its float32 weights.

    Its positions are a table in float32, which becomes their formula in float64.
    """
    import torch

    model.double()
    for side in (model.model.encoder, model.model.decoder):
        table = side.embed_positions.weight
        positions, depth = table.shape
        wavelengths = 10_000.0 ** (np.arange(0, depth, 2) / depth)
        angles = np.arange(positions)[:, None] / wavelengths
        exact = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
        assert np.abs(table.detach().numpy() - exact).max() < 1e-6
        table.copy_(torch.from_numpy(exact))


def logits_file(folder, precision):
    return folder / f"logits_{precision}.npz"


def transformers_search(model, sources):
    """Return the tokens that `generate` finds, up to the end."""
    import torch

    pad, columns = model.config.pad_token_id, max(map(len, sources))
    padded = [[*x, *[pad] * (columns - len(x))] for x in sources]
    ids = torch.tensor(padded)
    outputs = model.generate(
        input_ids=ids,
        attention_mask=(ids != pad).long(),
        num_beams=BEAM_SIZE,
        length_penalty=1.0,
        early_stopping=True,
        max_new_tokens=MAX_LENGTH,
        bad_words_ids=[[pad]],
        do_sample=False,
    )
    rows = []
    for row in outputs[:, 1:].tolist():
        rows.append(row[: row.index(0) + 1] if 0 in row else row)
    return rows


def load(task):
    """Return the published model, its translator, and our ids of its tokens."""
    from keras_attention_apps.nmt import marian
    from keras_attention_apps.nmt.commands.import_model import read_translator

    folder = Path(task["folder"])
    published = marian.read_published(folder)
    order = marian.token_order(published)
    ids = {number: token for token, number in enumerate(order)}
    return read_translator(folder, PAIR), np.array(order), ids


def exactness(task):
    """Print the differences from Transformers, in float32 and in float64."""
    import keras

    translator, order, ids = load(task)
    folder = Path(task["folder"])
    peer = json.loads((folder / "peer.json").read_text(encoding="utf-8"))
    encoded = [translator.tokenizer.encode(x) for x in peer["sentences"]]
    sources = [[ids[x] for x in row] for row in peer["sources"]]
    same_subwords = sum(map(list.__eq__, encoded, sources))
    count = len(sources)
    print_exactness(
        *differences(task, translator.network, order, ids, "float32"),
        f"{same_subwords} of {count}",
        f"{same_searches(translator, order, sources, peer)} of {count}",
    )
    del translator
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    network = load(task)[0].network
    print_exactness(*differences(task, network, order, ids, "float64"), "", "")


def print_exactness(precision, whole, largest, steps, subwords, searches):
    import keras

    print(
        f"| {keras.backend.backend()} | {precision} | {whole:.1e} | {largest:.0f} "
        f"| {whole / largest:.1e} | {steps:.1e} | {subwords} | {searches} |",
        flush=True,
    )


def differences(task, network, order, ids, precision):
    """Return the precision, and the largest differences from Transformers.

    These are that of a logit, the largest logit, and the largest difference of a
    log-probability in the steps of a search.
    """
    from keras import ops, tree

    from keras_attention_apps.common.tokenizer import PAD, START

    folder = Path(task["folder"])
    peer = json.loads((folder / "peer.json").read_text(encoding="utf-8"))
    sources = [[ids[x] for x in row] for row in peer["sources"]]
    whole = steps = largest = 0.0
    with np.load(logits_file(folder, precision)) as logits:
        for index in range(len(logits.files)):
            expected = logits[f"arr_{index}"][:, order]
            expected[:, [PAD, START]] -= np.log(2)
            source = np.array(sources[index : index + 1], "int32")
            target = [START, *(ids[x] for x in peer["found"][index])]
            inputs = {"source": source, "target": np.array([target], "int32")}
            actual = ops.convert_to_numpy(network.logits(network(inputs)))[0]
            whole = max(whole, np.abs(actual - expected).max())
            largest = max(largest, np.abs(expected).max())
            memory, state = network.begin(
                {"source": ops.convert_to_tensor(source)}, MAX_LENGTH
            )
            # One hypothesis.
            state = tree.map_structure(lambda x: x[:, None], state)
            # A sum of 60,000 numbers in float32 would not be exact enough.
            shifted = expected - expected.max(axis=-1, keepdims=True).astype("float64")
            shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
            for token, row in zip(target, shifted, strict=False):
                token = ops.convert_to_tensor([[token]], dtype="int32")
                log_probs, state, _ = network.step(token, state, memory)
                actual = ops.convert_to_numpy(log_probs)[0, 0]
                steps = max(steps, np.abs(actual - row).max())
    return precision, whole, largest, steps


def same_searches(translator, order, sources, peer):
    """Return how many beam searches find the tokens of Transformers."""
    from keras import ops

    from keras_attention import Ban, beam_search
    from keras_attention_apps.common.tokenizer import END, PAD, START
    from keras_attention_apps.nmt.subwords import pad

    # All that `generate` forbids, and nothing else.
    search = translator._search_model
    same = 0
    model = search(
        functools.partial(beam_search, beam_size=BEAM_SIZE, early_stopping=True),
        MAX_LENGTH,
        (0.0, None),
        key=("opus_mt",),
    )
    model.constraints, model.limit = (), None
    model.banned = Ban([PAD, START])
    by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for begin in range(0, len(by_length), BATCH):
        chosen = by_length[begin : begin + BATCH]
        outputs = model({"source": pad([sources[i] for i in chosen])})
        rows = ops.convert_to_numpy(outputs["token_ids"])[:, 0].tolist()
        for i, row in zip(chosen, rows, strict=True):
            row = row[: row.index(END) + 1] if END in row else row
            same += [int(order[x]) for x in row] == peer["found"][i]
    return same


def saved(task):
    """Return the folder of the imported model, which is written once."""
    from keras_attention_apps.nmt.main import main as nmt

    output = Path(task["folder"], "imported")
    if not output.exists():
        arguments = [task["folder"], "--pair", PAIR, "--output", output]
        arguments += ["--max-length", task["max_length"]]
        assert nmt(["import", *map(str, arguments)]) == 0
    return output


def lite_file(task):
    return Path(task["folder"], "model.tflite")


def litert(task):
    """Print figures of the LiteRT file."""
    model, path = saved(task), lite_file(task)
    seconds, memory = run_alone([sys.executable, __file__, "--work", "export"])
    from keras_attention_apps.nmt import LiteTranslator, Translator

    lite = LiteTranslator(path)
    sentences = [x for x in task["sentences"] if lite.token_count(x) <= lite.max_length]
    texts = [x.text for x in lite.translate(sentences, split=False)]
    keras = Translator.from_preset(model)
    expected = [x.text for x in keras.translate(sentences, split=False, batch_size=20)]
    same = sum(map(str.__eq__, texts, expected))
    print("| file | seconds of the export | its memory | equal translations |")
    print("|---:|---:|---:|---:|")
    print(
        f"| {path.stat().st_size / 1e6:.1f} MB | {seconds:.0f} | {memory / 1e9:.1f} GB "
        f"| {same} of {len(texts)} |",
        flush=True,
    )


def export(task):
    """Write the LiteRT file."""
    from keras_attention_apps.nmt.main import main as nmt

    assert nmt(["export", str(lite_file(task)), "--model", str(saved(task))]) == 0


def run_alone(command):
    """Run a command, and return its seconds and its largest memory in bytes."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command[-6:])} failed:\n{errors.read()}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def speed_search(name, task):
    """Return a function from sentences to the number of tokens of translations."""
    folder, batch = Path(task["folder"]), 64
    if name == "LiteRT, int8":
        from keras_attention_apps.nmt import LiteTranslator

        lite = LiteTranslator(lite_file(task))

        def search(sentences):
            translations = lite.translate(sentences, split=False)
            return sum(len(x.subwords) for x in translations)

        return search
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "source.spm")
    )
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    if name == "Transformers":
        import torch
        import transformers

        torch.set_num_threads(workers.CORES)
        model = transformers.MarianMTModel.from_pretrained(folder).eval()

        def search(sentences):
            rows = processor.encode(sentences, out_type=str)
            ids = [[*(vocabulary.get(x, 1) for x in row), 0] for row in rows]
            with torch.no_grad():
                return sum(map(len, transformers_search(model, ids)))

        return search
    import ctranslate2

    engine = ctranslate2.Translator(
        str(folder / "ctranslate2"),
        compute_type=name.split(", ")[1],
        intra_threads=workers.CORES,
    )

    def search(sentences):
        rows = processor.encode(sentences, out_type=str)
        results = engine.translate_batch(
            [[*row, "</s>"] for row in rows],
            beam_size=BEAM_SIZE,
            max_batch_size=batch,
            max_decoding_length=MAX_LENGTH,
        )
        return sum(len(x.hypotheses[0]) + 1 for x in results)

    return search


def largest_memory():
    """Return the largest memory of this process so far, in bytes."""
    # `getrusage` would count that of the process that has started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(x for x in status.splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def speed_worker(name, task):
    """Time a candidate in its own process; see `workers.work`."""
    candidate, count = name.split(": ")
    search = speed_search(candidate, task)
    is_single = count == "1"
    sentences = task["sentences"][: task["single" if is_single else "together"]]
    parts = [[x] for x in sentences] if is_single else [sentences]
    figures = {}

    def step():
        figures["tokens"] = sum(map(search, parts))
        figures["sentences"] = len(sentences)
        figures["memory"] = largest_memory()

    workers.work(step, figures)


def speed(task):
    """Print the table of times."""
    target = Path(task["folder"], "ctranslate2")
    if not target.exists():
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(task["folder"]).convert(str(target))
    print(
        "| | candidate | ms a sentence | processor ms a sentence | tokens a sentence "
        "| memory |"
    )
    print("|---|---|---:|---:|---:|---:|")
    for count in ("1", str(task["together"])):
        names = {x: f"{x}: {count}" for x in task["only"]}
        results = workers.take_turns(__file__, names.values(), task["rounds"], 1)
        for candidate, name in names.items():
            worker = results[name]
            figures = worker.settings
            sentences = figures["sentences"]
            seconds = statistics.median(worker.times) / sentences
            processor = statistics.median(worker.processor_times) / sentences
            tokens = figures["tokens"] / sentences
            kind = "one by one" if count == "1" else f"{count} together"
            print(
                f"| {kind} | {candidate} | {1000 * seconds:.0f} "
                f"| {1000 * processor:.0f} | {tokens:.1f} "
                f"| {figures['memory'] / 1e9:.2f} GB |",
                flush=True,
            )


def training(task):
    """Print the largest memory of fine-tuning."""
    folder = Path(task["folder"])
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for side, text in zip(PAIR.split("-"), task["texts"], strict=True):
        lines = text[: task["pairs"] + 50]
        for split, part in (("train", lines[50:]), ("val", lines[:50])):
            path = data / f"{split}.{side}"
            path.write_text("\n".join(part) + "\n", encoding="utf-8")
    print("| tokens of a batch | pairs | seconds | memory |")
    print("|---:|---:|---:|---:|")
    for tokens in task["batch_tokens"]:
        with tempfile.TemporaryDirectory() as output:
            options = {
                "data": data,
                "pair": PAIR,
                "from-preset": saved(task),
                "output": output,
                "epochs": 1,
                "batch-tokens": tokens,
            }
            flags = [x for name, value in options.items() for x in (f"--{name}", value)]
            seconds, memory = run_alone(workers.program("nmt", "train", *flags))
        print(
            f"| {tokens:,} | {task['pairs']:,} | {seconds:.0f} "
            f"| {memory / 1e9:.1f} GB |",
            flush=True,
        )


def make(task):
    """Write the model and the results of Transformers, unless they are there."""
    folder = Path(task["folder"])
    vocabulary = write_model(folder, task["texts"], **task["sizes"])
    peer_results(folder, vocabulary, task["sentences"])


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--source", type=Path, help="a text, with one sentence a line")
    parser.add_argument("--target", type=Path, help="its translations")
    parser.add_argument("--backend", default="tensorflow")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--single", type=int, default=10, help="sentences one by one")
    parser.add_argument("--together", type=int, default=64, help="sentences of a batch")
    parser.add_argument("--only", nargs="+", choices=SPEED, default=SPEED)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=5000, help="pairs of the training")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument(
        "--max-length", type=int, default=32, help="that of nmt import (default 32)"
    )
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument(
        "--depth", type=int, default=DEPTH, help=f"multiple of {2 * HEAD_DEPTH}"
    )
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        task = json.loads(Path(os.environ[TASK]).read_text(encoding="utf-8"))
        if arguments.work in ("make", "export", *PARTS):
            globals()[arguments.work](task)
        else:
            speed_worker(arguments.work, task)
        return
    if not (arguments.source and arguments.target):
        parser.error("--source and --target are needed")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        texts = [
            path.read_text(encoding="utf-8").splitlines()
            for path in (arguments.source, arguments.target)
        ]
        # From all of the text: neighbours are often similar.
        stride = max(len(texts[0]) // arguments.sentences, 1)
        task = {
            "folder": str(folder.resolve()),
            "texts": texts,
            "sentences": texts[0][::stride][: arguments.sentences],
            "single": arguments.single,
            "together": arguments.together,
            "only": arguments.only,
            "rounds": arguments.rounds,
            "pairs": arguments.pairs,
            "batch_tokens": arguments.batch_tokens,
            "max_length": arguments.max_length,
            "sizes": {
                "layers": arguments.layers,
                "depth": arguments.depth,
                "vocabulary_size": arguments.vocabulary,
            },
        }
        path = Path(temporary, "task.json")
        path.write_text(json.dumps(task), encoding="utf-8")
        environment = {
            **os.environ,
            TASK: str(path),
            "KERAS_BACKEND": arguments.backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        os.environ[TASK] = str(path)
        parts = list(arguments.parts)
        if not (folder / "peer.json").exists():
            parts.insert(0, "make")
        for part in parts:
            if part == "exactness":
                print(
                    "| backend | precision | logits | largest logit | relative | steps "
                    "| equal subwords | equal searches |"
                )
                print("|---|---|---:|---:|---:|---:|---:|---:|", flush=True)
            command = [sys.executable, __file__, "--work", part]
            subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
