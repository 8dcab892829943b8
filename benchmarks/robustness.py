"""Robustness: mutated images, data sets and models, hostile sentences and requests.

Prints, for each kind of input, how many were tried, how many were answered, and how
many were refused with one line. The other columns should be zero. They are tracebacks,
crashes of the process, and inputs that took over 30 seconds (`--longest`, for a busy
machine); changed answers to an input that is repeated in between; and files that a
request should not have read. Then follow the peak memory, and the input that took the
most CPU time.

    python benchmarks/robustness.py images --count 10000
    python benchmarks/robustness.py costs --count 1000      # hidden from the size
    python benchmarks/robustness.py datasets --count 10000
    python benchmarks/robustness.py sentences --count 10000
    python benchmarks/robustness.py markup --count 1000
    python benchmarks/robustness.py repeats --count 200
    python benchmarks/robustness.py tokenizers --count 500
    python benchmarks/robustness.py models --count 500
    python benchmarks/robustness.py configs --count 1000
    python benchmarks/robustness.py requests --count 500
    python benchmarks/robustness.py layers --count 2000     # KERAS_BACKEND=jax, too
    python benchmarks/robustness.py arguments --count 2000  # KERAS_BACKEND=jax, too
"""

import collections
import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import zipfile
from pathlib import Path

import costly_images
import documents
import hostile_arguments
import hostile_configs
import hostile_requests
import hostile_tokenizers
import mutated_inputs
import numpy as np
import workers
from photographs import PHOTO

# Number of inputs between two checks with a known answer.
REPEATED = 50
COLUMNS = (
    *("tried", "answered", "refused", "tracebacks", "crashes", "hangs", "changed"),
    "files read",
)
KERAS_MODELS = "captioner", "translator", "older-captioner", "older-translator"


class Images:
    """Reads image files as the programs do."""

    def inputs(self, random):
        return mutated_inputs.mutated_images(random)

    def known(self):
        return PHOTO.read_bytes()

    def answer(self, content):
        from keras_attention_apps.captioner.images import image_to_array, read_image

        arrays = [
            image_to_array(read_image(content, draft=draft), 224)
            for draft in (False, True)
        ]
        assert all(a.shape == (224, 224, 3) for a in arrays)
        return arrays[0].tobytes()


class Costs(Images):
    """Reads small image files of few pixels that take long to decode."""

    def inputs(self, random):
        return costly_images.costly_images(random)

    def answer(self, content):
        from keras_attention_apps.captioner.images import read_array

        return read_array(content, 224).tobytes()


class Datasets:
    """Reads data sets of both programs of which one file is damaged."""

    def inputs(self, random):
        sets = mutated_inputs.data_sets()
        while True:
            layout = str(random.choice(list(sets)))
            name = str(random.choice(list(sets[layout])))
            if name.endswith(".png"):
                continue
            content = sets[layout][name]
            content = content.encode() if isinstance(content, str) else content
            is_text = random.random() < 0.7 and not name.endswith(".tar")
            mutated = (
                mutated_inputs.mutated_text if is_text else mutated_inputs.mutated_bytes
            )
            how, content = mutated(random, content)
            yield f"{layout}, {name}, {how}", (layout, name, content)

    def known(self):
        return "csv", "metadata.csv", mutated_inputs.data_sets()["csv"]["metadata.csv"]

    def answer(self, item):
        layout, damaged, damage = item
        files = {**mutated_inputs.data_sets()[layout], damaged: damage}
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder) / name
                path.parent.mkdir(exist_ok=True)
                content = content.encode() if isinstance(content, str) else content
                path.write_bytes(content)
            warnings = io.StringIO()
            with contextlib.redirect_stderr(warnings):
                images = self.read(layout, Path(folder))
        assert all(": warning: " in line for line in warnings.getvalue().splitlines())
        return images

    def read(self, layout, folder):
        """Return the texts of a data set."""
        if layout == "corpus":
            from keras_attention_apps.nmt.data.dataset import find_files, read_pairs

            pairs = read_pairs(*find_files(folder, "en-de", ("train",)))
            return repr((pairs.source, pairs.target))
        from keras_attention_apps.captioner.data.dataset import read_dataset, readable

        images = readable(read_dataset(folder, "train"), 0.5)
        return repr([(image.path.name, image.captions) for image in images])


class Sentences:
    """Translates sentences on LiteRT."""

    def __init__(self):
        from keras_attention_apps.nmt import LiteTranslator

        self.translator = LiteTranslator.from_preset("tatoeba-multi30k-en-de")

    def inputs(self, random):
        return mutated_inputs.hostile_lines(random)

    def known(self):
        return "A dog runs in the snow."

    def answer(self, line):
        translation = self.translator.translate(line)
        translation.text.encode()
        assert "\n" not in translation.text
        return translation.text


class Markup:
    """Translates damaged pages and subtitles, and looks for all that must stay.

    In place of a model, words are shuffled, with random alignments.
    """

    def inputs(self, random):
        pages = documents.mutated_files(random, documents.PAGES)
        subtitles = documents.mutated_files(random, documents.SUBTITLES)
        while True:
            for files in (pages, subtitles):
                how, name, content = next(files)
                yield how, (name, content)

    def known(self):
        name = "film.srt"
        return name, documents.SUBTITLES[name].encode()

    def answer(self, item):
        name, content = item
        kind = documents.kind_of(name)
        assert documents.is_identical(content, kind)
        wrong = documents.failures(content, kind, documents.Echo(seed=1))
        assert not wrong, wrong
        return repr(wrong)


class Repeats:
    """Translates files that repeat pieces of markup thousands of times.

    What takes the square of the length, or more, is a hang. Sentences stay as they are.
    """

    def inputs(self, random):
        while True:
            kind = str(random.choice(list(documents.HEADS)))
            count = random.choice([1, 1, 2, 3])
            piece = "".join(random.choice(documents.PIECES, count))
            head = documents.HEADS[kind] if random.random() < 0.7 else ""
            yield f"{kind}, {head[:20]!r}, {piece!r}", (kind, head, piece)

    def known(self):
        return "html", "<p>", "<b>a</b> "

    def answer(self, item):
        from keras_attention_apps.nmt.markup import translate_file

        kind, head, piece = item
        text = head + (piece * documents.REPEATED)[: documents.REPEATED] + "\n"
        return translate_file(documents.Echo(), text, kind).text


class Tokenizers:
    """Loads SentencePiece models of strangers, and uses those that load."""

    lines = ("A dog runs in the snow.", "\u4e00\u53ea\u72d7 x\u0301 \u2167", "z" * 3000)

    def inputs(self, random):
        return hostile_tokenizers.mutated_tokenizers(random, self.known())

    def known(self):
        from keras_attention_apps.nmt.config import PRESETS

        return (PRESETS / "multi30k-en-de-luong" / "subwords.model").read_bytes()

    def answer(self, model):
        from keras_attention_apps.common.models import loading
        from keras_attention_apps.nmt.subwords import Subwords

        with loading("translator", "translator"):
            subwords = Subwords(model)
        encoded = list(map(subwords.encode, self.lines))
        return repr(
            [(ids, subwords.decode(ids), subwords.words(ids)) for ids in encoded]
        )


class Models:
    """Loads models of which one file is damaged, and uses those that load.

    Half of them have no digests, as those of earlier versions, so that the readers of
    the files encounter the damage.
    """

    def __init__(self):
        import keras

        from keras_attention_apps.captioner.config import ModelConfig
        from keras_attention_apps.captioner.inference import Captioner
        from keras_attention_apps.captioner.network.networks import ShowAttendTell
        from keras_attention_apps.captioner.vocabulary import Vocabulary
        from keras_attention_apps.nmt.inference import Translator

        keras.utils.set_random_seed(1)
        sizes = ("region_units", "embedding_units", "units", "attention_units")
        config = ModelConfig(
            backbone="SmallCNN", image_size=16, max_length=7, **dict.fromkeys(sizes, 8)
        )
        vocabulary = Vocabulary(["a", "dog", "runs"])
        network = ShowAttendTell(config, len(vocabulary))
        network.build()
        # It is removed when this object is.
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        Captioner(config, vocabulary, network).save(self.folder / "captioner")
        presets = Captioner.presets, Translator.presets
        bahdanau = presets[1] / "multi30k-en-de-bahdanau"
        shutil.copytree(bahdanau, self.folder / "translator")
        for name in KERAS_MODELS[:2]:
            older = self.folder / f"older-{name}"
            shutil.copytree(self.folder / name, older)
            config = json.loads((older / "config.json").read_text())
            (older / "config.json").write_text(json.dumps({"model": config["model"]}))
        captioner = presets[0] / "flickr8k-coco-ensemble" / "model.tflite"
        shutil.copy(captioner, self.folder / "captioner.tflite")
        translator = presets[1] / "tatoeba-multi30k-en-de" / "model.tflite"
        shutil.copy(translator, self.folder / "translator.tflite")

    def inputs(self, random):
        files = [
            path
            for name in KERAS_MODELS
            for path in sorted((self.folder / name).iterdir())
            if path.suffix != ".md"
        ]
        files += sorted(self.folder.glob("*.tflite"))
        while True:
            path = files[random.integers(len(files))]
            content = path.read_bytes()
            if path.name == "config.json" and random.random() < 0.8:
                how, text = mutated_inputs.mutated_config(random, content.decode())
                content = text.encode()
            else:
                how, content = mutated_inputs.mutated_bytes(random, content)
            yield f"{path.relative_to(self.folder)}, {how}", (path, content)

    def known(self):
        path = self.folder / "captioner" / "config.json"
        return path, path.read_bytes()

    def answer(self, item):
        path, content = item
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            if path.suffix == ".tflite":
                model = model.with_suffix(".tflite")
                model.write_bytes(content)
                return self.result(model, path.stem)
            shutil.copytree(path.parent, model)
            (model / path.name).write_bytes(content)
            return self.result(model, path.parent.name)

    def result(self, model, name):
        """Use the damaged copy of a model."""
        from keras_attention_apps.captioner import Captioner, LiteCaptioner
        from keras_attention_apps.nmt import LiteTranslator, Translator

        is_lite = model.suffix == ".tflite"
        if name.endswith("captioner"):
            kind = LiteCaptioner if is_lite else Captioner
            return kind.from_preset(model).caption(PHOTO).text
        kind = LiteTranslator if is_lite else Translator
        return kind.from_preset(model).translate("A dog runs.").text


class Configs:
    """Loads tiny models with random values in their configuration, and uses them.

    The metadata of a LiteRT file are changed in the same way.
    """

    def __init__(self):
        # It is removed when this object is.
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        hostile_configs.save_models(self.folder)

    def inputs(self, random):
        from keras_attention_apps.common.litert import read_model_file
        from keras_attention_apps.nmt.config import PRESETS

        contents = {
            path.parent.name: json.loads(path.read_text())
            for path in sorted(self.folder.glob("*/config.json"))
        }
        lite = PRESETS / "tatoeba-multi30k-en-de" / "model.tflite"
        contents[str(lite)], _ = read_model_file(lite, "translator")
        names = list(contents)
        while True:
            name = names[random.integers(len(names))]
            how, text = hostile_configs.mutated(random, contents[name])
            yield f"{Path(name).name}: {how}", (name, text)

    def known(self):
        name = hostile_configs.CAPTIONER
        return name, (self.folder / name / "config.json").read_text()

    def answer(self, item):
        from keras_attention_apps.captioner import Captioner
        from keras_attention_apps.nmt import LiteTranslator, Translator

        name, text = item
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            if name.endswith(".tflite"):
                model = model.with_suffix(".tflite")
                self.write_lite(Path(name), text, model)
                return LiteTranslator.from_preset(model).translate("A dog.").text
            shutil.copytree(self.folder / name, model)
            (model / "config.json").write_text(text, encoding="utf-8")
            if name in hostile_configs.TRANSLATORS:
                return Translator.from_preset(model).translate("A dog.").text
            return Captioner.from_preset(model).caption(PHOTO).text

    def write_lite(self, path, text, model):
        """Write a LiteRT file with other metadata, which need not be JSON."""
        from keras_attention_apps.common.litert import METADATA, read_model_file

        metadata, files = read_model_file(path, "translator")
        model.write_bytes(path.read_bytes()[: metadata["model_bytes"]])
        with zipfile.ZipFile(model, "a") as archive:
            for name, content in {**files, METADATA: text.encode()}.items():
                archive.writestr(name, content)


class Layers:
    """Calls layers with shapes, masks and options of all kinds."""

    def inputs(self, random):
        def chosen(*values):
            return values[random.integers(len(values))]

        while True:
            layer = chosen("AdditiveAttention", "LuongAttention", "MultiHeadAttention")
            options = {"weighting": chosen("softmax", "sparsemax", "entmax")}
            if layer == "AdditiveAttention":
                options["weighting"] = chosen("softmax", "entmax", "hard", "monotonic")
                options["window"] = chosen(
                    None, "LocalMonotonicWindow", "LocalPredictiveWindow"
                )
                options["coverage"] = chosen(None, None, 2)
            elif layer == "LuongAttention":
                options["window"] = chosen("global", "local-m", "local-p")
            sizes = tuple(int(random.choice([0, 1, 2, 5])) for _ in range(3))
            depth = int(random.choice([1, 4]))
            mask = chosen(None, "all", "none", "some", "wrong", "additive")
            values = chosen("normal", "normal", "large", "nan")
            case = {
                "layer": layer,
                "options": {k: v for k, v in options.items() if v is not None},
                "sizes": sizes,
                "depth": depth,
                "mask": mask,
                "values": values,
                "seed": int(random.integers(1000)),
            }
            yield str(case), case

    def known(self):
        return {
            "layer": "AdditiveAttention",
            "options": {},
            "sizes": (2, 3, 5),
            "depth": 4,
            "mask": "some",
            "values": "normal",
            "seed": 1,
        }

    def answer(self, case):
        import keras

        import keras_attention

        keras.utils.set_random_seed(case["seed"])
        random = np.random.default_rng(case["seed"])
        batch, queries, source = case["sizes"]
        factor = {"large": 1e4, "nan": np.nan}.get(case["values"], 1.0)

        def drawn(*shape):
            return (factor * random.normal(size=shape)).astype("float32")

        masks = {
            "all": np.zeros((batch, source), bool),
            "none": np.ones((batch, source), bool),
            "some": random.random((batch, source)) < 0.5,
            "wrong": np.ones((batch, source + 1), bool),
            "additive": np.full((batch, source), -1e9, "float32"),
        }
        kind = getattr(keras_attention, case["layer"])
        try:
            options = dict(case["options"])
            if case["layer"] == "AdditiveAttention" and "window" in options:
                options["window"] = getattr(keras_attention, options["window"])()
            sizes = {"MultiHeadAttention": (2, 4), "LuongAttention": ("general",)}
            layer = kind(*sizes.get(case["layer"], (4,)), **options)
            context, weights = layer(
                drawn(batch, queries, case["depth"]),
                drawn(batch, source, case["depth"]),
                value_mask=masks.get(case["mask"]),
                return_attention_scores=True,
            )
        except (ValueError, TypeError) as error:
            # Errors of the library say what came; those of a backend do not.
            if "eceived" in str(error) or "argument" in str(error):
                raise Refused(str(error)) from error
            raise
        assert weights.shape[-1] == source and context.shape[:2] == (batch, queries)
        context = keras.ops.convert_to_numpy(context)
        assert case["values"] == "nan" or np.isfinite(context).all()
        return np.round(context, 4).tobytes()


class Arguments:
    """Calls layers, losses and searches with values that no argument is made for."""

    def __init__(self):
        self.cases = hostile_arguments.cases()

    def inputs(self, random):
        return hostile_arguments.inputs(random)

    def known(self):
        return "AdditiveAttention", {}

    def answer(self, item):
        import keras

        name, changes = item
        keras.utils.set_random_seed(1)
        try:
            result = hostile_arguments.call(self.cases[name], changes)
        except ValueError as error:
            # Keras appends the arguments of the call to the message.
            text = str(error).split("Arguments received by")[0]
            # Errors of the library, and of Keras' identifiers, say what was wrong.
            clear = "eceived", "ould not interpret", "Unknown", *changes
            if any(part in text for part in clear):
                raise Refused(text) from error
            raise
        if changes:
            return ""
        leaves = [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(result)]
        return repr([x.round(4).tolist() for x in leaves])


class Requests:
    """Sends requests to the pages of both programs."""

    @contextlib.contextmanager
    def started(self):
        """Start the pages in the process that answers."""
        self.pages = hostile_requests.Pages()
        with contextlib.closing(self.pages):
            assert "a man that is holding a camera" in self.answer(self.known())
            yield

    def inputs(self, random):
        return hostile_requests.requests(random)

    def known(self):
        return "captioner", "call", [{"path": "{upload}"}, 1, 5, 0.7]

    def answer(self, request):
        status, text = self.pages.answer(request)
        if status >= 400:
            raise Refused(text)
        return text

    def memory(self):
        return self.pages.memory()


class Refused(ValueError):
    """A refusal that may have several lines."""


KINDS = {
    "images": Images,
    "costs": Costs,
    "datasets": Datasets,
    "sentences": Sentences,
    "markup": Markup,
    "repeats": Repeats,
    "tokenizers": Tokenizers,
    "models": Models,
    "configs": Configs,
    "layers": Layers,
    "arguments": Arguments,
    "requests": Requests,
}


def serve(name, connection):
    """Answer inputs until the connection is closed; runs in a process of its own."""
    from keras_attention_apps.common.errors import UserError

    task = KINDS[name]()
    memory_of = getattr(task, "memory", _own_memory)
    with getattr(task, "started", contextlib.nullcontext)():
        connection.send("ready")
        while True:
            try:
                item = connection.recv()
            except EOFError:
                return
            start = time.process_time()
            try:
                outcome = "answered", task.answer(item)
            except (UserError, Refused) as error:
                one_line = isinstance(error, Refused) or "\n" not in str(error)
                outcome = ("refused" if one_line else "tracebacks"), str(error)
            except hostile_requests.NoAnswer as error:
                outcome = "hangs", str(error)
            except hostile_requests.FileWasRead as error:
                outcome = "files read", str(error)
            except BaseException:
                outcome = "tracebacks", traceback.format_exc()
            connection.send((*outcome, time.process_time() - start, memory_of()))


def _own_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclasses.dataclass
class Worker:
    """A process that answers inputs, and is started again when it is lost."""

    name: str
    longest: float

    def start(self):
        self.connection, other = multiprocessing.Pipe()
        # A fresh process, whose memory is its own.
        context = multiprocessing.get_context("spawn")
        arguments = self.name, other
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        other.close()
        self.connection.recv()
        return self

    def ask(self, item):
        """Return outcome, answer, CPU time in seconds, and peak memory in kilobytes."""
        self.connection.send(item)
        if not self.connection.poll(self.longest):
            self.process.kill()
            self.start()
            return "hangs", "", self.longest, 0
        try:
            return self.connection.recv()
        except EOFError:
            self.start()
            return "crashes", "", 0, 0


def fuzz(name, count, seed, longest, directory):
    """Try inputs one after the other, and print how many had each outcome."""
    counts, slowest, peak = collections.Counter(), (0, ""), 0
    task = KINDS[name]()
    worker = Worker(name, longest).start()
    inputs = task.inputs(np.random.default_rng(seed))
    _, expected, *_ = worker.ask(task.known())
    for number in range(count):
        description, item = next(inputs)
        outcome, answer, seconds, memory = worker.ask(item)
        counts[outcome] += 1
        slowest, peak = max(slowest, (seconds, description)), max(peak, memory)
        if outcome not in ("answered", "refused"):
            print(f"{outcome}: {description}\n{answer}", file=sys.stderr)
            _keep(directory, f"{name}-{seed}-{number}", item)
        if number % REPEATED == 0:
            counts["changed"] += worker.ask(task.known())[1] != expected
    worker.connection.close()
    worker.process.join(longest)
    report(name, counts, count)
    print(f"peak memory {peak / 1e3:.0f} MB; slowest {slowest[0]:.1f} s: {slowest[1]}")


def _keep(directory, name, item):
    """Write an input that failed to a file, if there is a directory for it."""
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        content = item if isinstance(item, bytes) else repr(item).encode()
        (Path(directory) / name).write_bytes(content)


def report(name, counts, tried):
    print(f"| | {' | '.join(COLUMNS)} |")
    print(f"|---|{'---:|' * len(COLUMNS)}")
    figures = {**counts, "tried": tried}
    cells = " | ".join(str(figures.get(column, 0)) for column in COLUMNS)
    print(f"| {name} | {cells} |")


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--longest", type=float, default=30, help="seconds until an input is a hang"
    )
    parser.add_argument("--keep", help="folder for inputs that fail")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    fuzz(options.kind, options.count, options.seed, options.longest, options.keep)


if __name__ == "__main__":
    main()
