"""Memory and step of multi-head attention.

Shapes: B batch, T queries, S positions, N heads, G groups of heads that share keys and
values, Q query depth, V value depth, D depth of a head.
"""

import keras
from keras import ops
from keras import tree

from keras_attention.acceleration import project_rows
from keras_attention.layers.base import BaseMemory
from keras_attention.layers.base import BaseStep
from keras_attention.layers.base import build_part
from keras_attention.layers.base import check_memory
from keras_attention.layers.dropout import WeightDropout
from keras_attention.layers.head_weights import check_for_heads
from keras_attention.layers.head_weights import draw_for_scores
from keras_attention.layers.head_weights import draw_for_steps
from keras_attention.layers.head_weights import weigh_heads
from keras_attention.layers.projections import head_norm
from keras_attention.layers.projections import head_projection
from keras_attention.layers.weightings import get_weighting
from keras_attention.layers.weightings import is_plain_softmax
from keras_attention.lengths import is_zero
from keras_attention.ops import sliding_windows
from keras_attention.ops.heads import causal_mask
from keras_attention.ops.heads import fused_heads
from keras_attention.ops.heads import head_scores
from keras_attention.ops.heads import join_heads
from keras_attention.ops.heads import read_heads
from keras_attention.ops.heads import sees_a_key
from keras_attention.ops.heads import split_heads
from keras_attention.ops.masks import clear_masked
from keras_attention.ops.masks import combine_masks
from keras_attention.ops.precision import at_least_float32
from keras_attention.ops.relative_positions import offsets_between
from keras_attention.ops.relative_positions import positions_of_steps
from keras_attention.serialization import serialize_part
from keras_attention.serialization import serialize_seed


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadMemory(BaseMemory):
    """Memory of multi-head attention; see `BaseMemory` for the call.

    Args:
        num_heads: Number G of heads of the keys and values.
        key_dim, value_dim: Depth of a key and of a value in one head.
        dense_options: Dict of `keras.layers.Dense` arguments, for both projections.
        positions: The `RelativePositions`, which may rotate the keys, or `None`.
        window_size: Number W as in `MultiHeadStep`, or `None`.
        query_key_norm: `"rms"` or `"layer"` to normalise each key, or `None`.

    Call arguments:
        start: Position of the first step of each row, int32 `(B,)`; zero if omitted.

    Returns:
        Dict with `"keys"` `(B, G, S, key_dim)`, `"values"` `(B, G, S, value_dim)`
        and, if there is a mask, the boolean `"mask"` `(B, S)`. With `positions` or a
        window, also the int32 `"positions"` `(B, S)`, unless they are 0 to S - 1 in
        every row.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim,
        dense_options,
        positions=None,
        window_size=None,
        query_key_norm=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dense_options = dense_options
        self.positions = positions
        self.window_size = window_size
        self.needs_positions = not (positions is None and window_size is None)
        self.query_key_norm = query_key_norm
        self.key_norm = head_norm(self, "key_norm")
        self.key_projection = head_projection(
            self, "key_projection", num_heads * key_dim
        )
        self.value_projection = head_projection(
            self, "value_projection", num_heads * value_dim
        )

    def build(self, value_shape, key_shape=None):
        self.key_projection.build((None, (key_shape or value_shape)[-1]))
        self.value_projection.build((None, value_shape[-1]))
        if self.key_norm is not None:
            self.key_norm.build((None, None, None, self.key_dim))
        self.built = True

    def call(
        self,
        value,
        key=None,
        *,
        value_mask=None,
        key_mask=None,
        mask=None,
        start=None,
    ):
        memory = super().call(
            value, key, value_mask=value_mask, key_mask=key_mask, mask=mask
        )
        if not self.needs_positions:
            return memory
        steps = ops.shape(value)[1]
        positions = positions_of_steps(memory.get("mask"), steps, start)
        if self.positions is not None:
            memory["keys"] = self.positions.rotate(memory["keys"], positions)
        if "mask" in memory or start is not None:
            memory["positions"] = positions
        return memory

    def project(self, value, key):
        keys = split_heads(project_rows(self.key_projection, key), self.num_heads)
        values = project_rows(self.value_projection, value)
        return {
            "keys": keys if self.key_norm is None else self.key_norm(keys),
            "values": split_heads(values, self.num_heads),
        }

    def shapes(self, value_shape, key_shape=None):
        heads = (*value_shape[:1], self.num_heads, *value_shape[1:2])
        return {"values": (*heads, self.value_dim), "keys": (*heads, self.key_dim)}

    @classmethod
    def from_config(cls, config):
        return super().from_config(_with_new_names(config))

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dense_options": dict(self.dense_options),
            "positions": serialize_part(self.positions),
            "window_size": self.window_size,
            "query_key_norm": self.query_key_norm,
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadStep(BaseStep):
    """Step of multi-head attention: project, attend, join the heads, project.

    If no weights are requested, the step may use the fused attention of the backend.
    See `BaseStep` for the call. The mask may also be one per head, `(B, N, T, S)`.

    Args:
        num_heads: Number of heads N.
        key_dim: Depth of a query in one head.
        output_dim: Depth of the output; `None` for the depth of the queries.
        use_output_projection: Whether the joined heads are projected.
        scale: Number that multiplies the scores.
        weighting: Name of a weighting, or a `Weighting`.
        dropout: Rate at which weights are dropped in training.
        seed: Integer, `keras.random.SeedGenerator`, or `None`; for the dropout.
        dense_options: Dict of `keras.layers.Dense` arguments, for both projections.
        positions: The `RelativePositions`, or `None`.
        window_size: Number W, or `None`: a query sees positions at a distance below W.
        query_key_norm: `"rms"` or `"layer"` to normalise each query, or `None`.
        use_gate: Whether `sigmoid(W_gate query)` multiplies the joined heads.

    Call arguments:
        causal: Whether query t sees the positions up to t only.
        average_heads: Whether `"weights"` is the mean over the heads, `(B, T, S)`, and
            the additional outputs of the weighting are `(B, T, N, ...)`. Otherwise, the
            weights and these outputs are those of each head, `(B, N, T, ...)`.
        query_positions: Positions of the queries, int32 `(B, T)` or `(1, T)`; counted
            from zero, without masked queries, if omitted.
        same_sequence: Whether query t and position t are the same step with the same
            mask. Only then can a sliding window be computed in blocks.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        output_dim,
        use_output_projection,
        scale,
        weighting,
        dropout,
        seed,
        dense_options,
        positions=None,
        window_size=None,
        query_key_norm=None,
        use_gate=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.output_dim = output_dim
        self.use_output_projection = use_output_projection
        self.scale = scale
        self.weighting = get_weighting(weighting, self.dtype_policy)
        check_for_heads(self.weighting, dropout)
        self.reports = self.weighting.reports
        self.dense_options = dense_options
        self.positions = positions
        self.window_size = window_size
        self.needs_positions = not (positions is None and window_size is None)
        self.query_key_norm = query_key_norm
        self.use_gate = use_gate
        self.query_norm = head_norm(self, "query_norm")
        self.query_projection = head_projection(
            self, "query_projection", num_heads * key_dim
        )
        self.weight_dropout = WeightDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="weight_dropout"
        )

    def draw(self, memory, steps, queries=1):
        batch, _, length, _ = ops.shape(memory["keys"])
        shape = (steps, batch, queries, length)
        return draw_for_steps(
            self.weighting, self.weight_dropout, self.num_heads, shape
        )

    def build(self, query_shape, memory_shape):
        check_memory(memory_shape)
        self.query_projection.build((None, query_shape[-1]))
        if self.positions is not None:
            shapes = (None, self.num_heads, None, self.key_dim), memory_shape["values"]
            build_part(self.positions, *shapes)
        if self.query_norm is not None:
            self.query_norm.build((None, None, None, self.key_dim))
        joined = self.num_heads * memory_shape["values"][-1]
        if self.use_gate:
            self.gate_projection = head_projection(self, "gate_projection", joined)
            self.gate_projection.build((None, query_shape[-1]))
        if self.use_output_projection:
            depth = self.context_depth(query_shape[-1], memory_shape)
            self.output_projection = head_projection(self, "output_projection", depth)
            self.output_projection.build((None, joined))
        heads = [self.num_heads] if self.weighting.takes_heads else []
        build_part(self.weighting, (None, *heads, None, None))
        self.built = True

    def call(
        self,
        query,
        memory,
        state=None,
        *,
        causal=False,
        query_mask=None,
        mask=None,
        noise=None,
        average_heads=True,
        return_weights=True,
        training=None,
        query_positions=None,
        same_sequence=False,
    ):
        check_memory(memory)
        if mask is not None and len(mask.shape) == 3:
            mask = mask[:, None]
        if noise is not None:
            noise = tree.map_structure(lambda x: ops.swapaxes(x, 1, 2), noise)
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        if query_positions is not None:
            query_positions = ops.cast(query_positions, "int32")
        elif self.needs_positions:
            query_positions = positions_of_steps(query_mask, ops.shape(query)[1])
        inputs, query = query, self._project_query(query, query_positions)
        can_use_blocks = same_sequence and mask is None and not return_weights
        if can_use_blocks and self._blocks_save_time(query.shape[2], causal):
            context = self._attend_in_blocks(query, memory, causal, training)
            # Every valid step sees itself, so only masked queries have no key.
            outputs, has_key = {}, query_mask
        else:
            offsets, mask = self._offsets_and_mask(query_positions, memory, mask)
            context, outputs, mask = self._attend(
                query,
                memory["keys"],
                memory["values"],
                mask,
                offsets,
                causal=causal,
                query_mask=query_mask,
                noise=noise,
                return_weights=return_weights,
                training=training,
            )
            has_key = sees_a_key(mask, query, memory["keys"])
            has_key = combine_masks(has_key, query_mask)
        if average_heads:
            outputs = {name: ops.swapaxes(x, 1, 2) for name, x in outputs.items()}
            if return_weights:
                outputs["weights"] = ops.mean(outputs["weights"], axis=2)
        output = self._project_output(context, inputs)
        if has_key is not None:
            output = clear_masked(output, has_key)
        # On PyTorch, Keras multiplies float64 in float32.
        outputs["context"] = ops.cast(output, self.compute_dtype)
        return outputs, {}

    def context_depth(self, query_depth, memory_shapes):
        if self.use_output_projection:
            return self.output_dim or query_depth
        return self.num_heads * memory_shapes["values"][-1]

    def _project_query(self, query, query_positions):
        """Return queries `(B, T, Q)` as scaled queries of all heads `(B, N, T, D)`."""
        query = split_heads(project_rows(self.query_projection, query), self.num_heads)
        if self.query_norm is not None:
            query = self.query_norm(query)
        # Scaled before the product, which could overflow in half precision.
        query = query * self.scale
        if self.positions is not None:
            query = self.positions.rotate(query, query_positions)
        return query

    def _project_output(self, context, query):
        """Return the output for contexts `(B, N, T, V)` of queries `(B, T, Q)`."""
        output = join_heads(context)
        if self.use_gate:
            output = output * ops.sigmoid(project_rows(self.gate_projection, query))
        if self.use_output_projection:
            output = project_rows(self.output_projection, output)
        return output

    def _offsets_and_mask(self, query_positions, memory, mask):
        """Return the offsets, or `None`, and the mask; `_attend` makes it causal."""
        valid = memory.get("mask")
        mask = combine_masks(mask, None if valid is None else valid[:, None, None])
        if not self.needs_positions:
            return None, mask
        key_positions = memory.get("positions")
        if key_positions is None:
            key_positions = positions_of_steps(valid, ops.shape(memory["keys"])[2])
        offsets = offsets_between(query_positions, key_positions)
        if self.window_size is not None:
            in_window = sliding_windows.in_window(offsets, self.window_size)
            mask = combine_masks(mask, in_window[:, None])
        return offsets, mask

    def _attend(
        self,
        query,
        keys,
        values,
        mask,
        offsets,
        *,
        causal=False,
        query_mask=None,
        noise=None,
        return_weights=False,
        training=None,
    ):
        """Return contexts `(B, N, T, V)`, a dict of other outputs, and the mask used.

        The outputs are those of the weighting, `(B, N, T, ...)`, with `"weights"` if
        they are requested. The mask is `None` if all positions are seen.
        """
        bias = None if self.positions is None else self.positions.bias(query, offsets)
        fused = not return_weights and self._can_fuse(keys, values, training)
        causal_only = fused and causal and mask is None and bias is None
        if causal and not causal_only:
            mask = combine_masks(mask, causal_mask(query, keys))
        if fused:
            context = fused_heads(query, keys, values, mask, bias, causal_only)
            return context, {}, mask
        score_mask = None if query_mask is None else query_mask[:, None, :, None]
        score_mask = combine_masks(mask, score_mask)
        outputs = self._weigh(query, keys, score_mask, bias, noise, training)
        weights = outputs["weights"] if return_weights else outputs.pop("weights")
        context = read_heads(weights, values)
        if self.positions is not None:
            value_term = self.positions.value_term(weights, offsets)
            context = context if value_term is None else context + value_term
        return context, outputs, mask

    def _blocks_save_time(self, length, causal):
        """Return whether blocks of a sliding window cost less than all positions."""
        if self.window_size is None or not isinstance(length, int | None):
            return False
        # Blocks return contexts only, not the additional outputs of a weighting.
        if self.weighting.reports:
            return False
        block_span = (2 if causal else 3) * sliding_windows.block_size(self.window_size)
        return length is None or length > block_span

    def _attend_in_blocks(self, query, memory, causal, training):
        """Return the contexts of a sliding window, computed block by block."""
        keys, values, valid = memory["keys"], memory["values"], memory.get("mask")
        batch, _, length, _ = ops.shape(query)
        steps = None
        if valid is not None:
            # A window counts valid steps only.
            order, inverse = sliding_windows.valid_first(valid)
            query, keys, values = (
                sliding_windows.reorder(x, order) for x in (query, keys, values)
            )
            steps = ops.sum(ops.cast(valid, "int32"), axis=1)
        size = sliding_windows.block_size(self.window_size)
        context, _, _ = self._attend(
            sliding_windows.query_blocks(query, size),
            sliding_windows.key_blocks(keys, size, causal),
            sliding_windows.key_blocks(values, size, causal),
            sliding_windows.block_mask(
                steps, batch, length, self.window_size, size, causal
            )[:, None],
            sliding_windows.block_offsets(size, causal),
            training=training,
        )
        context = sliding_windows.join_blocks(context, length)
        return context if valid is None else sliding_windows.reorder(context, inverse)

    def _can_fuse(self, keys, values, training):
        """Return whether the backend's fused attention can replace `_weigh`."""
        backend = keras.backend.backend()
        on_jax = backend == "jax"
        return (
            is_plain_softmax(self.weighting)
            and not (self.weight_dropout.rate and training)
            and not (self.positions is not None and self.positions.has_value_term)
            # Backends fail for a softmax over an empty axis.
            and not is_zero(keys.shape[2])
            # TensorFlow has none, and the fallback of Keras is slower than `_weigh`.
            and backend != "tensorflow"
            # JAX needs keys and values of one depth, takes the softmax of float64 in
            # float32, and fails for float16 on CPUs.
            and not (on_jax and keys.shape[-1] != values.shape[-1])
            and not (on_jax and self.compute_dtype in ("float16", "float64"))
        )

    def _weigh(self, query, keys, mask, bias, noise, training):
        """Return weights and reports, `(B, N, T, ...)`, of scaled queries."""
        scores = head_scores(query, keys)
        if bias is not None:
            scores = at_least_float32(scores) + at_least_float32(bias)
        if noise is None:
            noise = {}
            if training:
                shape = ops.shape(scores)
                noise = draw_for_scores(self.weighting, self.weight_dropout, shape)
        outputs = weigh_heads(
            self.weighting, scores, mask, noise.get("weighting"), training
        )
        weights = outputs["weights"]
        if "dropout" in noise:
            weights = self.weight_dropout.drop(weights, noise["dropout"])
        return {**outputs, "weights": ops.cast(weights, self.compute_dtype)}

    @classmethod
    def from_config(cls, config):
        return super().from_config(_with_new_names(config))

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "output_dim": self.output_dim,
            "use_output_projection": self.use_output_projection,
            "scale": self.scale,
            "weighting": serialize_part(self.weighting),
            "dropout": self.weight_dropout.rate,
            "seed": serialize_seed(self.weight_dropout.seed),
            "dense_options": dict(self.dense_options),
            "positions": serialize_part(self.positions),
            "window_size": self.window_size,
            "query_key_norm": self.query_key_norm,
            "use_gate": self.use_gate,
        }


def _with_new_names(config):
    """Return a config of 0.1.0 with today's names of the arguments."""
    names = {"projection": "dense_options", "norm": "query_key_norm"}
    return {names.get(name, name): value for name, value in config.items()}
