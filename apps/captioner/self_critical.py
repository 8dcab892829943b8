"""Self-critical training: captions that beat their fellows become more probable."""

import functools

import keras
import numpy as np
from keras_attention_apps.captioner.model import CaptionSearch
from keras_attention_apps.common.tokens import PAD, START

from keras_attention import greedy_search, sample_search


class SelfCritical:
    """Trains a network on the reward of captions that it samples.

    The advantage of a sample is its reward less a baseline that knows nothing of it, so
    that the estimate of the gradient of the expected reward is unbiased: of samples at
    the `sample_temperature` of the network. At temperature 1, a model that has learned
    with label smoothing often draws words that no search would find, and much of what
    it learns from them is to be surer.

    Args:
        captioner: The `Captioner`; its network must be compiled.
        features: Arrays `(photographs, S, D)`, of which every step draws one for each
            photograph.
        reward: What a caption is worth: a function of its list of words and the index
            of its photograph, such as a `CiderReward`.
        batch_images: Photographs in a step.
        samples: Samples of each photograph, at least 2.
        baseline: `"samples"`, the mean reward of the other samples of the photograph,
            or `"greedy"`, the reward of the caption that greedy search finds.
        seed: Seed of the order and the samples.

    Raises:
        ValueError: If `baseline` is anything else.

    Reference:
        [Rennie et al., 2017](https://arxiv.org/abs/1612.00563), whose baseline is
        greedy; the other one as in [Luo, 2020](https://arxiv.org/abs/2003.09971).
    """

    def __init__(
        self,
        captioner,
        features,
        reward,
        *,
        batch_images,
        samples,
        baseline="samples",
        seed,
    ):
        if baseline not in ("samples", "greedy"):
            raise ValueError(
                f"baseline must be 'samples' or 'greedy'. Received: {baseline!r}"
            )
        self.captioner = captioner
        self.features = features
        self.reward = reward
        self.batch_images = batch_images
        self.baseline = baseline
        self.seed = seed
        generator = keras.random.SeedGenerator(seed)
        self._sampler = self._search(
            functools.partial(
                sample_search,
                samples=max(samples, 2),
                temperature=captioner.network.sample_temperature,
                seed=generator,
            ),
            seed_generator=generator,
        )
        self._greedy = self._search(greedy_search)

    def __len__(self):
        return -(-len(self.features[0]) // self.batch_images)

    def fit(self, *, epochs, initial_epoch=0, callbacks=()):
        """Train like `keras.Model.fit`, with a new sample at every step."""
        network = self.captioner.network
        network.stop_training = False
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
            random = np.random.default_rng((self.seed, epoch))
            order = random.permutation(len(self.features[0]))
            rewards = []
            for step in range(len(self)):
                callbacks.on_train_batch_begin(step)
                begin = step * self.batch_images
                chosen = order[begin : begin + self.batch_images]
                batch, reward = self.sample(chosen, epoch * len(self) + step)
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

    def sample(self, chosen, step):
        """A training batch of samples for these photographs, and their mean reward."""
        # What is drawn depends on the seed and the step alone, also after a restart.
        self._sampler.seed_generator.state.assign([self.seed, step])
        random = np.random.default_rng((self.seed, step))
        drawn = random.integers(len(self.features), size=len(chosen))
        pairs = zip(drawn, chosen, strict=True)
        features = np.stack([self.features[view][i] for view, i in pairs])
        found = self._sampler.predict_on_batch({"features": features})
        token_ids = keras.ops.convert_to_numpy(found["token_ids"])
        lengths = keras.ops.convert_to_numpy(found["lengths"])
        rewards = self._rewards(token_ids, chosen)
        behind = np.arange(token_ids.shape[-1]) >= lengths[..., None]
        starts = np.full((*lengths.shape, 1), START)
        captions = np.concatenate([starts, np.where(behind, PAD, token_ids)], axis=-1)
        batch = {
            "features": features,
            "captions": captions.astype("int32"),
            "advantages": rewards - self._baselines(rewards, features, chosen),
        }
        return batch, rewards.mean()

    def _baselines(self, rewards, features, chosen):
        if self.baseline == "greedy":
            found = self._greedy.predict_on_batch({"features": features})
            token_ids = keras.ops.convert_to_numpy(found["token_ids"])
            return self._rewards(token_ids, chosen)
        return (rewards.sum(axis=1, keepdims=True) - rewards) / (rewards.shape[1] - 1)

    def _rewards(self, token_ids, chosen):
        """Rewards `(photographs, K)` of captions `(photographs, K, T)`."""
        words_of = self.captioner.words_of
        return np.array(
            [
                [self.reward(words_of(caption), photograph) for caption in captions]
                for photograph, captions in zip(chosen, token_ids, strict=True)
            ],
            "float32",
        )

    def _search(self, find, **options):
        captioner = self.captioner
        return CaptionSearch(
            captioner.network, captioner.config.max_length, find, **options
        )
