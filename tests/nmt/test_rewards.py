import pytest
from keras_attention_apps.nmt.training.train import BleuChrfReward
from sacrebleu.metrics import BLEU, CHRF


def test_rewards_equal_sacrebleu():
    text, reference = "Ein Hund läuft schnell.", "Ein Hund läuft im Park."
    reward = BleuChrfReward([reference])

    bleu = BLEU(effective_order=True).sentence_score(text, [reference]).score
    chrf = CHRF().sentence_score(text, [reference]).score
    assert reward(text, reference) == pytest.approx((bleu + chrf) / 100)
    assert 0 < bleu != chrf > 0
    assert reward(reference, reference) == pytest.approx(2.0)
    assert reward("", reference) == 0
    assert reward(text, "") == 0


def test_chinese_is_compared_by_characters():
    reward = BleuChrfReward(["我们看见了一只很大的狗。"])
    assert reward("我们看见了一只很小的猫。", "我们看见了一只很大的狗。") > 0.5
