"""Data parallelism: the share of a replica in the loss, and predictions of a batch.

Under data parallelism TensorFlow runs the model once on each device, with a share of
the batch; JAX runs it once, with arrays that are spread over the devices.
"""

import keras
from keras import ops
from keras_attention_apps.common.hosts import without_distribution


def share_of_replica(count):
    """Return the share of this replica in the items of the global batch.

    The losses of the replicas, each a mean over `count` items, times these shares, add
    up to the mean over the global batch. Keras adds up the gradients.

    Args:
        count: Number of items in the batch of this replica, a scalar.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.ones_like(count)
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return ops.ones_like(count)
    total = replica.all_reduce(tf.distribute.ReduceOp.SUM, count)
    return count / ops.maximum(total, 1)


def predict_rows(model, inputs):
    """Return the outputs of `model.predict_on_batch` for exactly the rows of a batch.

    Each device computes the whole batch. On TensorFlow, the outputs of all devices are
    concatenated; those of the first are kept.

    Args:
        model: A compiled Keras model.
        inputs: An array, or a nested structure of arrays, whose first axis is that of
            the rows.
    """
    rows = len(keras.tree.flatten(inputs)[0])
    with without_distribution():
        outputs = model.predict_on_batch(inputs)
    return keras.tree.map_structure(lambda x: x[:rows], outputs)
