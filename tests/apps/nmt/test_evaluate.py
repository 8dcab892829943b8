import re
import shutil

import pytest

from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.metrics import (
    bleu_by_length,
    has_four_words,
    translation_scores,
)

pytestmark = pytest.mark.usefixtures("cached_models", "echoed")


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


@pytest.mark.parametrize(
    "reference, wrong, tokenizer",
    [
        ("一只狗在公园里跑。", "一只猫在公园里跑。", "zh"),
        # Chinese text may contain a few kana.
        ("小松菜の一只红色的狗在公园里跑。", "小松菜の一只黑色的猫在公园里跑。", "zh"),
        ("赤い犬が公園を走っています。", "赤い猫が公園を走っています。", "char"),
        ("สุนัขวิ่งในสวนสาธารณะ", "สุนัขเดินในสวนสาธารณะ", "char"),
        ("개가 공원에서 빨리 달린다.", "고양이가 공원에서 빨리 달린다.", "13a"),
        ("Ein Hund (犬) läuft im Park.", "Eine Katze (犬) läuft im Park.", "13a"),
    ],
)
def test_bleu_tokenizes_scripts_without_spaces(reference, wrong, tokenizer):
    best, signatures = translation_scores([reference], [reference])
    scores, _ = translation_scores([wrong], [reference])

    assert best["bleu"] == pytest.approx(100)
    assert 20 < scores["bleu"] == scores["bleu-lc"] < 100
    for name in ("bleu", "bleu-lc"):
        assert f"tok:{tokenizer}|" in signatures[name]


def test_bleu_needs_a_reference_of_four_words():
    assert has_four_words(["Hallo", "Ein Hund läuft ."])
    assert has_four_words(["一只狗在"])
    assert not has_four_words(["Ein Hund.", "", "zwei Hunde"])
    assert not has_four_words(["狗在"])


def test_scores_by_length_in_characters():
    sources = ["一只狗", "一只狗在公园里跑。", "一只 狗"]
    texts = ["Ein Hund .", "Ein Hund läuft im Park .", "Ein Hund ."]
    scores = bleu_by_length(sources, texts, texts, parts=3)

    assert [part[:2] for part in scores] == [((3, 3), 2), ((9, 9), 1)]
    assert scores[1][2] == pytest.approx(100)
    (score,) = [x for *_, x in bleu_by_length(["x"], ["一只狗在"], ["一只狗在"])]
    assert score == pytest.approx(100)


def test_scores_by_length():
    sources = ["a"] * 3 + ["a b c d", "a b c d e"] + ["a b c d e f"]
    right, wrong = "eins zwei drei vier fünf", "sechs sieben acht neun zehn"
    translations = [right.title()] * 3 + [wrong] + [right] * 2

    scores = bleu_by_length(sources, translations, [right] * 6, parts=3)

    assert [part[:2] for part in scores] == [((1, 1), 3), ((4, 4), 1), ((5, 6), 2)]
    assert [part[2] for part in scores] == pytest.approx([100, 0, 100])


def test_evaluation_prints_scores(corpus, model_folder, capsys):
    arguments = ["--data", str(corpus), "--pair", "en-fr"]
    assert main(["evaluate", *arguments, "--model", str(model_folder)]) == 0

    lines = capsys.readouterr().out.splitlines()
    names = ["bleu", "bleu-lc", "chrf", "chrf-lc"]
    assert [line.split()[0] for line in lines[1:5]] == names
    assert all("version:" in line for line in lines[1:5])
    assert lines[5] == "bleu-lc by the length of the source:"
    assert re.search(r"^ +[0-9.]+  [0-9]+ sentences? of [0-9]+ words$", lines[6])


def test_every_name_of_a_validation_set_is_evaluated(
    corpus, model_folder, tmp_path, capsys
):
    for language in ("en", "fr"):
        shutil.copy(corpus / f"val.{language}", tmp_path / f"valid.{language}")
    arguments = ["--data", str(tmp_path), "--pair", "en-fr"]
    assert main(["evaluate", *arguments, "--model", str(model_folder)]) == 0
    assert f"sentences of {tmp_path / 'valid.en'}" in capsys.readouterr().out


def test_evaluation_counts_truncated_sentences(model_folder, tmp_path, capsys):
    for name in ("source", "target"):
        (tmp_path / name).write_text("the red dog\n" + "dog " * 99 + "\n")
    files = [f"--{x}={tmp_path / x}" for x in ("source", "target")]
    assert main(["evaluate", *files, "--model", str(model_folder)]) == 0

    err = capsys.readouterr().err
    assert "1 of 2 sentences exceeded the maximum length of the model" in err
