"""Endurance: many clients of one model at once, and commands that are interrupted.

    python benchmarks/endurance.py clients --count 20 --seconds 60
    python benchmarks/endurance.py kills --count 50
    python benchmarks/endurance.py interruptions --count 60
    python benchmarks/endurance.py glossaries --count 200

The clients ask one LiteRT model, then one SavedModel, in batches of one to three, and
compare every answer. Trainings of both programs in all phases are killed at random
moments and continued with the same command until they are done. Their models should
equal, bit by bit, that of a training that was not killed. `interruptions` sends SIGINT,
SIGTERM or SIGKILL at random moments to trainings, exports, evaluations, calibrations
and translations. The exit code must say so without a traceback, and a model in use must
stay usable. The same command must then give what an undisturbed one gives, bit by bit,
and leave no temporary files. One translator receives glossaries of changing size, in
batches of changing size; an answer without one of its phrases counts as changed. The
columns are those of `robustness.py`.
"""

import collections
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import workers
from photographs import PHOTO
from robustness import report


def clients(count, seconds):
    """Ask one exported model from many threads at once, on LiteRT and TensorFlow."""
    import tensorflow as tf

    from keras_attention_apps.captioner import LiteCaptioner

    lite = LiteCaptioner.from_preset("flickr8k-coco-ensemble", threads=2)
    content = PHOTO.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        run("captioner", "export", Path(folder) / "served")
        served = tf.saved_model.load(str(Path(folder) / "served"))

        def captions(size):
            encoded = served.serve(tf.constant([content] * size))["caption"].numpy()
            return [text.decode() for text in encoded]

        calls = {
            "LiteRT": lambda size: [lite.caption(content).text] * size,
            "SavedModel": captions,
        }
        for name, call in calls.items():
            expected, counts = call(1)[0], collections.Counter()
            end = time.monotonic() + seconds

            def ask(number, call=call, expected=expected, counts=counts, end=end):
                size = 1 + number % 3
                while time.monotonic() < end:
                    try:
                        texts = call(size)
                    except Exception:
                        traceback.print_exc()
                        counts["tracebacks"] += 1
                        continue
                    counts["answered"] += 1
                    counts["changed"] += texts != [expected] * size

            threads = [
                threading.Thread(target=ask, args=[number]) for number in range(count)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            report(f"{count} clients, {name}", counts, sum(counts.values()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory {peak / 1e3:.0f} MB")


def run(program, *arguments, after=None):
    """Run a command, and kill it `after` seconds, if it still runs.

    The process is forked from one that has imported the programs, but has computed
    nothing, so that it begins at once.

    Returns:
        The elapsed seconds and the exit code, `None` for a process that was killed.
    """
    for name in ("captioner", "nmt"):
        importlib.import_module(f"keras_attention_apps.{name}.main")
        importlib.import_module(f"keras_attention_apps.{name}.training.train")
    start = time.perf_counter()
    with tempfile.TemporaryFile() as error:
        child = multiprocessing.get_context("fork").Process(
            target=command, args=(program, list(map(str, arguments)), error)
        )
        child.start()
        child.join(after)
        seconds = time.perf_counter() - start
        if child.exitcode is None:
            child.kill()
            child.join()
            return seconds, None
        if child.exitcode:
            error.seek(0)
            print(error.read().decode(), file=sys.stderr)
    return seconds, child.exitcode


def command(program, arguments, error, output=None):
    """Run a command; its output and its errors are written to files, if given."""
    with open(os.devnull, "w") as nowhere:
        os.dup2((output or nowhere).fileno(), 1)
    os.dup2(error.fileno(), 2)
    main = importlib.import_module(f"keras_attention_apps.{program}.main").main
    sys.exit(main(arguments))


def trainings(folder):
    """Return the commands of a training of each program, in all of their phases."""
    scenes, corpus = folder / "scenes", folder / "corpus"
    run("captioner", "scenes", scenes, "--count", 20, "--image-size", 32)
    corpus.mkdir()
    words = {"the": "le", "dog": "chien", "cat": "chat", "sees": "voit", "old": "vieux"}
    random = np.random.default_rng(1)
    lines = [random.choice(list(words), random.integers(2, 7)) for _ in range(80)]
    for name, part in (("train", lines[:64]), ("val", lines[64:])):
        target = [" ".join(words[word] for word in line) for line in part]
        source = [" ".join(line) for line in part]
        for suffix, text in (("en", source), ("fr", target)):
            (corpus / f"{name}.{suffix}").write_text("\n".join(text) + "\n")
    small = ["--model.units", 8, "--model.attention-units", 8]
    small += ["--model.embedding-units", 8]
    captioner = ["train-scenes", "--data", scenes, "--model.image-size", 32, *small]
    captioner += ["--model.region-units", 8, "--model.max-length", 8]
    captioner += ["--epochs", 2, "--fine-tune-epochs", 1, "--self-critical-epochs", 1]
    captioner += ["--cache", folder / "cache"]
    nmt = ["train", "--data", corpus, "--pair", "en-fr", *small]
    nmt += ["--model.encoder-units", 8, "--vocabulary-size", 300, "--epochs", 2]
    nmt += ["--average", 2, "--self-critical-epochs", 1, "--min-steps", 1]
    return {"captioner": captioner, "nmt": nmt}


def kills(count, seed):
    """Kill trainings at random moments, continue them, and compare the models."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, command in trainings(folder).items():
            counts = collections.Counter()
            whole, command = folder / program, [*command, "--output"]
            seconds, code = run(program, *command, whole)
            if code:
                sys.exit(f"{program} failed without being killed")
            expected = model_of(whole)
            for number in range(count // 2):
                output = folder / f"{program}-{number}"
                after = random.uniform(0, seconds)
                while run(program, *command, output, after=after)[1] is None:
                    # The next time it may finish.
                    after = random.uniform(0, 2 * seconds)
                    counts["killed"] += 1
                if not (output / "model").exists():
                    counts["tracebacks"] += 1
                elif model_of(output) == expected:
                    counts["answered"] += 1
                else:
                    counts["changed"] += 1
                shutil.rmtree(output)
            name = f"{program} trainings, killed {counts['killed']} times"
            report(name, counts, count // 2)


# Signals, and the exit codes of a command that receives them.
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


def interrupted(program, arguments, number=None, after=None):
    """Run a command, and send it a signal after some seconds, if it still runs.

    Returns:
        The exit code, the elapsed seconds, the output, and the standard error.
    """
    for name in ("captioner", "nmt"):
        importlib.import_module(f"keras_attention_apps.{name}.main")
        importlib.import_module(f"keras_attention_apps.{name}.training.train")
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        arguments = list(map(str, arguments))
        child = multiprocessing.get_context("fork").Process(
            target=command, args=(program, arguments, error, output)
        )
        child.start()
        child.join(after)
        if child.exitcode is None:
            os.kill(child.pid, number)
            child.join()
        seconds = time.perf_counter() - start
        texts = []
        for file in (output, error):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return child.exitcode, seconds, *texts


def commands(folder):
    """Return the commands that are interrupted, and the path that each one writes.

    Trainings come first, since the other commands use their models.
    """
    by_title = {}
    for program, training in trainings(folder).items():
        by_title[f"{program} train"] = (
            program,
            [*training, "--output"],
            f"{program}-model",
        )
        model = ["--model", folder / "undisturbed" / f"{program}-model" / "model"]
        by_title[f"{program} export to LiteRT"] = (
            program,
            ["export", *model],
            "a.tflite",
        )
        by_title[f"{program} export"] = program, ["export", *model], "served"
    corpus = ["--data", folder / "corpus", "--pair", "en-fr"]
    evaluate = ["evaluate", *corpus, *model, "--runtime", "keras"]
    by_title["nmt evaluate"] = "nmt", evaluate, None
    calibrate = ["calibrate", *corpus, "--split", "train"]
    by_title["nmt calibrate"] = "nmt", calibrate, "calibrated"
    translate = ["translate", "--input", folder / "corpus" / "train.en", *model]
    by_title["nmt translate"] = "nmt", [*translate, "--output"], "out.fr"
    return by_title


def interruptions(count, seed):
    """Interrupt commands at random moments, and compare what the next ones write."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder, undisturbed = Path(name), Path(name) / "undisturbed"
        undisturbed.mkdir()
        every = commands(folder)
        expected, times = {}, {}
        for title, (program, arguments, written) in every.items():
            path = _prepared(folder, undisturbed, written)
            code, times[title], output, error = interrupted(
                program, [*arguments, *path]
            )
            if code:
                sys.exit(f"{title} failed without being interrupted: {error}")
            expected[title] = _content(undisturbed, written, output)
        for title, (program, arguments, written) in every.items():
            counts = collections.Counter()
            tried = -(-count // len(every))
            for _ in range(tried):
                with tempfile.TemporaryDirectory(dir=folder) as run_folder:
                    path = _prepared(folder, Path(run_folder), written)
                    line = program, [*arguments, *path]
                    fault = _interrupt(random, line, times[title])
                    code, _, output, error = interrupted(*line)
                    content = _content(Path(run_folder), written, output)
                    left = [str(x) for x in Path(run_folder).rglob(".part-*")]
                    left += [str(x) for x in Path(run_folder).rglob(".old-*")]
                if fault or code or left:
                    counts["tracebacks"] += 1
                    print(f"{title}: {fault}{error}{left}", file=sys.stderr)
                else:
                    counts["answered"] += 1
                    counts["changed"] += content != expected[title]
            report(title, counts, tried)


def _interrupt(random, line, seconds):
    """Interrupt a command until it ends by itself; return what was wrong, if anything.

    Every second attempt may take as long as it needs.
    """
    for attempt in range(3):
        number = list(SIGNALS)[random.integers(len(SIGNALS))]
        after = random.uniform(0, seconds * (1 + attempt))
        code, _, _, error = interrupted(*line, number, after)
        if code == 0:
            return None
        if code != SIGNALS[number] or "Traceback" in error:
            return f"exit code {code} after {number.name}: {error}"
    return None


def _prepared(folder, run_folder, written):
    """Return the arguments for the output of a command, in a folder.

    A model that the command changes is copied to it.
    """
    if written == "calibrated":
        model = folder / "undisturbed" / "nmt-model" / "model"
        shutil.copytree(model, run_folder / written)
    return [] if written is None else [run_folder / written]


def _content(run_folder, written, output):
    """Return what a command has written, as far as it should always be the same.

    A SavedModel has a fingerprint of its own in every export.
    """
    if written is None:
        return output
    path = run_folder / written
    if written == "served":
        return sorted(str(x.relative_to(path)) for x in path.rglob("*"))
    if (path / "model").is_dir():
        return model_of(path)
    if path.is_dir():
        return {x.name: x.read_bytes() for x in path.iterdir()}
    return path.read_bytes()


def model_of(output):
    """Return the weights of a trained model as bytes, which contain no dates."""
    return (output / "model" / "model.weights.npz").read_bytes()


def glossaries(count, seed):
    """Translate batches of changing size, each with a glossary of another size."""
    from keras_attention_apps.nmt import Translator

    translator, random = (
        Translator.from_preset("multi30k-en-de-bahdanau"),
        np.random.default_rng(seed),
    )
    words = [
        "man",
        "woman",
        "dog",
        "child",
        "street",
        "ball",
        "water",
        "shirt",
        "house",
        "bike",
    ]
    terms = [
        "Hund",
        "Haus",
        "Wasser",
        "Ball",
        "Kind",
        "Straße",
        "Rad",
        "Hemd",
        "Frau",
        "Mann",
    ]
    counts = collections.Counter()
    for _ in range(count):
        chosen = random.permutation(words)[: random.integers(0, 7)].tolist()
        glossary = {
            word: " ".join(random.choice(terms, random.integers(1, 5)))
            for word in chosen
        }
        sentences = [
            "a " + " and a ".join(random.choice(words, random.integers(1, 5)))
            for _ in range(random.integers(1, 10))
        ]
        try:
            translations = translator.translate(
                sentences, glossary=glossary, beam_size=3
            )
        except Exception:
            traceback.print_exc()
            counts["tracebacks"] += 1
            continue
        missing = [
            phrase
            for sentence, translation in zip(sentences, translations, strict=True)
            for word, phrase in glossary.items()
            if word in sentence.split()
            and phrase not in translation.text
            and phrase not in translation.omitted
        ]
        counts["changed" if missing else "answered"] += 1
    report("glossaries", counts, count)


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument(
        "kind", choices=["clients", "kills", "interruptions", "glossaries"]
    )
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60, help="of the clients")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.kind == "clients":
        clients(options.count, options.seconds)
    elif options.kind == "interruptions":
        interruptions(options.count, options.seed)
    elif options.kind == "glossaries":
        glossaries(options.count, options.seed)
    else:
        kills(options.count, options.seed)


if __name__ == "__main__":
    main()
