import unicodedata

import pytest

from keras_attention_apps.captioner.vocabulary import (
    END,
    START,
    UNKNOWN,
    Vocabulary,
    detokenize,
    repeatable_words,
    tokenize,
    words_after_an,
)


@pytest.mark.parametrize(
    "caption, words",
    [
        ("A dog , running .", ["a", "dog", "running"]),
        ("The man's hat; men 's!", ["the", "man", "'s", "hat", "men", "'s"]),
        ("a T-shirt (blue)", ["a", "t-shirt", "blue"]),
        ("Ein Hund läuft über", ["ein", "hund", "läuft", "über"]),
        ("собака бежит", ["собака", "бежит"]),
        # Marks after letters are parts of words, composed or not.
        ("कुत्ता दौड़ता है।", ["कुत्ता", "दौड़ता", "है"]),
        ("كَلْبٌ يَجْرِي", ["كَلْبٌ", "يَجْرِي"]),
        ("ein Hund la\u0308uft", ["ein", "hund", "läuft"]),
        ("می\u200cدود", ["می\u200cدود"]),
        # In scripts without spaces, characters are words.
        ("一只狗在跑。", ["一", "只", "狗", "在", "跑"]),
        ("2人のT-shirt", ["2", "人", "の", "t-shirt"]),
        ("หมาวิ่ง", ["ห", "ม", "า", "วิ่", "ง"]),
        ("...", []),
        ("", []),
    ],
)
def test_captions_become_lower_case_words(caption, words):
    assert tokenize(caption) == words


@pytest.mark.parametrize(
    "caption",
    ["the man's dog", "一只狗在跑", "หมาวิ่ง", "कुत्ता दौड़ता है", "黒い t-shirt の人"],
)
def test_joining_words_undoes_splitting(caption):
    assert detokenize(tokenize(caption)) == unicodedata.normalize("NFC", caption)


def test_frequent_words_come_first_and_rare_ones_are_unknown():
    vocabulary = Vocabulary.from_captions(["a dog", "a cat", "a dog"], min_count=2)

    assert vocabulary.words[4:] == ("a", "dog")
    assert vocabulary.encode("A cat.", 7) == [START, 4, UNKNOWN, END]


def test_a_caption_that_is_cut_does_not_end():
    vocabulary = Vocabulary(["a", "b", "c"])

    assert vocabulary.encode("a b c", 4) == [START, 4, 5, 6, END]
    assert vocabulary.encode("a b c", 3) == [START, 4, 5]


def test_decoding_stops_at_the_end():
    assert Vocabulary(["a", "b"]).decode([5, 4, END, 4]) == ["b", "a"]


def test_a_word_that_occurs_twice_is_refused():
    with pytest.raises(ValueError, match="Received 1 duplicates"):
        Vocabulary(["a", "a"])


def test_new_words_follow_the_old_ones():
    old, new = Vocabulary(["dog", "a"]), Vocabulary(["a", "cat", "dog", "sits"])

    assert old.extended(new).words[4:] == ("dog", "a", "cat", "sits")


def test_a_huge_caption_is_cut():
    assert tokenize("a " * 200_000) == ["a"] * 50_000


def test_words_are_repeatable_if_enough_captions_repeat_them():
    captions = ["hot dog dog", "a cat"] + 24 * ["hot dog"] + 50 * ["hot bird"]
    captions += ["hot bird bird", "hot unicorn unicorn", "a hot hot cat"]
    words = Vocabulary.from_captions(captions, min_count=2).words[4:]

    # 1 of 25 captions repeats the dog, 1 of 51 the bird; the unicorn is unknown.
    vocabulary = Vocabulary([word for word in words if word != "unicorn"])
    assert repeatable_words(captions, vocabulary) == ["dog"]


def test_nouns_are_not_repeatable():
    captions = ["a bed and a bed", "the bed", "a cat on the bed", "a cat and a bed"]
    captions += ["a tennis player on a tennis court", "the tennis player and a cat"]
    captions += 60 * ["a cat and the dog on the sofa"]
    vocabulary = Vocabulary.from_captions(captions, min_count=1)

    assert repeatable_words(captions, vocabulary) == ["a", "tennis", "the"]


def test_words_after_an_are_those_of_the_captions():
    captions = 20 * ["an orange cat", "a dog"] + [
        "a uniform",
        "an hour",
        "a orange cat",
    ]
    vocabulary = Vocabulary(["a", "an", "dog", "hour", "orange", "owl", "uniform"])

    # The owl is in no caption.
    assert words_after_an(captions, vocabulary) == ["hour", "orange", "owl"]
    without_an = Vocabulary(["a", "dog", "orange"])
    assert words_after_an(captions, without_an) is None


def test_a_and_an_are_articles_in_english_alone():
    captions = ["il a un chat", "il a été là un an", "un an"]
    vocabulary = Vocabulary.from_captions(captions, min_count=1)

    assert words_after_an(captions, vocabulary) is None
