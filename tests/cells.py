"""Recurrent cells of Keras and of this package, by name."""

import keras

from keras_attention import LayerNormGRUCell
from keras_attention import LayerNormLSTMCell

CELLS = {
    "simple": keras.layers.SimpleRNNCell,
    "lstm": keras.layers.LSTMCell,
    "gru": keras.layers.GRUCell,
    "normalized lstm": LayerNormLSTMCell,
    "normalized gru": LayerNormGRUCell,
}
