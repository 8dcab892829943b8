import numpy as np
import pytest

from keras_attention_apps.nmt.data.augmentation import Augmentation, number_words
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.data.dataset import Pairs, joined
from keras_attention_apps.nmt.spans import NUMBER, TIME, WORD
from keras_attention_apps.nmt.symbols import SYMBOLS

ALL_SYMBOLS = {chr(x): kind for kind, points in SYMBOLS.items() for x in points}
ENGLISH = [
    "He paid $1,250.50 for 12 chairs.",
    "Come at 2:30 p.m. on May 3!",
    "I saw Tom in Boston yesterday.",
    "We have seven dogs and three cats.",
    "See you at seven o'clock on Monday.",
    "Order A-7 weighs five kilograms.",
]
GERMAN = [
    "Er hat 1.250,50 $ für 12 Stühle bezahlt.",
    "Komm am 3. Mai um 14:30 Uhr!",
    "Gestern habe ich Tom in Boston gesehen.",
    "Wir haben sieben Hunde und drei Katzen.",
    "Wir sehen uns am Montag um sieben Uhr.",
    "Die Bestellung A-7 wiegt fünf Kilogramm.",
]


def symbols_of(text):
    return [x for x in text if x in ALL_SYMBOLS]


@pytest.mark.parametrize("reverse", [False, True])
def test_what_stands_on_both_sides_becomes_the_same_symbols(reverse):
    sides, languages = [ENGLISH * 2, GERMAN * 2], ["en", "de"]
    if reverse:
        sides, languages = sides[::-1], languages[::-1]
    augmentation = Augmentation(*sides, languages, forms=False)
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        for index in range(len(ENGLISH)):
            source, target = augmentation(index, random)
            used = symbols_of(source)
            assert sorted(used) == sorted(symbols_of(target))
            assert len(set(used)) == len(used)
            # A symbol follows a space, so that it is one subword.
            assert all(
                text[i - 1] == " "
                for text in (source, target)
                for i, x in enumerate(text)
                if i and x in ALL_SYMBOLS
            )
            seen.add((index, tuple(sorted(ALL_SYMBOLS[x] for x in used))))
    # Digits always become symbols, and words for numbers, names and days sometimes.
    kinds = {index: [x for i, x in seen if i == index] for index in range(len(ENGLISH))}
    assert all(x.count(NUMBER) >= 2 for x in kinds[0])
    assert all(x.count(TIME) >= 2 for x in kinds[1])
    for index in (2, 3, 4):
        assert () in kinds[index] and max(map(len, kinds[index])) >= 2
    assert any(NUMBER in x for x in kinds[3]) and any(TIME in x for x in kinds[4])
    assert all(WORD in x for x in kinds[5])


def test_numbers_that_differ_stay():
    augmentation = Augmentation(
        ["It has 12 or 12 parts, not 13."], ["Es hat 12 Teile, nicht 14."], ["en", "de"]
    )
    assert augmentation._candidates == [()]


def test_words_for_numbers_of_both_languages_are_the_same_numbers():
    english, german = number_words("en"), number_words("de")
    assert sorted(english.values()) == sorted(german.values()) == list(range(2, 100))
    assert english["twenty-one"] == german["einundzwanzig"] == 21
    assert english["seventy"] == german["siebzig"] == 70
    assert number_words("fr") == {}


def test_forms_vary_without_symbols():
    sources = ["The dog runs."] * 30 + ["a big house"] * 30
    targets = ["Der Hund läuft."] * 30 + ["ein großes Haus"] * 30
    augmentation = Augmentation(sources, targets, ["en", "de"], symbols=False)
    random = np.random.default_rng(0)
    pairs = {augmentation(i % 60, random) for i in range(3000)}
    assert ("The dog runs", "Der Hund läuft") in pairs
    assert ("the dog runs.", "Der Hund läuft.") in pairs
    assert ("The Dog Runs.", "Der Hund läuft.") in pairs
    assert ("A big house", "ein großes Haus") in pairs
    assert not any(symbols_of(x + y) for x, y in pairs)


def test_batches_of_each_epoch_have_other_symbols(subwords):
    extended = subwords.with_symbols()
    assert len(extended) == len(subwords) + len(ALL_SYMBOLS)
    assert extended.with_symbols() is extended
    assert extended.decode(extended.encode("a \ue000 dog")) == "a \ue000 dog"
    assert len(extended.encode("\ue000 \ue001")) == 3
    pairs = Pairs(["the dog 12 runs"] * 40, ["le chien 12"] * 40)

    def augment(sources, targets):
        return Augmentation(sources, targets, (None, None), forms=False)

    options = {"batch_tokens": 10_000, "max_length": 40}
    batches = SentenceBatches(pairs, extended, augment=augment, **options)
    first, second = batches.plan(0), batches.plan(1)

    assert first != second and batches.plan(0) == first
    symbols = set(extended.symbols.values())
    for source, target in first[0]:
        used = [x for x in source if x in symbols]
        assert used and sorted(used) == sorted(x for x in target if x in symbols)
    # Pairs with numbers are twice in an epoch.
    assert sum(map(len, first)) == 80


def test_weights_of_data_sets_stay_beside_back_translations():
    first = joined([Pairs(["a"], ["b"]), Pairs(["c"], ["d"])], [2, 0.5])
    assert joined([first, Pairs(["e"], ["f"])], [1, 3]).weights == [2, 0.5, 3]
