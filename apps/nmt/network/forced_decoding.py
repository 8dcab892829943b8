"""Forced decoding: the attention of a network that reads a given translation."""

import keras


class ForcedDecoding(keras.Model):
    """Forced decoding as a Keras model, compiled once.

    Args:
        network: The `TranslationNetwork`.
        jit_compile: Whether XLA compiles it.

    Call arguments:
        inputs: Dict with `"source"` and `"target"`, as for the network.

    Returns:
        Attention `(B, T, S)`; row t is that of target token t after START.
    """

    def __init__(self, network, jit_compile=False):
        super().__init__(name="forced_decoding")
        self.network = network
        self.built = True
        self.compile(jit_compile=jit_compile)

    def call(self, inputs):
        return self.network.align(inputs)
