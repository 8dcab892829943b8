"""Initial embeddings from a file of pretrained word vectors."""

import numpy as np
from keras import ops
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import opened, utf8_lines

from keras_attention import load_word_vectors


def check_embeddings(config):
    """Raise a `UserError` if word vectors would replace the embeddings of a preset."""
    if config.embeddings and config.from_preset:
        raise UserError(
            "embeddings must not be set with from_preset, which has its own. "
            f"Received: {str(config.embeddings)!r} and {config.from_preset!r}"
        )


def load_embeddings(path, words, network):
    """Set the embeddings of a network to the word vectors of its vocabulary."""
    loaded = read_vectors(path, words, network.embedding.output_dim)
    report_found(path, loaded.found, loaded.repeated, "words")
    set_embeddings(network.embedding.embeddings, loaded.vectors, loaded.found)


def read_vectors(path, words, dimension):
    """Return the `WordVectors` of words in a file, which is read line by line."""
    try:
        with opened(path) as stream:
            lines = utf8_lines(stream, path)
            return load_word_vectors(lines, words, dimension=dimension)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(
            f"{path}: {error}; --model.embedding-units is {dimension}"
        ) from error


def set_embeddings(embeddings, vectors, found):
    """Set the rows of an embedding whose words have vectors; the others stay.

    The vectors are divided by their mean norm: the embeddings are also the output
    layer, whose logits would otherwise be large at first.
    """
    table = np.array(ops.convert_to_numpy(embeddings))
    norms = np.linalg.norm(vectors[found], axis=1)
    table[found] = vectors[found] / max(norms.mean(), np.finfo("float32").tiny)
    embeddings.assign(table)


def report_found(path, found, repeated, noun):
    """Print the share of words that have vectors; see `WordVectors`."""
    if not found.any():
        raise UserError(f"{path} has no vector for any of the {len(found):,} {noun}")
    print(
        f"{found.sum():,} of {len(found):,} {noun} ({found.mean():.1%}) have a vector "
        f"in {path.name}; the others start from random vectors"
    )
    if repeated:
        print(f"{repeated:,} lines of {path.name} repeat a word, and are ignored")
