"""Translation networks that choose among a shortlist of subwords for each sentence.

Shapes: B sentences, K hypotheses, C candidates, S source tokens, M likely translations
of a subword, N vocabulary size, E depth of an embedding.
"""

import keras
from keras import ops

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.shortlist import OWN_SCORE, Shortlist, rank_scores


class ShortlistedNetwork(keras.Model):
    """A network whose vocabulary is the shortlist of a sentence.

    The tokens of its search are the indices of C candidates, which `begin` chooses by
    the source:

        score[n] = prior[n] + sum over source tokens of the score of n in their lists
        candidates = the fixed tokens, and the others of the best scores

    The first candidate, PAD, is never chosen. It stands for all subwords that are no
    candidates: its logit is an estimate of the logarithm of their sum,

        logits = [rest . hidden + bias, embeddings[candidates[1:]] . hidden]

    so that the log-probabilities of the candidates are nearly those of the whole
    vocabulary. See `Shortlist`.

    Reference:
        [Jean et al., 2015](https://aclanthology.org/P15-1001), section 3.3: candidates
        of the source words; [Kim et al., 2019](https://aclanthology.org/D19-5632),
        section 4: 8-bit products with the rows of a shortlist.
    """

    def __init__(self, network, shortlist: Shortlist):
        super().__init__(name="shortlisted", dtype=network.dtype_policy)
        if network.pointer_generator:
            raise UserError("a translator with copying cannot have a shortlist")
        self.network, self.shortlist = network, shortlist
        self.built = True

    def begin(self, inputs, max_length):
        memory, state = self.network.begin(inputs, max_length)
        candidates = self.candidates(inputs["source"])
        # Taken once, not in each step.
        others = candidates[:, 1:]
        return {**memory, "candidates": candidates, "others": others}, state

    def step(self, token_ids, state, memory):
        hidden, state, weights = self.network.decoder_step(
            self.vocabulary_ids(token_ids, memory), state, memory["decoder"]
        )
        *rest, bias = self.shortlist.rest
        rest = ops.convert_to_tensor(rest, hidden.dtype)[:, None]
        logits = [
            ops.cast(ops.matmul(hidden, rest) + bias, "float32"),
            self.network.logits(hidden, memory["others"]),
        ]
        logits = ops.concatenate(logits, axis=-1)
        return ops.log_softmax(logits, axis=-1), state, weights

    def vocabulary_ids(self, token_ids, memory):
        """Return the subwords of tokens `(B, K, ...)` of a search."""
        candidates = memory["candidates"]
        rows, *others = ops.shape(token_ids)
        if candidates.shape[0] == 1:
            return ops.take(ops.reshape(candidates, (-1,)), token_ids, axis=0)
        flat = ops.reshape(token_ids, (rows, -1))
        chosen = ops.take_along_axis(candidates, flat, axis=1)
        return ops.reshape(chosen, (rows, *others))

    def candidates(self, source):
        """Return the candidates of sentences, `(B, S)` to `(B, C)`, the fixed first."""
        shortlist = self.shortlist
        size, width = shortlist.table.shape
        table = ops.convert_to_tensor(shortlist.table)
        likely = ops.cast(ops.take(table, source, axis=0), "int32")
        tokens = ops.concatenate([likely, source[..., None]], axis=-1)
        scores = [*rank_scores(width), OWN_SCORE]
        scores = ops.broadcast_to(
            ops.convert_to_tensor(scores, "float32"), ops.shape(tokens)
        )
        rows = ops.shape(source)[0]
        firsts = size * ops.arange(rows, dtype="int32")
        tokens = tokens + firsts[:, None, None]
        sums = ops.scatter(
            ops.reshape(tokens, (-1, 1)), ops.reshape(scores, (-1,)), (rows * size,)
        )
        sums = ops.reshape(sums, (rows, size)) + shortlist.prior
        fixed = ops.convert_to_tensor(shortlist.fixed, "int32")
        _, others = ops.top_k(sums, shortlist.size - len(shortlist.fixed))
        fixed = ops.broadcast_to(fixed, (rows, len(shortlist.fixed)))
        return ops.concatenate([fixed, ops.cast(others, "int32")], axis=1)
