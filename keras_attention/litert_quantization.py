"""Quantisation of the weights of a LiteRT model to 16 or 8 bits."""

import functools
import itertools
import math
from typing import Any

import numpy as np

from keras_attention import litert_rounding
from keras_attention.litert_operators import EditedModel

# Smaller matrices stay in float32.
MIN_WEIGHTS = 1024

# The first convolutions of a graph stay in float32, as long as they need at most this
# share of its multiplications: they have few weights, and all others read their errors.
# In EfficientNet-Lite2 they are 14 of 64, with 0.6 % of the weights.
EXACT_SHARE = 0.2

# Kinds of convolutions, and the axis of their kernels that counts the filters.
CONVOLUTIONS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3}

MAX_FLOAT16 = 65504


def quantize_weights(model: bytes, precision: str) -> bytes:
    r"""Quantise the weights of a LiteRT model.

    In float16, an operator (`DEQUANTIZE`) converts a matrix or a kernel to float32
    when it is first used. It is in the same graph as the operators that use it, also
    inside a loop: LiteRT's converter would place some before the loop, which then
    copies their results in every step. Of a table of embeddings, only the rows that
    are looked up are converted.

    With 8 bits, the matrix of a dense layer is `scale * q` with
    $q \in \{-127, ..., 127\}$, and one scale for each output. While it runs, LiteRT
    quantises the inputs of these layers ("dynamic range"). An embedding table that is
    also the matrix of a dense layer shares its 8-bit copy. If rows of a table are the
    matrix, such as those of a shortlist, their integers are multiplied, and the results
    by their scales. All other weights are
    float16: a network with convolutions of eight bits is markedly less accurate.
    Vectors, such as biases, and small matrices stay in float32.

    A constant that has the same number everywhere, such as an empty cache, is stored as
    this number.

    Args:
        model: Bytes of a LiteRT model whose weights are float32.
        precision: `"float16"` or `"int8"`.

    Returns:
        The bytes of the quantised model.
    """
    quantizer = _Quantizer(model, precision)
    for graph in quantizer.model.subgraphs:
        quantizer.quantize(graph)
    quantizer.compact()
    return quantizer.to_bytes()


class _Quantizer(EditedModel):
    """Quantises the weights of a model; shared weights stay shared."""

    def __init__(self, model: Any, precision: str) -> None:
        super().__init__(model)
        # Cache: (float32 buffer, dtype) -> result of `converted`.
        self.copies: dict[tuple[int, str], Any] = {}
        # Buffers of matrices that become 8-bit integers.
        self.eight_bits = {
            graph.tensors[operator.inputs[1]].buffer
            for graph in self.model.subgraphs
            for operator in graph.operators
            if precision == "int8" and self.is_a(operator, "FULLY_CONNECTED")
        }
        # Also those of tables whose rows are the matrix of a dense layer.
        self.eight_bits |= {
            graph.tensors[lookup.inputs[0]].buffer
            for graph in self.model.subgraphs
            for lookup in self.matrix_lookups(graph).values()
            if precision == "int8"
        }

    def quantize(self, graph: Any) -> None:
        """Quantise the matrices, kernels and embeddings of one graph."""
        weights = {n for n, x in enumerate(graph.tensors) if self.is_weight(x)}
        lookups = {
            rows: lookup
            for rows, lookup in self.matrix_lookups(graph).items()
            if lookup.inputs[0] in weights
            and graph.tensors[lookup.inputs[0]].buffer in self.eight_bits
        }
        operators = []
        for operator in graph.operators:
            if operator.outputs[0] in lookups:
                continue
            if len(operator.inputs) > 1 and operator.inputs[1] in lookups:
                lookup = lookups[operator.inputs[1]]
                operators += self.dense_of_rows(graph, lookup, operator)
                continue
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
                graph.operators.insert(0, self.constant(graph, number))
            # Buffer 0 is empty: the tensor is no longer a constant.
            tensor.buffer = 0

    def constant(self, graph: Any, number: int) -> Any:
        """Return an operator that computes a constant tensor, which is stored small."""
        tensor = graph.tensors[number]
        values = self.values(tensor).ravel()
        if (values == values[0]).all():
            stored = [np.array(tensor.shape, "int32"), values[:1]]
            shapes = [[len(tensor.shape)], []]
            inputs = [
                self.add_tensor(graph, tensor.name, dtype, shape, self.add_buffer(x))
                for dtype, shape, x in zip(
                    ("INT32", "FLOAT32"), shapes, stored, strict=True
                )
            ]
            return self.operator("FILL", inputs, number, "FillOptions")
        copy, _ = self.add_copy(graph, tensor, "FLOAT16")
        return self.operator("DEQUANTIZE", [copy], number)

    def is_weight(self, tensor: Any) -> bool:
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

    def looks_up(self, operator: Any) -> bool:
        """Return whether an operator takes rows of a table."""
        if not self.is_a(operator, "GATHER"):
            return False
        options = operator.builtinOptions
        return (options.axis, options.batchDims) == (0, 0)

    def is_dense_in_8_bits(self, graph: Any, operator: Any, weights: Any) -> bool:
        """Return whether an operator is a dense layer whose matrix becomes integers."""
        if not self.is_a(operator, "FULLY_CONNECTED"):
            return False
        matrix = operator.inputs[1]
        return matrix in weights and graph.tensors[matrix].buffer in self.eight_bits

    def quantize_inputs(self, graph: Any, operator: Any) -> None:
        """Give a dense layer an 8-bit matrix, so that it quantises its inputs, too."""
        inputs, matrix, *bias = operator.inputs
        copy, _ = self.add_copy(graph, graph.tensors[matrix], "INT8")
        operator.inputs = [inputs, copy, *bias]
        operator.builtinOptions.asymmetricQuantizeInputs = True
        self.operator_code("FULLY_CONNECTED")

    def lookup(self, graph: Any, gather: Any) -> list[Any]:
        """Return operators that take rows of a table, and convert these to float32.

        A table that is also the matrix of a dense layer has the precision of that.
        """
        table, output = graph.tensors[gather.inputs[0]], gather.outputs[0]
        shape = graph.tensors[output].shape

        def take(source: Any, dtype: str, width: int) -> tuple[int, Any]:
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

    def matrix_lookups(self, graph: Any) -> dict[int, Any]:
        """Return the operators that take rows of a table as a matrix of a dense layer.

        Keys are the numbers of these matrices, which no other operator reads.
        """
        readers: dict[int, list[Any]] = {}
        for operator in graph.operators:
            for number in operator.inputs:
                readers.setdefault(number, []).append(operator)
        lookups = {}
        for operator in graph.operators:
            rows = operator.outputs[0] if len(operator.outputs) else -1
            if self.looks_up(operator) and rows not in graph.outputs:
                match readers.get(rows, []):
                    case [dense] if (
                        self.is_a(dense, "FULLY_CONNECTED")
                        and dense.inputs[1] == rows
                        and all(number < 0 for number in dense.inputs[2:])
                    ):
                        lookups[rows] = operator
        return lookups

    def dense_of_rows(self, graph: Any, gather: Any, dense: Any) -> list[Any]:
        """Return the operators of a dense layer whose matrix is rows of a table.

        output = scales[rows] * (input . integers[rows])
        """
        rows, output = gather.outputs[0], dense.outputs[0]
        table = graph.tensors[gather.inputs[0]]
        shape, products_shape = graph.tensors[rows].shape, graph.tensors[output].shape
        copy, scales = self.add_copy(graph, table, "INT8")
        integers = self.add_tensor(graph, table.name, "INT8", shape)
        quantization = self.schema.QuantizationParametersT()
        quantization.scale = np.ones(1, "float32")
        quantization.zeroPoint = np.zeros(1, "int64")
        graph.tensors[integers].quantization = quantization
        column = self.add_tensor(graph, table.name, "FLOAT32", [shape[0], 1])
        factors = self.add_tensor(graph, table.name, "FLOAT32", [1, shape[0]])
        products = self.add_tensor(graph, table.name, "FLOAT32", products_shape)
        new_shape = self.add_buffer(np.array([1, shape[0]], "int32"))
        new_shape = self.add_tensor(graph, table.name, "INT32", [2], new_shape)
        dense.inputs, dense.outputs = [dense.inputs[0], integers, -1], [products]
        # LiteRT adds the rows of a matrix up in its first run alone, for the offsets of
        # asymmetric inputs. These rows change.
        dense.builtinOptions.asymmetricQuantizeInputs = False
        self.operator_code("FULLY_CONNECTED")
        operators = []
        for source, taken in (copy, integers), (scales, column):
            take = self.operator("GATHER", [source, gather.inputs[1]], taken)
            take.builtinOptionsType = gather.builtinOptionsType
            take.builtinOptions = gather.builtinOptions
            operators.append(take)
        return [
            *operators,
            self.operator("RESHAPE", [column, new_shape], factors),
            dense,
            self.operator("MUL", [products, factors], output, "MulOptions"),
        ]

    def add_copy(self, graph: Any, tensor: Any, dtype: str) -> tuple[int, int | None]:
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

    def converted(self, values: np.ndarray, dtype: str) -> tuple[int, int | None, Any]:
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


def quantize_convolutions(model: bytes, samples: Any) -> bytes:
    r"""Let the convolutions of a LiteRT model compute in 8-bit integers.

    Inputs and outputs of convolutions, and of the additions of their outputs, become
    `scale * (q - zero)` with $q \in \{-128, ..., 127\}$, and a kernel `scale * q`, with
    one scale for each filter. Kernels are rounded such that the outputs of each
    convolution change little for the samples; see `litert_rounding`. The first
    convolutions, with a fifth of the multiplications, stay in float32, as all others
    read their errors. The limits of an
    activation are the means of its least and of its greatest value in the samples; what
    is beyond is clipped. All other operators compute in float32.

    Args:
        model: Bytes of a LiteRT model whose weights are float32.
        samples: List of dicts of arrays, the inputs of every signature.

    Returns:
        The bytes of the model.
    """
    quantizer = _ConvolutionQuantizer(model)
    for signature in quantizer.model.signatureDefs:
        graph = quantizer.model.subgraphs[signature.subgraphIndex]
        if activations := quantizer.activations(graph):
            part = _part_before_last(model, signature.subgraphIndex, activations)
            numbers = {x.name.decode(): x.tensorIndex for x in signature.inputs}
            kernels = quantizer.kernels(graph)
            limits, products = _statistics(part, activations, kernels, numbers, samples)
            quantizer.quantize(graph, limits, products)
    _clear_unused_buffers(quantizer.model, {buffer for buffer, _ in quantizer.copies})
    return quantizer.to_bytes()


class _ConvolutionQuantizer(EditedModel):
    """Quantises convolutions and their activations; see `quantize_convolutions`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # Cache for weights that signatures share: (float32 buffer, scales) -> buffer.
        self.copies: dict[tuple[int, bytes], int] = {}

    def activations(self, graph: Any) -> list[int]:
        """Return the numbers of the tensors that become 8-bit integers."""
        numbers, exact = {}, self.exact_convolutions(graph)
        for operator in graph.operators:
            if id(operator) in exact:
                continue
            if self.axis_of_filters(graph, operator) is not None:
                numbers[operator.inputs[0]] = numbers[operator.outputs[0]] = True
            elif self.adds(operator, numbers):
                numbers[operator.outputs[0]] = True
        return list(numbers)

    def exact_convolutions(self, graph: Any) -> set[int]:
        """Return the `id`s of the first convolutions, which stay in float32.

        Together, they need at most `EXACT_SHARE` of the multiplications of all.
        """
        convolutions = [
            operator
            for operator in graph.operators
            if self.axis_of_filters(graph, operator) is not None
        ]
        counts = [self.multiplications(graph, operator) for operator in convolutions]
        sums = itertools.accumulate(counts)
        return {
            id(operator)
            for operator, count in zip(convolutions, sums, strict=True)
            if count <= EXACT_SHARE * sum(counts)
        }

    def multiplications(self, graph: Any, operator: Any) -> int:
        """Return the number of multiplications of a convolution for one image."""
        kernel = graph.tensors[operator.inputs[1]].shape
        _, rows, columns, filters = graph.tensors[operator.outputs[0]].shape
        each = math.prod(kernel[1:])
        if self.is_a(operator, "DEPTHWISE_CONV_2D"):
            # Each filter reads one channel; the last axis counts the filters.
            each //= filters
        return int(rows) * int(columns) * int(filters) * int(each)

    def kernels(self, graph: Any) -> dict[tuple[int, int], tuple[Any, bool]]:
        """Return the kernels that are rounded by their inputs.

        It is a dict from the numbers of input and kernel to the arguments of
        `litert_rounding.patches_of`, and whether the convolution is depthwise.
        """
        kernels_by_input: dict[tuple[int, int], tuple[Any, bool]] = {}
        exact = self.exact_convolutions(graph)
        for operator in graph.operators:
            axis = self.axis_of_filters(graph, operator)
            if axis is None or id(operator) in exact:
                continue
            options = operator.builtinOptions
            images, weights = (graph.tensors[number] for number in operator.inputs[:2])
            is_depthwise = axis == CONVOLUTIONS["DEPTHWISE_CONV_2D"]
            height, width, depth = weights.shape[1:]
            size = height * width * (1 if is_depthwise else depth)
            is_grouped = not is_depthwise and depth != images.shape[-1]
            is_dilated = (options.dilationHFactor, options.dilationWFactor) != (1, 1)
            if not (is_grouped or is_dilated or size > litert_rounding.MAX_NUMBERS):
                strides = options.strideH, options.strideW
                is_padded = options.padding == self.schema.Padding.SAME
                arguments = (height, width), strides, is_padded
                source, kernel = operator.inputs[:2]
                kernels_by_input[source, kernel] = arguments, is_depthwise
        return kernels_by_input

    def axis_of_filters(self, graph: Any, operator: Any) -> int | None:
        """Return the axis of the filters of a convolution; None for other operators.

        Convolutions whose weights are not constants in float32 are other operators.
        """
        _, *weights = operator.inputs
        for name, axis in CONVOLUTIONS.items():
            if self.is_a(operator, name):
                tensors = [graph.tensors[number] for number in weights if number >= 0]
                if len(tensors) == 2 and all(
                    self.is_constant(x) and x.type == self.schema.TensorType.FLOAT32
                    for x in tensors
                ):
                    return axis
        return None

    def adds(self, operator: Any, numbers: Any) -> bool:
        """Return whether an operator adds two tensors of these numbers."""
        return self.is_a(operator, "ADD") and all(x in numbers for x in operator.inputs)

    def quantize(self, graph: Any, limits: Any, products: Any) -> None:
        """Quantise a graph, given the `_statistics` of its activations."""
        # From the numbers of float tensors to those of the same in integers, and the
        # numbers of float tensors that no operator computes any more.
        integers: dict[int, int] = {}
        missing: set[int] = set()
        exact = self.exact_convolutions(graph)
        operators, graph.operators = graph.operators, []
        for operator in operators:
            axis = self.axis_of_filters(graph, operator)
            is_float = axis is None and not self.adds(operator, integers)
            if is_float or id(operator) in exact:
                self.dequantize(graph, operator.inputs, integers, missing)
            else:
                missing.add(operator.outputs[0])
                self.compute_in_integers(
                    graph, operator, axis, integers, limits, products
                )
            graph.operators.append(operator)
        self.dequantize(graph, graph.outputs, integers, missing)
        # Buffer 0 is empty: what no operator reads is no longer a constant.
        read = _read(graph)
        for number, tensor in enumerate(graph.tensors):
            if number not in read:
                tensor.buffer = 0

    def dequantize(self, graph: Any, numbers: Any, integers: Any, missing: Any) -> None:
        """Add the operators that compute those of some tensors that are missing."""
        for number in dict.fromkeys(numbers):
            if number in missing:
                missing.remove(number)
                source, options = integers[number], "DequantizeOptions"
                graph.operators.append(
                    self.operator("DEQUANTIZE", [source], number, options)
                )

    def compute_in_integers(
        self,
        graph: Any,
        operator: Any,
        axis: int | None,
        integers: Any,
        limits: Any,
        products: Any,
    ) -> None:
        """Give a convolution, or an addition without axis, integers to compute with."""
        inputs, output = operator.inputs, operator.outputs[0]
        activations = inputs if axis is None else inputs[:1]
        for number in activations:
            if number not in integers:
                integers[number] = self.add_activation(graph, number, limits)
                source, options = [number], "QuantizeOptions"
                graph.operators.append(
                    self.operator("QUANTIZE", source, integers[number], options)
                )
        operator.inputs = [integers[number] for number in activations]
        if axis is not None:
            source = graph.tensors[operator.inputs[0]]
            operator.inputs += self.add_integer_weights(
                graph, source, inputs[1:], axis, products.get(tuple(inputs[:2]))
            )
        integers[output] = self.add_activation(graph, output, limits)
        operator.outputs = [integers[output]]
        for name in (*CONVOLUTIONS, "ADD"):
            if self.is_a(operator, name):
                self.operator_code(name)

    def add_activation(self, graph: Any, number: int, limits: Any) -> int:
        """Add a tensor of 8-bit integers in place of a float one; return its number."""
        # Zero is exact, as a convolution pads with it.
        smallest, largest = limits[number]
        smallest, largest = min(smallest, 0.0), max(largest, 0.0)
        scale = max(largest - smallest, 1e-6) / 255
        zero = int(np.clip(np.round(-128 - smallest / scale), -128, 127))
        tensor = graph.tensors[number]
        added = self.add_tensor(graph, tensor.name, "INT8", tensor.shape)
        graph.tensors[added].quantization = self.scaling([scale], [zero])
        return added

    def add_integer_weights(
        self, graph: Any, source: Any, weights: Any, axis: int, products: Any
    ) -> list[int]:
        """Add kernel and bias of a convolution as integers; return their numbers.

        Without `products`, the kernel is rounded to the nearest integers.
        """
        kernel, bias = (graph.tensors[number] for number in weights)
        values = np.moveaxis(self.values(kernel), axis, -1)
        scales = np.abs(values).max(axis=(0, 1, 2)) / 127
        scales[scales == 0] = 1
        step = source.quantization.scale[0] * scales.astype("float64")
        numbers = []
        for tensor, scale, along, dtype, limit in (
            (kernel, scales, axis, "INT8", 127),
            (bias, step, 0, "INT32", 2**31 - 1),
        ):
            key = tensor.buffer, scale.tobytes()
            if key not in self.copies:
                values = np.moveaxis(self.values(tensor), along, -1) / scale
                if tensor is kernel and products is not None:
                    values = _rounded_kernel(values, products, limit)
                values = np.clip(np.round(values), -limit, limit).astype(dtype.lower())
                values = np.ascontiguousarray(np.moveaxis(values, -1, along))
                self.copies[key] = self.add_buffer(values)
            number = self.add_tensor(
                graph, tensor.name, dtype, tensor.shape, self.copies[key]
            )
            zeros = np.zeros(len(scale))
            graph.tensors[number].quantization = self.scaling(scale, zeros, along)
            numbers.append(number)
        return numbers

    def scaling(self, scales: Any, zeros: Any, axis: int = 0) -> Any:
        """Return the parameters of a quantised tensor."""
        quantization = self.schema.QuantizationParametersT()
        quantization.scale = np.asarray(scales, "float32")
        quantization.zeroPoint = np.asarray(zeros, "int64")
        quantization.quantizedDimension = axis
        return quantization


def _rounded_kernel(values: Any, products: Any, limit: int) -> Any:
    """Round a kernel `(..., filters)`; see `litert_rounding.rounded`."""
    rows = values.reshape(-1, values.shape[-1]).T
    groups = rows.reshape(len(products), -1, rows.shape[-1])
    rows = litert_rounding.rounded(groups, products, limit).reshape(rows.shape)
    return rows.T.reshape(values.shape)


def _part_before_last(model: Any, index: int, numbers: Any) -> Any:
    """Return the part of a model that computes some tensors of one of its graphs.

    It is an `EditedModel` with one graph, whose outputs are these tensors.
    """
    part = EditedModel(model)
    graph = part.model.subgraphs[index]
    last = max(
        position
        for position, operator in enumerate(graph.operators)
        if set(operator.outputs) & set(numbers)
    )
    graph.operators = graph.operators[: last + 1]
    graph.outputs = numbers
    part.model.subgraphs, part.model.signatureDefs = [graph], None
    return part


def _statistics(
    model: Any, outputs: Any, kernels: Any, inputs: Any, samples: Any
) -> tuple[dict[int, list[float]], dict[tuple[int, int], Any]]:
    """Run a model on samples, and return statistics of its outputs.

    Args:
        model: The `EditedModel`.
        outputs: Numbers of the tensors.
        kernels: As `_ConvolutionQuantizer.kernels` returns them.
        inputs: Dict from the names of the inputs to their numbers.
        samples: List of dicts of inputs.

    Returns:
        limits: Dict from the number of an output to its mean least and greatest value.
        products: Dict from the keys of `kernels` to the sums of
            `litert_rounding.products_of`.
    """
    interpreter = model.interpreter()
    limits: list[list[tuple[float, float]]] = []
    products: dict[tuple[int, int], Any] = dict.fromkeys(kernels, 0)
    for sample in samples:
        for name, number in inputs.items():
            interpreter.set_tensor(number, sample[name])
        interpreter.invoke()
        values = {number: interpreter.get_tensor(number) for number in outputs}
        limits.append([(float(x.min()), float(x.max())) for x in values.values()])
        for key, (arguments, is_depthwise) in kernels.items():
            patches = litert_rounding.patches_of(values[key[0]], *arguments)
            products[key] = products[key] + litert_rounding.products_of(
                patches, is_depthwise
            )
    means = np.mean(limits, axis=0).tolist()
    return dict(zip(outputs, means, strict=True)), products


def _clear_unused_buffers(model: Any, buffers: Any) -> None:
    """Empty those of the numbered buffers that no tensor has any more."""
    used = {x.buffer for graph in model.subgraphs for x in graph.tensors}
    for number in buffers - used:
        model.buffers[number].data = None


def _read(graph: Any) -> set[int]:
    """Return the numbers of the tensors that operators or callers of a graph read."""
    read = {number for operator in graph.operators for number in operator.inputs}
    return read | set(graph.outputs)
