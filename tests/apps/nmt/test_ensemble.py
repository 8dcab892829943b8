"""Translators whose searches follow their mean probability."""

import keras
import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main

from .conftest import untrained

numpy = keras.ops.convert_to_numpy


@pytest.fixture(scope="module")
def other(subwords):
    return untrained(subwords, "self-attention")


def test_probabilities_and_alignments_are_the_mean(eager, translator, other):
    source = np.array([[7, 8, 9, 2], [5, 2, 0, 0]])

    def first_step(model):
        memory, state = model.network.begin({"source": source}, 8)
        # One hypothesis of each sentence.
        state = keras.tree.map_structure(lambda x: x[:, None], state)
        log_probs, _, weights = model.network.step(np.full((2, 1), 6), state, memory)
        return np.exp(numpy(log_probs)), numpy(weights)

    outputs = first_step(Translator.ensemble([translator, other]))
    pairs = zip(first_step(translator), first_step(other), strict=True)
    for values, pair in zip(outputs, pairs, strict=True):
        np.testing.assert_allclose(values, sum(pair) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.exhaustive
def test_the_command_takes_an_ensemble(eager, translator, other, tmp_path, capsys):
    translator.save(tmp_path / "one")
    other.save(tmp_path / "two")
    both = f"{tmp_path / 'one'}+{tmp_path / 'two'}"
    assert main(["translate", "the dog sees a cat", "--model", both]) == 0
    printed = capsys.readouterr().out.strip()
    assert printed == Translator.from_preset(both).translate("the dog sees a cat").text

    assert main(["translate", "the dog", "--model", f"{both}+{tmp_path}/none"]) == 2
    assert f"Received: '{tmp_path}/none'" in capsys.readouterr().err


def test_translators_that_do_not_fit(translator, other, subwords, unspaced_subwords):
    with pytest.raises(UserError, match="needs a single translator, not an ensemble"):
        Translator.ensemble([translator, other]).save("nowhere")
    with pytest.raises(UserError, match="have the same vocabulary"):
        Translator.ensemble([translator, untrained(unspaced_subwords, "bahdanau")])
    with pytest.raises(UserError, match="have attention, or none of them"):
        Translator.ensemble([translator, untrained(subwords, "none")])
    shorter = untrained(subwords, "bahdanau", max_length=11)
    with pytest.raises(UserError, match=r"same max_length. Received: \d+ and 11"):
        Translator.ensemble([translator, shorter])
    copying = untrained(subwords, "bahdanau", copy=True)
    with pytest.raises(UserError, match="copying cannot be in an ensemble"):
        Translator.ensemble([translator, copying])
