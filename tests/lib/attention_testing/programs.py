"""Shared parts of the tests of both programs: models, options, errors, averages."""

import contextlib
import functools
import itertools
import json
import shutil

import keras
import numpy as np
import pytest


@functools.cache
def _loader(task):
    """Return a function that loads each model once, so its searches are traced once."""
    return functools.cache(task.from_preset)


@pytest.fixture
def cached_models(task, monkeypatch):
    """Let commands load every model once in all tests, which must not change it.

    The fixture `task` is the `Task` of the program.
    """
    monkeypatch.setattr(task, "from_preset", _loader(task))


@pytest.fixture(scope="module")
def freed_models(task):
    """Free the loaded models after the tests of a file."""
    yield
    _loader(task).cache_clear()


@pytest.fixture
def without_steps(monkeypatch):
    """Train in epochs of no steps: callbacks run, and the weights stay."""

    def fit(model, batches, *, epochs, callbacks, initial_epoch=0, **options):
        model.stop_training = False
        # The average of the weights begins with the first step.
        model.optimizer.use_ema = False
        container = keras.callbacks.CallbackList(callbacks, model=model, epochs=epochs)
        container.on_train_begin()
        for epoch in range(initial_epoch, epochs):
            container.on_epoch_begin(epoch)
            container.on_epoch_end(epoch, {"loss": 1.0})
            if model.stop_training:
                break
        container.on_train_end()

    monkeypatch.setattr(keras.Model, "fit", fit)


@pytest.fixture
def interrupting(monkeypatch):
    """A function that returns a context in which a training ends after one epoch."""

    @contextlib.contextmanager
    def context():
        from keras_attention_apps.common.training.checkpoints import Checkpoints

        save = Checkpoints.save

        def interrupt(*arguments):
            save(*arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "save", interrupt)
            yield

    return context


def training(options, **changes):
    """Return the arguments of a training with these options."""
    options = {**options, **changes}
    pairs = ((f"--{name}", str(value)) for name, value in options.items())
    return ["train", *itertools.chain.from_iterable(pairs)]


def begin_training(main, monkeypatch, arguments):
    """Start a training, and interrupt it before its first step."""

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keras.Model, "fit", interrupt)
        assert main(arguments) == 130


def error_of(main, arguments, capsys):
    """Run a command that must fail without output, and return its error, one line."""
    assert main([*map(str, arguments)]) == 2

    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    return err


def assert_same_results(actual, expected, tolerance=1e-4):
    """Compare captions or translations: text, words, scores and attention."""
    assert [x.words for x in actual] == [x.words for x in expected]
    for result, reference in zip(actual, expected, strict=True):
        assert result.text == reference.text
        for name in ("score", "log_probability"):
            value = pytest.approx(getattr(reference, name), abs=tolerance)
            assert getattr(result, name) == value
        np.testing.assert_allclose(result.weights, reference.weights, atol=1e-4)


def with_content(model, copy, file, content):
    """Copy a model with other content of a file, or without the file if it is `None`.

    The copy has no digests, since an attacker can write matching ones.
    """
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({"model": config["model"]}))
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_text(content)
    return copy


def check_flipped_bits(main, arguments, model, folder, capsys):
    """Check that one flipped bit of any file of a model is an error of one line.

    `arguments` are those of a command without the model; copies are in the `folder`.
    """
    for file in model.iterdir():
        for position in (5, -5):
            damaged = folder / f"{file.name}{position}"
            shutil.copytree(model, damaged)
            content = bytearray(file.read_bytes())
            content[position] ^= 1
            (damaged / file.name).write_bytes(content)

            error = error_of(main, [*arguments, "--model", damaged], capsys)
            assert "is not a complete" in error, file.name


def check_average(main, task, model, mean, capsys):
    """Check that the average of a model and itself has the weights of the model."""
    assert main(["average", str(mean), *[str(model)] * 2]) == 0

    assert "the average of 2 models" in capsys.readouterr().out
    config = json.loads((mean / "config.json").read_text())
    assert config["average_of"] == [model.name] * 2
    averaged, original = (
        task.from_preset(x).network.get_weights() for x in (mean, model)
    )
    for x, y in zip(averaged, original, strict=True):
        assert x == pytest.approx(y)


def calibration_of(folder):
    """Return the calibration in the folder of a model, a dict."""
    return json.loads((folder / "config.json").read_text())["calibration"]


def first_line(page):
    """Return the first fragment of HTML of a page, a `gradio.Blocks`."""
    values = (getattr(block, "value", None) for block in page.blocks.values())
    return next(value for value in values if isinstance(value, str))


def check_types_of_outputs(path):
    """Check that browsers can read all outputs of a LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    for name in interpreter.get_signature_list():
        outputs = interpreter.get_signature_runner(name).get_output_details()
        assert "finite" in outputs
        for output in outputs.values():
            assert output["dtype"] in (np.float32, np.int32, np.uint8), output["name"]
