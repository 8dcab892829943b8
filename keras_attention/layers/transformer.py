"""Layers of the Transformer: attention and feed-forward network, added to their input.

Shapes: B batch, T steps, S positions of a value, N heads, D depth of a step. An extra
axis K after B holds several sequences that attend to the same value.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import dropout, project_rows
from keras_attention.layers.components import freeze_new_weights
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.layers.projections import (
    fresh_options,
    pop_weight_options,
    serialize_options,
)
from keras_attention.layers.self_attention import SelfAttention
from keras_attention.ops.masks import clear_masked
from keras_attention.serialization import CompositeLayer, config_of, seed_and_generator
from keras_attention.typing import (
    Activation,
    Config,
    Nested,
    Seed,
    Shape,
    Shapes,
    Tensor,
    Tensors,
)
from keras_attention.validation import (
    CheckedCall,
    check_boolean,
    check_dropout,
    check_mask,
    check_positive,
    check_positive_integer,
    check_rank,
    shapes_of,
)


class SharedSeedDropout(keras.layers.Layer):
    """Dropout that draws from a generator which other layers share.

    Args:
        rate: Probability that an element is dropped, in `[0, 1)`.
        seed_generator: `keras.random.SeedGenerator`; `None` if nothing is dropped.
    """

    def __init__(
        self,
        rate: float,
        seed_generator: keras.random.SeedGenerator | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.seed_generator = seed_generator
        self.built = True

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        if self.seed_generator is None or not (self.rate and training):
            return x
        return dropout(x, self.rate, self.seed_generator)


@keras.saving.register_keras_serializable(package="keras_attention")
class FeedForward(CompositeLayer):
    """Feed-forward network of a Transformer layer, the same for every step.

        output[t] = W_output activation(W_hidden x[t] + b_hidden) + b_output

    Args:
        units: Positive integer, number of units of the hidden layer.
        activation: Activation of the hidden layer.
        dropout: Rate at which the units of the hidden layer are dropped in training.
        use_bias: Whether both projections have a bias.
        seed_generator: `keras.random.SeedGenerator` of the dropout.
        options: Dict of initializers, regularizers and constraints of the weights.

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3.
    """

    def __init__(
        self,
        units: int,
        activation: Activation = "relu",
        *,
        dropout: float = 0.0,
        use_bias: bool = True,
        seed_generator: keras.random.SeedGenerator | None = None,
        options: Config | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.seed_generator = seed_generator
        self.options = pop_weight_options(
            dict(options or {}), kernel="glorot_uniform", bias="zeros"
        )
        self.hidden_projection = self._projection(
            units, "hidden_projection", self.activation
        )
        self.hidden_dropout = SharedSeedDropout(
            dropout, seed_generator, dtype=self.dtype_policy, name="hidden_dropout"
        )

    def _projection(
        self, units: int, name: str, activation: Activation = None
    ) -> keras.layers.Layer:
        return keras.layers.Dense(
            units,
            activation,
            use_bias=self.use_bias,
            **fresh_options(self.options),
            dtype=self.dtype_policy,
            trainable=self.trainable,
            name=name,
        )

    def build(self, x_shape: Shape) -> None:
        depth: Any = x_shape[-1]
        self.output_projection = self._projection(depth, "output_projection")
        self.hidden_projection.build((None, depth))
        self.output_projection.build((None, self.units))
        self.built = True

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        hidden = project_rows(self.hidden_projection, x)
        # Called without Keras' `__call__`, which takes time.
        hidden = self.hidden_dropout.call(hidden, training=training)
        return project_rows(self.output_projection, hidden)

    def compute_output_shape(self, x_shape: Shape) -> Any:
        return tuple(x_shape)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            **config_of(self, "units use_bias seed_generator"),
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.hidden_dropout.rate,
            "options": serialize_options(self.options),
        }


class TransformerLayer(CheckedCall, CompositeLayer):
    """Base of the Transformer layers: norms, residuals and feed-forward network.

    Args:
        norms: Names of the layer normalisations, one for each sublayer.
        units: See `TransformerEncoderLayer`, and there for all other arguments.
    """

    def __init__(
        self,
        norms: tuple[str, ...],
        units: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        activation_dropout: float = 0.0,
        norm_first: bool = True,
        epsilon: float = 1e-5,
        use_bias: bool = True,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        options = pop_weight_options(kwargs, kernel="glorot_uniform", bias="zeros")
        super().__init__(**kwargs)
        self.supports_masking = True
        units = check_positive_integer("units", units)
        check_dropout(dropout)
        check_dropout(activation_dropout)
        check_boolean("norm_first", norm_first)
        check_positive("epsilon", epsilon)
        check_boolean("use_bias", use_bias)
        self.units = units
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.activation_dropout = activation_dropout
        self.norm_first = norm_first
        self.epsilon = float(epsilon)
        self.use_bias = use_bias
        self.options = options
        # Without dropout there is no state to save.
        self.seed, seed_generator = seed, None
        if dropout or activation_dropout:
            self.seed, seed_generator = seed_and_generator(seed)
        common = {"dtype": self.dtype_policy, "trainable": self.trainable}
        self._norm_names = norms
        for name in norms:
            norm = keras.layers.LayerNormalization(epsilon=epsilon, name=name, **common)
            setattr(self, name, norm)
        self.residual_dropout = SharedSeedDropout(
            dropout, seed_generator, dtype=self.dtype_policy, name="residual_dropout"
        )
        self.feed_forward: keras.layers.Layer = FeedForward(
            units,
            self.activation,
            dropout=activation_dropout,
            use_bias=use_bias,
            seed_generator=seed_generator,
            options=options,
            name="feed_forward",
            **common,
        )

    def build_shared(self, inputs_shape: Shape) -> None:
        """Build norms and feed-forward network."""
        for name in self._norm_names:
            getattr(self, name).build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        freeze_new_weights(self)
        self.built = True

    def add(
        self,
        x: Tensor,
        norm: keras.layers.Layer,
        sublayer: Callable[[Tensor], Tensor],
        training: bool | None,
    ) -> Tensor:
        """Return `x` plus the output of a sublayer, normalised before or after."""
        output = sublayer(norm(x) if self.norm_first else x)
        output = self.residual_dropout.call(output, training=training)
        return x + output if self.norm_first else norm(x + output)

    def compute_output_shape(self, inputs_shape: Shape, *shapes: Shapes) -> Any:
        return tuple(inputs_shape)

    def get_config(self) -> Config:
        names = "units dropout activation_dropout norm_first epsilon use_bias seed"
        return {
            **super().get_config(),
            **config_of(self, names),
            "activation": keras.activations.serialize(self.activation),
            **serialize_options(self.options),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward network, each added to its input.

    With `norm_first` (pre-norm), each sublayer reads a normalised input:

        y = x + self_attention(norm(x))
        output = y + feed_forward(norm(y))

    Without it (post-norm, as in the first Transformer), the sums are normalised:

        y = norm(x + self_attention(x))
        output = norm(y + feed_forward(y))

    Each `norm` is a layer normalisation of its own. A stack of pre-norm layers needs a
    further one after its last layer.

    The layer takes a `SelfAttention` with any of its options: weightings, relative
    positions, windows, grouped heads, axes. If that is causal, a stack of these layers
    is a language model, which runs step by step with a `cache` for each layer; see
    `SelfAttention`.

    Masking: a masked step is seen by no other step, gives zeros, and whatever is
    stored there (NaN included) reaches no result and no gradient. The mask of `inputs`
    is passed on.

    Args:
        self_attention: The `SelfAttention`; its output must be as deep as its input.
        units: Positive integer, units of the hidden layer of the feed-forward network.
        activation: Activation of that layer: a name such as `"relu"`, `"gelu"` or
            `"swish"`, or a function.
        dropout: Rate at which outputs of the sublayers are dropped in training, before
            they are added. That of the weights is an argument of `SelfAttention`.
        activation_dropout: Rate for the hidden layer of the feed-forward network.
        norm_first: Whether the normalisation comes before each sublayer.
        epsilon: Number added to the variance in the normalisations.
        use_bias: Whether the feed-forward network has biases.
        kernel_initializer, kernel_regularizer, kernel_constraint: For its projections.
        bias_initializer, bias_regularizer, bias_constraint: For their biases.
        seed: Integer, `keras.random.SeedGenerator`, or `None`; for the dropout.

    Call arguments:
        inputs: Tensor of shape `(batch, steps, depth)`; with a cache also one step
            `(batch, depth)`.
        mask: Boolean `(batch, steps)`, `True` for valid steps; the implicit Keras mask
            of `inputs` by default.
        inputs_mask: The same; Keras fills it with the implicit mask. `mask` wins.
        attention_mask: Boolean `(batch, steps, steps)` or `(steps, steps)`, or with an
            axis of heads after the batch; see `SelfAttention`.
        cache: Dict that `get_initial_cache` or the previous step returned.
        return_attention_scores: Whether to return the weights, too.
        return_details: Whether to return a dict instead of the output; its entries are
            listed under Returns.
        training: Whether the pass trains.

    Returns:
        output: Tensor like `inputs`.
        weights: Tensor of shape `(batch, num_heads, steps, steps)`; only if
            `return_attention_scores` is `True`.
        cache: Dict for the next step; only if there is a `cache`.

        With `return_details`, output and weights are a dict: `"context"`, the output,
        and `"self_attention"`, a dict with the `"weights"` and the additional outputs
        of the weighting.

    Raises:
        ValueError: If an argument or a shape does not fit.

    Example:

    >>> layer = TransformerEncoderLayer(SelfAttention(8, 64), units=2048)
    >>> words = np.zeros((2, 11, 512), "float32")
    >>> output, weights = layer(words, return_attention_scores=True)
    >>> tuple(output.shape), tuple(weights.shape)
    ((2, 11, 512), (2, 8, 11, 11))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1; pre-norm:
        [Xiong et al., 2020](https://arxiv.org/abs/2002.04745), section 3.
    """

    def __init__(
        self, self_attention: SelfAttention, units: int, **kwargs: Any
    ) -> None:
        _check_attention("self_attention", self_attention, SelfAttention)
        super().__init__(("self_attention_norm", "feed_forward_norm"), units, **kwargs)
        self.self_attention = self_attention

    def build(self, inputs_shape: Shape) -> None:
        self.build_shared(inputs_shape)
        if not self.self_attention.built:
            self.self_attention.build(inputs_shape)
        _check_depth("self_attention", self.self_attention, inputs_shape)
        freeze_new_weights(self)

    def call(
        self,
        inputs: Tensor,
        *,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Tensors | None = None,
        return_attention_scores: bool = False,
        return_details: bool = False,
        training: bool | None = None,
    ) -> Nested:
        mask = inputs_mask if mask is None else mask
        x = inputs
        if mask is not None:
            check_mask("mask", mask, inputs.shape[:-1])
            x = clear_masked(x, mask)
        attend = _Attend(
            self.self_attention,
            mask=mask,
            attention_mask=attention_mask,
            cache=cache,
            return_details=return_attention_scores or return_details,
            training=training,
        )
        x = self.add(x, self.self_attention_norm, attend, training)
        feed_forward = partial(self.feed_forward, training=training)
        x = self.add(x, self.feed_forward_norm, feed_forward, training)
        if mask is not None:
            x = clear_masked(x, mask)
        details = {"context": x, "self_attention": attend.details}
        results = [details] if return_details else [x]
        if return_attention_scores and not return_details:
            results.append(attend.details["weights"])
        results += attend.cache
        return tuple(results) if len(results) > 1 else results[0]

    def get_initial_cache(self, batch_size: int, max_length: int) -> Tensors:
        """Return an empty cache; see `SelfAttention.get_initial_cache`."""
        return self.self_attention.get_initial_cache(batch_size, max_length)

    def compute_output_spec(
        self,
        inputs: Tensor,
        *,
        cache: Tensors | None = None,
        return_attention_scores: bool = False,
        return_details: bool = False,
        **kwargs: Any,
    ) -> Any:
        outputs = self.self_attention.compute_output_spec(
            inputs,
            cache=cache,
            return_attention_scores=return_attention_scores,
            return_details=return_details,
        )
        if not return_details:
            return outputs
        details, *rest = outputs if cache is not None else (outputs,)
        context = details.pop("context")
        details = {"context": context, "self_attention": details}
        return (details, *rest) if rest else details

    def get_config(self) -> Config:
        return {**super().get_config(), **config_of(self, "self_attention")}


@keras.saving.register_keras_serializable(package="keras_attention")
class TransformerDecoderLayer(TransformerLayer):
    """Causal self-attention, attention to a value, and a feed-forward network.

    With `norm_first` (pre-norm), each sublayer reads a normalised input:

        y = x + self_attention(norm(x))
        z = y + cross_attention(norm(y), value)
        output = z + feed_forward(norm(z))

    Without it (post-norm, as in the first Transformer), the sums are normalised:

        y = norm(x + self_attention(x))
        z = norm(y + cross_attention(y, value))
        output = norm(z + feed_forward(z))

    Masking and norms: see `TransformerEncoderLayer`. A step with no valid position of
    the value reads zeros there.

    Step by step: `layer.memory(value)` projects the value once, and a `cache` keeps the
    keys and values of the steps so far. The outputs are those of the full pass:

        memory = layer.memory(value, value_mask=value_mask)
        cache = layer.get_initial_cache(batch_size, max_length)
        for t in range(max_length):
            output[:, t], cache = layer(x[:, t], memory=memory, cache=cache)

    Several sequences, such as the hypotheses of a beam search, attend to one value
    with a further axis: inputs `(batch, sequences, steps, depth)`, and a cache from
    `get_initial_cache(batch_size, max_length, sequences)`. Neither value nor memory is
    repeated.

    Args:
        self_attention: The `SelfAttention`, with `causal=True`.
        cross_attention: The `MultiHeadAttention`, neither causal nor with positions or
            a window. The output of both must be as deep as the input.
        units, activation, dropout, activation_dropout, norm_first, epsilon, use_bias,
            seed: See `TransformerEncoderLayer`, also for initializers and the like.

    Call arguments:
        inputs: Tensor of shape `(batch, [sequences,] steps, depth)`; with a cache also
            one step `(batch, depth)`.
        value: Tensor of shape `(batch, positions, value_depth)`.
        inputs_mask: Boolean `(batch, [sequences,] steps)`.
        value_mask: Boolean `(batch, positions)`. Implicit Keras masks are used where
            no explicit one is given; that of `inputs` is passed on.
        attention_mask: Boolean mask of the self-attention, `(steps, steps)` or
            `(batch, [sequences,] steps, steps)`.
        cross_attention_mask: Boolean mask of the attention to the value,
            `(steps, positions)` or `(batch, [sequences,] steps, positions)`.
        memory: Dict that `memory(value)` returned, instead of `value`.
        cache: Dict that `get_initial_cache` or the previous step returned.
        return_attention_scores: Whether to return the weights over the value, too.
        return_details: Whether to return a dict instead of the output; its entries are
            listed under Returns.
        training: Whether the pass trains.

    Returns:
        output: Tensor like `inputs`.
        weights: Tensor of shape `(batch, [sequences,] num_heads, steps, positions)`,
            without the axis of steps for one step; only if `return_attention_scores`
            is `True`.
        cache: Dict for the next step; only if there is a `cache`.

        With `return_details`, output and weights are a dict: `"context"`, the output;
        and `"self_attention"` and `"cross_attention"`, dicts with the `"weights"` and
        the additional outputs of the weighting.

    Raises:
        ValueError: If an argument or a shape does not fit, or unless either `value` or
            `memory` is given.

    Example:

    >>> layer = TransformerDecoderLayer(
    ...     SelfAttention(8, 64, causal=True), MultiHeadAttention(8, 64), units=2048
    ... )
    >>> words = np.zeros((2, 11, 512), "float32")
    >>> regions = np.zeros((2, 49, 1280), "float32")
    >>> output, weights = layer(words, regions, return_attention_scores=True)
    >>> tuple(output.shape), tuple(weights.shape)
    ((2, 11, 512), (2, 8, 11, 49))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1; pre-norm:
        [Xiong et al., 2020](https://arxiv.org/abs/2002.04745), section 3.
    """

    def __init__(
        self,
        self_attention: SelfAttention,
        cross_attention: MultiHeadAttention,
        units: int,
        **kwargs: Any,
    ) -> None:
        _check_attention("self_attention", self_attention, SelfAttention)
        if not self_attention.options.causal:
            raise ValueError(
                "self_attention must have causal=True: a step of a decoder does not "
                f"see later ones. Received: causal={self_attention.options.causal}"
            )
        _check_attention("cross_attention", cross_attention, MultiHeadAttention)
        options = cross_attention.options
        if options.causal or options.needs_positions:
            raise ValueError(
                "cross_attention must neither be causal nor have positions or a "
                "window_size, because the steps have no position in the value. "
                f"Received: causal={options.causal}, positions={options.positions}, "
                f"window_size={options.window_size}"
            )
        for name, layer in (("self", self_attention), ("cross", cross_attention)):
            if layer.axes is not None:
                raise ValueError(
                    f"{name}_attention of a decoder takes no attention_axes. "
                    f"Received: {layer.axes.axes}"
                )
        norms = "self_attention_norm", "cross_attention_norm", "feed_forward_norm"
        super().__init__(norms, units, **kwargs)
        self.self_attention = self_attention
        self.cross_attention = cross_attention

    @property
    def memory(self) -> keras.layers.Layer:
        """Layer that projects a value once; see the memory of `MultiHeadAttention`."""
        return self.cross_attention.memory

    def build(
        self,
        inputs_shape: Shape,
        value_shape: Shape | None = None,
        memory_shape: Shapes = None,
    ) -> None:
        _check_source(value_shape, memory_shape)
        rows = (None, *inputs_shape[-2:])
        self.build_shared(inputs_shape)
        if not self.self_attention.built:
            self.self_attention.build(rows)
        if not self.cross_attention.built:
            if value_shape is not None:
                self.cross_attention.build(rows, value_shape)
            elif not self.cross_attention.step.built:
                self.cross_attention.step.build((None, None, rows[-1]), memory_shape)
        for name in ("self_attention", "cross_attention"):
            _check_depth(name, getattr(self, name), inputs_shape)
        freeze_new_weights(self)

    def call(
        self,
        inputs: Tensor,
        value: Tensor | None = None,
        *,
        inputs_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        memory: Tensors | None = None,
        cache: Tensors | None = None,
        return_attention_scores: bool = False,
        return_details: bool = False,
        training: bool | None = None,
    ) -> Nested:
        self._check_call(inputs, value, memory, cache)
        x, mask = inputs, inputs_mask
        if mask is not None:
            check_mask("inputs_mask", mask, inputs.shape[:-1])
            x = clear_masked(x, mask)
        if memory is None:
            memory = self.memory(value, value_mask=value_mask)
        # From here on, `x` has the shape (B, K, T, D) or (B, T, D).
        single, has_sequences = len(inputs.shape) == 2, len(inputs.shape) == 4
        if single:
            x, mask = x[:, None], None if mask is None else mask[:, None]
            attention_mask = _with_step(attention_mask)
            cross_attention_mask = _with_step(cross_attention_mask)
        if has_sequences:
            attention_mask = _as_rows(attention_mask, 4)
            cache = tree.map_structure(partial(_as_rows, fewest=2), cache)
        attend_to_self = _Attend(
            self.self_attention,
            mask=_as_rows(mask, 3),
            attention_mask=attention_mask,
            cache=cache,
            return_details=return_details,
            training=training,
        )
        attend_to_value = _AttendToMemory(
            self.cross_attention.step,
            memory,
            mask=mask,
            attention_mask=cross_attention_mask,
            return_weights=return_attention_scores or return_details,
            training=training,
        )
        feed_forward = partial(self.feed_forward, training=training)
        x = self.add(x, self.self_attention_norm, attend_to_self, training)
        x = self.add(x, self.cross_attention_norm, attend_to_value, training)
        x = self.add(x, self.feed_forward_norm, feed_forward, training)
        if mask is not None:
            x = clear_masked(x, mask)
        details = {
            "context": x[:, 0] if single else x,
            "self_attention": attend_to_self.details,
            "cross_attention": attend_to_value.details,
        }
        if has_sequences:
            leading = ops.shape(x)[:2]
            details["self_attention"], *new_cache = tree.map_structure(
                partial(_as_sequences, leading=leading),
                [attend_to_self.details, *attend_to_self.cache],
            )
        else:
            new_cache = attend_to_self.cache
        if single:
            # The axis of heads comes before that of steps.
            for name in ("self_attention", "cross_attention"):
                details[name] = tree.map_structure(lambda x: x[:, :, 0], details[name])
        results = [details if return_details else details["context"]]
        if return_attention_scores and not return_details:
            results.append(details["cross_attention"]["weights"])
        results += new_cache
        return tuple(results) if len(results) > 1 else results[0]

    def _check_call(
        self,
        inputs: Tensor,
        value: Tensor | None,
        memory: Tensors | None,
        cache: Tensors | None,
    ) -> None:
        """Raise `ValueError` for inputs whose shapes do not fit."""
        _check_source(value, memory)
        expected = "(batch, [sequences,] steps, depth)"
        if cache is None:
            check_rank("inputs", inputs.shape, (3, 4), expected)
        else:
            expected += " or, for one step, (batch, depth)"
            check_rank("inputs", inputs.shape, (2, 3, 4), expected)
        if value is not None:
            check_rank("value", value.shape, (3,), "(batch, positions, depth)")
        sizes = {inputs.shape[0], _source_shape(value, memory)[0]}
        if len({size for size in sizes if isinstance(size, int)}) > 1:
            raise ValueError(
                "inputs and value must have the same batch size. Received: inputs "
                f"{tuple(inputs.shape)}, value {_source_shape(value, memory)}"
            )

    def get_initial_cache(
        self, batch_size: int, max_length: int, sequences: int | None = None
    ) -> Tensors:
        """Return an empty cache, tensors `(batch_size, [sequences,] ...)`.

        The other arguments, and the entries, are those of
        `SelfAttention.get_initial_cache`.
        """
        if sequences is None:
            return self.self_attention.get_initial_cache(batch_size, max_length)
        sequences = check_positive_integer("sequences", sequences)
        cache = self.self_attention.get_initial_cache(
            batch_size * sequences, max_length
        )
        leading = batch_size, sequences
        return tree.map_structure(partial(_as_sequences, leading=leading), cache)

    def compute_output_spec(
        self,
        inputs: Tensor,
        value: Tensor | None = None,
        *,
        memory: Tensors | None = None,
        cache: Tensors | None = None,
        return_attention_scores: bool = False,
        return_details: bool = False,
        **kwargs: Any,
    ) -> Any:
        self._check_call(inputs, value, memory, cache)
        if return_details:
            options = {"memory": memory, "cache": cache, "return_details": True}
            return keras.Operation.compute_output_spec(
                self, inputs, value, **options, **kwargs
            )
        outputs = [keras.KerasTensor(inputs.shape, self.compute_dtype)]
        if return_attention_scores:
            batch, *steps, _ = inputs.shape
            sequences, steps = steps[:-1], steps[-1:]
            heads = self.cross_attention.num_heads
            positions = _source_shape(value, memory)[1]
            shape = (batch, *sequences, heads, *steps, positions)
            outputs.append(keras.KerasTensor(shape, self.compute_dtype))
        if cache is not None:
            outputs.append(
                {name: keras.KerasTensor(x.shape, x.dtype) for name, x in cache.items()}
            )
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def get_config(self) -> Config:
        config = config_of(self, "self_attention cross_attention")
        return {**super().get_config(), **config}


class _Attend:
    """Self-attention as a sublayer, which keeps the further outputs.

    Attributes:
        details: Dict of the outputs other than the context.
        cache: List with the next cache, or of nothing.
    """

    def __init__(
        self, attention: SelfAttention, *, return_details: bool, **options: Any
    ) -> None:
        self.attention = attention
        self.options = {"return_details": return_details, **options}
        self.details: Tensors = {}
        self.cache: list[Tensors] = []

    def __call__(self, x: Tensor) -> Tensor:
        rows = x
        if len(x.shape) > 3 and self.attention.axes is None:
            rows = ops.reshape(x, (-1, *ops.shape(x)[2:]))
        outputs: Any = self.attention(rows, **self.options)
        if self.options["cache"] is not None:
            outputs, cache = outputs
            self.cache = [cache]
        if self.options["return_details"]:
            self.details = {**outputs}
            outputs = self.details.pop("context")
        return outputs if rows is x else ops.reshape(outputs, ops.shape(x))


class _AttendToMemory:
    """Attention to a memory as a sublayer; see `_Attend`."""

    def __init__(
        self,
        step: keras.layers.Layer,
        memory: Tensors,
        *,
        mask: Tensor | None,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> None:
        self.step, self.memory, self.options = step, memory, options
        self.mask, self.attention_mask = mask, attention_mask
        self.details: Tensors = {}

    def __call__(self, x: Tensor) -> Tensor:
        # The steps of all sequences are queries to one memory.
        batch, *steps, _ = ops.shape(x)
        has_sequences = len(steps) > 1
        query, mask, attention_mask = x, self.mask, self.attention_mask
        if has_sequences:
            query = ops.reshape(x, (batch, -1, x.shape[-1]))
            mask = None if mask is None else ops.reshape(mask, (batch, -1))
        if attention_mask is not None:
            attention_mask = self._for_queries(attention_mask, batch, steps)
        outputs, _ = self.step(
            query,
            self.memory,
            query_mask=mask,
            mask=attention_mask,
            average_heads=False,
            **self.options,
        )
        context = outputs.pop("context")
        if not has_sequences:
            self.details = outputs
            return context
        # `(B, N, K T, ...)` becomes `(B, K, N, T, ...)`.
        for name, value in outputs.items():
            heads = value.shape[1]
            value = ops.reshape(value, (batch, heads, *steps, *ops.shape(value)[3:]))
            self.details[name] = ops.swapaxes(value, 1, 2)
        return ops.reshape(context, ops.shape(x))

    def _for_queries(self, mask: Tensor, batch: Any, steps: list[Any]) -> Tensor:
        """Return a mask as `(B, [K] T, S)`, or with heads `(B, N, [K] T, S)`."""
        mask = ops.cast(mask, "bool")
        positions = ops.shape(self.memory["keys"])[2]
        shape = (batch, *steps, positions)
        heads = len(steps) == 1 and len(mask.shape) == 4
        if heads:
            return mask
        check_mask(
            "cross_attention_mask", mask, shape, (steps[-1], positions), broadcasts=True
        )
        mask = ops.broadcast_to(mask, shape)
        return ops.reshape(mask, (batch, -1, positions)) if len(steps) > 1 else mask


def _with_step(mask: Tensor | None) -> Tensor | None:
    """Return a mask `(B, S)` of one step with an axis of steps; `None` stays."""
    return None if mask is None else mask[..., None, :]


def _as_rows(x: Tensor | None, fewest: int) -> Tensor | None:
    """Join the first two axes of a tensor of at least `fewest` axes; others stay."""
    if x is None or len(x.shape) < fewest:
        return x
    return ops.reshape(x, (-1, *ops.shape(x)[2:]))


def _as_sequences(x: Tensor, leading: tuple[Any, ...]) -> Tensor:
    """Return a tensor `(B * K, ...)` as `(B, K, ...)`; one number stays."""
    if not len(x.shape):
        return x
    return ops.reshape(x, (*leading, *ops.shape(x)[1:]))


def _source_shape(value: Tensor | None, memory: Any) -> tuple[Any, ...]:
    """Return the shape `(B, S, ...)` of a value, or of the value of a memory."""
    if value is not None:
        return tuple(value.shape)
    batch, _, positions, depth = memory["values"].shape
    return batch, positions, depth


def _check_source(value: Any, memory: Any) -> None:
    """Raise `ValueError` unless there is either a value or a memory."""
    is_memory = isinstance(memory, dict) and {"values", "keys"} <= memory.keys()
    if (value is None) == (memory is None) or not (memory is None or is_memory):
        raise ValueError(
            "Either value or memory must be given: a tensor, or the dict that "
            f"layer.memory(value) returns. Received: value={shapes_of(value)}, "
            f"memory={shapes_of(memory)}"
        )


def _check_attention(
    name: str, attention: Any, expected: type[MultiHeadAttention]
) -> None:
    """Raise `ValueError` unless an attention is of a class and attends as that does."""
    if isinstance(attention, expected) and (
        attention.takes_value == expected.takes_value
    ):
        return
    raise ValueError(
        f"{name} must be a {expected.__name__}, such as {expected.__name__}(8, 64). "
        f"Received: {attention!r}"
    )


def _check_depth(name: str, attention: MultiHeadAttention, inputs_shape: Shape) -> None:
    """Raise `ValueError` unless an output of attention can be added to its input."""
    depth = attention.compute_output_shape(inputs_shape)[-1]
    if depth != inputs_shape[-1]:
        raise ValueError(
            f"The output of {name} is added to the inputs, so output_dim must be None "
            f"or {inputs_shape[-1]}. Received: an output of depth {depth}"
        )
