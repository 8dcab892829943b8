"""`nmt align`, and its error rate in `nmt evaluate`."""

import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.alignments import (
    align,
    alignment_error_rate,
    pharaoh,
    read_references,
    symmetrized,
)
from keras_attention_apps.nmt.attention_weights import merge_weights
from keras_attention_apps.nmt.main import main

from .conftest import untrained

# A green cow goes slowly home. / Langsam geht eine grüne Kuh nach Hause.
FORWARD = {(3, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 5)}
REVERSE = {(3, 1), (0, 2), (1, 3), (2, 4), (4, 0), (5, 6)}


@pytest.mark.parametrize(
    ("method", "links"),
    [
        ("intersection", FORWARD & REVERSE),
        ("union", FORWARD | REVERSE),
        # (5, 5) is beside (5, 6), and (4, 0) beside (3, 1).
        ("grow-diag-final-and", FORWARD | REVERSE),
    ],
)
def test_directions_are_joined(method, links):
    assert symmetrized(FORWARD, REVERSE, method) == links


def test_links_grow_from_neighbours_and_finally_align_free_words():
    forward = {(0, 0), (1, 1), (2, 1), (5, 5), (7, 7), (1, 9)}
    reverse = {(0, 0), (1, 1), (2, 2), (5, 3), (7, 8)}
    # (2, 1) and (2, 2) are beside (1, 1). The rest has no neighbour: (5, 5) and then
    # (7, 7) come first, and (5, 3), (7, 8) and (1, 9) have an aligned word.
    expected = {(0, 0), (1, 1), (2, 1), (2, 2), (5, 5), (7, 7)}
    assert symmetrized(forward, reverse, "grow-diag-final-and") == expected


def test_error_rate_worked_by_hand():
    # |A| = 3, |S| = 2, |A and S| = 1, |A and P| = 2.
    alignments = [{(0, 0), (1, 1)}, {(0, 0)}]
    references = [({(0, 0)}, {(0, 0), (1, 1)}), ({(1, 0)}, {(1, 0)})]
    assert alignment_error_rate(alignments, references) == pytest.approx(1 - 3 / 5)
    assert alignment_error_rate([set()], [(set(), set())]) == 0


def test_references_are_sure_or_possible(tmp_path):
    path = tmp_path / "gold"
    path.write_text("0-0 1?2 3p1\n\n")
    sure, possible = {(0, 0)}, {(0, 0), (1, 2), (3, 1)}
    assert read_references(path) == [(sure, possible), (set(), set())]
    path.write_text("0-0\n1:2\n")
    with pytest.raises(UserError, match=r"line 2.*'1:2'"):
        read_references(path)


def test_pairs_are_aligned_as_each_alone(subwords):
    translator = untrained(subwords, "self-attention", max_length=40)
    pairs = [
        ("the red dog sees 12 cats", "le chien rouge voit 12 chats"),
        ("", ""),
        ("a bird", "un oiseau"),
        ("old cat likes the big dog", "vieux chat aime le grand chien"),
    ]
    aligned = list(align(translator, pairs, batch_size=2))
    assert len(aligned) == len(pairs)
    for (source, target), alignment in zip(pairs, aligned, strict=True):
        assert (alignment.source_words, alignment.words) == (
            source.split(),
            target.split(),
        )
        assert not alignment.cut
        ids = [translator.tokenizer.encode(text) for text in (source, target)]
        (forced,) = translator.forced_hypotheses(ids[:1], ids[1:])
        word_indices = [translator.tokenizer.word_indices(x) for x in ids]
        # The end token is one more word.
        sources = [*word_indices[0], len(source.split())]
        merged = merge_weights(forced.weights, sources, word_indices[1])
        np.testing.assert_allclose(alignment.weights, merged[:, :-1], atol=1e-5)
        np.testing.assert_allclose(alignment.end_weights, merged[:, -1], atol=1e-5)
        total = alignment.weights.sum(axis=1) + alignment.end_weights
        np.testing.assert_allclose(total, 1, atol=1e-5)


def test_words_after_a_cut_have_no_links(subwords):
    translator = untrained(subwords, "bahdanau", max_length=6)
    (alignments,) = align(translator, [("dog " * 9, "chien " * 9)])
    assert alignments.cut and alignments.weights.shape == (9, 9)
    assert alignments.weights[0].any() and not alignments.weights[6:].any()


def test_the_command_prints_links_and_their_error_rate(model_folder, tmp_path, capsys):
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("the red dog\na cat\n\n")
    target.write_text("le chien rouge\nun chat\n\n")
    files = ["--source", str(source), "--target", str(target)]
    files += ["--model", str(model_folder)]
    assert main(["align", *files, "--plot", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 3 and "-" in printed
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert names == ["0001.png", "0002.png"]
    gold = tmp_path / "gold"
    assert main(["align", *files, "--output", str(gold)]) == 0
    assert gold.read_text() == printed
    capsys.readouterr()
    assert main(["evaluate", *files, "--alignments", str(gold)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["AER", "0.00"]

    both = [*files, "--reverse-model", str(model_folder)]
    lines = {}
    for method in ("intersection", "union"):
        assert main(["align", *both, "--symmetrize", method]) == 0
        lines[method] = capsys.readouterr().out.splitlines()
    for few, many in zip(lines["intersection"], lines["union"], strict=True):
        assert set(few.split()) <= set(many.split())
    assert lines["intersection"] != lines["union"]


def test_problems_are_one_line(model_folder, tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("a dog\n")
    other = tmp_path / "other"
    other.write_text("un chien\n")
    files = ["--source", str(text), "--target", str(other)]
    files += ["--model", str(model_folder)]
    assert main(["align", *files, "--symmetrize", "union"]) == 2
    assert "--symmetrize needs --reverse-model" in capsys.readouterr().err
    assert main(["evaluate", *files, "--reverse-model", "x"]) == 2
    assert "need --alignments" in capsys.readouterr().err
    text.write_text("0-0\n0-0\n")
    assert main(["evaluate", *files, "--alignments", str(text)]) == 2
    assert pharaoh([(2, 0), (0, 1)]) == "0-1 2-0"
