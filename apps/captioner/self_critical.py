"""Self-critical training: captions that beat their fellows become more probable."""

import functools

import keras
import numpy as np
from keras_attention_apps.captioner.model import CaptionSearch
from keras_attention_apps.captioner.rewards import CiderReward
from keras_attention_apps.common.tokens import PAD, START

from keras_attention import sample_search


class SelfCritical:
    """Trains a network on the reward of captions that it samples.

    Each photograph gets several samples. The baseline of a sample is the mean reward of
    the others, so that the estimate of the gradient of the expected reward is unbiased.

    Args:
        captioner: The `Captioner`; its network must be compiled.
        features: Array `(photographs, S, D)`.
        references: For each photograph, its captions as strings.
        batch_images: Photographs in a step.
        samples: Samples of each photograph, at least 2.
        seed: Seed of the order and the samples.

    Reference:
        [Rennie et al., 2017](https://arxiv.org/abs/1612.00563); the baseline as in
        [Luo, 2020](https://arxiv.org/abs/2003.09971).
    """

    def __init__(self, captioner, features, references, *, batch_images, samples, seed):
        self.captioner = captioner
        self.features = features
        self.reward = CiderReward(references)
        self.batch_images = batch_images
        self.seed = seed
        generator = keras.random.SeedGenerator(seed)
        self._sampler = CaptionSearch(
            captioner.network,
            captioner.config.max_length,
            functools.partial(sample_search, samples=max(samples, 2), seed=generator),
            seed_generator=generator,
        )

    def __len__(self):
        return -(-len(self.features) // self.batch_images)

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
            order = random.permutation(len(self.features))
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
            callbacks.on_epoch_end(epoch, {"reward": np.mean(rewards)})
            if network.stop_training:
                break
        callbacks.on_train_end()

    def sample(self, chosen, step):
        """A training batch of samples for these photographs, and their mean reward."""
        # What is drawn depends on the seed and the step alone, also after a restart.
        self._sampler.seed_generator.state.assign([self.seed, step])
        features = self.features[chosen]
        found = self._sampler.predict_on_batch({"features": features})
        token_ids = keras.ops.convert_to_numpy(found["token_ids"])
        lengths = keras.ops.convert_to_numpy(found["lengths"])
        decode = self.captioner.vocabulary.decode
        rewards = np.array(
            [
                [self.reward(decode(sample), photograph) for sample in samples]
                for photograph, samples in zip(chosen, token_ids, strict=True)
            ],
            "float32",
        )
        count = rewards.shape[1]
        others = (rewards.sum(axis=1, keepdims=True) - rewards) / (count - 1)
        behind = np.arange(token_ids.shape[-1]) >= lengths[..., None]
        starts = np.full((*lengths.shape, 1), START)
        captions = np.concatenate([starts, np.where(behind, PAD, token_ids)], axis=-1)
        batch = {
            "features": features,
            "captions": captions.astype("int32"),
            "advantages": rewards - others,
        }
        return batch, rewards.mean()
