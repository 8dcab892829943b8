"""Attention layers of every kind, for the tests of their common contract."""

import dataclasses
from collections.abc import Callable

import keras
from arrays import numpy
from combinations import quick_first

from keras_attention import (
    AdditiveAttention,
    Attention,
    AttentionPooling,
    DotScore,
    EntmaxWeighting,
    HardWeighting,
    LocalPredictiveWindow,
    LuongAttention,
    MochaWeighting,
    MonotonicWeighting,
    MultiHeadAttention,
    SoftmaxWeighting,
)

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
QUERY_DIM, VALUE_DIM, UNITS = 7, 11, 13


@dataclasses.dataclass
class Case:
    """A layer, its arguments, and the depths of the tensors that it is called with.

    The arguments come from a function: parts belong to one layer only.
    """

    layer: type
    arguments: Callable
    depths: tuple = (QUERY_DIM, VALUE_DIM)

    def build(self, **more):
        return self.layer(**self.arguments(), **more)

    def shapes(self, batch=BATCH, queries=QUERIES, positions=POSITIONS):
        lengths = (queries, positions)[-len(self.depths) :]
        return [
            (batch, *(() if length == () else (length,)), depth)
            for length, depth in zip(lengths, self.depths, strict=True)
        ]

    def draw(self, rng, **lengths):
        return [
            rng.normal(size=shape).astype("float32") for shape in self.shapes(**lengths)
        ]


SAME_DEPTH = (VALUE_DIM, VALUE_DIM)
CASES = {
    "additive": Case(AdditiveAttention, lambda: {"units": UNITS, "use_bias": True}),
    "normalised": Case(AdditiveAttention, lambda: {"units": UNITS, "normalize": True}),
    "coverage": Case(AdditiveAttention, lambda: {"units": UNITS, "coverage": True}),
    "sparsemax": Case(
        AdditiveAttention, lambda: {"units": UNITS, "weighting": "sparsemax"}
    ),
    "entmax": Case(
        AdditiveAttention, lambda: {"units": UNITS, "weighting": EntmaxWeighting(0.5)}
    ),
    "straight-through": Case(
        AdditiveAttention,
        lambda: {
            "units": UNITS,
            "weighting": HardWeighting("straight-through", seed=3),
        },
    ),
    "hard": Case(
        AdditiveAttention,
        lambda: {
            "units": UNITS,
            "weighting": HardWeighting(soft_probability=0.5, seed=3),
        },
    ),
    "monotonic": Case(
        AdditiveAttention,
        lambda: {
            "units": UNITS,
            "weighting": MonotonicWeighting(score_bias=0.5, seed=3),
        },
    ),
    "parallel": Case(
        AdditiveAttention,
        lambda: {
            "units": UNITS,
            "weighting": MonotonicWeighting("parallel", seed=3),
        },
    ),
    "dropout": Case(
        AdditiveAttention, lambda: {"units": UNITS, "dropout": 0.5, "seed": 3}
    ),
    "causal": Case(
        AdditiveAttention, lambda: {"units": UNITS, "coverage": True, "causal": True}
    ),
    "temperature": Case(
        LuongAttention,
        lambda: {"weighting": SoftmaxWeighting(0.5, learn_temperature=True)},
    ),
    "mocha": Case(
        AdditiveAttention,
        lambda: {
            "units": UNITS,
            "use_bias": True,
            "weighting": MochaWeighting(
                3, mode="parallel", inference="expectation", seed=3
            ),
        },
    ),
    "dot": Case(LuongAttention, lambda: {"score": "dot"}, SAME_DEPTH),
    "scaled-dot": Case(LuongAttention, lambda: {"score": "scaled-dot"}, SAME_DEPTH),
    "general": Case(LuongAttention, lambda: {"score": "general", "use_bias": True}),
    "concat": Case(LuongAttention, lambda: {"score": "concat", "units": UNITS}),
    "location": Case(LuongAttention, lambda: {"score": "location", "positions": 19}),
    "local-m": Case(LuongAttention, lambda: {"window": "local-m", "half_width": 2}),
    "local-p": Case(LuongAttention, lambda: {"window": "local-p", "half_width": 2}),
    "local-p concat": Case(
        LuongAttention,
        lambda: {
            "score": "concat",
            "units": UNITS,
            "window": "local-p",
            "half_width": 1,
        },
    ),
    "parts": Case(
        Attention,
        lambda: {"score": DotScore(scaled=True), "window": LocalPredictiveWindow(2)},
        SAME_DEPTH,
    ),
    "heads": Case(
        MultiHeadAttention,
        lambda: {
            "num_heads": 3,
            "key_dim": 5,
            "bias_initializer": keras.initializers.RandomNormal(seed=3),
        },
    ),
    "pooling": Case(AttentionPooling, lambda: {"units": UNITS}, (VALUE_DIM,)),
    "hops": Case(
        AttentionPooling,
        lambda: {"hops": 2, "penalty": 0.5, "use_bias": False},
        (VALUE_DIM,),
    ),
}


# Their parts are in other cases, too, so that they run in the exhaustive suite.
FURTHER = {
    *("normalised", "sparsemax", "straight-through", "dot", "scaled-dot", "local-p"),
    *("parts", "pooling", "dropout", "causal", "temperature", "mocha"),
}


def quick_cases(names):
    """Return `pytest.param`s of names of cases, of which some are exhaustive."""
    names = sorted(names, key=FURTHER.__contains__)
    return quick_first(names, len(set(names) - FURTHER))


def attend(layer, tensors, **options):
    """Context and weights, the mean of all heads, as NumPy arrays."""
    context, weights = numpy(layer(*tensors, return_attention_scores=True, **options))
    is_mean = not isinstance(layer, MultiHeadAttention)
    return context, weights if is_mean else weights.mean(axis=1)


def functional(case, layer):
    shapes = case.shapes(batch=None, queries=None, positions=None)
    inputs = [keras.Input(shape[1:]) for shape in shapes]
    return keras.Model(inputs, layer(*inputs))
