"""Captioners whose searches follow their mean probability."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.network.networks import build_network
from keras_attention_apps.captioner.vocabulary import Vocabulary
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import write_sealed
from keras_attention_apps.common.network.decoder_network import Ensemble

from .conftest import TINY, untrained

numpy = keras.ops.convert_to_numpy


@pytest.fixture(scope="module")
def transformer(captioner):
    """A Transformer with the CNN of the other captioner, and its words reversed."""
    config = dataclasses.replace(TINY, decoder="transformer", embedding_units=8)
    vocabulary = Vocabulary(captioner.tokenizer.words[:3:-1])
    network = build_network(config, len(vocabulary))
    network.backbone.cnn.set_weights(captioner.network.backbone.cnn.get_weights())
    return Captioner(config, vocabulary, network)


@pytest.fixture
def inputs(batch):
    return {"features": batch["features"]}


def test_probabilities_are_the_mean_and_maps_those_of_the_first(
    eager, captioner, transformer, inputs
):
    def first_step(model, word):
        memory, state = model.network.begin(inputs, 6)
        # One hypothesis of each image.
        state = keras.tree.map_structure(lambda x: x[:, None], state)
        token = np.full((2, 1), model.tokenizer.words.index(word))
        log_probs, _, weights = model.network.step(token, state, memory)
        token_ids = [model.tokenizer.words.index(x) for x in captioner.tokenizer.words]
        return np.exp(numpy(log_probs)[..., token_ids]), numpy(weights)

    both = Captioner.ensemble([captioner, transformer])
    (mean, maps), (first, overlay_maps), (second, others) = (
        first_step(model, "red") for model in (both, captioner, transformer)
    )
    np.testing.assert_allclose(mean, (first + second) / 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(maps, overlay_maps, rtol=1e-4, atol=1e-6)
    assert not np.allclose(overlay_maps, others, atol=1e-4)


def test_members_on_disk_are_loaded_with_one_cnn_and_one_vocabulary(
    eager, captioner, transformer, tmp_path, inputs
):
    folders = [tmp_path / "lstm", tmp_path / "transformer"]
    for model, folder in zip((captioner, transformer), folders, strict=True):
        model.save(folder)

    def captions(model):
        actual = model.search_model(beam_size=3).predict_on_batch(inputs)
        return model.captions_of({k: numpy(x) for k, x in actual.items()}, 1)

    loaded = Captioner.from_preset("+".join(map(str, folders)))
    first, second = loaded.network.networks
    assert first.backbone is second.backbone
    expected = Captioner.ensemble([captioner, transformer])
    for (caption,), (reference,) in zip(
        captions(loaded), captions(expected), strict=True
    ):
        assert caption.text == reference.text
        # The weights in the files are rounded.
        assert caption.log_probability == pytest.approx(
            reference.log_probability, abs=0.05
        )


def test_an_ensemble_of_one_captioner(captioner):
    alone = Captioner.ensemble([captioner])
    assert alone.network.networks == [captioner.network]


def test_maps_are_the_weights_if_all_captioners_are_soft(captioner):
    hard = untrained(dataclasses.replace(TINY, attention="hard"))
    hard.network.backbone.set_weights(captioner.network.backbone.get_weights())

    assert captioner.is_soft and not hard.is_soft
    assert not Captioner.ensemble([captioner, hard]).is_soft


@pytest.mark.exhaustive
def test_names_with_a_plus_between_them(
    eager, captioner, transformer, tmp_path, capsys
):
    captioner.save(tmp_path / "lstm")
    transformer.save(tmp_path / "new+best")
    both = f"{tmp_path / 'lstm'}+{tmp_path / 'transformer'}"
    assert not Captioner.from_preset(tmp_path / "new+best").is_ensemble

    (tmp_path / "new+best").rename(tmp_path / "transformer")
    image = np.full((40, 30, 3), 200, "uint8")
    actual = Captioner.from_preset(both).caption(image)
    expected = Captioner.ensemble([captioner, transformer]).caption(image)
    assert actual.text == expected.text
    assert actual.log_probability == pytest.approx(expected.log_probability, abs=0.05)
    half = Captioner.from_preset(both, precision="mixed_bfloat16").network.networks
    assert {x.dtype_policy.name for x in half} == {"mixed_bfloat16"}
    assert Ensemble(half).dtype_policy.name == "mixed_bfloat16"
    assert Ensemble([captioner.network, *half]).dtype_policy.name == "float32"
    assert main(["average", str(tmp_path / "mean"), both, both]) == 2
    assert "an average needs a single captioner" in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()

    folder, names = tmp_path, ["lstm", "transformer"]
    write_sealed(folder / "config.json", {"ensemble": names})
    again = Captioner.from_preset(folder)
    assert again.caption(image).log_probability == actual.log_probability
    assert Captioner.read_config(folder) == captioner.config
    with pytest.raises(UserError, match="saving needs a single captioner"):
        again.save(tmp_path / "saved")
    for models in ([again, captioner], [captioner, again]):
        with pytest.raises(UserError, match="each must be single"):
            Captioner.ensemble(models)

    write_sealed(folder / "config.json", {"ensemble": names[:1]})
    assert Captioner.from_preset(folder).network.count_params() > 0


def test_another_cnn_is_reported_on_loading(captioner, tmp_path):
    captioner.save(tmp_path / "first")
    other = untrained(TINY)
    cnn = other.network.backbone.cnn
    cnn.set_weights([2 * weight for weight in cnn.get_weights()])
    other.save(tmp_path / "second")
    both = f"{tmp_path / 'first'}+{tmp_path / 'second'}"
    with pytest.raises(UserError, match=r"^the captioners .* backbone.*second"):
        Captioner.from_preset(both)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 32}, "same image size.*SmallCNN at 16 .* and SmallCNN at 32 "),
        ({}, "the same vocabulary"),
    ],
    ids=str,
)
def test_captioners_that_do_not_fit(captioner, change, message):
    other = untrained(dataclasses.replace(TINY, **change))
    if not change:
        other.tokenizer = Vocabulary([*other.tokenizer.words[4:-1], "circle"])
    with pytest.raises(UserError, match=message):
        Captioner.ensemble([captioner, other])
    with pytest.raises(UserError, match="needs at least one captioner"):
        Captioner.ensemble([])
