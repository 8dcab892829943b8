"""Finding sequences: greedy, sampling and beam search over any step function.

A step is all that a model has to offer:

    step(token_ids, state) -> (log_probs, state, weights)

with `token_ids` `(B, K)`, the last token of each of K hypotheses; `log_probs`
`(B, K, N)` over the next token; `weights` `(B, K, S)`, where the step looked; and
`state` any nested structure of at least one tensor `(B, K, ...)`. Other shapes are a
`ValueError`, as is an `end` that is no token. What all hypotheses share, such as a
memory, stays in the step's closure and is never copied. Shapes inside the loops never
change, so the searches run eagerly, compiled, and inside an exported graph.

Every search takes a list of `constraints`, whatever a hypothesis may not contain:
`Ban`, `MinLength`, `NoRepeatNgrams`, `Prefix`, or a `Constraint` of your own. Scores
stay those of the model.

Shapes: B batch, K hypotheses, N vocabulary size, L maximum length, S positions.
"""

from keras_attention.search.beam import beam_search
from keras_attention.search.constraints import (
    Ban,
    Constraint,
    MinLength,
    NoRepeatNgrams,
    Prefix,
)
from keras_attention.search.ensemble import ensemble_step
from keras_attention.search.queue import BeamSearchQueue
from keras_attention.search.sampling import greedy_search, sample_search

__all__ = [
    "Ban",
    "BeamSearchQueue",
    "Constraint",
    "MinLength",
    "NoRepeatNgrams",
    "Prefix",
    "beam_search",
    "ensemble_step",
    "greedy_search",
    "sample_search",
]
