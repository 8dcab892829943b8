import gzip

import keras
import numpy as np
import pytest

from keras_attention import load_word_vectors

WORDS = ["<pad>", "dog", "Dog", "Über", "new york", "cat"]
# The words that are not in `WORDS` are of every kind that such files contain.
LINES = [
    b"the 0.125 -2 1e-3",
    b"dog 1 2 3",
    b". . . 4 5 6",
    b"\xc2\xa0 7 8 9",
    "über 0.5 0 -0.5".encode(),
    b"new york -1 -2 -3",
    b"\xff\xfe 1 1 1",
    b"dog 9 9 9",
]
EXPECTED = {
    "dog": [1, 2, 3],
    "Dog": [1, 2, 3],
    "Über": [0.5, 0, -0.5],
    "new york": [-1, -2, -3],
}
FORMS = {
    "glove": lambda lines: b"\n".join(lines),
    "word2vec": lambda lines: b"\n".join([b"8 3", *lines, b""]),
    # A blank after the last number.
    "fasttext": lambda lines: b"".join(line + b" \n" for line in [b"8 3", *lines]),
    "tabs": lambda lines: (
        b"\n".join(lines[:2] + [x.replace(b" ", b"\t") for x in lines]) + b"\r\n\r\n"
    ),
    "mark": lambda lines: b"\xef\xbb\xbf8 3\r\n" + b"\r\n".join(lines),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_format(form, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_bytes(FORMS[form](LINES))
    loaded = load_word_vectors(path, WORDS, dimension=3)

    assert loaded.vectors.dtype == "float32" and loaded.repeated >= 1
    for word, vector, is_found in zip(WORDS, loaded.vectors, loaded.found, strict=True):
        if form == "tabs" and word == "new york":
            continue
        assert is_found == (word in EXPECTED)
        assert vector.tolist() == EXPECTED.get(word, [0, 0, 0])


def test_exact_words_come_first():
    lines = [b"dog 1 1", b"Dog 2 2", b"cat 3 3"]
    words = ["Dog", "dog", "Cat"]

    loaded = load_word_vectors(lines, words)
    assert loaded.vectors[:, 0].tolist() == [2, 1, 3] and loaded.repeated == 0
    exact = load_word_vectors(lines, words, lowercase=False)
    assert exact.found.tolist() == [True, True, False]


def test_a_compressed_file_is_read_line_by_line(tmp_path):
    path = tmp_path / "vectors.vec.gz"
    path.write_bytes(gzip.compress(FORMS["fasttext"](LINES)))
    with gzip.open(path) as file:
        assert load_word_vectors(file, ["dog"]).vectors.tolist() == [[1, 2, 3]]
    assert load_word_vectors(path, ["dog"]).vectors.tolist() == [[1, 2, 3]]


def test_missing_words_have_the_mean_and_deviation_of_the_others(rng):
    vectors = 50 + 5 * rng.standard_normal((200, 2))
    lines = [f"w{i} {x} {y}".encode() for i, (x, y) in enumerate(vectors)]
    loaded = load_word_vectors(lines, [f"w{i}" for i in range(-300, 200)])
    filled = loaded.filled(seed=3)

    np.testing.assert_array_equal(filled[300:], loaded.vectors[300:])
    missing = filled[:300]
    np.testing.assert_allclose(missing.mean(axis=0), vectors.mean(axis=0), atol=1)
    np.testing.assert_allclose(missing.std(axis=0), vectors.std(axis=0), rtol=0.2)
    np.testing.assert_array_equal(loaded.filled(seed=3), filled)
    embedding = keras.layers.Embedding(*filled.shape, weights=[filled])
    embedding.build()
    np.testing.assert_array_equal(embedding.get_weights()[0], filled)

    without = load_word_vectors(lines, ["x", "y"])
    assert without.vectors.shape == (2, 2) and not without.found.any()
    with pytest.raises(ValueError, match=r"At least one word .*none of 2 words"):
        without.filled()


@pytest.mark.parametrize(
    "lines, message",
    [
        ([], "Received: an empty file"),
        ([b"dog"], "Line 1 must be a word and 2 numbers, .* Received: 0 numbers"),
        ([b"2 3", b"dog 1 2 3"], "a word and 2 numbers, .* Received: 3 numbers"),
        ([b"dog 1 2 3"], "a word and 2 numbers, .* Received: 3 numbers"),
        ([b"a 1 2", b"dog 1"], "Line 2 .* 2 numbers, .*: 1 numbers after 'dog'"),
        ([b"1 2", b"\x00\xff\xfe"], "Line 2 .* binary .* Received: 0 numbers"),
        ([b"a 1 2", b"", b"dog nan 1"], "Line 3 .* Received for 'dog': 'nan 1'"),
        ([b"dog 1 -inf"], "Line 1 .* 2 finite numbers.* Received for 'dog': '1 -inf'"),
        ([b"dog 1 1e39"], "Line 1 .* 2 finite numbers"),
        ([b"dog 1 x2"], "Line 1 .* 2 finite numbers"),
        ([b"dog 1 \xff"], "Line 1 .* 2 finite numbers"),
        (["dog 1 2"], "Lines must be bytes.* Received: 'dog 1 2'"),
    ],
)
def test_wrong_files(lines, message):
    with pytest.raises(ValueError, match=message):
        load_word_vectors(lines, ["dog"], dimension=2)


def test_vectors_of_other_words_are_not_read():
    assert load_word_vectors([b"the nan 1", b"dog 1 2"], ["dog"]).found.all()
