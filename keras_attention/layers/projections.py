"""`Dense` layers as projections: their options, their copies, their use."""

from keras import constraints, initializers, ops, regularizers


def project_rows(dense, x):
    """Apply a `Dense` layer to the last axis of `x` as to the rows of one matrix.

    On more than two axes Keras' own product does not compile under XLA inside a loop
    over a batch of unknown size.
    """
    if len(x.shape) == 2:
        return dense(x)
    rows = dense(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))


def fresh(initializer):
    """A copy of an initializer that draws anew: Keras warns where one is used twice."""
    clone = getattr(initializer, "clone", None)
    return clone() if clone else initializer


_KINDS = {
    "initializer": initializers,
    "regularizer": regularizers,
    "constraint": constraints,
}


def dense_options(*values):
    """What a `Dense` layer takes for its kernel and its bias, as objects."""
    names = [f"{part}_{kind}" for part in ("kernel", "bias") for kind in _KINDS]
    return {
        name: _KINDS[name.split("_")[1]].get(value)
        for name, value in zip(names, values, strict=True)
    }


def fresh_options(options):
    """The same for another layer, whose weights are drawn anew."""
    return {
        name: fresh(value) if name.endswith("initializer") else value
        for name, value in options.items()
    }


def serialize_options(options):
    """What `dense_options` returned, for a config."""
    return {
        name: _KINDS[name.split("_")[1]].serialize(value)
        for name, value in options.items()
    }
