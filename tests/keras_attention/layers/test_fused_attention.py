import unittest.mock

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, SelfAttention

BATCH, LENGTH, DEPTH = 2, 6, 32

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX alone compiles for absent devices"
)


@pytest.fixture
def cudnn():
    """JAX as if there were a GPU with cuDNN."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    present = {
        "check_cudnn_version": lambda: 91000,
        "check_compute_capability": lambda _: True,
        "is_cuda_compute_capability_equal": lambda _: False,
    }
    with unittest.mock.patch.multiple(fused, **present):
        yield


def program_for_gpu(layer, *tensors, **options):
    """Return the gradients of a layer as JAX hands them to the compiler."""
    import jax

    trained = [x.value for x in layer.trainable_variables]
    others = [x.value for x in layer.non_trainable_variables]

    def loss(trained, *tensors):
        output, _ = layer.stateless_call(trained, others, *tensors, **options)
        return output.astype("float32").sum()

    step = jax.jit(jax.grad(loss)).trace(trained, *tensors)
    return step.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("case", ["no mask", "causal", "padding", "source"])
def test_cudnn_attends_in_half_precision(cudnn, rng, case):
    x = rng.normal(size=(BATCH, LENGTH, DEPTH)).astype("float32")
    is_word = np.arange(LENGTH) < [[4], [6]]
    tensors = (x, x) if case == "source" else (x,)
    kind = MultiHeadAttention if case == "source" else SelfAttention
    options = {"dtype": "mixed_bfloat16"}
    if case == "causal":
        options["causal"] = True
    layer = kind(2, 16, **options)
    layer.build(*(t.shape for t in tensors))
    masks = {"value_mask": is_word} if case in ("padding", "source") else {}
    program = program_for_gpu(layer, *tensors, **masks)
    passes = [
        line.split("(")[0] for line in program.splitlines() if "@__cudnn$" in line
    ]
    assert len(passes) == 2 and passes[1].endswith("Backward")
