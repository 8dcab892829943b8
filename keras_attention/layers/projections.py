"""Options of weights (initializers, regularizers, constraints), and projections.

A layer takes them from its keyword arguments with `pop_weight_options`:
`kernel_initializer`, `bias_regularizer` and the like are then entries of one dict.
"""

from typing import Any, ClassVar

import keras
from keras import constraints, initializers, ops, regularizers

from keras_attention.layers.components import Score
from keras_attention.serialization import CompositeLayer, config_of
from keras_attention.typing import Config, Shape, Tensor
from keras_attention.validation import check_boolean

_KINDS = {
    "initializer": initializers,
    "regularizer": regularizers,
    "constraint": constraints,
}


def pop_weight_options(
    arguments: dict[str, Any], **initializers: Any
) -> dict[str, Any]:
    """Remove the options of weights from keyword arguments, and return them as objects.

    Args:
        arguments: Dict of keyword arguments.
        **initializers: For the name of each weight, its default initializer.
    """
    options = {}
    for weight, initializer in initializers.items():
        arguments.setdefault(f"{weight}_initializer", initializer)
        for kind, module in _KINDS.items():
            name = f"{weight}_{kind}"
            options[name] = module.get(arguments.pop(name, None))
    return options


def options_of(options: dict[str, Any], *weights: str) -> dict[str, Any]:
    """Return the options of some weights, such as `"kernel"`, under the same names."""
    return {k: v for k, v in options.items() if k.rpartition("_")[0] in weights}


def weight_arguments(options: dict[str, Any], weight: str) -> dict[str, Any]:
    """Return the arguments of `add_weight` for one weight, with a new initializer."""
    weight_options = fresh_options(options_of(options, weight))
    return {_kind(name): value for name, value in weight_options.items()}


def fresh_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the same options for another layer, with new initializers."""
    return {
        name: fresh_initializer(value) if _kind(name) == "initializer" else value
        for name, value in options.items()
    }


def fresh_initializer(initializer: Any) -> Any:
    """Return a copy of an initializer, because Keras warns if one is used twice."""
    clone = getattr(initializer, "clone", None)
    return clone() if clone else initializer


def serialize_options(options: dict[str, Any]) -> Config:
    """Return options as entries of a config."""
    return {
        name: _KINDS[_kind(name)].serialize(value) for name, value in options.items()
    }


def _kind(name: str) -> str:
    return name.rpartition("_")[2]


@keras.saving.register_keras_serializable(package="keras_attention")
class ConcatenatedProjection(CompositeLayer):
    """Two projections of the same input, concatenated along the last axis.

    Args:
        first, second: The layers.
    """

    def __init__(
        self, first: keras.layers.Layer, second: keras.layers.Layer, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.first = first
        self.second = second

    def build(self, input_shape: Shape) -> None:
        self.first.build(input_shape)
        self.second.build(input_shape)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        return ops.concatenate([self.first(x), self.second(x)], axis=-1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        pair = self.first, self.second
        shapes = [x.compute_output_shape(input_shape) for x in pair]
        return (*input_shape[:-1], sum(shape[-1] for shape in shapes))

    def get_config(self) -> Config:
        return {**super().get_config(), **config_of(self, "first second")}


class ProjectedScore(Score):
    """Base of the scores that have a projection.

    Args:
        use_bias: Whether the projection has a bias.
        **kwargs: `kernel_initializer`, `bias_regularizer` and the like, for the weights
            in `default_initializers`, and options of the layer.

    Attributes:
        default_initializers: Dict from the name of each weight to its initializer.
        options: Dict of initializers, regularizers and constraints of the weights.
    """

    default_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}

    def __init__(self, *, use_bias: bool = False, **kwargs: Any) -> None:
        options = pop_weight_options(kwargs, **self.default_initializers)
        super().__init__(**kwargs)
        check_boolean("use_bias", use_bias)
        self.use_bias = use_bias
        self.options = options

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            **serialize_options(self.options),
        }


def check_shared_depth(projection: keras.layers.Layer, query_shape: Shape) -> None:
    """Raise `ValueError` if queries do not have the depth of a built projection."""
    depth = projection.input_spec.axes[-1]
    if query_shape[-1] != depth:
        raise ValueError(
            "layers that share a score must have the same depth of queries, "
            f"{depth}. Received: {query_shape[-1]}"
        )
