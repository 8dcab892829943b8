"""A search over a network as one Keras model, which exports and compiles.

Shapes: B rows, K hypotheses, T tokens, S positions that are attended to.
"""

import functools

import keras
from keras_attention_apps.common.network.compiling import with_cast_weights
from keras_attention_apps.common.tokens import END, START

from keras_attention import Ban


class SearchModel(keras.Model):
    """A search as a Keras model, from the inputs of a network to sequences.

    Args:
        network: Keras model with `begin(inputs, max_length)`, which returns a memory
            and the first state, and `step(token_ids, state, memory)`, which is a step
            of `keras_attention.beam_search`.
        search: One of the searches of `keras_attention`, with its own arguments bound.
        max_length: Maximum number of tokens of a sequence, END included.
        banned: Token ids that no sequence may contain.
        constraints: Further constraints of the search, or a function from the inputs to
            them.
        limit: Function from the inputs to the maximum length of each row, `(B,)`;
            `max_length` for all if omitted. Only `beam_search` accepts one.
        step_options: Further keyword arguments of `network.step`.
        seed_generator: The `keras.random.SeedGenerator` that `search` draws from, if
            any.
        jit_compile: Whether XLA compiles the search.

    Call arguments:
        inputs: Dict of tensors, as for the network.

    Returns:
        The dict that the search returns.
    """

    def __init__(
        self,
        network,
        search,
        max_length,
        *,
        banned=(),
        constraints=(),
        limit=None,
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
        self.limit = limit
        self.step_options = dict(step_options or {})
        self.seed_generator = seed_generator
        self.built = True
        self.compile(jit_compile=jit_compile)

    def call(self, inputs):
        memory, state = self.network.begin(inputs, self.max_length)
        step = functools.partial(self.network.step, memory=memory, **self.step_options)
        constraints = self.constraints
        if callable(constraints):
            constraints = constraints(inputs)
        limit = {} if self.limit is None else {"limit": self.limit(inputs)}
        return self.search(
            with_cast_weights(step, self.network),
            state,
            start=START,
            end=END,
            max_length=self.max_length,
            constraints=[self.banned, *constraints],
            **limit,
        )
