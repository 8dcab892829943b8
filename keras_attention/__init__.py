"""Additive, Luong and self-attention for Keras 3, with decoders and search."""

from keras_attention.decoder.cell import AttentionCell
from keras_attention.decoder.decoder import AttentionDecoder
from keras_attention.decoder.scheduled_sampling import InverseSigmoidRate
from keras_attention.decoder.scheduled_sampling import ScheduledSampling
from keras_attention.distribution import attention_layout_map
from keras_attention.encoder import RecurrentEncoder
from keras_attention.layers.additive import AdditiveAttention
from keras_attention.layers.additive import AdditiveScore
from keras_attention.layers.attention import Attention
from keras_attention.layers.base import AttentionPart
from keras_attention.layers.base import Score
from keras_attention.layers.base import Weighting
from keras_attention.layers.luong import DotScore
from keras_attention.layers.luong import GeneralScore
from keras_attention.layers.luong import LocationScore
from keras_attention.layers.luong import LuongAttention
from keras_attention.layers.monotonic import MochaWeighting
from keras_attention.layers.monotonic import MonotonicWeighting
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.multi_head import SelfAttention
from keras_attention.layers.pointing import PointerGenerator
from keras_attention.layers.pointing import PointerNetwork
from keras_attention.layers.pooling import AttentionPooling
from keras_attention.layers.positions import AlibiPositions
from keras_attention.layers.positions import PositionEncoding
from keras_attention.layers.positions import RelativePositions
from keras_attention.layers.positions import RotaryPositions
from keras_attention.layers.positions import ShawPositions
from keras_attention.layers.positions import T5Positions
from keras_attention.layers.recurrent import LayerNormGRUCell
from keras_attention.layers.recurrent import LayerNormLSTMCell
from keras_attention.layers.weightings import EntmaxWeighting
from keras_attention.layers.weightings import HardWeighting
from keras_attention.layers.weightings import SoftmaxWeighting
from keras_attention.layers.weightings import SparsemaxWeighting
from keras_attention.layers.windows import LocalMonotonicWindow
from keras_attention.layers.windows import LocalPredictiveWindow
from keras_attention.layers.windows import LocalWindow
from keras_attention.litert import convert_to_litert
from keras_attention.losses import PointerCrossentropy
from keras_attention.losses import ReinforceLoss
from keras_attention.losses import SequenceCrossentropy
from keras_attention.losses import attention_supervision
from keras_attention.losses import coverage_loss
from keras_attention.losses import doubly_stochastic_penalty
from keras_attention.losses import linear_crossentropy
from keras_attention.losses import pointer_crossentropy
from keras_attention.losses import sequence_crossentropy
from keras_attention.metrics import AlignmentErrorRate
from keras_attention.metrics import PointingAccuracy
from keras_attention.plots import attention_heatmap
from keras_attention.plots import attention_overlay
from keras_attention.search import Ban
from keras_attention.search import BeamSearchQueue
from keras_attention.search import Constraint
from keras_attention.search import MinLength
from keras_attention.search import NoRepeatNgrams
from keras_attention.search import Prefix
from keras_attention.search import RequiredPhrases
from keras_attention.search import beam_search
from keras_attention.search import contrastive_search
from keras_attention.search import ensemble_step
from keras_attention.search import greedy_search
from keras_attention.search import sample_search
from keras_attention.version import __version__
from keras_attention.word_vectors import WordVectors
from keras_attention.word_vectors import load_word_vectors

__all__ = [
    "AdditiveAttention",
    "AdditiveScore",
    "AlibiPositions",
    "AlignmentErrorRate",
    "Attention",
    "AttentionCell",
    "AttentionDecoder",
    "AttentionPart",
    "AttentionPooling",
    "Ban",
    "BeamSearchQueue",
    "Constraint",
    "DotScore",
    "EntmaxWeighting",
    "GeneralScore",
    "HardWeighting",
    "InverseSigmoidRate",
    "LayerNormGRUCell",
    "LayerNormLSTMCell",
    "LocalMonotonicWindow",
    "LocalPredictiveWindow",
    "LocalWindow",
    "LocationScore",
    "LuongAttention",
    "MinLength",
    "MochaWeighting",
    "MonotonicWeighting",
    "MultiHeadAttention",
    "NoRepeatNgrams",
    "PointerCrossentropy",
    "PointerGenerator",
    "PointerNetwork",
    "PointingAccuracy",
    "PositionEncoding",
    "Prefix",
    "RecurrentEncoder",
    "ReinforceLoss",
    "RelativePositions",
    "RequiredPhrases",
    "RotaryPositions",
    "ScheduledSampling",
    "Score",
    "SelfAttention",
    "SequenceCrossentropy",
    "ShawPositions",
    "SoftmaxWeighting",
    "SparsemaxWeighting",
    "T5Positions",
    "Weighting",
    "WordVectors",
    "__version__",
    "attention_heatmap",
    "attention_layout_map",
    "attention_overlay",
    "attention_supervision",
    "beam_search",
    "contrastive_search",
    "convert_to_litert",
    "coverage_loss",
    "doubly_stochastic_penalty",
    "ensemble_step",
    "greedy_search",
    "linear_crossentropy",
    "load_word_vectors",
    "pointer_crossentropy",
    "sample_search",
    "sequence_crossentropy",
]
