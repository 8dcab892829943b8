"""Networks that generate token ids, and searches over them.

Shapes: B rows, K hypotheses, T tokens, S positions that are attended to.
"""

import contextlib
import functools

import keras
from keras import ops

from keras_attention import Ban, Dropout, ensemble_step
from keras_attention_apps.common.tokenizer import END, START


@contextlib.contextmanager
def computing_in(precision):
    """Set the precision of the layers that are created inside."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision or policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def with_cast_weights(step, network):
    """Return the step of a search with weights that are cast once.

    In mixed precision a layer casts them in every step, which for few rows takes longer
    than the matrix products.
    """
    if network.compute_dtype == network.variable_dtype:
        return step
    values = [
        # Layers such as normalisations need their vectors in full precision.
        ops.cast(x.value, network.compute_dtype) if len(x.shape) > 1 else x.value
        for x in network.weights
    ]

    def cast_step(*arguments):
        with keras.StatelessScope() as scope:
            for update in zip(network.weights, values, strict=True):
                scope.add_update(update)
            return step(*arguments)

    return cast_step


def shape_multiple(size=8):
    """Return the multiple of the size of an axis: `size` on JAX, else 1.

    JAX compiles for every shape.
    """
    return size if keras.backend.backend() == "jax" else 1


def rounded_up(size, multiple):
    """Return the smallest multiple of a number that is at least `size`."""
    return -(-size // multiple) * multiple


def power_of_two(count, largest):
    """Return the smallest power of two that is at least `count`, at most `largest`."""
    return min(1 << (count - 1).bit_length(), largest)


class LastValue(keras.metrics.Metric):
    """The value of the last step: on several devices, the sum of their shares."""

    def __init__(self, name):
        super().__init__(name=name)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, value):
        self.value.assign(ops.cast(value, self.value.dtype))

    def result(self):
        return ops.convert_to_tensor(self.value)


class DecoderNetwork(keras.Model):
    """A network that generates token ids: what training and a search need of it.

    Subclasses implement `begin(inputs, max_length)`, which returns the memory of a
    search and its first state, and `step(token_ids, state, memory)`, a step of
    `keras_attention.beam_search`: it returns log-probabilities `(B, K, N)`, the state,
    and attention `(B, K, S)`.

    Self-critical training samples with `sample_temperature`. `mean_loss` is weighted by
    tokens; the mean of Keras is weighted by rows, padding included. `step_loss` is the
    loss of the last step, without those before it.
    """

    def __init__(self, config, *, name, sample_temperature=1.0):
        super().__init__(name=name)
        self.config = config
        self.sample_temperature = sample_temperature
        self.mean_loss = keras.metrics.Mean(name="loss")
        self.step_loss = LastValue(name="step_loss")

    def vocabulary_ids(self, token_ids, memory):
        """Return the ids of tokens that a search with this memory has found."""
        return token_ids


class Ensemble(keras.Model):
    """Networks whose mean probability a search follows; see `ensemble_step`."""

    def __init__(self, networks):
        # The policy decides whether a search casts the weights once.
        policy, *others = {network.dtype_policy.name for network in networks}
        super().__init__(name="ensemble", dtype="float32" if others else policy)
        self.networks = list(networks)
        self.built = True

    def begin(self, inputs, max_length):
        """Return the memories of the networks, and their first states."""
        begun = [network.begin(inputs, max_length) for network in self.networks]
        return [memory for memory, _ in begun], [state for _, state in begun]

    def step(self, token_ids, state, memory, **options):
        """Run one step of a search with all networks."""
        return ensemble_step(self.steps(memory, **options))(token_ids, state)

    def vocabulary_ids(self, token_ids, memory):
        """Return the ids of tokens that a search with this memory has found."""
        return token_ids

    def steps(self, memory, **options):
        """Return the step of each network, for its part of the memory."""
        return [
            functools.partial(network.step, memory=part, **options)
            for network, part in zip(self.networks, memory, strict=True)
        ]


class SearchModel(keras.Model):
    """A search as a Keras model, from a dict of the inputs of a network to sequences.

    Args:
        network: A `DecoderNetwork`, or an `Ensemble` of them.
        search: One of the searches of `keras_attention`, with its own arguments bound.
        max_length: Maximum number of tokens of a sequence, END included.
        constraints: Those of the search, or a function from the inputs to them.
        positions: Number of positions S that the network attends to, or a function
            from the inputs to it.
        limit: Function from the inputs to the maximum length of each row, `(B,)`.
        rewrite: Function from the token ids that the search has found, `(B, K, T)`, to
            those that are returned, of the same lengths.
        step_options: Further keyword arguments of `network.step`.
        seed_generator: The generator that `search` draws from, if any.
    """

    def __init__(
        self,
        network,
        search,
        max_length,
        *,
        banned=(),
        constraints=(),
        positions=None,
        limit=None,
        rewrite=None,
        step_options=None,
        seed_generator=None,
        jit_compile=False,
    ):
        super().__init__(name="search")
        self.network = network
        self.search = search
        self.max_length = max_length
        self.banned = Ban(banned)
        self.constraints = constraints
        self.positions = positions
        self.limit = limit
        self.rewrite = rewrite
        self.step_options = dict(step_options or {})
        self.seed_generator = seed_generator
        self.built = True
        self.compile(jit_compile=jit_compile)

    def call(self, inputs):
        memory, state = self.network.begin(inputs, self.max_length)
        step = functools.partial(self.network.step, memory=memory, **self.step_options)
        options = {
            "constraints": self.constraints,
            "limit": self.limit,
            "positions": self.positions,
        }
        options = {
            name: x(inputs) if callable(x) else x
            for name, x in options.items()
            if x is not None
        }
        options["constraints"] = [self.banned, *options["constraints"]]
        outputs = self.search(
            with_cast_weights(step, self.network),
            state,
            start=START,
            end=END,
            max_length=self.max_length,
            **options,
        )
        outputs["token_ids"] = self.network.vocabulary_ids(outputs["token_ids"], memory)
        if self.rewrite is not None:
            outputs["token_ids"] = self.rewrite(outputs["token_ids"])
        return outputs


class DeepOutput(keras.layers.Layer):
    """Deep output: the hidden vector from last word, decoder state and context.

        hidden = tanh(E y[t-1] + U s[t] + C c[t])

    The logits are its product with the word embeddings (tied weights).

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.2;
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), equation 7, with the tanh
        of the authors' code.
    """

    def __init__(self, units, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.from_state = keras.layers.Dense(units, name="from_state")
        self.from_context = keras.layers.Dense(
            units, use_bias=False, name="from_context"
        )
        self.dropout = Dropout(dropout)

    def build(self, embedded_shape, state_shape, context_shape):
        self.from_state.build(state_shape)
        self.from_context.build(context_shape)
        self.built = True

    def call(self, embedded, state, context, training=None):
        hidden = embedded + self.from_state(state) + self.from_context(context)
        return self.dropout(ops.tanh(hidden), training=training)

    def compute_output_shape(self, embedded_shape, state_shape, context_shape):
        return embedded_shape
