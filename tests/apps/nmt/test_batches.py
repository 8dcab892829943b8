import collections
import dataclasses

import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END, PAD, START, UNKNOWN
from keras_attention_apps.nmt.data.batches import SentenceBatches, cut_batches, to_count
from keras_attention_apps.nmt.data.dataset import Pairs, joined, read_pairs


@pytest.fixture(scope="module")
def pairs(corpus):
    return read_pairs(corpus / "train.en", corpus / "train.fr")


def batches(pairs, subwords, **changes):
    options = {"batch_tokens": 150, "max_length": 30, "subword_dropout": 0.2}
    return SentenceBatches(pairs, subwords, **{**options, **changes})


def texts(pairs):
    return list(zip(pairs.source, pairs.target, strict=True))


def tokens(dataset):
    """All pairs of token ids of the next epoch."""
    return [pair for batch in dataset._batches for pair in batch]


@pytest.fixture(scope="module")
def longest(pairs, subwords):
    return max(map(len, subwords.encode_all([*pairs.source, *pairs.target])))


def rows(dataset):
    """All pairs of texts that are in the batches of an epoch."""
    for (batch,) in map(dataset.__getitem__, range(len(dataset))):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            target = target[target != PAD]
            if len(target):
                assert target[0] == START and target[-1] == END
                sides = source[source != PAD], target[1:]
                yield tuple(map(dataset.subwords.decode, sides))


def test_an_epoch_has_every_pair_once(pairs, subwords):
    dataset = batches(pairs, subwords)
    for _ in range(2):
        assert sorted(rows(dataset)) == sorted(texts(pairs))
        dataset.on_epoch_end()


def test_little_text_makes_small_batches(pairs, subwords):
    few = batches(pairs, subwords, batch_tokens=10_000)
    many = batches(pairs, subwords, batch_tokens=10_000, min_batches=40)

    assert len(few) < 5
    assert 40 <= len(many) < 120
    assert sorted(rows(many)) == sorted(rows(few))
    assert len(batches(pairs, subwords, min_batches=2)) == len(batches(pairs, subwords))


def test_all_epochs_have_the_same_number_of_batches(pairs, subwords):
    dataset = batches(pairs, subwords)
    count = len(dataset)
    for _ in range(5):
        dataset.on_epoch_end()
        assert len(dataset) == len(dataset._batches) == count


def test_an_epoch_depends_on_its_number_alone(pairs, subwords):
    dataset = batches(pairs, subwords)
    first = dataset._batches
    dataset.on_epoch_end()
    dataset.on_epoch_end()

    assert dataset._batches == batches(pairs, subwords, epoch=2)._batches != first
    assert batches(pairs, subwords, seed=1)._batches != first


def test_bpe_dropout_of_the_source(pairs, subwords):
    drawn = zip(*tokens(batches(pairs, subwords)), strict=True)
    source, target = (set(map(tuple, ids)) for ids in drawn)
    assert source != set(map(tuple, subwords.encode_all(pairs.source)))
    assert target == set(map(tuple, subwords.encode_all(pairs.target)))


def test_batches_have_about_as_many_tokens_as_requested(pairs, subwords):
    dataset = batches(pairs, subwords, subword_dropout=0.0)
    every = map(dataset.__getitem__, range(1, len(dataset)))
    sizes = [max(x.size for x in batch.values()) for (batch,) in every]

    # START is not counted.
    assert max(sizes) <= 150 + 150 // 4
    assert np.mean(sizes) > 100


def test_batches_of_a_cut_list():
    lengths = np.array([[2, 3], [1, 3], [5, 2], [9, 9], [1, 1]])
    assert list(cut_batches(range(5), lengths, 7)) == [[0, 1], [2], [3], [4]]


def test_number_of_batches():
    for count in (1, 2, 3, 4, 5, 9):
        changed = to_count([[1, 2, 3], [4], [5], [6, 7, 8, 9]], count)
        assert len(changed) == count
        assert sorted(i for batch in changed for i in batch) == list(range(1, 10))


def test_long_pairs_are_left_out(pairs, subwords, longest):
    short = pairs.source[0], pairs.target[0]
    with_long = Pairs(*([text, f"{text} {text}"] for text in short))
    dataset = batches(with_long, subwords, max_length=longest)

    assert dataset.too_long_count == 1
    assert list(rows(dataset)) == [short]
    with pytest.raises(UserError, match="more subwords than max_length, 2"):
        batches(pairs, subwords, max_length=2)


def test_dropout_makes_no_pair_too_long(pairs, subwords, longest):
    dataset = batches(pairs, subwords, max_length=longest + 2)
    token_ids = tokens(dataset)

    assert dataset.too_long_count == 0
    assert max(len(ids) for pair in token_ids for ids in pair) == longest + 2
    assert sorted(rows(dataset)) == sorted(texts(pairs))
    whole = set(map(tuple, subwords.encode_all(pairs.source)))
    assert {tuple(source) for source, _ in token_ids} - whole


def test_the_first_batches_share_no_size(pairs, subwords):
    dataset = batches(pairs, subwords)
    (first,), (second,) = dataset[0], dataset[1]
    for name, array in first.items():
        assert array.shape[1] > second[name].shape[1]


@pytest.mark.parametrize("few_shapes, length", [(False, 99), (False, 12), (True, 99)])
def test_an_only_batch_has_the_same_size_in_all_epochs(subwords, few_shapes, length):
    pairs = Pairs(["the red dog sees a cat"], ["le chien rouge voit un chat"])
    options = {"few_shapes": few_shapes, "max_length": length}
    dataset = batches(pairs, subwords, **options)
    sizes, lengths = set(), set()
    for _ in range(30):
        assert len(dataset) == 1
        sizes.add(tuple(array.shape for array in dataset[0][0].values()))
        lengths.add(tuple(len(ids) for ids in dataset._batches[0][0]))
        assert list(rows(dataset)) == texts(pairs)
        dataset.on_epoch_end()

    assert len(lengths) > 1 and len(sizes) == 1
    (again,) = batches(pairs, subwords, **options, epoch=7)[0]
    assert {tuple(array.shape for array in again.values())} == sizes


def test_an_only_batch_without_bpe_dropout_has_no_padding(pairs, subwords):
    options = {"subword_dropout": 0.0, "batch_tokens": 10_000}
    (batch,) = batches(pairs, subwords, **options)[0]
    for array in batch.values():
        assert (array[:, -1] != PAD).any()


def test_rows_are_a_multiple_of_the_devices(pairs, subwords):
    unpadded, divisible = (
        batches(pairs, subwords, devices=devices) for devices in (1, 3)
    )
    missing = set()
    for i in range(len(unpadded)):
        for name, expected in unpadded[i][0].items():
            missing.add(-len(expected) % 3)
            padded = np.pad(expected, ((0, -len(expected) % 3), (0, 0)))
            np.testing.assert_array_equal(divisible[i][0][name], padded)
    assert any(missing)


def test_there_are_few_shapes(pairs, subwords):
    dataset = batches(pairs, subwords, few_shapes=True, batch_tokens=320)
    shapes = set()
    for (batch,) in map(dataset.__getitem__, range(len(dataset))):
        assert batch["target"].shape[1] == batch["source"].shape[1] + 1
        shapes.add(batch["source"].shape)
    assert shapes == {(20, 16), (10, 32)}
    assert sorted(rows(dataset)) == sorted(texts(pairs))


def test_weights_say_how_often_an_epoch_has_a_pair(pairs, subwords):
    few, many = pairs.chosen(range(10)), pairs.chosen(range(10, len(pairs)))
    dataset = batches(joined([few, many], [3, 0.5]), subwords)
    drawn = []
    for _ in range(2):
        drawn.append(collections.Counter(rows(dataset)))
        dataset.on_epoch_end()

    thrice = set(texts(few))
    for counts in drawn:
        others = sum(count for pair, count in counts.items() if pair not in thrice)
        assert all(counts[pair] >= 3 for pair in thrice)
        assert 0.2 < others / len(many) < 0.8
    assert drawn[0] != drawn[1]


def test_back_translations_are_tagged(pairs, subwords):
    plain, synthetic = pairs.chosen(range(10)), pairs.chosen(range(10, 30))
    synthetic = dataclasses.replace(synthetic, back_translated=[True] * 20)
    dataset = batches(joined([plain, synthetic], [1, 1]), subwords)

    for source, target in tokens(dataset):
        is_tagged = subwords.decode(target) in synthetic.target
        assert (source[0] == UNKNOWN) == is_tagged
        assert UNKNOWN not in source[1:]
