"""The hypotheses of a beam search as NumPy arrays.

Shapes: B rows, K hypotheses, T tokens, S positions that are attended to.
"""

import dataclasses
import os

import numpy as np
from keras_attention_apps.common.errors import UserError

# Lower bound of the scores of possible hypotheses; a search gives impossible ones -1e9.
MIN_SCORE = -1e8


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One sequence that a search has found.

    Attributes:
        token_ids: Integers `(T,)`, padded with END after the last token.
        score: Score by which hypotheses are ranked.
        log_probability: Natural logarithm of the probability of the sequence.
        token_log_probabilities: That of each token, `(T,)`, zero after the last one.
        length: Number of tokens, END included.
        weights: Attention weights `(T, S)`.
    """

    token_ids: np.ndarray
    score: float
    log_probability: float
    token_log_probabilities: np.ndarray
    length: int
    weights: np.ndarray


def hypotheses(outputs, n_best=1):
    """Return the best hypotheses of every row, best first.

    Args:
        outputs: Dict of arrays, the result of a beam search.
        n_best: Maximum number of hypotheses of a row. A row has fewer where the search
            found fewer, but always one.
    """
    outputs = {name: np.asarray(values) for name, values in outputs.items()}
    # A search without a possible hypothesis returns -1e9; in LiteRT files of earlier
    # versions, NaN.
    if not np.all(outputs["scores"][:, 0] > MIN_SCORE):
        raise UserError(
            "The model computes no finite scores: its weights are NaN or infinite. Its "
            "training has diverged, or a file is damaged."
        )
    return [
        [
            Hypothesis(
                outputs["token_ids"][row, rank],
                float(outputs["scores"][row, rank]),
                float(outputs["log_probs"][row, rank]),
                outputs["token_log_probs"][row, rank],
                int(outputs["lengths"][row, rank]),
                outputs["weights"][row, rank],
            )
            for rank in range(n_best)
            if rank == 0 or outputs["lengths"][row, rank]
        ]
        for row in range(len(outputs["token_ids"]))
    ]


def check_n_best(n_best, search):
    """Raise a `UserError` if `n_best` exceeds the beam width, or is below 1."""
    beam_size = search["beam_size"]
    if not 1 <= n_best <= beam_size:
        raise UserError(
            f"n_best must be between 1 and beam_size, {beam_size}. Received: {n_best}"
        )


def check_several(inputs):
    """Raise a `UserError` for a single input in place of several.

    The items of a string are its characters.
    """
    if isinstance(inputs, (str, bytes, os.PathLike)):
        raise UserError(
            f"expected several inputs, such as a list. Received one: {inputs!r:.60}"
        )


def check_batch_size(batch_size):
    """Raise a `UserError` if the batch size is below 1."""
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1. Received: {batch_size}")
