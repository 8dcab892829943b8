"""Quantisation of the weights of a LiteRT model to 16 or 8 bits."""

import functools

import numpy as np

from keras_attention.litert_operators import EditedModel

# Smaller matrices stay in float32.
MIN_WEIGHTS = 1024

MAX_FLOAT16 = 65504


def quantize_weights(model, precision):
    r"""Quantise the weights of a LiteRT model.

    In float16, an operator (`DEQUANTIZE`) converts a matrix or a kernel to float32
    when it is first used. It is in the same graph as the operators that use it, also
    inside a loop: LiteRT's converter would place some before the loop, which then
    copies their results in every step. Of a table of embeddings, only the rows that
    are looked up are converted.

    With 8 bits, the matrix of a dense layer is `scale * q` with
    $q \in \{-127, ..., 127\}$, and one scale for each output. While it runs, LiteRT
    quantises the inputs of these layers ("dynamic range"). An embedding table that is
    also the matrix of a dense layer shares its 8-bit copy. All other weights are
    float16: a network with convolutions of eight bits is markedly less accurate.
    Vectors, such as biases, and small matrices stay in float32.

    Args:
        model: Bytes of a LiteRT model whose weights are float32.
        precision: `"float16"` or `"int8"`.

    Returns:
        The bytes of the quantised model.
    """
    quantizer = _Quantizer(model, precision)
    for graph in quantizer.model.subgraphs:
        quantizer.quantize(graph)
    quantizer.clear_unused_buffers()
    return quantizer.to_bytes()


class _Quantizer(EditedModel):
    """Quantises the weights of a model; shared weights stay shared."""

    def __init__(self, model, precision):
        super().__init__(model)
        # Cache: (float32 buffer, dtype) -> result of `converted`.
        self.copies = {}
        # Buffers of matrices that become 8-bit integers.
        self.eight_bits = {
            graph.tensors[operator.inputs[1]].buffer
            for graph in self.model.subgraphs
            for operator in graph.operators
            if precision == "int8" and self.is_a(operator, "FULLY_CONNECTED")
        }

    def quantize(self, graph):
        """Quantise the matrices, kernels and embeddings of one graph."""
        weights = {n for n, x in enumerate(graph.tensors) if self.is_weight(x)}
        operators = []
        for operator in graph.operators:
            if self.looks_up(operator) and operator.inputs[0] in weights:
                operators += self.lookup(graph, operator)
                continue
            if self.is_dense_in_8_bits(graph, operator, weights):
                self.quantize_inputs(graph, operator)
            operators.append(operator)
        graph.operators = operators
        read = _read(graph)
        for number in weights:
            tensor = graph.tensors[number]
            if number in read:
                copy, _ = self.add_copy(graph, tensor, "FLOAT16")
                convert = self.operator("DEQUANTIZE", [copy], number)
                graph.operators.insert(0, convert)
            # Buffer 0 is empty: the tensor is no longer a constant.
            tensor.buffer = 0

    def is_weight(self, tensor):
        """Return whether a tensor is a large constant, no vector, and fits float16.

        A constant such as a mask of -1e9 would become infinite.
        """
        return (
            tensor.type == self.schema.TensorType.FLOAT32
            and self.model.buffers[tensor.buffer].data is not None
            and len(tensor.shape) > 1
            and np.prod(tensor.shape) >= MIN_WEIGHTS
            and np.abs(self.values(tensor)).max() <= MAX_FLOAT16
        )

    def looks_up(self, operator):
        """Return whether an operator takes rows of a table."""
        if not self.is_a(operator, "GATHER"):
            return False
        options = operator.builtinOptions
        return (options.axis, options.batchDims) == (0, 0)

    def is_dense_in_8_bits(self, graph, operator, weights):
        """Return whether an operator is a dense layer whose matrix becomes integers."""
        if not self.is_a(operator, "FULLY_CONNECTED"):
            return False
        matrix = operator.inputs[1]
        return matrix in weights and graph.tensors[matrix].buffer in self.eight_bits

    def quantize_inputs(self, graph, operator):
        """Give a dense layer an 8-bit matrix, so that it quantises its inputs, too."""
        inputs, matrix, *bias = operator.inputs
        copy, _ = self.add_copy(graph, graph.tensors[matrix], "INT8")
        operator.inputs = [inputs, copy, *bias]
        operator.builtinOptions.asymmetricQuantizeInputs = True
        self.operator_code("FULLY_CONNECTED")

    def lookup(self, graph, gather):
        """Return operators that take rows of a table, and convert these to float32.

        A table that is also the matrix of a dense layer has the precision of that.
        """
        table, output = graph.tensors[gather.inputs[0]], gather.outputs[0]
        shape = graph.tensors[output].shape

        def take(source, dtype, width):
            rows = self.add_tensor(graph, table.name, dtype, [*shape[:-1], width])
            take = self.operator("GATHER", [source, gather.inputs[1]], rows)
            take.builtinOptionsType = gather.builtinOptionsType
            take.builtinOptions = gather.builtinOptions
            return rows, take

        if table.buffer not in self.eight_bits:
            copy, _ = self.add_copy(graph, table, "FLOAT16")
            rows, take_rows = take(copy, "FLOAT16", shape[-1])
            return [take_rows, self.operator("DEQUANTIZE", [rows], output)]
        copy, scales = self.add_copy(graph, table, "INT8")
        rows, take_rows = take(copy, "INT8", shape[-1])
        factors, take_factors = take(scales, "FLOAT32", 1)
        floats = self.add_tensor(graph, table.name, "FLOAT32", shape)
        return [
            take_rows,
            take_factors,
            self.operator("CAST", [rows], floats),
            self.operator("MUL", [floats, factors], output),
        ]

    def add_copy(self, graph, tensor, dtype):
        """Add a copy of a constant tensor in float16 or 8 bits to a graph.

        Returns:
            The number of the copy, and for 8 bits that of the tensor of its scales.
        """
        key = tensor.buffer, dtype
        if key not in self.copies:
            self.copies[key] = self.converted(self.values(tensor), dtype)
        buffer, buffer_of_scales, quantization = self.copies[key]
        number = self.add_tensor(graph, tensor.name, dtype, tensor.shape, buffer)
        if quantization is None:
            return number, None
        graph.tensors[number].quantization = quantization
        name, shape = tensor.name + b"/scales", (tensor.shape[0], 1)
        return number, self.add_tensor(graph, name, "FLOAT32", shape, buffer_of_scales)

    def converted(self, values, dtype):
        """Store an array in another dtype.

        Returns:
            The numbers of its buffer and that of its scales, and its quantisation. The
            last two are None in float16.
        """
        if dtype == "FLOAT16":
            return self.add_buffer(values.astype("float16")), None, None
        scales = np.abs(values).max(axis=1, keepdims=True) / 127
        scales[scales == 0] = 1
        buffer = self.add_buffer(np.round(values / scales).astype("int8"))
        quantization = self.schema.QuantizationParametersT()
        quantization.scale = scales[:, 0]
        quantization.zeroPoint = np.zeros(len(scales), "int64")
        # Packed once and shared by all tensors; one copy per tensor would be most of
        # the file.
        quantization.Pack = functools.cache(quantization.Pack)
        return buffer, self.add_buffer(scales), quantization

    def clear_unused_buffers(self):
        """Empty the buffers in float32 that no tensor has any more."""
        used = {x.buffer for graph in self.model.subgraphs for x in graph.tensors}
        for buffer, _ in self.copies:
            if buffer not in used:
                self.model.buffers[buffer].data = None


def _read(graph):
    """Return the numbers of the tensors that operators or callers of a graph read."""
    read = {number for operator in graph.operators for number in operator.inputs}
    return read | set(graph.outputs)
