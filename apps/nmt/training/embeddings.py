"""Initial embeddings of subwords from word vectors."""

import numpy as np
from keras_attention_apps.common.training.embeddings import (
    read_vectors,
    report_found,
    set_embeddings,
)
from keras_attention_apps.common.writing_systems import begins_unspaced
from keras_attention_apps.nmt.data.text import WORD_BEGIN


def load_embeddings(path, pieces, network):
    """Set the embeddings of a network to the word vectors of its subwords.

    A subword that begins a word, such as `▁dog`, takes the vector of the word that it
    spells, `dog`. Punctuation and subwords of scripts without spaces need no mark.
    Other subwords, such as the ending `ing`, are not words, and keep their initial
    vectors. If the file contains vectors of subwords, whose entries have the mark `▁`,
    every subword takes its own vector.

    Args:
        path: The file.
        pieces: The subwords.
        network: The `TranslationNetwork`.

    Raises:
        UserError: If the file cannot be read, or has no vector for any subword.
    """
    vectors, found, repeated = vectors_of(path, pieces, network.config.embedding_units)
    report_found(path, found, repeated, "subwords")
    for layer in {network.embedding, network.source_embedding}:
        set_embeddings(layer.embeddings, vectors, found)


def vectors_of(path, pieces, dimension):
    """Return the vectors of subwords, a mask of those found, and the repeated lines.

    The last one is the number of lines that repeat an entry.
    """
    words = [piece.removeprefix(WORD_BEGIN) for piece in pieces]
    loaded = read_vectors(path, [*pieces, *words], dimension)
    vectors, found = (np.split(x, 2) for x in (loaded.vectors, loaded.found))
    begins = np.array([piece.startswith(WORD_BEGIN) for piece in pieces])
    # The mark alone may be an entry of word vectors, too.
    is_marked = begins & [piece != WORD_BEGIN for piece in pieces]
    if np.any(found[0] & is_marked):
        return vectors[0], found[0], loaded.repeated
    is_word = begins | [_stands_alone(word) for word in words]
    return vectors[1], found[1] & is_word, loaded.repeated


def _stands_alone(piece):
    """Return whether a subword needs no mark: punctuation, or unspaced scripts."""
    return not any(map(str.isalnum, piece)) or begins_unspaced(piece)
