"""The examples for the library in the documentation run, one after the other."""

import re
import shutil

import keras
import numpy as np
import pytest

from attention_testing.repository import ROOT, blocks, read

# One example trains a model, whose result depends on the random seed.
pytestmark = pytest.mark.usefixtures("seeded")


def run(path):
    """Run all examples of a page and return its variables."""
    examples = blocks(read(path))
    names = {"__name__": "page", "examples": len(examples)}
    for example in examples:
        if "import tensorflow" in example and keras.backend.backend() != "tensorflow":
            continue
        exec(compile(example, path, "exec"), names)
    return names


def test_example_of_the_readme_runs():
    names = run("README.md")

    x, y = np.array([[5, 7, 0], [7, 0, 0], [5, 5, 0]]), np.array([0, 1, 2])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    names["model"].compile("adam", loss)
    names["model"].fit(x, y, verbose=0)
    weights = names["reader"].predict(x, verbose=0)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert not weights[x == 0].any()
    texts = [["so", "good"], ["good"], ["so", "so"]]
    page = names["attention_text"](texts, weights)
    assert page.count("<p ") == 3


def test_example_of_the_first_page_learns_which_number_counts():
    names = run("docs/index.md")

    weights = names["reader"].predict(names["x"], verbose=0)
    assert np.mean(weights.argmax(axis=1) == names["marked"]) > 0.95


def test_lines_of_the_first_page_run():
    """Every line of the table under "Which layer do I need?"."""
    table = read("docs/index.md").split("| you have |")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    context, sequence, vector = (2, 5, 24), (2, 40, 24), (2, 24)
    others = {
        "a sequence that attends to itself (self-attention)": sequence,
        "a sequence whose order matters": sequence,
        "a sequence whose order matters, by relative positions (rotary, ALiBi, T5, "
        "Shaw)": sequence,
        "a long sequence, whose positions attend to their neighbours": sequence,
        "several heads with a smaller key-value cache "
        "(grouped-query attention)": sequence,
        "a sequence that should become one vector": vector,
        "a layer of a Transformer, with a hidden layer of F units": sequence,
        "a layer of the decoder of a Transformer": (2, 5, 32),
        "autoregressive decoding with a Transformer (key-value cache)": (2, 32),
        "autoregressive decoding with a recurrent decoder": (2, 5, 64),
        "the feature grid of a CNN": vector,
        "the same, with a visual sentinel for words that depend on the text alone "
        "(adaptive attention)": (2, 5, 64),
        "a source whose words the output may copy": (2, 5, 109),
        "outputs that are positions of the source": (2, 5, 40),
    }

    assert len(rows) >= 16
    assert others.keys() <= {situation for situation, *_ in rows}
    names = run("docs/index.md")
    for situation, use, growth, time, memory, paper in rows:
        *lines, last = re.findall("`(.*?)`", use)
        for line in lines:
            exec(line, names)
        value = eval(last, names)
        if isinstance(value, dict):
            value = value["output"]
        value = value[0] if isinstance(value, tuple) else value
        assert tuple(value.shape) == others.get(situation, context), situation
        assert np.all(np.isfinite(keras.ops.convert_to_numpy(value))), situation
        assert growth and time and memory and re.search(r"\d{4}", paper), situation


@pytest.mark.exhaustive
def test_recipes_of_the_page_on_layers_run():
    names = run("docs/layers.md")

    assert names["examples"] >= 5
    assert tuple(names["context"].shape) == (2, 64)
    sentences = [np.zeros((2, 7), "int32"), np.zeros((2, 5), "int32")]
    assert tuple(names["model"](sentences).shape) == (2, 5, 10_000)


@pytest.mark.exhaustive
def test_examples_of_the_page_on_exports_run(tmp_path, monkeypatch):
    save, quantize, *saved_models, weights = blocks(read("docs/export.md"))
    # test_export of both programs loads such SavedModels.
    assert all("tf.saved_model.load" in code for code in saved_models)
    preset = ROOT / "apps/keras_attention_apps/nmt/presets/multi30k-en-de-luong"
    shutil.copytree(preset, tmp_path / "my-model/model")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in (save, quantize, weights):
        exec(compile(code, "export.md", "exec"), names)

    assert names["scores"].shape == (1, 2)
    quantised = names["model"](np.array([[5, 6, 7, 0]]))
    np.testing.assert_allclose(
        *map(keras.ops.convert_to_numpy, (quantised, names["scores"])), atol=0.05
    )
    weight = names["weight"]
    assert weight.dtype == ">f2" and weight.ndim == 2 and np.all(np.isfinite(weight))


@pytest.mark.exhaustive
def test_examples_of_the_page_on_decoders_run():
    names = run("docs/decoders.md")

    def best(result):
        return keras.ops.convert_to_numpy(result["token_ids"])[:, 0]

    assert best(names["result"]).shape == (2, 8)
    digits = names["digits"][:200]
    token_ids = best(names["translate"](digits))
    ends = np.full((200, 1), names["end"])
    written = token_ids[:, :6] == np.concatenate([digits[:, ::-1], ends], axis=1)
    # Rounding differs between machines, and training amplifies the differences.
    assert np.mean(np.all(written, axis=1)) > 0.9
    answers = names["answers"][:200]
    same = (best(names["reversed_rows"])[:, :7] == answers) | (answers == 0)
    assert np.mean(np.all(same, axis=1)) > 0.9
    if keras.backend.backend() == "tensorflow":
        assert best(names["again"]).tolist() == token_ids[:7].tolist()
