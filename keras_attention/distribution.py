"""Sharding of the weights of attention over several devices."""

import keras


def attention_layout_map(
    device_mesh: keras.distribution.DeviceMesh, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Return a layout map that shards the projections of attention over a mesh axis.

    Tensor parallelism over the hidden units: the kernels `(D, units)` of the query,
    key, value and gate projections, and of the hidden layer of a Transformer layer, are
    sharded by columns, with their biases. The kernel `(units, D)` of the output
    projection is sharded by rows, and so is the scale `(units,)` of an additive score.
    Every device
    computes the scores and contexts of its own units (its heads in `SelfAttention`),
    and one all-reduce adds up the results. All other weights are replicated. Entries
    for further layers of a model can be added.

    Args:
        device_mesh: The `keras.distribution.DeviceMesh`.
        axis: Name of its axis over which the units are sharded. Their number must be a
            multiple of the size of that axis.

    Returns:
        A `keras.distribution.LayoutMap` for `keras.distribution.ModelParallel`.

    Raises:
        ValueError: If the mesh has no such axis.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    >>> layout_map = attention_layout_map(mesh)
    >>> layout_map["self_attention/step/query_projection/kernel"].axes
    (None, 'model')

    Models built after `keras.distribution.set_distribution(distribution)` are sharded:

    >>> distribution = keras.distribution.ModelParallel(
    ...     layout_map=layout_map, batch_dim_name="batch"
    ... )

    Reference:
        [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), section 3.
    """
    if axis not in device_mesh.axis_names:
        raise ValueError(
            f"axis must be one of the axes {device_mesh.axis_names} of the mesh. "
            f"Received: {axis!r}"
        )
    layout_map = keras.distribution.LayoutMap(device_mesh)
    columns = r".*(query|key|value|gate|hidden)_projection(_copy)?"
    layout_map[f"{columns}/kernel"] = (None, axis)
    layout_map[f"{columns}/bias"] = (axis,)
    layout_map[r".*output_projection/kernel"] = (axis, None)
    layout_map[r".*score(_copy)?/scale"] = (axis,)
    return layout_map
