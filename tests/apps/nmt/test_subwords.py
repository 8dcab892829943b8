import base64
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attention_testing.browser_pages import run_typescript
from attention_testing.nmt import marian as published
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END
from keras_attention_apps.nmt import marian
from keras_attention_apps.nmt.attention_weights import alignment_of, merge_weights
from keras_attention_apps.nmt.subwords import Subwords, clean, normalization_table

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


CASES = Path(__file__).parent / "subword_cases.json"
CHARACTERS = [
    *"abcst12.,/@>< \t\u3000\u200b\u00ad\u0308\u0301\uff9e",
    *"\ufb01\uff21\u00bd\u2122\u4e2d\u56fd\u1100\u1161\uac00\ufee3\u0645\u0436\u00df\u1e9b",
    *["\U0001f600", "\U0001f601", "cat", "the", "fin", "@@", ">>deu<<", "\ufdfa"],
]


def described_models():
    return json.loads(CASES.read_text("utf-8"))


def described(description):
    """Return the `Subwords` of a model in the file of cases."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    kinds = ModelProto.SentencePiece
    model = ModelProto()
    for piece in ("<pad>", "<s>", "</s>", "<unk>"):
        kind = kinds.UNKNOWN if piece == "<unk>" else kinds.CONTROL
        model.pieces.add(piece=piece, score=0.0, type=kind)
    for piece, score, kind in description["pieces"]:
        model.pieces.add(piece=piece, score=score, type=getattr(kinds, kind.upper()))
    for byte in range(256) if description["bytes"] else ():
        model.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=kinds.BYTE)
    trainer = model.trainer_spec
    trainer.model_type = getattr(trainer, description["kind"].upper())
    trainer.byte_fallback = description["bytes"]
    trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id = range(4)
    trainer.vocab_size = len(model.pieces)
    name = description["normalization"]
    model.normalizer_spec.name = name
    model.normalizer_spec.precompiled_charsmap = normalization_table(name)
    return Subwords(model.SerializeToString())


@pytest.mark.parametrize("description", described_models(), ids=lambda x: x["name"])
def test_subwords_of_published_models(description):
    subwords = described(description)
    for text, expected in description["cases"]:
        *pieces, end = (subwords.pieces[token] for token in subwords.encode(text))
        assert " ".join(pieces) == expected, text
        assert end == "</s>"


@pytest.mark.browser
def test_the_static_page_has_the_same_subwords(tmp_path):
    script = """
        import { readFileSync } from "node:fs";
        import { Subwords } from "SOURCE/subwords";
        const models = JSON.parse(readFileSync(0, "utf8"));
        const found = models.map(({ model, texts }) => {
            const subwords = new Subwords(new Uint8Array(Buffer.from(model, "base64")));
            const languages = Object.fromEntries(subwords.languages);
            return { languages, ids: texts.map((text) => subwords.encode(text)) };
        });
        console.log(JSON.stringify(found));
        """
    rng = random.Random(5)
    descriptions = described_models()
    models = [described(x) for x in descriptions]
    # A trained model, whose scores have all digits; and two vocabularies in one.
    trained = marian.subwords_of(published_model(tmp_path))
    models.append(trained)
    texts = [[text for text, _ in x["cases"]] for x in descriptions] + [[]]
    for of_model in texts:
        of_model += [
            "".join(rng.choices(CHARACTERS, k=rng.randint(1, 30))) for _ in range(300)
        ]
        of_model += [" ".join(rng.choices(WORDS, k=20)) for _ in range(20)]
    given = [
        {"model": base64.b64encode(x.content).decode(), "texts": y}
        for x, y in zip(models, texts, strict=True)
    ]

    answers = run_typescript(script, given, tmp_path)

    for description, answer in zip(descriptions, answers, strict=False):
        pieces = described(description).pieces
        for (text, expected), ids in zip(
            description["cases"], answer["ids"], strict=False
        ):
            assert " ".join(pieces[token] for token in ids[:-1]) == expected, text
    for model, of_model, answer in zip(models, texts, answers, strict=True):
        assert answer["languages"] == model.languages
        for text, ids in zip(of_model, answer["ids"], strict=True):
            assert ids == model.encode(text), repr(text)
    assert trained.target.content != trained.content


WORDS = f"{published.SOURCE_WORDS} {published.TARGET_WORDS}".split()


def published_model(folder):
    published.write_transformers(folder / "many", languages=[">>deu<<", ">>fra<<"])
    return marian.read_published(folder / "many")


@pytest.mark.browser
def test_the_static_page_says_that_subwords_are_damaged(tmp_path):
    script = """
        import { readFileSync } from "node:fs";
        import { Subwords } from "SOURCE/subwords";
        const found = JSON.parse(readFileSync(0, "utf8")).map((model) => {
            try {
                const bytes = new Uint8Array(Buffer.from(model, "base64"));
                new Subwords(bytes).encode("cat");
            } catch (error) {
                return [error.name, error.message];
            }
        });
        console.log(JSON.stringify(found));
        """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    description = described_models()[0]
    contents = []
    for table in (b"\5\0\0\0\1", b"\xff" * 40, b"\4\0\0\0\xff\xff\xff\xff"):
        model = ModelProto.FromString(described(description).content)
        model.normalizer_spec.precompiled_charsmap = table
        contents.append(model.SerializeToString())
    model.trainer_spec.model_type = model.trainer_spec.WORD
    contents.append(model.SerializeToString())
    given = [base64.b64encode(x).decode() for x in contents]

    *damaged, other = run_typescript(script, given, tmp_path)

    assert all(
        x == ["ModelError", "The subwords of this file are damaged."] for x in damaged
    )
    assert other[0] == "ModelError" and "expected a unigram model" in other[1]
