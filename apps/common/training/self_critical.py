"""Self-critical training: what beats its fellows becomes more probable."""

import functools

import keras
import numpy as np
from keras_attention_apps.common.network.search_model import SearchModel
from keras_attention_apps.common.tokens import PAD, START

from keras_attention import greedy_search, sample_search


class SelfCritical:
    """Trains a network on the reward of the sequences that it samples.

    The advantage of a sample is its reward less a baseline that knows nothing of it, so
    that the estimate of the gradient of the expected reward is unbiased: of samples at
    the `sample_temperature` of the network. At temperature 1, a model that has learned
    with label smoothing often draws words that no search would find, and much of what
    it learns from them is to be surer.

    Subclasses implement `__len__`, `plan`, `inputs`, `max_length`, `width` and
    `reward_of`.
    What is trained on, an item, may be anything.

    Args:
        network: A compiled Keras model with a `sample_temperature`, which takes token
            ids `(B, K, T + 1)` from START on, and `"advantages"` `(B, K)`.
        sequences: Under which name it takes the token ids.
        samples: Samples of each item, at least 2.
        baseline: `"samples"`, the mean reward of the other samples of the item, or
            `"greedy"`, the reward of what greedy search finds.
        banned: Token ids that no sample may contain.
        seed: Seed of the order and the samples.

    Raises:
        ValueError: If `baseline` is anything else.

    Reference:
        [Rennie et al., 2017](https://arxiv.org/abs/1612.00563), whose baseline is
        greedy; the other one as in [Luo, 2020](https://arxiv.org/abs/2003.09971).
    """

    def __init__(
        self, network, sequences, *, samples, baseline="samples", banned=(), seed
    ):
        if baseline not in ("samples", "greedy"):
            raise ValueError(
                f"baseline must be 'samples' or 'greedy'. Received: {baseline!r}"
            )
        self.network = network
        self.sequences = sequences
        self.baseline = baseline
        self.seed = seed
        self._generator = keras.random.SeedGenerator(seed)
        self._sample = functools.partial(
            sample_search,
            samples=max(samples, 2),
            temperature=network.sample_temperature,
            seed=self._generator,
        )
        self._search_model = functools.cache(
            functools.partial(SearchModel, network, banned=banned)
        )

    def __len__(self):
        """Training steps of an epoch."""
        raise NotImplementedError

    def plan(self, epoch):
        """For each training step of an epoch, its items: `len(self)` sequences."""
        raise NotImplementedError

    def inputs(self, items, random):
        """What the network is given of these items: a dict of arrays `(B, ...)`.

        Args:
            items: Of one step.
            random: The `numpy.random.Generator` of the step.
        """
        raise NotImplementedError

    def max_length(self, inputs):
        """Maximum number of tokens of a sample for these inputs, END included."""
        raise NotImplementedError

    def width(self, longest):
        """To how many tokens all samples are padded; the longest has so many."""
        raise NotImplementedError

    def reward_of(self, item, token_ids):
        """What a sequence of token ids is worth for an item, as a number."""
        raise NotImplementedError

    def fit(self, *, epochs, initial_epoch=0, callbacks=()):
        """Train like `keras.Model.fit`, with a new sample at every step."""
        network = self.network
        network.stop_training = False
        # Keras tells nothing of a single epoch.
        print(f"Self-critical training, epochs: {epochs}")
        callbacks = keras.callbacks.CallbackList(
            list(callbacks),
            add_progbar=True,
            model=network,
            epochs=epochs,
            steps=len(self),
            verbose=1,
        )
        callbacks.on_train_begin()
        for epoch in range(initial_epoch, epochs):
            callbacks.on_epoch_begin(epoch)
            rewards = []
            for step, items in enumerate(self.plan(epoch)):
                callbacks.on_train_batch_begin(step)
                batch, reward = self.sample(items, epoch * len(self) + step)
                figures = network.train_on_batch(batch, return_dict=True)
                rewards.append(reward)
                callbacks.on_train_batch_end(
                    step, {"loss": figures["loss"], "reward": np.mean(rewards)}
                )
            callbacks.on_epoch_end(
                epoch, {"loss": figures["loss"], "reward": np.mean(rewards)}
            )
            if network.stop_training:
                break
        callbacks.on_train_end()

    def sample(self, items, step):
        """A training batch of samples for these items, and their mean reward."""
        # What is drawn depends on the seed and the step alone, also after a restart.
        self._generator.state.assign([self.seed, step])
        random = np.random.default_rng((self.seed, step))
        inputs = self.inputs(items, random)
        token_ids, lengths = self._search(
            inputs, items, self._sample, seed_generator=self._generator
        )
        rewards = self._rewards(token_ids, items)
        token_ids = token_ids[..., : self.width(lengths.max())]
        behind = np.arange(token_ids.shape[-1]) >= lengths[..., None]
        starts = np.full((*lengths.shape, 1), START)
        sampled = np.concatenate([starts, np.where(behind, PAD, token_ids)], axis=-1)
        batch = {
            **inputs,
            self.sequences: sampled.astype("int32"),
            "advantages": rewards - self._baselines(rewards, inputs, items),
        }
        return batch, rewards.mean()

    def _baselines(self, rewards, inputs, items):
        if self.baseline == "greedy":
            token_ids, _ = self._search(inputs, items, greedy_search)
            return self._rewards(token_ids, items)
        return (rewards.sum(axis=1, keepdims=True) - rewards) / (rewards.shape[1] - 1)

    def _search(self, inputs, items, search, **options):
        """Token ids `(items, K, T)` and their lengths, as arrays."""
        search_model = self._search_model(search, self.max_length(inputs), **options)
        outputs = search_model.predict_on_batch(inputs)
        # Where devices share batches, TensorFlow gives all of a single one to each.
        return [
            keras.ops.convert_to_numpy(outputs[name])[: len(items)]
            for name in ("token_ids", "lengths")
        ]

    def _rewards(self, token_ids, items):
        """Rewards `(items, K)` of sequences `(items, K, T)`."""
        return np.array(
            [
                [self.reward_of(item, sequence) for sequence in sequences]
                for item, sequences in zip(items, token_ids, strict=True)
            ],
            "float32",
        )
