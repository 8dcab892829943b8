"""Type aliases in the signatures of the public API.

A tensor is `Any`, because every backend has its own type, and Keras also takes arrays
and symbolic tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras

#: Tensor of the backend, symbolic tensor of Keras, or array that Keras converts.
Tensor: TypeAlias = Any
#: Tensors in any nesting of dicts, lists and tuples.
Nested: TypeAlias = Any
#: Shape of a tensor; `None` is a size that is not known.
Shape: TypeAlias = Sequence[int | None]
#: Shapes in the nesting of their tensors.
Shapes: TypeAlias = Any

#: Configuration of a layer, as `get_config` returns it.
Config: TypeAlias = dict[str, Any]
#: Tensors by name, such as the memory of an attention or the state of a decoder.
Tensors: TypeAlias = dict[str, Any]

Initializer: TypeAlias = str | Config | keras.initializers.Initializer
Regularizer: TypeAlias = str | Config | keras.regularizers.Regularizer | None
WeightConstraint: TypeAlias = str | Config | keras.constraints.Constraint | None
Activation: TypeAlias = str | Callable[[Tensor], Tensor] | None
Dtype: TypeAlias = str | Config | keras.DTypePolicy | None
Seed: TypeAlias = int | keras.random.SeedGenerator | None

#: Step function of a search: `(token_ids, state) -> (log_probs, state, weights)`.
Step: TypeAlias = Callable[[Tensor, Nested], tuple[Tensor, Nested, Tensor]]
