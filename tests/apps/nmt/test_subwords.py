import subprocess
import sys

import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END
from keras_attention_apps.nmt.attention_weights import alignment_of, merge_weights
from keras_attention_apps.nmt.subwords import Subwords, clean

from .conftest import unspaced_sentences

TEXTS = [
    "the red dog",
    "The RED dog.",
    "Zoë e\u0301té собака कुत्ता 개 \U0001f600",
    "<s> </s> <pad>",
    " two  blanks\tand\x00control\x7f characters ",
    "a\u2581b\u2028c\ufeff",
    "\udc80 half a pair",
    "",
    " ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_subwords_are_reversible(text, subwords):
    assert subwords.decode(subwords.encode(text)) == clean(text)


def words_of(subwords, text):
    """Return the words of a text; check that each token belongs to one, in order."""
    token_ids = subwords.encode(text)
    words, word_indices = subwords.words(token_ids)
    assert len(word_indices) == len(token_ids) - 1 and token_ids[-1] == END
    assert sorted(word_indices) == word_indices.tolist()
    assert sorted(set(word_indices.tolist())) == list(range(len(words)))
    return words


@pytest.mark.parametrize("text", TEXTS)
def test_words_are_separated_by_spaces(text, subwords):
    assert words_of(subwords, text) == clean(text).split()


@pytest.mark.parametrize(
    "text, words",
    [
        ("我们买了手机。", ["我", "们", "买", "了", "手", "机。"]),
        ("iPhone 手机", ["iPhone", "手", "机"]),
        ("买iPhone手机，the  dog", ["买", "iPhone", "手", "机，", "the", "dog"]),
        ("3月15日 \U0001f600", ["3", "月", "15", "日", "\U0001f600"]),
        ("“手”？\U0001f600机", ["“", "手”？\U0001f600", "机"]),
        ("\U00020000龘", ["\U00020000", "龘"]),
        ("2人のT-shirt", ["2", "人", "の", "T-shirt"]),
        # Marks after letters are parts of words, composed or not.
        ("か\u3099き\u309a", ["が", "き\u309a"]),
        ("หมาวิ่ง", ["ห", "ม", "า", "วิ่", "ง"]),
    ],
)
def test_without_spaces_characters_that_are_bytes_are_words(text, words, subwords):
    assert words_of(subwords, text) == words
    assert subwords.decode(subwords.encode(text)) == clean(text)


def test_without_spaces_subwords_are_words(unspaced_subwords):
    text = "我们看见了他们的小狗"
    token_ids = unspaced_subwords.encode(text)[:-1]
    pieces = [unspaced_subwords.pieces[token].strip("\u2581") for token in token_ids]
    words = words_of(unspaced_subwords, text)

    assert words == [piece for piece in pieces if piece]
    assert 1 < len(words) < len(text)


def test_no_space_is_lost_or_added_between_words(unspaced_subwords):
    for text in [*unspaced_sentences(), "我们喜欢靐， the 靐手机"]:
        assert "".join(words_of(unspaced_subwords, text)) == text.replace(" ", "")
        assert unspaced_subwords.decode(unspaced_subwords.encode(text)) == text


def test_characters_that_lack_bytes_break_no_other(subwords):
    mark, *token_ids, _ = subwords.encode("手机")
    words, word_indices = subwords.words(
        [mark, *token_ids[:2], *token_ids, *token_ids[1:]]
    )
    assert words == ["\ufffd\ufffd", "手", "机\ufffd\ufffd", "机"]
    assert word_indices.tolist() == [0] * 3 + [1] * 3 + [2] * 5 + [3] * 3


def test_clean_text_has_single_blanks_and_no_control_characters():
    assert clean(clean(TEXTS[4])) == "two blanks and control characters"


def test_a_mark_without_a_word_is_no_word(subwords):
    mark = subwords.pieces.index("\u2581")
    dog = subwords.encode("dog")[:-1]
    words, word_indices = subwords.words([mark, mark, *dog, mark, END])

    assert words == ["dog"]
    assert len(word_indices) == 3 + len(dog) and set(word_indices.tolist()) == {0}
    words, word_indices = subwords.words([mark, END])
    assert words == [] and len(word_indices) == 0


def printed(code):
    """Run code with the subwords in another process, and return what it prints."""
    code = f"from keras_attention_apps.nmt.subwords import Subwords\n{code}"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


def test_dropout_splits_by_the_seed_alone_in_any_process(subwords, tmp_path):
    texts = ["the red dog likes the old bird"] * 40
    encoded, other = (subwords.encode_all(texts, dropout=0.3, seed=x) for x in (5, 6))

    assert encoded != other
    assert len(set(map(tuple, encoded))) > 20
    assert {subwords.decode(ids) for ids in encoded} == {texts[0]}
    (tmp_path / "subwords.model").write_bytes(subwords.content)
    content = f"open({str(tmp_path / 'subwords.model')!r}, 'rb').read()"
    again = f"Subwords({content}).encode_all({texts}, dropout=0.3, seed=5)"
    assert printed(f"print({again})") == str(encoded)


def test_no_control_character_is_ever_produced(subwords):
    forbidden = {subwords.pieces[i] for i in subwords.banned}
    assert {"<0x00>", "<0x0A>", "<0x20>", "<0x7F>", "<pad>", "<s>"} <= forbidden
    assert END not in subwords.banned and "<0xE4>" not in forbidden


@pytest.mark.parametrize("size", [1, 3, 4, 262])
def test_too_few_subwords_for_the_characters(size):
    message = rf"vocabulary_size must be at least 267, .* Received: {size}$"
    with pytest.raises(UserError, match=message):
        Subwords.train(["abc", "def"], size)


def test_a_vocabulary_size_that_sentencepiece_refuses():
    with pytest.raises(UserError, match=r"no subwords can .*99999999999"):
        Subwords.train(["abc", "def"], 99_999_999_999)


def test_subwords_are_learned_from_words_of_any_length():
    # In another process, because a failure in C++ would end it.
    subwords = "Subwords.train(['the red dog', 'ab' * 70_000], 300)"
    # It is 140,000 characters.
    assert int(printed(f"print(len({subwords}.encode('ab' * 70_000)))")) < 70_000


@pytest.mark.parametrize("options", [b"\x1a", b"\x2a"])
def test_a_model_has_no_table_of_a_normalisation(subwords, options):
    name, table = b"\x0a\1x", b"\x12\3abc"
    assert len(Subwords(subwords.content + options + b"\3" + name)) == len(subwords)
    with pytest.raises(UserError, match=r"expected .* without a table of a normalisa"):
        Subwords(subwords.content + options + b"\x08" + name + table)


@pytest.mark.parametrize(
    "end", [b"\x1a", b"\x1a\x05a", b"\x1b", b"\x80" * 11, b"\xff" * 9 + b"\x02\x00"]
)
def test_a_model_that_ends_with_a_damaged_field(subwords, end):
    with pytest.raises(UserError, match="not a SentencePiece model: Error parsing"):
        Subwords(subwords.content + end)


def test_a_model_whose_piece_is_not_utf_8(subwords):
    position = subwords.content.index("\u2581".encode(), 100)
    content = bytearray(subwords.content)
    content[position + 1] = ord("a")
    with pytest.raises(UserError, match=r"SentencePiece model: piece .* is not UTF-8"):
        Subwords(bytes(content))


def test_weights_of_words_worked_by_hand():
    # Source words of two, one and no more subwords; the last column is the end.
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.4, 0.0], [0, 0, 1, 0]])
    merged = merge_weights(weights, [0, 0, 1], [0, 0, 1])

    np.testing.assert_allclose(merged, [[0.45, 0.35], [0.0, 1.0]])
    assert alignment_of(merged) == [(0, 0), (1, 1)]
    assert merge_weights(weights, [0, 0, 1], []).shape == (0, 2)
    assert alignment_of(np.zeros((0, 2))) == []


def test_words_without_attention_are_not_aligned():
    weights = np.array([[0.0, 0.0], [0.2, 0.8], [np.nan, np.nan], [0.6, 0.4]])
    assert alignment_of(weights) == [(1, 1), (0, 3)]
    assert alignment_of(weights, np.array([0.0, 0.9, 0.0, 0.6])) == [(0, 3)]
    assert alignment_of(np.zeros((3, 0))) == []


def test_weights_of_words_are_at_most_one():
    # In bfloat16, rounding makes some sums of weights larger than one.
    assert merge_weights(np.array([[0.50390625, 0.5]]), [0, 0], [0]).tolist() == [[1.0]]
