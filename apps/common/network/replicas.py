"""Data parallelism: loss, optimizer and predictions of the global batch.

Under data parallelism TensorFlow runs the model once on each device, with a share of
the batch; JAX runs it once, with arrays that are spread over the devices.
"""

import keras
import numpy as np
from keras import ops
from keras_attention_apps.common.hosts import without_distribution
from keras_attention_apps.common.network.compiling import rounded_up


def share_of_replica(count):
    """Return the share of this replica in the items of the global batch.

    The loss of a replica is a mean over its `count` items. Multiplied by these shares,
    the losses of all replicas add up to the mean over the global batch. Keras adds up
    their gradients in the same way.

    Args:
        count: Number of items in the batch of this replica, a scalar.
    """
    replica = _replica()
    if replica is None:
        return ops.ones_like(count)
    total = replica.all_reduce("SUM", count)
    return count / ops.maximum(total, 1)


class AdamW(keras.optimizers.AdamW):
    """AdamW that clips the gradient of the global batch.

    On TensorFlow, Keras clips the gradients of each replica and adds up the results;
    this optimizer clips the sum. Create it in the scope of the strategy.

    Args:
        learning_rate: As in Keras.
        global_clipnorm: Maximum global norm of the gradient; 0 disables clipping.
        **options: Further arguments of `keras.optimizers.AdamW`.
    """

    def __init__(self, learning_rate, *, global_clipnorm, **options):
        # Each replica clips the mean of the gradients, and Keras adds up the results of
        # all replicas, so that the norm grows by their number.
        clipnorm = global_clipnorm / _replica_count()
        super().__init__(learning_rate, global_clipnorm=clipnorm, **options)

    def apply(self, grads, trainable_variables=None):
        if keras.backend.backend() == "tensorflow":
            grads = _mean_over_replicas(grads)
        super().apply(grads, trainable_variables)


def _mean_over_replicas(gradients):
    """Return dense gradients of TensorFlow, averaged over all replicas."""
    import tensorflow as tf

    # In a sparse gradient the norm would count repeated rows one by one.
    dense = [tf.convert_to_tensor(x) for x in gradients if x is not None]
    replica = _replica()
    if replica is not None:
        dense = replica.all_reduce("MEAN", dense)
    dense = iter(dense)
    return [None if x is None else next(dense) for x in gradients]


def _replica():
    """Return TensorFlow's context of this replica; `None` if there are no others."""
    if _replica_count() == 1:
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()


def _replica_count():
    """Return the number of replicas of TensorFlow's strategy; 1 elsewhere."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def with_rows(array, count):
    """Return an array with more rows, which repeat the last one."""
    missing = count - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def predict_rows(model, inputs, multiple=1):
    """Return the outputs of `model.predict_on_batch` for exactly the rows of a batch.

    Each device computes the whole batch. On TensorFlow, the outputs of all devices are
    concatenated; those of the first are kept.

    Args:
        model: A compiled Keras model.
        inputs: An array, or a nested structure of arrays, whose first axis is that of
            the rows.
        multiple: The model receives a multiple of this number of rows, the last one
            repeated.
    """
    rows = len(keras.tree.flatten(inputs)[0])
    count = rounded_up(rows, multiple)
    if count > rows:
        inputs = keras.tree.map_structure(lambda x: with_rows(x, count), inputs)
    with without_distribution():
        outputs = model.predict_on_batch(inputs)
    return keras.tree.map_structure(lambda x: x[:rows], outputs)
