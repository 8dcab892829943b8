import keras
import numpy as np
import pytest
from keras_attention_apps.nmt.training.train import load_embeddings, vectors_of

from .conftest import untrained

PIECES = ["<pad>", "<0x41>", "▁Dog", "dog", "▁", "▁,", ",", "狗", "ing", "▁ing"]
WORDS = ["dog 1 0", ", 0 2", "狗 3 0", "ing 0 4", "<pad> 9 9", "A 9 9"]


def written(path, lines):
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_words_begin_with_a_mark(tmp_path):
    vectors, found, repeated = vectors_of(written(tmp_path / "glove", WORDS), PIECES, 2)

    of = {piece: vectors[i].tolist() for i, piece in enumerate(PIECES) if found[i]}
    expected = {"▁Dog": [1, 0], "▁,": [0, 2], ",": [0, 2], "狗": [3, 0], "▁ing": [0, 4]}
    assert of == expected and repeated == 0


def test_files_of_subwords_have_the_mark_themselves(tmp_path):
    lines = ["4 2", "▁dog 1 1", "dog 2 2", "ing 0 4", "dog 5 5"]
    path = written(tmp_path / "subwords", lines)
    vectors, found, repeated = vectors_of(path, PIECES, 2)

    of = {piece: vectors[i].tolist() for i, piece in enumerate(PIECES) if found[i]}
    assert of == {"▁Dog": [1, 1], "dog": [2, 2], "ing": [0, 4]} and repeated == 1


def test_the_mark_alone_is_no_subword_of_a_file(tmp_path):
    path = written(tmp_path / "glove", [*WORDS, "▁ 7 7"])
    vectors, found, _ = vectors_of(path, PIECES, 2)

    of = {piece: vectors[i].tolist() for i, piece in enumerate(PIECES) if found[i]}
    expected = {"▁Dog": [1, 0], "▁,": [0, 2], ",": [0, 2], "狗": [3, 0], "▁ing": [0, 4]}
    assert of == expected


@pytest.mark.parametrize("shared", [True, False])
def test_embeddings_of_both_languages(shared, subwords, tmp_path, capsys):
    network = untrained(subwords, "self-attention", share_embeddings=shared).network
    before = network.embedding.get_weights()[0]
    lines = [f"the {'2 ' * 12}", f"chien {'-4 ' * 12}"]
    load_embeddings(written(tmp_path / "vectors", lines), subwords.pieces, network)

    assert (
        "2 of 340 subwords (0.6%) have a vector in vectors" in capsys.readouterr().out
    )
    rows = [subwords.pieces.index(piece) for piece in ("▁the", "▁chien")]
    for layer in (network.embedding, network.source_embedding):
        after = layer.get_weights()[0]
        # The mean length is 1.
        np.testing.assert_allclose(after[rows[0]], 2 / 3 / 12**0.5, rtol=1e-6)
        np.testing.assert_allclose(after[rows[1]], -4 / 3 / 12**0.5, rtol=1e-6)
    others = np.delete(network.embedding.get_weights()[0], rows, axis=0)
    np.testing.assert_array_equal(others, np.delete(before, rows, axis=0))
    ids = keras.ops.convert_to_tensor([rows])
    assert np.isfinite(network.source_embedding(ids)).all()
