import pytest
from keras_attention_apps.nmt.evaluate import translation_scores


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
