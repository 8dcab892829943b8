"""Recurrent cells of Keras and of this package, by name."""

import keras

from keras_attention import LayerNormGRUCell, LayerNormLSTMCell

CELLS = {
    "simple": keras.layers.SimpleRNNCell,
    "lstm": keras.layers.LSTMCell,
    "gru": keras.layers.GRUCell,
    "normalized lstm": LayerNormLSTMCell,
    "normalized gru": LayerNormGRUCell,
}
