"""Our searches as ONNX models, which ONNX Runtime executes."""

import logging

import numpy as np

OPSET = 18


def to_onnx(function, specs, precision="float32"):
    """Return the bytes of an ONNX model of a function from tensors to a dict of them.

    Args:
        function: Function of TensorFlow, with the names of `specs` as arguments.
        specs: Dict of `tf.TensorSpec`.
        precision: `"float32"`, or `"int8"`: ONNX Runtime's dynamic quantization, whose
            matrix products have 8-bit weights and inputs.
    """
    import tensorflow as tf
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    signature = [
        tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in specs.items()
    ]

    def call(*inputs):
        return function(**dict(zip(specs, inputs, strict=True)))

    model, _ = tf2onnx.convert.from_function(
        tf.function(call, input_signature=signature, autograph=False),
        input_signature=signature,
        opset=OPSET,
        # In graphs of TensorFlow, `keras.ops.slice_update` is an operation of XLA.
        custom_op_handlers={"XlaDynamicUpdateSlice": (_update_slice, [])},
    )
    return _quantized(model) if precision == "int8" else model.SerializeToString()


def _update_slice(graph, node, name, arguments):
    """Replace a slice along one axis: join what is before it, the update, the rest."""
    tensor, update, starts = node.input
    shape, size = graph.get_shape(tensor), graph.get_shape(update)
    (axis,) = (i for i in range(len(shape)) if shape[i] != size[i])
    result = {
        "outputs": node.output,
        "shapes": [shape],
        "dtypes": [graph.get_dtype(tensor)],
    }
    graph.remove_node(node.name)

    def constant(*values):
        unique = f"{name}_{values[0]}_{len(graph.get_nodes())}"
        return graph.make_const(unique, np.array(values, "int64")).output[0]

    def add(operation, *inputs, **options):
        return graph.make_node(operation, list(inputs), **options).output[0]

    int64 = 7
    starts = add("Cast", starts, attr={"to": int64})
    start = add("Slice", starts, constant(axis), constant(axis + 1))
    end = add("Add", start, constant(size[axis]))
    before = add("Slice", tensor, constant(0), start, constant(axis))
    after = add("Slice", tensor, end, constant(shape[axis]), constant(axis))
    add("Concat", before, update, after, attr={"axis": axis}, **result)


def _quantized(model):
    import tempfile
    from pathlib import Path

    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "int8.onnx")
        quantize_dynamic(
            model,
            path,
            weight_type=QuantType.QInt8,
            extra_options={"EnableSubgraph": True},
        )
        return path.read_bytes()


def session(content, threads):
    """Return the function that runs an ONNX model, from arrays to a dict of arrays."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in model.get_outputs()]
    return lambda **inputs: dict(zip(names, model.run(None, inputs), strict=True))
