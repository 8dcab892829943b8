"""Arguments that nobody means: every argument of the library with values of any kind.

A case is a layer, a part, a loss or a search of the public interface with valid
arguments. An input replaces one or two of them. What the library accepts is called,
with small tensors; its answer must have finite values.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

# Sizes of the valid tensors are different primes, so that no two axes are confused.
BATCH, QUERIES, POSITIONS, DEPTH, VALUE_DEPTH, VOCABULARY = 2, 3, 5, 4, 8, 11


def tensor(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype("float32")


# Values of options, and of tensors, by the name that a report prints.
VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "2**20": lambda: 2**20,
    "10**9": lambda: 10**9,
    "2**31 - 1": lambda: 2**31 - 1,
    "2**31": lambda: 2**31,
    "-2**31": lambda: -(2**31),
    "2**63": lambda: 2**63,
    "10**18": lambda: 10**18,
    "10**400": lambda: 10**400,
    "0.5": lambda: 0.5,
    "2.0": lambda: 2.0,
    "-0.5": lambda: -0.5,
    "1e30": lambda: 1e30,
    "1e300": lambda: 1e300,
    "1e-30": lambda: 1e-30,
    "5e-324": lambda: 5e-324,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1j": lambda: 1j,
    "an empty string": lambda: "",
    "'nothing'": lambda: "nothing",
    "'softmax'": lambda: "softmax",
    "bytes": lambda: b"softmax",
    "a list": lambda: [],
    "a list of numbers": lambda: [1, 2],
    "a nested list": lambda: [[[]]],
    "a tuple": lambda: (),
    "a dict": lambda: {},
    "a dict of lists": lambda: {"class_name": [], "config": {}},
    "a set": lambda: {1},
    "an object": object,
    "a class": lambda: int,
    "a function": lambda: len,
    "a number of NumPy": lambda: np.float32(3.0),
    "an integer of NumPy": lambda: np.int64(2),
    "an array without axes": lambda: np.array(2),
    "an array of floats": lambda: tensor(2),
    "an array of text": lambda: np.array(["a", "b"]),
    "an array of objects": lambda: np.array([None, {}], dtype=object),
    "a layer": lambda: _keras().layers.Dense(4),
}
_ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "without an axis": lambda x: x[0],
    "with another axis": lambda x: x[None],
    "of a larger last axis": lambda x: np.concatenate([x, x], -1),
    "of a smaller first axis": lambda x: x[:1],
    "without items": lambda x: x[:0],
    "without depth": lambda x: x[..., :0],
    "of NaN": lambda x: np.full(x.shape, np.nan, "float32"),
    "of booleans": lambda x: x > 0,
    "of integers": lambda x: x.astype("int32"),
    "of large integers": lambda x: np.full(x.shape, 2**62),
    "of negative integers": lambda x: np.full(x.shape, -(2**31), "int64"),
    "of complex numbers": lambda x: x.astype("complex64"),
    "of texts": lambda x: x.astype("str"),
    "of objects": lambda x: np.full(x.shape, None),
    "as a list": lambda x: x.tolist(),
}


def _keras():
    import keras

    return keras


@dataclasses.dataclass
class Case:
    """A call with valid arguments.

    `make` takes the `options`, and returns a function of the `tensors`. Further names
    of `arguments` are optional ones, which are not among the options.
    """

    make: Callable[..., Callable[..., Any]]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def _names(function):
    """Return the names of the arguments that a function declares."""
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return tuple(
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in kinds and name not in ("self", "name", "dtype")
    )


def _layer(kind, more=None, **options):
    """Return the case of an attention layer."""
    tensors = {"query": tensor(BATCH, QUERIES, DEPTH)}
    tensors["value"] = tensor(BATCH, POSITIONS, VALUE_DEPTH)
    tensors |= more or {}
    return Case(kind, options, tensors, _names(kind.__init__))


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    import keras

    import keras_attention as ka

    masks = {
        "query_mask": np.array([[True] * QUERIES, [True, False, True]]),
        "value_mask": np.ones((BATCH, POSITIONS), bool),
        "attention_mask": np.ones((BATCH, QUERIES, POSITIONS), bool),
    }
    flags = {"use_causal_mask": False, "return_attention_scores": True}
    flags |= {"return_details": False, "training": False}
    call = {**masks, **flags}
    key = {"key": tensor(BATCH, POSITIONS, DEPTH), **call}
    words = {"value": tensor(BATCH, POSITIONS, VALUE_DEPTH)}
    self_options = {"mask": masks["query_mask"], "return_attention_scores": True}
    by_name = {
        "AdditiveAttention": _layer(ka.AdditiveAttention, units=4, more=key),
        "LuongAttention": _layer(ka.LuongAttention, more=key),
        "LuongAttention, concat": _layer(ka.LuongAttention, score="concat", units=4),
        "LuongAttention, local": _layer(
            ka.LuongAttention, window="local-p", units=4, half_width=2
        ),
        "LuongAttention, location": _layer(
            ka.LuongAttention, score="location", positions=POSITIONS
        ),
        "MultiHeadAttention": _layer(
            ka.MultiHeadAttention, num_heads=2, key_dim=4, more=key
        ),
        "MultiHeadAttention, groups": _layer(
            ka.MultiHeadAttention,
            num_heads=4,
            key_dim=4,
            num_key_value_heads=2,
            window_size=3,
            positions="rotary",
        ),
        "SelfAttention": Case(
            ka.SelfAttention,
            {"num_heads": 2, "key_dim": 4},
            {"query": tensor(BATCH, QUERIES, DEPTH), **self_options},
            _names(ka.SelfAttention.__init__),
        ),
        "SelfAttention, axes": Case(
            ka.SelfAttention,
            {"num_heads": 2, "key_dim": 4, "attention_axes": (1, 2)},
            {"query": tensor(BATCH, 3, 5, DEPTH)},
        ),
        "AttentionPooling": Case(
            ka.AttentionPooling,
            {"units": 4, "hops": 2, "penalty": 0.1},
            {**words, "mask": masks["value_mask"], "return_attention_scores": True},
            _names(ka.AttentionPooling.__init__),
        ),
        "PointerNetwork": Case(
            lambda attention=None, **kwargs: ka.PointerNetwork(
                ka.AdditiveAttention(4) if attention is None else attention, **kwargs
            ),
            {},
            {"query": tensor(BATCH, QUERIES, DEPTH), **words, **masks},
            ("attention",),
        ),
        "PointerGenerator": Case(
            ka.PointerGenerator,
            {"extra_ids": 3},
            {
                "logits": tensor(BATCH, QUERIES, VOCABULARY),
                "weights": np.full((BATCH, QUERIES, POSITIONS), 0.2, "float32"),
                "source_ids": np.arange(10).reshape(BATCH, POSITIONS),
                "state": tensor(BATCH, QUERIES, DEPTH),
                "context": tensor(BATCH, QUERIES, DEPTH),
                "inputs": tensor(BATCH, QUERIES, DEPTH),
                "source_mask": masks["value_mask"],
                "return_switch": True,
            },
        ),
        "RecurrentEncoder": Case(
            lambda cell=None, **kwargs: ka.RecurrentEncoder(
                cell if cell is not None else keras.layers.GRUCell(4), **kwargs
            ),
            {"return_state": True},
            {"inputs": words["value"], "mask": masks["value_mask"]},
            ("cell", "backward_cell"),
        ),
        "PositionEncoding": Case(
            ka.PositionEncoding,
            {"kind": "learned", "max_length": 7},
            {"inputs": words["value"], "start": 1},
        ),
        "ReinforceLoss": Case(
            ka.ReinforceLoss,
            {"reward_weight": 0.1, "entropy_weight": 0.1, "momentum": 0.9},
            {
                "log_likelihood": -np.abs(tensor(BATCH, QUERIES)),
                "log_probability": -np.abs(tensor(BATCH, QUERIES)),
                "entropy": np.abs(tensor(BATCH, QUERIES)),
                "mask": masks["query_mask"],
                "sampled": np.ones(BATCH, bool),
                "training": True,
            },
        ),
    }
    for kind in (ka.LayerNormGRUCell, ka.LayerNormLSTMCell):
        by_name[kind.__name__] = _cell(kind)
    parts = {
        "score": (ka.AdditiveScore, ka.DotScore, ka.GeneralScore, ka.LocationScore),
        "weighting": (
            *(ka.SoftmaxWeighting, ka.SparsemaxWeighting, ka.EntmaxWeighting),
            *(ka.HardWeighting, ka.MonotonicWeighting, ka.MochaWeighting),
        ),
        "window": (ka.LocalMonotonicWindow, ka.LocalPredictiveWindow),
        "positions": (
            *(ka.RotaryPositions, ka.ShawPositions, ka.T5Positions),
            ka.AlibiPositions,
        ),
    }
    for role, kinds in parts.items():
        for kind in kinds:
            by_name[kind.__name__] = _part(role, kind)
    by_name |= _decoders(words, masks)
    return by_name | _losses(masks) | _searches()


def _cell(kind):
    """Return the case of a recurrent cell; the inputs are those of Keras' RNN."""
    import keras

    def make(**options):
        layer = keras.layers.RNN(kind(**options), return_sequences=True)
        return lambda: layer(tensor(BATCH, POSITIONS, VALUE_DEPTH))

    options = {"units": 4, "dropout": 0.1, "recurrent_dropout": 0.1}
    return Case(make, options, {}, _names(kind.__init__))


def _part(role, kind):
    """Return the case of a part of an attention, which a layer calls."""
    import keras_attention as ka

    def make(**options):
        part = kind(**options)
        if role == "positions":
            return ka.MultiHeadAttention(2, 4, positions=part)
        if role == "score":
            return ka.Attention(part, part.make_key_projection() or None)
        return ka.Attention(ka.GeneralScore(), **{role: part})

    options = {"AdditiveScore": {"units": 4}, "LocationScore": {"positions": POSITIONS}}
    # A dot product needs queries and keys of one depth.
    depth = DEPTH
    tensors = {
        "query": tensor(BATCH, QUERIES, depth),
        "value": tensor(BATCH, POSITIONS, depth),
    }
    return Case(make, options.get(kind.__name__, {}), tensors, _names(kind.__init__))


def _decoders(words, masks):
    """Return cases of the decoder, whose cell and sampling have options, too."""
    import keras

    import keras_attention as ka

    def decoder(cell=None, attention=None, sampling=None, **options):
        cell = keras.layers.GRUCell(4) if cell is None else cell
        attention = ka.AdditiveAttention(4) if attention is None else attention
        return ka.AttentionDecoder(
            ka.AttentionCell(cell, attention, **options), sampling=sampling
        )

    def sampling(embed=None, predict=None, **options):
        embedding = keras.layers.Embedding(VOCABULARY, DEPTH)
        dense = keras.layers.Dense(VOCABULARY)
        embedding.build(), dense.build((None, 4))
        drawn = ka.ScheduledSampling(
            embedding if embed is None else embed,
            (lambda inputs, outputs: dense(outputs["output"]))
            if predict is None
            else predict,
            **options,
        )
        return decoder(sampling=drawn)

    tensors = {
        "inputs": tensor(BATCH, QUERIES, DEPTH),
        **words,
        "initial_state": None,
        "inputs_mask": masks["query_mask"],
        "value_mask": masks["value_mask"],
        "training": False,
    }
    return {
        "AttentionDecoder": Case(
            decoder,
            {"order": "previous", "attentional_vector": 4},
            tensors,
            ("cell", "attention", "sampling", *_names(ka.AttentionCell.__init__)),
        ),
        "ScheduledSampling": Case(
            sampling,
            {"rate": 0.5},
            {**tensors, "training": True},
            ("embed", "predict", "rate", "seed"),
        ),
        "InverseSigmoidRate": Case(
            lambda k: sampling(rate=ka.InverseSigmoidRate(k)),
            {"k": 3.0},
            {**tensors, "training": True},
        ),
    }


def _losses(masks):
    """Return cases of the losses and metrics."""
    import keras_attention as ka

    ids = np.array([[1, 2, 3], [4, 5, 0]])
    logits = tensor(BATCH, QUERIES, VOCABULARY)
    weights = np.full((BATCH, QUERIES, POSITIONS), 0.2, "float32")
    masked = {"mask": masks["query_mask"]}

    def function(loss, *fixed):
        return lambda **options: lambda **tensors: loss(**tensors, **options)

    def positional(kind):
        # The arguments of a loss are positional in Keras.
        return lambda **options: lambda **x: kind(**options)(*x.values())

    smoothed = {"label_smoothing": 0.1}
    by_name = {
        "sequence_crossentropy": (
            {"token_ids": ids, "logits": logits, **masked},
            smoothed,
        ),
        "pointer_crossentropy": (
            {"token_ids": ids, "log_probs": np.log(_shares(logits)), **masked},
            smoothed,
        ),
        "linear_crossentropy": (
            {
                "token_ids": ids,
                "inputs": tensor(BATCH, QUERIES, DEPTH),
                "embeddings": tensor(VOCABULARY, DEPTH),
                "weights": np.ones((BATCH, QUERIES), "float32"),
                **masked,
            },
            smoothed,
        ),
        "attention_supervision": (
            {"weights": weights, "target_weights": weights, **masked},
            {},
        ),
        "coverage_loss": ({"weights": weights, **masked}, {}),
        "doubly_stochastic_penalty": ({"weights": weights, **masked}, {}),
    }
    by_name = {
        name: Case(function(getattr(ka, name)), options, tensors)
        for name, (tensors, options) in by_name.items()
    }
    for kind in (ka.SequenceCrossentropy, ka.PointerCrossentropy):
        by_name[kind.__name__] = Case(
            positional(kind), {"pad": 0, **smoothed}, {"y_true": ids, "y_pred": logits}
        )
    return by_name


def _shares(logits):
    odds = np.exp(logits)
    return odds / odds.sum(-1, keepdims=True)


def _searches():
    """Return cases of the searches and their constraints."""
    from keras import ops, tree

    import keras_attention as ka

    table = ops.convert_to_tensor(np.log(_shares(tensor(VOCABULARY, VOCABULARY))))

    def step(token_ids, state):
        weights = ops.full((*token_ids.shape, POSITIONS), 1 / POSITIONS)
        return ops.take(table, token_ids, axis=0), state, weights

    def function(search, **fixed):
        return lambda **options: (
            lambda **tensors: search(step, **fixed, **options, **tensors)
        )

    def hidden(state):
        return tree.flatten(state)[0]

    common = {"start": 1, "end": 2, "max_length": 4, "limit": None, "constraints": ()}
    state = {"state": {"hidden": tensor(BATCH, DEPTH)}}
    beam = {"beam_size": 2, "beam_groups": 1, "diversity_penalty": 0.5}
    beam |= {"length_penalty": 1.0, "length_penalty_form": "power"}
    beam |= {"coverage_penalty": 0.0, "early_stopping": False}
    sampled = {"samples": 2, "temperature": 1.0, "top_k": 3, "top_p": 0.9}
    sampled |= {"min_p": 0.1, "seed": 1}
    contrastive = {"top_k": 2, "degeneration_penalty": 0.6}
    by_name = {
        "beam_search": Case(function(ka.beam_search), {**common, **beam}, state),
        "greedy_search": Case(function(ka.greedy_search), common, state),
        "sample_search": Case(function(ka.sample_search), {**common, **sampled}, state),
        "contrastive_search": Case(
            function(ka.contrastive_search, hidden=hidden),
            {**common, **contrastive},
            state,
        ),
    }
    short = {"start": 1, "end": 2, "max_length": 4}
    constraints = {
        ka.Ban: {"token_ids": [3]},
        ka.MinLength: {"min_length": 2},
        ka.NoRepeatNgrams: {"n": 2, "allowed": [3]},
        ka.Prefix: {"token_ids": np.array([[3], [4]])},
        ka.BannedPhrases: {"token_ids": np.array([[[3, 4]], [[5, 6]]])},
        ka.RequiredPhrases: {"token_ids": np.array([[[3]], [[4]]])},
    }
    for kind, options in constraints.items():

        def make(kind=kind, **options):
            constraint = kind(**options)
            return lambda **tensors: ka.beam_search(
                step, **tensors, **short, constraints=[constraint]
            )

        by_name[kind.__name__] = Case(make, options, state, _names(kind.__init__))
    return by_name


def inputs(random):
    """Yield descriptions and calls: a case, and the names of values of arguments."""
    every = cases()
    names = list(every)
    while True:
        name = names[random.integers(len(names))]
        case = every[name]
        changes = {}
        options = sorted({*case.options, *case.arguments})
        for _ in range(1 + (random.random() < 0.2)):
            if case.tensors and (random.random() < 0.35 or not options):
                argument = str(random.choice(list(case.tensors)))
                kinds = VALUES
                if isinstance(case.tensors[argument], np.ndarray):
                    kinds = {**_ARRAYS, "None": None, "'nothing'": None, "1": None}
                    kinds |= {"an object": None, "10**18": None, "a dict": None}
            else:
                argument, kinds = str(random.choice(options)), VALUES
                if argument in ("embed", "predict", "activation"):
                    # A function of a caller may raise errors of its own.
                    kinds = {name for name in VALUES if "a " not in name}
            changes[argument] = str(random.choice(list(kinds)))
        yield f"{name}: {changes}", (name, changes)


def call(case: Case, changes: dict[str, str]) -> Any:
    """Return the result of a case with some values."""
    options, tensors = dict(case.options), dict(case.tensors)
    for argument, value in changes.items():
        if argument in tensors:
            change = _ARRAYS.get(value)
            before = tensors[argument]
            tensors[argument] = change(before) if change else VALUES[value]()
        else:
            options[argument] = VALUES[value]()
    made = case.make(**options)
    tensors = {
        name: x for name, x in tensors.items() if x is not None or name in changes
    }
    return made(**tensors)
