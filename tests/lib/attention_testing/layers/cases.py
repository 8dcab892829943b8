"""Attention layers of every kind, for the tests of their common contract."""

import dataclasses

import keras
import numpy as np

import keras_attention as ka
from attention_testing.arrays import draw, numpy
from attention_testing.combinations import quick_first

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
QUERY_DIM, VALUE_DIM, UNITS = 7, 11, 13


@dataclasses.dataclass
class Case:
    """A layer, its options, and the depths of the tensors that it is called with.

    An option may be a function that makes it: parts belong to one layer only.
    """

    layer: type
    options: dict
    depths: tuple = (QUERY_DIM, VALUE_DIM)

    def arguments(self):
        return {name: x() if callable(x) else x for name, x in self.options.items()}

    def build(self, **more):
        return self.layer(**self.arguments(), **more)

    def shapes(self, batch=BATCH, queries=QUERIES, positions=POSITIONS):
        lengths = (queries, positions)[-len(self.depths) :]
        return [
            (batch, length, depth)
            for length, depth in zip(lengths, self.depths, strict=True)
        ]

    def draw(self, rng, **lengths):
        return [draw(rng, shape) for shape in self.shapes(**lengths)]


def additive(**options):
    return Case(ka.AdditiveAttention, {"units": UNITS, **options})


def luong(*depths, **options):
    return Case(ka.LuongAttention, options, *depths)


def pooling(**options):
    return Case(ka.AttentionPooling, options, (VALUE_DIM,))


SAME_DEPTH = (VALUE_DIM, VALUE_DIM)
CASES = {
    "additive": additive(use_bias=True),
    "normalised": additive(normalize=True),
    "coverage": additive(coverage=True),
    "sparsemax": additive(weighting="sparsemax"),
    "entmax": additive(weighting=lambda: ka.EntmaxWeighting(0.5)),
    "straight-through": additive(
        weighting=lambda: ka.HardWeighting("straight-through", seed=3)
    ),
    "hard": additive(weighting=lambda: ka.HardWeighting(soft_probability=0.5, seed=3)),
    "monotonic": additive(
        weighting=lambda: ka.MonotonicWeighting(score_bias=0.5, seed=3)
    ),
    "parallel": additive(weighting=lambda: ka.MonotonicWeighting("parallel", seed=3)),
    "dropout": additive(dropout=0.5, seed=3),
    "causal": additive(coverage=True, causal=True),
    "temperature": luong(
        weighting=lambda: ka.SoftmaxWeighting(0.5, learn_temperature=True)
    ),
    "mocha": additive(
        use_bias=True,
        weighting=lambda: ka.MochaWeighting(
            3, mode="parallel", inference="expectation", seed=3
        ),
    ),
    "dot": luong(SAME_DEPTH, score="dot"),
    "scaled-dot": luong(SAME_DEPTH, score="scaled-dot"),
    "general": luong(score="general", use_bias=True),
    "concat": luong(score="concat", units=UNITS),
    "location": luong(score="location", positions=19),
    "local-m": luong(window="local-m", half_width=2),
    "local-p": luong(window="local-p", half_width=2),
    "local-p concat": luong(
        score="concat", units=UNITS, window="local-p", half_width=1
    ),
    "parts": Case(
        ka.Attention,
        {
            "score": lambda: ka.DotScore(scaled=True),
            "window": lambda: ka.LocalPredictiveWindow(2),
        },
        SAME_DEPTH,
    ),
    "heads": Case(
        ka.MultiHeadAttention,
        {
            "num_heads": 3,
            "key_dim": 5,
            "bias_initializer": lambda: keras.initializers.RandomNormal(seed=3),
        },
    ),
    "pooling": pooling(units=UNITS),
    "hops": pooling(hops=2, penalty=0.5, use_bias=False),
}


# Their parts are in other cases, too, so that they run in the exhaustive suite.
FURTHER = {
    *("normalised", "sparsemax", "straight-through", "dot", "scaled-dot", "local-p"),
    *("parts", "pooling", "dropout", "causal", "temperature", "mocha"),
    *("parallel", "general", "concat"),
}
# Those that are converted to other formats: the operations of each are its own.
CONVERTED = sorted(CASES.keys() - FURTHER | {"sparsemax", "mocha", "parallel"})


def quick_cases(names):
    """Return `pytest.param`s of names of cases, of which some are exhaustive."""
    names = sorted(names, key=FURTHER.__contains__)
    return quick_first(names, len(set(names) - FURTHER))


def attend(layer, tensors, **options):
    """Context and weights, the mean of all heads, as NumPy arrays."""
    context, weights = numpy(layer(*tensors, return_attention_scores=True, **options))
    is_mean = not isinstance(layer, ka.MultiHeadAttention)
    return context, weights if is_mean else weights.mean(axis=1)


def step_by_step(layer, query, memory, **masks):
    """Contexts and weights of one query at a time."""
    state, steps = layer.step.initial_state(memory), []
    for t in range(query.shape[1]):
        step = slice(t, t + 1)
        step_masks = {name: mask[:, step] for name, mask in masks.items()}
        outputs, state = layer.step(query[:, step], memory, state, **step_masks)
        steps.append((outputs["context"], outputs["weights"]))
    return [np.concatenate(x, axis=1) for x in zip(*numpy(steps), strict=True)]


def functional(case, layer):
    shapes = case.shapes(batch=None, queries=None, positions=None)
    inputs = [keras.Input(shape[1:]) for shape in shapes]
    return keras.Model(inputs, layer(*inputs))
