"""Operators of LiteRT models: editing them, and faster ones with the same results."""

import warnings
from typing import Any

import numpy as np

from keras_attention.typing import Tensor

# Minimum versions of the operators: FULLY_CONNECTED with one scale for each output,
# DEQUANTIZE from float16, and the others in 8 bits.
MIN_VERSIONS = {
    "FULLY_CONNECTED": 12,
    "DEQUANTIZE": 3,
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "ADD": 2,
}

# Operators that return their input if its shape stays the same and all steps are one.
RESHAPING = ("RESHAPE", "STRIDED_SLICE")


def simplify_operators(model: bytes) -> bytes:
    """Replace operators of a LiteRT model by faster ones with the same results.

    - `LOG_SOFTMAX` is computed number by number. It becomes operators that process many
      numbers at a time.
    - A reshape or slice that returns its input, such as that of `x[:, None]`, copies
      it, so it is removed.

    Args:
        model: Bytes of a LiteRT model whose weights are float32.

    Returns:
        The bytes of the model.
    """
    simplifier = _Simplifier(model)
    for graph in simplifier.model.subgraphs:
        simplifier.replace_log_softmax(graph)
        simplifier.remove_identities(graph)
    return simplifier.to_bytes()


class EditedModel:
    """The parts of a LiteRT model, to be changed.

    Tensors, operators and buffers have numbers, as in the file.

    Args:
        content: Bytes of the model.
    """

    def __init__(self, content: Tensor) -> None:
        from tensorflow.lite.python import schema_py_generated as schema

        root = schema.Model.GetRootAsModel(content, 0)
        self.model, self.schema = schema.ModelT.InitFromObj(root), schema

    def to_bytes(self) -> bytes:
        """Return the bytes of the changed model."""
        import flatbuffers

        builder = flatbuffers.Builder()
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def compact(self) -> None:
        """Remove what no run reads, and store equal buffers once.

        These are tensors without an operator, names of tensors that are neither inputs
        nor outputs of a graph, and empty parameters of a quantisation.
        """
        buffers, numbers = [self.model.buffers[0]], {b"": 0}

        def shared(number: int) -> int:
            data = self.model.buffers[number].data
            key = b"" if data is None else np.asarray(data, "uint8").tobytes()
            if key not in numbers:
                numbers[key] = len(buffers)
                buffers.append(self.model.buffers[number])
            return numbers[key]

        for graph in self.model.subgraphs:
            self.remove_unused_tensors(graph)
            public = {*graph.inputs, *graph.outputs}
            for number, tensor in enumerate(graph.tensors):
                tensor.buffer = shared(tensor.buffer)
                tensor.name = tensor.name if number in public else None
                scaling = tensor.quantization
                if scaling is not None and scaling.scale is None:
                    tensor.quantization = None
        for metadata in self.model.metadata or []:
            metadata.buffer = shared(metadata.buffer)
        self.model.buffers = buffers

    def remove_unused_tensors(self, graph: Any) -> None:
        """Remove the tensors of a graph that are neither computed nor read."""
        used = {*graph.inputs, *graph.outputs}
        for operator in graph.operators:
            used.update(operator.inputs, operator.outputs)
        remaining = sorted(used - {-1})
        new = {old: number for number, old in enumerate(remaining)} | {-1: -1}
        graph.tensors = [graph.tensors[number] for number in remaining]
        for part in (graph, *graph.operators):
            part.inputs = [new[number] for number in part.inputs]
            part.outputs = [new[number] for number in part.outputs]
        for signature in self.model.signatureDefs or []:
            if self.model.subgraphs[signature.subgraphIndex] is graph:
                for tensor in (*signature.inputs, *signature.outputs):
                    tensor.tensorIndex = new[tensor.tensorIndex]

    def interpreter(self) -> Any:
        """Return an interpreter that runs the changed model."""
        import tensorflow as tf

        with warnings.catch_warnings():
            # TensorFlow recommends another package, which is not required here.
            warnings.simplefilter("ignore", UserWarning)
            interpreter = tf.lite.Interpreter(model_content=self.to_bytes())
        interpreter.allocate_tensors()
        return interpreter

    def is_a(self, operator: Any, name: str) -> bool:
        """Return whether an operator is of a kind."""
        code = self.model.operatorCodes[operator.opcodeIndex]
        kind = max(code.builtinCode, code.deprecatedBuiltinCode)
        return kind == getattr(self.schema.BuiltinOperator, name)

    def operator(
        self,
        name: str,
        inputs: Any,
        output: Any,
        options: str | None = None,
        **values: Any,
    ) -> Any:
        """Return a new operator.

        Args:
            name: Name of its kind.
            inputs: Numbers of its inputs.
            output: Number of its output.
            options: Name of the type of its options, if it has any.
            **values: Values of the options.
        """
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self.operator_code(name)
        operator.inputs, operator.outputs = inputs, [output]
        if options is not None:
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(self.schema, options + "T")()
            vars(operator.builtinOptions).update(values)
        return operator

    def operator_code(self, name: str) -> int:
        """Return the number of a kind of operator, which is added if there is none."""
        version = MIN_VERSIONS.get(name, 1)
        kind = getattr(self.schema.BuiltinOperator, name)
        for number, code in enumerate(self.model.operatorCodes):
            if max(code.builtinCode, code.deprecatedBuiltinCode) == kind:
                code.version = max(code.version, version)
                return number
        code = self.schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = kind
        code.version = version
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1

    def is_constant(self, tensor: Any) -> bool:
        """Return whether a tensor has the same values in every run."""
        return self.model.buffers[tensor.buffer].data is not None

    def values(self, tensor: Any, dtype: str = "float32") -> np.ndarray:
        """Return the array of a constant tensor."""
        data = np.asarray(self.model.buffers[tensor.buffer].data, "uint8")
        return data.view(dtype).reshape(tensor.shape)

    def add_buffer(self, values: np.ndarray) -> int:
        """Add a buffer with an array, and return its number."""
        buffer = self.schema.BufferT()
        buffer.data = values.ravel().view("uint8")
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    def add_tensor(
        self, graph: Any, name: bytes, dtype: str, shape: Any, buffer: int = 0
    ) -> int:
        """Add a tensor to a graph, and return its number."""
        tensor = self.schema.TensorT()
        tensor.name = name + b"/" + dtype.lower().encode()
        tensor.shape, tensor.hasRank = shape, True
        tensor.type = getattr(self.schema.TensorType, dtype)
        tensor.buffer = buffer
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1


class _Simplifier(EditedModel):
    """Replaces and removes operators; see `simplify_operators`."""

    def replace_log_softmax(self, graph: Any) -> None:
        """Write the log-softmax of a graph as maximum, exponential, sum and logarithm.

        y = x - max(x)
        log_softmax(x) = y - log(sum(exp(y)))
        """
        operators = []
        for operator in graph.operators:
            if self.is_a(operator, "LOG_SOFTMAX"):
                operators += self.log_softmax(graph, operator)
            else:
                operators.append(operator)
        graph.operators = operators

    def log_softmax(self, graph: Any, operator: Any) -> list[Any]:
        """Return the operators that replace a `LOG_SOFTMAX`."""
        (x,), (output,) = operator.inputs, operator.outputs
        tensor = graph.tensors[x]
        shape, sums = list(tensor.shape), [*tensor.shape[:-1], 1]
        axis = self.add_buffer(np.array([len(shape) - 1], "int32"))
        axis = self.add_tensor(graph, tensor.name, "INT32", [1], axis)
        largest, total, normalizer = (
            self.add_tensor(graph, tensor.name, "FLOAT32", sums) for _ in range(3)
        )
        shifted, odds = (
            self.add_tensor(graph, tensor.name, "FLOAT32", shape) for _ in range(2)
        )
        reduce: dict[str, Any] = {"options": "ReducerOptions", "keepDims": True}
        return [
            self.operator("REDUCE_MAX", [x, axis], largest, **reduce),
            self.operator("SUB", [x, largest], shifted, "SubOptions"),
            self.operator("EXP", [shifted], odds, "ExpOptions"),
            self.operator("SUM", [odds, axis], total, **reduce),
            self.operator("LOG", [total], normalizer),
            self.operator("SUB", [shifted, normalizer], output, "SubOptions"),
        ]

    def remove_identities(self, graph: Any) -> None:
        """Remove reshapes and slices that change nothing.

        An operator that reads what such an operator returns reads its input instead.
        """
        same: dict[int, int] = {}
        operators = []
        for operator in graph.operators:
            inputs = [same.get(number, number) for number in operator.inputs]
            operator.inputs, output = inputs, operator.outputs[0]
            if self.is_identity(graph, operator) and output not in graph.outputs:
                same[output] = inputs[0]
            else:
                operators.append(operator)
        graph.operators = operators

    def is_identity(self, graph: Any, operator: Any) -> bool:
        """Return whether an operator is a reshape or slice that returns its input."""
        if not any(self.is_a(operator, name) for name in RESHAPING):
            return False
        source, target = (
            graph.tensors[number]
            for number in (operator.inputs[0], operator.outputs[0])
        )
        if not (_has_known_shape(source) and _has_known_shape(target)):
            return False
        if list(source.shape) != list(target.shape):
            return False
        if self.is_a(operator, "RESHAPE"):
            return True
        strides = graph.tensors[operator.inputs[3]]
        return self.is_constant(strides) and (self.values(strides, "int32") == 1).all()


def _has_known_shape(tensor: Any) -> bool:
    """Return whether all sizes of a tensor are known before a run."""
    signature = tensor.shapeSignature
    return signature is None or all(size >= 0 for size in signature)
