"""Quantisation of the matrices of a LiteRT model to eight bits."""

import numpy as np

# Smaller matrices stay in float16, as in LiteRT's own converter.
MIN_WEIGHTS = 1024

# First version of the operator FULLY_CONNECTED that has one scale for each output.
FIRST_VERSION = 12


def quantize_matrices(model):
    r"""Quantise the matrices of dense layers from 16 to 8 bits.

    `w = scale * q` with $q \in \{-127, ..., 127\}$, and one scale for each output of a
    dense layer. While it runs, LiteRT quantises the inputs of these layers ("dynamic
    range"). Kernels of convolutions and embeddings stay float16: a network with
    convolutions of eight bits is markedly less accurate.

    Args:
        model: Bytes of a LiteRT model whose weights are float16.

    Returns:
        The bytes of the quantised model.
    """
    import flatbuffers
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(model, 0))
    quantizer = _Quantizer(model, schema)
    for graph in model.subgraphs:
        quantizer.quantize(graph)
    quantizer.clear_unused_buffers()
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


class _Quantizer:
    """Quantises the dense layers of a model; shared weights stay shared."""

    def __init__(self, model, schema):
        self.model, self.schema = model, schema
        # Maps the index of each float16 buffer to the index of its copy and its scales.
        self.copies = {}

    def quantize(self, graph):
        """Give the dense layers of a graph 8-bit matrices and float32 biases.

        LiteRT's dynamic-range kernels accept no others.
        """
        halves = {
            operator.outputs[0]: graph.tensors[operator.inputs[0]]
            for operator in graph.operators
            if self.is_from_half(operator, graph)
        }
        for operator in graph.operators:
            if self.kind(operator) != self.schema.BuiltinOperator.FULLY_CONNECTED:
                continue
            inputs, matrix, *bias = operator.inputs
            if matrix not in halves or np.prod(halves[matrix].shape) < MIN_WEIGHTS:
                continue
            operator.inputs = [inputs]
            for number, dtype in (matrix, "INT8"), *((b, "FLOAT32") for b in bias):
                if number in halves:
                    graph.tensors.append(self.copy(halves[number], dtype))
                    number = len(graph.tensors) - 1
                operator.inputs.append(number)
            operator.builtinOptions.asymmetricQuantizeInputs = True
            code = self.model.operatorCodes[operator.opcodeIndex]
            code.version = max(code.version, FIRST_VERSION)
        read = _read(graph)
        graph.operators = [
            operator
            for operator in graph.operators
            if not self.is_from_half(operator, graph) or operator.outputs[0] in read
        ]

    def kind(self, operator):
        code = self.model.operatorCodes[operator.opcodeIndex]
        return max(code.builtinCode, code.deprecatedBuiltinCode)

    def is_from_half(self, operator, graph):
        """Return whether an operator converts a float16 tensor to float32."""
        return (
            self.kind(operator) == self.schema.BuiltinOperator.DEQUANTIZE
            and graph.tensors[operator.inputs[0]].type == self.schema.TensorType.FLOAT16
        )

    def copy(self, tensor, dtype):
        """Return a copy of a constant float16 tensor, as INT8 or FLOAT32."""
        if tensor.buffer not in self.copies:
            data = np.asarray(self.model.buffers[tensor.buffer].data, "uint8")
            values = data.view("float16").reshape(tensor.shape).astype("float32")
            scale = None
            if dtype == "INT8":
                scale = np.abs(values).max(axis=1, keepdims=True) / 127
                scale[scale == 0] = 1
                values = np.round(values / scale).astype("int8")
            buffer = self.schema.BufferT()
            buffer.data = values.ravel().view("uint8")
            self.model.buffers.append(buffer)
            self.copies[tensor.buffer] = len(self.model.buffers) - 1, scale
        copy = self.schema.TensorT()
        copy.name = tensor.name + b"/" + dtype.lower().encode()
        copy.shape, copy.hasRank = tensor.shape, tensor.hasRank
        copy.type = getattr(self.schema.TensorType, dtype)
        copy.buffer, scale = self.copies[tensor.buffer]
        if scale is not None:
            copy.quantization = self.schema.QuantizationParametersT()
            copy.quantization.scale = scale[:, 0]
            copy.quantization.zeroPoint = np.zeros(len(scale), "int64")
        return copy

    def clear_unused_buffers(self):
        """Empty the buffers that nothing reads any more.

        Their tensors remain, so that the indices of the other tensors stay valid.
        """
        read = {
            graph.tensors[number].buffer
            for graph in self.model.subgraphs
            for number in _read(graph)
        }
        for old in self.copies:
            if old not in read:
                self.model.buffers[old].data = None


def _read(graph):
    """Return the numbers of the tensors that operators or callers of a graph read."""
    read = {number for operator in graph.operators for number in operator.inputs}
    # An operator has the number -1 in place of an input that it does not have.
    return (read | set(graph.outputs)) - {-1}
