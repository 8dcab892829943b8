"""The base of the networks of both programs: their options, and their search steps."""

import keras


class DecoderNetwork(keras.Model):
    """A network that generates token ids: what training and a search need of it.

    Args:
        config: Its `ModelConfig`.
        name: Name of the network.
        sample_temperature: Softmax temperature for sampling in self-critical training.
        scheduled_sampling: Whether the decoder has `ScheduledSampling`, with a rate of
            0 at first; for recurrent decoders.

    Attributes:
        mean_loss: Metric of the loss, which `compute_loss` updates with the number of
            tokens as the weight. That of Keras is a mean weighted by rows, padding
            included.
    """

    def __init__(
        self, config, *, name, sample_temperature=1.0, scheduled_sampling=False
    ):
        super().__init__(name=name)
        self.config = config
        self.sample_temperature = sample_temperature
        self.scheduled_sampling = scheduled_sampling
        self.mean_loss = keras.metrics.Mean(name="loss")

    def begin(self, inputs, max_length):
        """Return the memory of a search and its first state.

        Args:
            inputs: Dict of inputs, as for a call.
            max_length: Maximum number of steps.
        """
        raise NotImplementedError

    def step(self, token_ids, state, memory, **options):
        """Run one step of a search; see `keras_attention.beam_search`.

        Args:
            token_ids, state, memory: Last tokens, state and memory.
            **options: Options of the search model.

        Returns:
            Log-probabilities `(B, K, N)`, the state, and the attention `(B, K, S)`.
        """
        raise NotImplementedError
