"""Nested structures of tensors, whose first axes are rows and hypotheses."""

from keras import ops, tree


def batch_of(nested):
    return ops.shape(tree.flatten(nested)[0])[0]


def spread(state, size):
    """The same state for every hypothesis: `(B, ...)` to `(B, K, ...)`."""
    return tree.map_structure(lambda x: ops.repeat(x[:, None], size, axis=1), state)


def concatenate(first, second):
    return tree.map_structure(
        lambda *pair: ops.concatenate(pair, axis=1), first, second
    )


def gather(nested, index):
    """Pick along axis 1: `(B, M, ...)` and `(B, K)` give `(B, K, ...)`."""

    def pick(x):
        batch, size, *rest = ops.shape(x)
        flat = ops.reshape(x, (-1, *rest))
        return ops.take(flat, index + size * ops.arange(batch)[:, None], axis=0)

    return tree.map_structure(pick, nested)


def write(history, t, now):
    """Put what is `now` into the place t of a nested history `(L, ...)`."""

    def write(past, x):
        return ops.scatter_update(past, ops.reshape(t, (1, 1)), x[None])

    return tree.map_structure(write, history, now)
