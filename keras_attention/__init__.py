"""Additive, Luong and self-attention for Keras 3, with decoders and search."""

from keras_attention.decoder.cell import AttentionCell
from keras_attention.decoder.decoder import AttentionDecoder
from keras_attention.decoder.scheduled_sampling import (
    InverseSigmoidRate,
    ScheduledSampling,
)
from keras_attention.distribution import attention_layout_map
from keras_attention.encoder import RecurrentEncoder
from keras_attention.layers.additive import AdditiveAttention, AdditiveScore
from keras_attention.layers.attention import Attention
from keras_attention.layers.components import AttentionPart, Score, Weighting
from keras_attention.layers.dropout import Dropout
from keras_attention.layers.luong import (
    DotScore,
    GeneralScore,
    LocationScore,
    LuongAttention,
)
from keras_attention.layers.monotonic import MochaWeighting, MonotonicWeighting
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.pointing import PointerGenerator, PointerNetwork
from keras_attention.layers.pooling import AttentionPooling
from keras_attention.layers.positions import (
    AlibiPositions,
    PositionEncoding,
    RelativePositions,
    RotaryPositions,
    ShawPositions,
    T5Positions,
)
from keras_attention.layers.recurrent import LayerNormGRUCell, LayerNormLSTMCell
from keras_attention.layers.self_attention import SelfAttention
from keras_attention.layers.transformer import (
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from keras_attention.layers.weightings import (
    EntmaxWeighting,
    HardWeighting,
    SoftmaxWeighting,
    SparsemaxWeighting,
)
from keras_attention.layers.windows import (
    LocalMonotonicWindow,
    LocalPredictiveWindow,
    LocalWindow,
)
from keras_attention.litert import convert_to_litert
from keras_attention.losses.attention import (
    attention_supervision,
    coverage_loss,
    doubly_stochastic_penalty,
)
from keras_attention.losses.crossentropy import (
    SequenceCrossentropy,
    sequence_crossentropy,
)
from keras_attention.losses.linear_crossentropy import linear_crossentropy
from keras_attention.losses.pointer import PointerCrossentropy, pointer_crossentropy
from keras_attention.losses.reinforce import ReinforceLoss
from keras_attention.metrics import AlignmentErrorRate, PointingAccuracy
from keras_attention.plots import attention_heatmap, attention_overlay, attention_text
from keras_attention.search.beam import beam_search
from keras_attention.search.constraints import (
    Ban,
    Constraint,
    ExactlyOnce,
    MinLength,
    NoLoops,
    NoRepeatNgrams,
    Prefix,
)
from keras_attention.search.contrastive import contrastive_search
from keras_attention.search.ensemble import ensemble_step
from keras_attention.search.phrases import BannedPhrases, RequiredPhrases
from keras_attention.search.queue import BeamSearchQueue
from keras_attention.search.sampling import greedy_search, sample_search
from keras_attention.version import __version__
from keras_attention.word_vectors import WordVectors, load_word_vectors

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
    "BannedPhrases",
    "BeamSearchQueue",
    "Constraint",
    "DotScore",
    "Dropout",
    "EntmaxWeighting",
    "ExactlyOnce",
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
    "NoLoops",
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
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "Weighting",
    "WordVectors",
    "__version__",
    "attention_heatmap",
    "attention_layout_map",
    "attention_overlay",
    "attention_supervision",
    "attention_text",
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
