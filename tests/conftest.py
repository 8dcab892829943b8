import contextlib
import ctypes
import gc
import os

import pytest

# Fixtures of the programs, of their pages in Chromium (with a server and without one),
# and of trainings on devices.
pytest_plugins = tuple(
    f"attention_testing.{module}"
    for module in ("programs", "web_pages", "browser_pages", "distributed")
)

# Each parallel test process has one core, and so have the processes that it starts.
if "PYTEST_XDIST_WORKER" in os.environ:
    for threads in (
        "OMP_NUM_THREADS",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
    ):
        os.environ.setdefault(threads, "1")


@pytest.fixture(autouse=True, scope="session")
def frozen_modules():
    """Exempt the objects of imported modules from garbage collection.

    There are about 400,000 of them, and every collection would visit them all. Tracing
    creates many objects that stay; a collection for every 700 of them would find none.
    """
    import keras  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True, scope="module")
def little_memory():
    """Forget the programs and graphs of a file, and return free memory to the system.

    TensorFlow would keep the compiled graphs, and the C library a tenth of the rest. A
    program of JAX takes some of the process's memory maps, of which Linux allows
    65,530; thousands of them end in a segmentation fault.
    """
    import keras

    yield
    keras.utils.clear_session(free_memory=False)
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture
def rng():
    """A random number generator, the same in every test."""
    import numpy as np

    return np.random.default_rng(1)


@pytest.fixture
def seeded():
    """Initial weights and random draws are the same in every run."""
    import keras

    keras.utils.set_random_seed(1)


@pytest.fixture(scope="session")
def without_tracing():
    """A context in which TensorFlow runs its functions without tracing them.

    Tracing a training step or a search takes longer than a few steps of a tiny model.
    """
    import keras

    @contextlib.contextmanager
    def eagerly():
        if keras.backend.backend() != "tensorflow":
            yield
            return
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(False)

    return eagerly


@pytest.fixture
def eager(without_tracing):
    """Run functions of TensorFlow without tracing them."""
    with without_tracing():
        yield


@pytest.fixture
def set_floatx():
    """Return the function that sets the default dtype, here until the test ends."""
    import keras

    default = keras.config.floatx()
    yield keras.config.set_floatx
    keras.config.set_floatx(default)


@pytest.fixture
def double_by_default(set_floatx):
    """Make float64 the default dtype; on TensorFlow, integers are int64 then."""
    set_floatx("float64")


@pytest.fixture
def gradients():
    return _gradients


def _gradients(function, arrays=(), variables=()):
    """Gradients of a scalar function of arrays, as NumPy arrays.

    The gradients with respect to Keras variables that the function reads come after
    those with respect to its arguments.
    """
    import keras
    from keras import ops

    def scalar(*tensors):
        values = zip(variables, tensors[len(arrays) :], strict=True)
        with keras.StatelessScope(state_mapping=values):
            return function(*tensors[: len(arrays)])

    values = [ops.convert_to_numpy(variable) for variable in variables]
    tensors = [ops.convert_to_tensor(x) for x in (*arrays, *values)]
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = scalar(*tensors)
        grads = tape.gradient(result, tensors, unconnected_gradients="zero")
    elif backend == "jax":
        import jax

        # Compiled as a whole it is quicker than operation by operation.
        grads = jax.jit(jax.grad(scalar, argnums=tuple(range(len(tensors)))))(*tensors)
    else:
        import torch

        tensors = [x.detach().clone().requires_grad_() for x in tensors]
        grads = torch.autograd.grad(scalar(*tensors), tensors, allow_unused=True)
        pairs = zip(grads, tensors, strict=True)
        grads = [torch.zeros_like(x) if g is None else g for g, x in pairs]
    return [ops.convert_to_numpy(gradient) for gradient in grads]
