"""Words of a training text with their translations, and what they find."""

import math

import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.lexicon import Lexicon, separated_words, stem

NOUNS = {"cat": "Kätzchen", "dog": "Hündchen", "girl": "Mädchen", "boat": "Boot"}
VERBS = {"sleeps": "schläft", "waits": "wartet", "comes": "kommt", "stays": "bleibt"}
PAIRS = [
    (f"the {noun} {verb}", f"das {NOUNS[noun]} {VERBS[verb]}")
    for noun in NOUNS
    for verb in VERBS
] * 5


@pytest.fixture(scope="module")
def lexicon():
    sources, targets = zip(*PAIRS, strict=True)
    return Lexicon.learn(sources, targets)


def test_words_are_compared_by_their_first_letters():
    assert [stem(x) for x in ("Speicherkarten,", "DON'T", "19:30", "")] == [
        "speiche",
        "dont",
        "",
        "",
    ]


def test_translations_are_learned(lexicon):
    counts = {word: count for word, (count, _) in lexicon.entries.items()}
    assert counts == {"the": 80, **dict.fromkeys([*NOUNS, *VERBS], 20)}
    for source, target in [("the", "das"), *NOUNS.items(), *VERBS.items()]:
        _, targets = lexicon.entries[source]
        # The word that is in all sentences is not told apart completely.
        assert {stem(target)} <= {*targets} <= {stem(target), "das"}


def test_untranslated_and_unexplained_words(lexicon):
    source = ["The", "cat", "sleeps."]
    right, wrong = ["Das", "Kätzchen", "schläft."], ["Fenster", "schläft."]
    assert list(lexicon.untranslated(source, right)) == []
    assert list(lexicon.untranslated(source, wrong)) == [0, 1]
    assert lexicon.unexplained(source, right) == []
    assert lexicon.unexplained(source, wrong) == [0]
    # Names and numbers stay as they are.
    assert not lexicon.untranslated(["Zoe,", "19"], ["Zoe", "90"])


def test_words_that_should_have_been_translated_are_copied_words():
    entries = {"cat": (9, ["katze"]), "anna": (1, ["anna"]), "the": (990, ["die"])}
    lexicon = Lexicon(entries)
    source = ["The", "cat,", "Anna,", "zoo,", "cat-5", "19:30", "x@cat.de"]
    assert lexicon.copied(source, ["Die", "Katze,", "Anna"]) == {}
    # Names that the training text has may stay, and what is not letters alone.
    assert lexicon.copied(source, ["cat-5", "19:30", "Anna", "x@cat.de"]) == {}
    copied = lexicon.copied(source, ["Die", "Cat.", "Zoo"])
    assert copied == {1: lexicon.rarity("cat"), 2: lexicon.rarity("zoo")}
    assert 0 < copied[1] < copied[2]
    # A word that the source does not have is no copy.
    assert lexicon.copied(["The"], ["Cat"]) == {}


class Letters:
    """Takes words apart into single letters, but for those of the text."""

    def encode(self, word):
        return [*([word] if word == "TV" else word), "</s>"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Anna sees Zoe.", []),
        ("Anna sees Kowalczyk's cat.", ["Kowalczyk"]),
        ("kowalczyk sees Kim.", []),
        # Abbreviations are copied unless they have a translation, or one subword.
        ("IBM and BMW on TV for UN, I.", ["IBM", "BMW"]),
        ("PLEASEDO come.", []),
        ("X", ["X"]),
        ("A & B, x, I 2", ["A", "B"]),
        ("plan B", []),
    ],
)
def test_unknown_names_and_abbreviations_are_copied(text, expected):
    entries = {"anna": (1, ["anna"]), "bmw": (2, ["bmw"]), "un": (3, ["uno"])}
    spans = Lexicon(entries).names_in(text, Letters())
    assert [text[begin:end] for begin, end in spans] == expected


def test_the_rarity_is_that_of_the_frequency():
    # Of a million words, "a" is every tenth, and "b" every thousandth.
    entries = {"a": (100_000, ["x"]), "b": (1_000, ["y"]), "c": (899_000, ["z"])}
    lexicon = Lexicon(entries)
    assert lexicon.rarity("a") == 0
    assert lexicon.rarity("b") == pytest.approx(math.log(1_000_000 / 1001) - 4)
    # The largest rarity is that of unknown words.
    assert lexicon.rarity("never") == 8
    assert lexicon.mean_rarity(["Never,", "a", "19:30", "a"]) == 2
    assert lexicon.mean_rarity([]) == 0


def test_a_file_is_read_as_it_was_written(lexicon):
    assert Lexicon.from_content(lexicon.content).entries == lexicon.entries
    assert Lexicon.learn([], []).entries == {}


@pytest.mark.parametrize("content", ["cat\tkatze\n", "cat\tmany\tkatze\n", "\xff"])
def test_damaged_files_are_errors(content):
    with pytest.raises(UserError, match=r"lexicon\.txt must have lines"):
        Lexicon.from_content(content.encode("latin-1"))


def test_words_without_spaces_are_those_of_the_subwords():
    class Tokenizer:
        def encode(self, text):
            return list(text)

        def words(self, token_ids):
            return [x for x in token_ids if x != "。"], None

    assert separated_words(Tokenizer(), "猫。") == ["猫"]
    assert separated_words(Tokenizer(), "Der Hund.") == ["Der", "Hund."]
