"""Model cards: the Hub's own library reads the metadata of those of all models."""

import re
from pathlib import Path

import pytest
from keras_attention_apps.common.training.card import model_card

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "apps").glob("*/presets/*/README.md"))
TASKS = {"captioner": "image-to-text", "nmt": "translation"}


def read(text):
    """Return the metadata of a card, and its text."""
    hub = pytest.importorskip("huggingface_hub")
    # It raises an error for metadata or results of another form.
    card = hub.ModelCard(text, ignore_metadata_errors=False)
    return card.data, card.text


def results(data):
    return {
        (x.dataset_type, x.dataset_name, x.metric_type, x.metric_name): x.metric_value
        for x in data.eval_results
    }


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.parent.name)
def test_cards_of_presets_have_the_metadata_of_the_hub(path):
    data, text = read(path.read_text(encoding="utf-8"))

    program, name = path.parts[-4], path.parent.name
    assert data.library_name == "keras"
    assert data.pipeline_tag == TASKS[program]
    assert data.model_name == name
    terms = " ".join(text.split("## Data and terms")[1].split())
    if program == "nmt":
        assert data.language == (["de", "en"] if "de-en" in name else ["en", "de"])
        assert data.license == "cc-by-nc-sa-4.0"
        assert "CC BY-NC-SA 4.0; these weights are therefore" in terms
    else:
        assert data.language == "en" and data.license == "other"
        assert data.license_name == "research-and-education"
        assert "licensed for research and education" in terms
    found = results(data)
    assert {x[0] for x in found} == set(data.datasets)
    assert {x[2] for x in found} == set(data.metrics)
    for value in found.values():
        assert re.search(rf"\| {value:.{1 if program == 'captioner' else 2}f} \|", text)


def test_a_card_of_one_data_set():
    metrics = {"loss": 1.0, "bleu": 12.346, "chrf": 40.0, "step_time": 3.0}
    text = model_card(
        "mine: a # model",
        "29 pairs",
        metrics,
        task="translation",
        languages=["en", "de"],
        data=["my corpus"],
        base="other",
    )
    data, body = read(text)

    assert data.model_name == "mine: a # model"
    assert (data.license, data.language) == ("unknown", ["en", "de"])
    assert data.datasets == ["my-corpus"] and data.metrics == ["bleu", "chrf"]
    assert results(data) == {
        ("my-corpus", "my corpus", "bleu", "BLEU"): 12.35,
        ("my-corpus", "my corpus", "chrf", "chrF2"): 40.0,
    }
    assert "\n| chrF2 | my corpus | 40.00 |\n" in body
    assert "29 pairs. The training started from `other`." in body


def test_a_card_of_several_data_sets_has_the_results_of_each():
    metrics = {"cider": 3.0, "cider a": 2.0, "cider b": 4.0, "rouge-l a": 5.0}
    data, body = read(
        model_card("mine", "x", metrics, task="image-to-text", data=["a", "b"])
    )

    assert data.language is None
    assert results(data) == {
        ("a", "a", "cider", "CIDEr"): 2.0,
        ("a", "a", "rouge", "ROUGE-L"): 5.0,
        ("b", "b", "cider", "CIDEr"): 4.0,
    }
    assert "3.00" not in body


def test_files_without_a_language_or_a_name_of_data_are_named_generally():
    metrics = {"bleu": 1.0}
    card = model_card("m", "x", metrics, task="translation", languages=["txt7", ""])
    data, _ = read(card)
    assert (data.language, data.datasets) == (None, None)
    assert results(data) == {("validation", "validation", "bleu", "BLEU"): 1.0}
