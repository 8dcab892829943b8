"""Training steps that JAX compiles for a GPU, counted on a machine without one.

Prints for the training step of each layer (forward and backward pass), and for those of
Keras that do the same, as JAX hands it to the compiler for a GPU:

- the operations, of which XLA makes fewer kernels, and the loops among them;
- the matrix products outside of fused attention;
- the megabytes that all operations return: an upper bound, since XLA fuses operations;
- the calls of cuDNN's fused attention;
- the calls of the host, each of which would stop the device.

The conditions of fused attention are those of an H100 with cuDNN 9.10: half precision,
and masks of all queries.

    python benchmarks/gpu_programs.py
    python benchmarks/gpu_programs.py --precision float32 --length 500
"""

import collections
import contextlib
import logging
import math
import os
import re
import unittest.mock

import workers

DEPTH, HEADS, BATCH = 512, 8, 16
BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i1": 1}
HOST = re.compile("callback|infeed|outfeed|send|recv")


def keras_multi_head(causal):
    from keras import layers

    layer = layers.MultiHeadAttention(HEADS, DEPTH // HEADS)
    return lambda x, mask=None: layer(x, x, attention_mask=mask, use_causal_mask=causal)


def cases():
    """Yield names, functions of Keras tensors, and whether the padding is masked."""
    from keras import layers

    import keras_attention as ours

    head_depth = DEPTH // HEADS
    additive, dot = ours.AdditiveAttention(DEPTH), ours.LuongAttention("dot")
    yield "additive", lambda x: additive(x, x), False
    yield "dot", lambda x: dot(x, x), False
    for causal in (False, True):
        name = "self-attention, causal" if causal else "self-attention"
        yield name, ours.SelfAttention(HEADS, head_depth, causal=causal), False
        yield f"{name}, Keras", keras_multi_head(causal), False
    masked = ours.SelfAttention(HEADS, head_depth)
    yield (
        "self-attention, padding",
        lambda x, mask: masked(x, value_mask=mask),
        True,
    )
    theirs = keras_multi_head(False)
    yield (
        "self-attention, padding, Keras",
        lambda x, mask: theirs(x, mask[:, None]),
        True,
    )
    rotary = ours.SelfAttention(
        HEADS, head_depth, causal=True, positions=ours.RotaryPositions()
    )
    yield "self-attention, rotary positions", rotary, False
    grouped = ours.SelfAttention(HEADS, head_depth, num_key_value_heads=2, causal=True)
    yield "self-attention, two heads of keys", grouped, False
    window = ours.SelfAttention(HEADS, head_depth, causal=True, window_size=64)
    yield "self-attention, window of 64", window, False
    for rate in (0.0, 0.1):
        attention = ours.SelfAttention(HEADS, head_depth)
        layer = ours.TransformerEncoderLayer(attention, 4 * DEPTH, dropout=rate)
        name = "Transformer layer" + (", dropout" if rate else "")
        yield name, layer, False
    cell = ours.AttentionCell(layers.GRUCell(DEPTH), ours.AdditiveAttention(DEPTH))
    decoder = ours.AttentionDecoder(cell)
    yield "decoder, GRU and additive", lambda x: decoder(x, x)["output"], False


@contextlib.contextmanager
def conditions_of_a_gpu():
    """Context in which JAX and Keras believe that there is a GPU with cuDNN."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    with unittest.mock.patch.multiple(
        fused,
        check_cudnn_version=lambda: 91000,
        check_compute_capability=lambda _: True,
        is_cuda_compute_capability_equal=lambda _: False,
    ):
        yield


def program(call, length, masked):
    """Return the training step of a layer as JAX hands it to the compiler."""
    import jax
    import keras

    x = keras.Input((length, DEPTH), BATCH)
    inputs = [x]
    if masked:
        inputs.append(keras.Input((length,), BATCH, dtype="bool"))
    model = keras.Model(inputs, call(*inputs))
    trained = [x.value for x in model.trainable_variables]
    others = [x.value for x in model.non_trainable_variables]

    def loss(trained, others, inputs):
        outputs, others = model.stateless_call(trained, others, inputs, training=True)
        return outputs.astype("float32").sum(), others

    dtypes = keras.config.dtype_policy().compute_dtype, "bool"
    shapes = (BATCH, length, DEPTH), (BATCH, length)
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype, _ in zip(shapes, dtypes, inputs, strict=False)
    ]
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    with conditions_of_a_gpu():
        traced = step.trace(trained, others, arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def figures(text):
    """Return the figures of a program in StableHLO."""
    counts = collections.Counter(re.findall(r"= \"?stablehlo\.(\w+)", text))
    calls = re.findall(r"custom_call @([\w$.]+)", text)
    others = set(HOST.findall(" ".join(counts)))
    moved = 0
    for line in text.splitlines():
        if "= stablehlo." not in line and "= call" not in line:
            continue
        # The types of the results are those after the arrow, or the only ones.
        types = line.rsplit("->", 1)[-1] if "->" in line else line.rsplit(":", 1)[-1]
        for sizes, dtype in re.findall(r"tensor<((?:\d+x)*)(\w+)>", types):
            size = math.prod(int(x) for x in sizes.split("x") if x)
            moved += size * BYTES.get(dtype, 4)
    return (
        sum(counts.values()),
        counts["while"],
        counts["dot_general"],
        round(moved / 1e6),
        sum("fmha" in name for name in calls),
        sum(bool(HOST.search(name)) for name in calls) + len(others),
    )


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument(
        "--precision",
        choices=["float32", "mixed_bfloat16"],
        default="mixed_bfloat16",
        help="dtype policy of the layers",
    )
    parser.add_argument("--length", type=int, default=512, help="length of a sequence")
    arguments = parser.parse_args()
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    # Keras logs why it takes another way than the fused one.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    keras.config.set_dtype_policy(arguments.precision)
    print(f"batches of {BATCH}, {arguments.length} positions, depth {DEPTH}")
    print("| | operations | loops | products | MB | fused | host |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, call, masked in cases():
        row = figures(program(call, arguments.length, masked))
        print(f"| {name} |", " | ".join(f"{x:,}" for x in row), "|", flush=True)


if __name__ == "__main__":
    main()
