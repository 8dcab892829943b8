import pytest
from keras_attention_apps.nmt.evaluate import bleu_by_length, translation_scores


def test_scores_worked_by_hand():
    # Five of six words, five of six pairs, and so on, case aside.
    hypothesis, reference = ["Ein Hund läuft im Park ."], ["ein Hund läuft im Park ."]
    scores, signatures = translation_scores(hypothesis, reference)

    precisions = 5 / 6 * 4 / 5 * 3 / 4 * 2 / 3
    assert scores["bleu"] == pytest.approx(100 * precisions**0.25)
    assert [scores["bleu-lc"], scores["chrf-lc"]] == pytest.approx([100, 100])
    assert 0 < scores["chrf"] < 100
    assert "case:lc" in signatures["bleu-lc"] and "case:mixed" in signatures["bleu"]
    assert "nc:6|nw:0" in signatures["chrf"]


def test_scores_by_length():
    sources = ["a"] * 3 + ["a b c d e"] * 2 + ["a b c d e f"]
    right, wrong = "eins zwei drei vier fünf", "sechs sieben acht neun zehn"
    translations = [right.title()] * 3 + [wrong] * 2 + [right]

    found = bleu_by_length(sources, translations, [right] * 6, parts=3)

    assert [part[:2] for part in found] == [(1, 3), (5, 2), (6, 1)]
    assert [part[2] for part in found] == pytest.approx([100, 0, 100])
