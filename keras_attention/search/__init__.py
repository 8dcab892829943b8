"""Greedy search, sampling and beam search over any step function.

A model provides a step function:

    step(token_ids, state) -> (log_probs, state, weights)

with

- `token_ids` `(B, K)`: last token of each of K hypotheses;
- `log_probs` `(B, K, N)`: log-probabilities of the next token;
- `weights` `(B, K, S)`: attention weights;
- `state`: nested structure of at least one tensor `(B, K, ...)`.

Other shapes, or a `start` or `end` outside the vocabulary, raise `ValueError`. Tensors
that all hypotheses share, such as the memory of an attention, stay in the closure of
the step and are never copied. Shapes inside the loops are constant, so the searches run
eagerly, compiled, and in an exported graph.

Every search takes a list of `constraints`, which rule out tokens: `Ban`,
`BannedPhrases`, `ExactlyOnce`, `MinLength`, `NoLoops`, `NoRepeatNgrams`, `Prefix`,
`RequiredPhrases`, or a subclass of `Constraint`. They do not change the scores of the
tokens that remain.

Shapes: B batch, K hypotheses, N vocabulary size, L maximum length, S positions.
"""
