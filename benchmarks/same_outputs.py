"""Comparison of two versions of the layers, bit for bit.

A change that only moves code must change no bit of what layers compute. The first run
stores, for many calls of every layer, the outputs, the gradients of inputs and weights,
the configuration, and the paths and values of the weights. A run with other code
compares its own with them. Calls differ in layer and options, dtype policy, masks,
training, and form: eager, compiled, or in a functional model that is saved and loaded.

Run it on the same machine and backend with both versions, from the repository root:

    python benchmarks/same_outputs.py save FILE.npz
    python benchmarks/same_outputs.py compare FILE.npz
"""

import argparse
import itertools
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import keras
import numpy as np
from keras import ops, tree

import keras_attention as ka

BATCH, QUERIES, POSITIONS, QUERY_DEPTH, VALUE_DEPTH, SAME_DEPTH = 2, 3, 5, 7, 11, 8
HEADS, KEY_DEPTH = 4, 6

POLICIES = ("float32", "float64", "mixed_float16", "mixed_bfloat16")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["save", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="Part of the names of calls.")
    parser.add_argument("--every", type=int, default=1, help="Run every Nth call only.")
    arguments = parser.parse_args()
    names = [name for name in CASES if arguments.only in name][:: arguments.every]
    stored = {}
    for name in names:
        for entry, value in run(name).items():
            stored[f"{name}: {entry}"] = value
    if arguments.command == "save":
        np.savez(arguments.file, **stored)
        print(f"{len(names)} calls, {len(stored)} arrays in {arguments.file}")
        return 0
    with np.load(arguments.file) as file:
        chosen = tuple(f"{name}: " for name in names)
        expected = {name: file[name] for name in file if name.startswith(chosen)}
    wrong = [
        name
        for name in sorted({*stored, *expected})
        if not same_bits(stored.get(name), expected.get(name))
    ]
    for name in wrong:
        print(f"differs: {name}", described(stored, expected, name))
    print(f"{len(names)} calls, {len(stored)} arrays, {len(wrong)} differ")
    return bool(wrong)


def same_bits(x, y):
    """Return whether two arrays have the same bits; two NaN may differ in theirs."""
    if x is None or y is None or x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind == "f":
        both_nan = np.isnan(x) & np.isnan(y)
        x, y = np.where(both_nan, 0, x), np.where(both_nan, 0, y)
    return x.tobytes() == y.tobytes()


def described(stored, expected, name):
    """Return how an entry differs."""
    x, y = stored.get(name), expected.get(name)
    if x is None or y is None:
        return "is missing in the stored file" if y is None else "is missing now"
    if x.dtype.kind in "US" or x.shape != y.shape or x.dtype != y.dtype:
        return f"\n    now    {x!s:.600}\n    before {y!s:.600}"
    distance = np.max(np.abs(x.astype("float64") - y.astype("float64")))
    return f"by at most {distance:.3g}"


def run(name):
    """Return a dict of the arrays of one call."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    try:
        return CASES[name]()
    except Exception as error:
        # Keras appends the arguments of the call.
        message, _, _ = str(error).partition("Arguments received")
        return {"error": np.array(f"{type(error).__name__}: {message}")}


def random(*shape, seed=0):
    rng = np.random.default_rng(seed + sum(shape))
    return rng.standard_normal(shape).astype("float32")


def mask(*shape, seed=0):
    """Return a random mask whose first row has no valid position."""
    x = np.random.default_rng(seed + sum(shape)).random(shape) > 0.4
    x[0] = False
    return x


MASKS = {
    "no mask": {},
    "value mask": {"value_mask": (POSITIONS,)},
    "two masks": {"query_mask": (QUERIES,), "value_mask": (POSITIONS,)},
    "attention mask": {"attention_mask": (QUERIES, POSITIONS)},
    "all masks": {
        "query_mask": (QUERIES,),
        "value_mask": (POSITIONS,),
        "key_mask": (POSITIONS,),
        "attention_mask": (QUERIES, POSITIONS),
    },
}


def masks_of(name):
    shapes = enumerate(MASKS[name].items())
    return {key: mask(BATCH, *shape, seed=i) for i, (key, shape) in shapes}


def evaluated(function, *inputs):
    """Return outputs and gradients of a function of inputs, which returns a layer too.

    The function builds its layer in its first call and returns the same afterwards.
    """
    _, layer = function(*inputs)
    weights = [ops.convert_to_numpy(x) for x in layer.weights]
    generators = [x for x in layer.variables if "seed_generator" in x.path]
    states = [ops.convert_to_numpy(x) for x in generators]

    def restart():
        for x, state in zip(generators, states, strict=True):
            x.assign(state)

    def outputs(*tensors):
        return tree.flatten(function(*tensors)[0])

    restart()
    eager = outputs(*inputs)
    restart()
    arrays = {f"output {i}": array(x) for i, x in enumerate(eager)}
    gradients = gradients_of(outputs, inputs, layer.trainable_weights)
    arrays |= {f"gradient {i}": array(x) for i, x in enumerate(gradients)}
    restart()
    compiled = run_compiled(outputs, inputs, layer)
    arrays |= {f"compiled output {i}": array(x) for i, x in enumerate(compiled)}
    arrays |= {f"weight {i}": x for i, x in enumerate(weights)}
    paths = [f"{x.path} {tuple(x.shape)} {x.dtype}" for x in layer.variables]
    arrays["paths"] = np.array("\n".join(paths))
    arrays["config"] = np.array(configuration(layer))
    return arrays


def configuration(layer):
    """Return the configuration of a layer.

    Without the ids of shared objects, and without the modules of registered classes,
    which Keras finds by their registered names.
    """

    def plain(x):
        if isinstance(x, dict):
            dropped = {"shared_object_id"}
            if x.get("registered_name"):
                dropped.add("module")
            return {k: plain(v) for k, v in x.items() if k not in dropped}
        return [plain(v) for v in x] if isinstance(x, (list, tuple)) else x

    config = keras.saving.serialize_keras_object(layer)
    return json.dumps(plain(config), sort_keys=True, default=str)


def array(x):
    x = ops.convert_to_numpy(x) if not isinstance(x, np.ndarray) else x
    # NumPy has no bfloat16; float32 has the same numbers.
    return x if x.dtype.kind in "biuf" else x.astype("float32")


def total(tensors):
    floats = [x for x in tensors if "float" in keras.backend.standardize_dtype(x.dtype)]
    return sum(ops.sum(ops.sin(ops.cast(x, "float32"))) for x in floats)


def gradients_of(outputs, inputs, weights):
    """Return the gradients of inputs and weights, zeros where there are none."""
    backend = keras.backend.backend()
    tensors = [ops.convert_to_tensor(x) for x in inputs]
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = total(outputs(*tensors))
        sources = [*tensors, *[x.value for x in weights]]
        return tape.gradient(loss, sources, unconnected_gradients="zero")
    values = [ops.convert_to_tensor(x.value) for x in weights]

    def loss(*tensors):
        pairs = zip(weights, tensors[len(inputs) :], strict=True)
        with keras.StatelessScope(state_mapping=pairs):
            return total(outputs(*tensors[: len(inputs)]))

    if backend == "jax":
        import jax

        indices = tuple(range(len(inputs) + len(weights)))
        return jax.jit(jax.grad(loss, argnums=indices))(*tensors, *values)
    import torch

    sources = [x.detach().clone().requires_grad_() for x in (*tensors, *values)]
    gradients = torch.autograd.grad(loss(*sources), sources, allow_unused=True)
    pairs = zip(gradients, sources, strict=True)
    return [torch.zeros_like(x) if y is None else y for y, x in pairs]


def run_compiled(outputs, inputs, layer):
    """Return the outputs of a compiled call; on PyTorch, nothing."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in inputs]
        function = tf.function(lambda *x: outputs(*x), autograph=False)
        return function.get_concrete_function(*specs)(*map(tf.constant, inputs))
    if backend == "jax":
        import jax

        def call(variables, *tensors):
            pairs = zip(layer.variables, variables, strict=True)
            with keras.StatelessScope(state_mapping=pairs):
                return outputs(*tensors)

        return jax.jit(call)([x.value for x in layer.variables], *inputs)
    return []


def attention_case(make, masks, policy, training, form):
    layer = make(dtype=policy)
    query = random(BATCH, QUERIES, QUERY_DEPTH)
    value = random(BATCH, POSITIONS, VALUE_DEPTH)
    if form == "same depth":
        query, value = query[..., :SAME_DEPTH], random(BATCH, POSITIONS, QUERY_DEPTH)
    masks_by_name = masks_of(masks)
    if form == "one query":
        query = query[:, 0]
        masks_by_name.pop("query_mask", None)
        if "attention_mask" in masks_by_name:
            masks_by_name["attention_mask"] = masks_by_name["attention_mask"][:, 0]
        masks_by_name = {name: masks_by_name[name] for name in masks_by_name}
    options = {"return_attention_scores": True}
    if form == "context only":
        options = {}
    elif form == "details":
        options = {"return_details": True}
    elif form == "causal":
        options |= {"use_causal_mask": True}

    def call(query, value):
        return layer(query, value, training=training, **masks_by_name, **options), layer

    return evaluated(call, query, value)


def self_attention_case(make, masks, policy, training, form):
    layer = make(dtype=policy)
    length = 11
    x = random(BATCH, length, SAME_DEPTH)
    step_masks = {}
    if masks == "mask":
        step_masks = {"mask": mask(BATCH, length)}
    elif masks == "attention mask":
        step_masks = {"attention_mask": mask(BATCH, length, length)}
    elif masks == "head mask":
        step_masks = {"attention_mask": mask(BATCH, HEADS, length, length)}
    options = {"return_attention_scores": True}
    if form == "context only":
        options = {}
    elif form == "details":
        options = {"return_details": True}

    def call(x):
        return layer(x, training=training, **step_masks, **options), layer

    return evaluated(call, x)


def cache_case(make, policy, masked, shared, several):
    layer = make(dtype=policy, causal=True)
    x = random(BATCH, 6, SAME_DEPTH)
    step_mask = mask(BATCH, 6)

    def call(x):
        cache = layer.get_initial_cache(BATCH, 5)
        if shared:
            cache["length"] = ops.zeros((), "int32")
        results, first = [], 0
        for size in (2, 1, 1) if several else (1, 1, 1, 1):
            part = x[:, first : first + size] if several else x[:, first]
            masks = {}
            if masked and several:
                masks = {"mask": step_mask[:, first : first + size]}
            *outputs, cache = layer(
                part, cache=cache, return_attention_scores=True, **masks
            )
            results += outputs
            first += size
        return [results, cache], layer

    return evaluated(call, x)


def axes_case(make, axes, policy, masked, details):
    layer = make(dtype=policy, attention_axes=axes)
    x = random(BATCH, 3, 4, 5, SAME_DEPTH)
    masks = {"query_mask": mask(BATCH, 3, 4, 5)} if masked else {}

    def call(x):
        return layer(x, return_attention_scores=details, **masks), layer

    return evaluated(call, x)


def pooling_case(make, policy, training, masked):
    layer = make(dtype=policy)
    masks = {"value_mask": mask(BATCH, POSITIONS)} if masked else {}

    def call(value):
        return layer(value, return_details=True, training=training, **masks), layer

    return evaluated(call, random(BATCH, POSITIONS, VALUE_DEPTH))


def decoder_case(make, policy, training, masked):
    layer = ka.AttentionDecoder(make(policy), dtype=policy)
    masks = {}
    if masked:
        masks = {"inputs_mask": mask(BATCH, 4), "value_mask": mask(BATCH, POSITIONS)}

    def call(words, value):
        return layer(words, value, training=training, **masks), layer

    return evaluated(call, random(BATCH, 4, 7), random(BATCH, POSITIONS, VALUE_DEPTH))


def pointer_case(make, policy):
    layer = ka.PointerNetwork(make(dtype=policy), dtype=policy)

    def call(query, value):
        masks = {"value_mask": mask(BATCH, POSITIONS)}
        return layer(query, value, **masks), layer

    return evaluated(
        call,
        random(BATCH, QUERIES, QUERY_DEPTH),
        random(BATCH, POSITIONS, VALUE_DEPTH),
    )


def model_case(make):
    """Save and load a functional model with implicit masks; return its outputs."""
    words = keras.Input((None,), dtype="int32")
    other = keras.Input((None,), dtype="int32")
    embed = [keras.layers.Embedding(9, SAME_DEPTH, mask_zero=True) for _ in range(2)]
    outputs = make(embed[0](words), embed[1](other))
    model = keras.Model([words, other], outputs)
    rng = np.random.default_rng(3)
    ids = [rng.integers(0, 9, (BATCH, n), dtype="int32") for n in (4, 6)]
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        for key, saved in (("", model), ("loaded ", keras.models.load_model(path))):
            results = tree.flatten(saved(ids))
            arrays |= {f"{key}output {i}": array(x) for i, x in enumerate(results)}
    arrays["shapes"] = np.array(str([x.shape for x in tree.flatten(outputs)]))
    arrays["dtypes"] = np.array(str([x.dtype for x in tree.flatten(outputs)]))
    arrays["config"] = np.array(configuration(model))
    arrays["paths"] = np.array("\n".join(x.path for x in model.variables))
    return arrays


def additive(**options):
    return partial(ka.AdditiveAttention, 5, seed=1, **options)


def luong(score, **options):
    return partial(ka.LuongAttention, score, seed=1, **options)


def heads(**options):
    return partial(ka.MultiHeadAttention, HEADS, KEY_DEPTH, seed=1, **options)


def self_heads(**options):
    return partial(ka.SelfAttention, HEADS, KEY_DEPTH, seed=1, **options)


ATTENTIONS = {
    "additive": additive(),
    "additive, dropout": additive(dropout=0.4),
    "additive, coverage": additive(coverage=True, use_bias=True),
    "additive, normalize": additive(normalize=True),
    "additive, causal": additive(causal=True),
    "additive, sparsemax": additive(weighting="sparsemax"),
    "additive, entmax": additive(weighting="entmax"),
    "additive, hard": additive(weighting=partial(ka.HardWeighting, seed=3)),
    "additive, monotonic": additive(weighting=partial(ka.MonotonicWeighting, seed=3)),
    "additive, mocha": additive(weighting=partial(ka.MochaWeighting, seed=3)),
    "general": luong("general"),
    "concat": luong("concat", units=5, use_bias=True),
    "location": luong("location", positions=6),
    "general, local-m": luong("general", window="local-m", half_width=1),
    "general, local-p": luong("general", window="local-p", half_width=1),
    "heads": heads(),
    "heads, dropout": heads(dropout=0.4),
    "heads, grouped": heads(num_key_value_heads=2, value_dim=5, use_bias=False),
    "heads, causal": heads(causal=True, scale=0.3),
    "heads, rotary": heads(positions="rotary"),
    "heads, alibi": heads(positions="alibi", causal=True),
    "heads, t5": heads(positions="t5"),
    "heads, shaw": heads(positions="shaw"),
    "heads, norm and gate": heads(query_key_norm="rms", use_gate=True, output_dim=9),
    "heads, layer norm": heads(query_key_norm="layer", use_output_projection=False),
    "heads, window": heads(window_size=2),
    "heads, entmax": heads(weighting="entmax"),
    "heads, hard": heads(weighting=partial(ka.HardWeighting, seed=3)),
    "heads, options": heads(
        kernel_initializer="he_normal",
        kernel_regularizer="l2",
        bias_initializer="ones",
    ),
}
SELF = {
    name.replace("heads", "self"): partial(
        ka.SelfAttention, *make.args, **make.keywords
    )
    for name, make in ATTENTIONS.items()
    if name.startswith("heads")
}
SELF |= {
    "self, causal window": self_heads(window_size=2, causal=True),
    "self, causal rotary window": self_heads(
        window_size=2, causal=True, positions="rotary"
    ),
}
POOLINGS = {
    "pooling": partial(ka.AttentionPooling, 5),
    "pooling, hops": partial(ka.AttentionPooling, 5, hops=3, penalty=0.1),
    "pooling, no units": partial(ka.AttentionPooling, activation="tanh"),
    "pooling, entmax": partial(ka.AttentionPooling, 5, weighting="entmax"),
}


def cell(attention, units=6, rnn="gru", **options):
    def make(policy):
        kinds = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}
        return ka.AttentionCell(
            kinds[rnn](units, dtype=policy),
            attention(policy),
            dtype=policy,
            **options,
        )

    return make


def of(make):
    return lambda policy: make(dtype=policy)


DECODERS = {
    "bahdanau": cell(of(additive()), gate=True, input_in_query=True),
    "bahdanau, coverage": cell(of(additive(coverage=True)), rnn="lstm"),
    "luong": cell(
        of(luong("general")),
        rnn="lstm",
        order="current",
        input_feeding=True,
        attentional_vector=9,
    ),
    "luong, at once": cell(of(luong("general")), order="current", attentional_vector=9),
    "local-m": cell(
        of(luong("general", window="local-m", half_width=1)), order="current"
    ),
    "heads": cell(of(heads()), order="current"),
    "heads, previous": cell(of(heads())),
    "sentinel": cell(of(additive()), rnn="lstm", order="current", sentinel=True),
    "two attentions": cell(
        lambda policy: [additive()(dtype=policy), heads()(dtype=policy)]
    ),
    "dropout": cell(of(additive(dropout=0.4))),
}


def memory_and_step(make):
    def model(query, value):
        layer = make()
        memory = layer.memory(value)
        options = {}
        step = layer.step
        if getattr(step, "needs_positions", False):
            options = {"query_positions": ops.cumsum(ops.ones_like(query[..., 0]), 1)}
        outputs, _ = step(query, memory, **options)
        return outputs["context"]

    return model


MODELS = {
    "additive": lambda q, v: additive()()(q, v, return_attention_scores=True),
    "luong": lambda q, v: luong("dot")()(q, v),
    "heads": lambda q, v: heads(positions="rotary")()(
        q, v, return_attention_scores=True
    ),
    "heads, details": lambda q, v: heads(weighting="entmax")()(
        q, v, return_details=True
    ),
    "self": lambda q, v: self_heads(causal=True)()(q, return_attention_scores=True),
    "self, details": lambda q, v: self_heads(window_size=2)()(q, return_details=True),
    "pooling": lambda q, v: ka.AttentionPooling(5)(v, return_attention_scores=True),
    "memory and step": memory_and_step(heads(query_key_norm="rms", use_gate=True)),
    "memory and step, additive": memory_and_step(additive()),
}


def with_own_weighting(make):
    """Return a function like `make` that creates a weighting for every layer."""
    weighting = make.keywords.get("weighting")
    if not callable(weighting):
        return make
    return lambda **options: make(weighting=weighting(), **options)


def attention_calls():
    forms = ("", "context only", "details", "one query", "causal")
    for name, make in ATTENTIONS.items():
        make = with_own_weighting(make)
        for each in itertools.product(MASKS, POLICIES, (False, True), forms):
            masks, policy, training, form = each
            # All of float32 without training; of the others, a few.
            if (
                (policy == "float32" and (not training or form == ""))
                or (masks, form) == ("all masks", "")
                or (masks, form) == ("no mask", "context only")
            ):
                yield label(name, *each), partial(attention_case, make, *each)


def self_attention_calls():
    masks = ("no mask", "mask", "attention mask", "head mask")
    forms = ("", "context only", "details")
    for name, make in SELF.items():
        make = with_own_weighting(make)
        for each in itertools.product(masks, POLICIES, (False, True), forms):
            _, policy, training, form = each
            if policy == "float32" or (not training and form == "context only"):
                yield label(name, *each), partial(self_attention_case, make, *each)


def cache_calls():
    names = ("self", "self, grouped", "self, rotary", "self, alibi", "self, t5")
    names += ("self, shaw", "self, norm and gate", "self, window", "self, entmax")
    switches = ((False, True),) * 3
    for name in names:
        make = SELF[name]
        options = {k: v for k, v in make.keywords.items() if k != "causal"}
        make = partial(ka.SelfAttention, *make.args, **options)
        for each in itertools.product(("float32", "mixed_float16"), *switches):
            policy, masked, shared, several = each
            key = label(f"cache, {name}", policy, f"{masked=} {shared=} {several=}")
            yield key, partial(cache_case, make, *each)


def axes_calls():
    switches = ((False, True),) * 2
    policies = ("float32", "mixed_float16")
    for each in itertools.product(((1, 2), (3,), (-2, 1)), policies, *switches):
        axes, policy, masked, details = each
        for name in ("self", "self, rotary", "self, window"):
            key = label(f"axes, {name}", str(axes), policy, f"{masked=} {details=}")
            yield key, partial(axes_case, SELF[name], *each)


def other_calls():
    switches = ((False, True),) * 2
    for prefix, makes, case in (
        ("", POOLINGS, pooling_case),
        ("decoder, ", DECODERS, decoder_case),
    ):
        for name, make in makes.items():
            for each in itertools.product(POLICIES, *switches):
                policy, training, masked = each
                key = label(f"{prefix}{name}", policy, f"{training=} {masked=}")
                yield key, partial(case, make, *each)
    for name in ("additive", "heads", "additive, entmax", "general, local-p"):
        for policy in POLICIES:
            key = label(f"pointer, {name}", policy)
            yield key, partial(pointer_case, ATTENTIONS[name], policy)
    for name, make in MODELS.items():
        yield f"model, {name}", partial(model_case, make)


def label(name, *parts):
    words = {True: "training", False: "inference", "": "weights"}
    return " | ".join([name, *[words.get(x, x) for x in parts]])


CASES = dict(
    itertools.chain(
        attention_calls(),
        self_attention_calls(),
        cache_calls(),
        axes_calls(),
        other_calls(),
    )
)

if __name__ == "__main__":
    sys.exit(main())
