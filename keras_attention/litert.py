"""Conversion to LiteRT, which runs models on phones and computers without Keras."""

import contextlib
import gc
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_attention.backends import tracing_for_litert
from keras_attention.litert_operators import simplify_operators
from keras_attention.litert_quantization import quantize_convolutions, quantize_weights
from keras_attention.typing import Nested

QUANTIZATIONS = (None, "float16", "int8")


def convert_to_litert(
    signatures: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]],
    *,
    quantize: str | None = "float16",
    samples: Sequence[Mapping[str, Any]] | None = None,
) -> bytes:
    """Convert functions, such as a beam search, to one LiteRT model.

    The model has only built-in operators, also in the loop of a search, so it runs
    wherever LiteRT does. Its signatures share their weights.

    Args:
        signatures: Dict from the name of each signature to a pair: a function that
            takes keyword arguments and returns a dict of tensors, and a dict from the
            names of its arguments to `tf.TensorSpec`s. Give every dimension a fixed
            size: LiteRT's kernels for CPUs cannot change a shape inside a loop. For
            inputs of several lengths, write a signature for each of a few lengths, and
            pad.
        quantize: Precision of the matrices, kernels and embeddings: `"float16"`;
            `"int8"`, the same with 8-bit integers for the matrices of dense layers; or
            `None`, which leaves them unchanged. Activations and biases are float32.
        samples: For `"int8"`, arguments of the functions, as dicts of arrays: typical
            inputs, about a hundred. Convolutions then compute in 8-bit integers, which
            is faster, above all in browsers. The samples set the limits of their
            activations. Every signature must take these arguments. Without samples,
            convolutions have float16 kernels.

    Returns:
        The bytes of a `.tflite` file.

    Raises:
        ValueError: If there is no signature, `quantize` is another value, or a
            function has an operation for which LiteRT has no operator, such as the
            `Roll` of `MonotonicWeighting("recursive")`. Also if `samples` is empty, or
            `quantize` is not `"int8"` with it.
        RuntimeError: If the backend of Keras is not TensorFlow.

    Example:

    ```python
    attention = AdditiveAttention(8)
    specs = {
        "query": tf.TensorSpec([1, 3, 5]), "value": tf.TensorSpec([1, 7, 5])
    }

    def attend(query, value):
        return {"context": attention(query, value)}

    model = convert_to_litert({"attend": (attend, specs)})
    Path("attend.tflite").write_bytes(model)
    ```
    """
    if not signatures:
        raise ValueError(
            "signatures must contain at least one signature. Received: none"
        )
    for name, signature in signatures.items():
        if not isinstance(signature, (list, tuple)) or len(signature) != 2:
            raise ValueError(
                f"signature {name!r} must be a pair of a function and a dict of "
                f"tf.TensorSpecs. Received: {signature!r}"
            )
    if quantize not in QUANTIZATIONS:
        raise ValueError(
            f"quantize must be one of {QUANTIZATIONS}. Received: {quantize!r}"
        )
    if samples is not None and (quantize != "int8" or not len(samples)):
        raise ValueError(
            "samples must be a non-empty list, and need quantize='int8'. Received: "
            f"{len(samples)} samples, quantize={quantize!r}"
        )
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "conversion to LiteRT needs Keras' TensorFlow backend: set "
            f"KERAS_BACKEND=tensorflow. Received: {keras.backend.backend()}"
        )
    import tensorflow as tf

    with tracing_for_litert():
        frozen = {
            name: _frozen(function, specs)
            for name, (function, specs) in signatures.items()
        }
    with tempfile.TemporaryDirectory() as folder, _without_warnings():
        tf.saved_model.save(
            tf.Module(),
            folder,
            signatures=frozen,
            # Custom gradients would capture tensors of the loop; inference needs none.
            options=tf.saved_model.SaveOptions(experimental_custom_gradients=False),
        )
        names = list(frozen)
        # Graphs are in reference cycles, and have several copies of the weights.
        del frozen
        gc.collect()
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=names
        )
        gc.collect()
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            model = converter.convert()
        except Exception as error:
            missing = re.search("TF Select ops: (.+)", str(error))
            if missing is None:
                raise
            raise ValueError(
                "a function has operations for which LiteRT has no operator. "
                f"Received: {missing[1].strip()}"
            ) from error
    model = simplify_operators(model)
    if samples is not None:
        model = quantize_convolutions(model, samples)
    return quantize_weights(model, quantize) if quantize else model


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the warnings of TensorFlow about functions without gradients."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _frozen(function: Any, specs: dict[str, Any]) -> Any:
    """Return a function as a graph whose weights are constants.

    LiteRT cannot read variables inside a loop.
    """
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants

    traced = tf.function(function).get_concrete_function(**specs)
    graph = convert_to_constants.convert_variables_to_constants_v2(
        traced, lower_control_flow=False
    )
    gc.collect()
    names = [tensor.name.split(":")[0] for tensor in graph.inputs]

    @tf.function
    def call(**inputs: Any) -> Nested:
        outputs = graph(*(inputs[name] for name in names))
        return tf.nest.pack_sequence_as(traced.structured_outputs, outputs)

    return call.get_concrete_function(**specs)
