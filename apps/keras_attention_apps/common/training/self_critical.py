"""Self-critical training: policy gradient on sampled sequences."""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_attention import sample_search
from keras_attention_apps.common import distribution
from keras_attention_apps.common.network.decoder_network import SearchModel, rounded_up
from keras_attention_apps.common.tokenizer import PAD, START


class SelfCritical:
    """Trains a network on the reward of the sequences that it samples.

    The advantage of a sample is its reward minus a baseline that does not depend on the
    sample, so the estimate of the gradient of the expected reward is unbiased. Samples
    are drawn with the `sample_temperature` of the network. At temperature 1, a model
    trained with label smoothing often samples improbable words that no search returns.

    The baseline is the mean reward of the other samples of an item, a training example
    of any type. Subclasses implement `__len__`, the number of training steps of an
    epoch, and the methods from `plan` to `reward_of`.

    Args:
        network: A compiled Keras model with a `sample_temperature`, which takes token
            ids `(B, K, T + 1)` from START on, and `"advantages"` `(B, K)`.
        sequences: Name of its input of token ids.
        multiple: The rows of a search are padded to a multiple of this, so that a
            backend which compiles for every shape compiles less often.
        devices: The rows of a training batch are padded to a multiple of this, too.
            Rows of padding have no tokens, and do not count in the loss.

    Reference:
        [Rennie et al., 2017](https://arxiv.org/abs/1612.00563), with the baseline of
        [Luo, 2020](https://arxiv.org/abs/2003.09971).
    """

    def __init__(
        self, network, sequences, *, samples, banned=(), multiple=1, devices=1, seed
    ):
        self.network = network
        self.sequences = sequences
        self.multiple = multiple
        self.devices = devices
        self.seed = seed
        self._generator = keras.random.SeedGenerator(seed)
        self._sample = functools.partial(
            sample_search,
            samples=samples,
            temperature=network.sample_temperature,
            seed=self._generator,
        )
        self._search_model = functools.cache(
            functools.partial(SearchModel, network, banned=banned)
        )

    def __len__(self) -> int:
        raise NotImplementedError

    def plan(self, epoch: int) -> Iterable[Sequence]:
        """Return the items of each step of an epoch."""
        raise NotImplementedError

    def inputs(self, items: Sequence, random: np.random.Generator) -> dict:
        """Return the network's inputs for the items of a step, a dict of arrays."""
        raise NotImplementedError

    def max_length(self, inputs: dict) -> int:
        """Return the maximum number of tokens of a sample, END included."""
        raise NotImplementedError

    def padded_length(self, longest: int) -> int:
        """Return the length to which samples of at most `longest` tokens are padded."""
        raise NotImplementedError

    def reward_of(self, item: Any, token_ids: np.ndarray) -> float:
        """Return the reward of a sequence of token ids."""
        raise NotImplementedError

    def fit(self, *, epochs, initial_epoch=0, callbacks=(), verbose=1):
        """Train like `keras.Model.fit`, with a new sample at every step."""
        network = self.network
        network.stop_training = False
        callbacks = keras.callbacks.CallbackList(
            list(callbacks),
            add_progbar=True,
            model=network,
            epochs=epochs,
            steps=len(self),
            verbose=verbose,
        )
        callbacks.on_train_begin()
        for epoch in range(initial_epoch, epochs):
            callbacks.on_epoch_begin(epoch)
            network.reset_metrics()
            rewards = []
            for step, items in enumerate(self.plan(epoch)):
                callbacks.on_train_batch_begin(step)
                batch, reward = self.sample(items, epoch * len(self) + step)
                rows = distribution.rows_of_host(len(batch["advantages"]))
                share = {name: array[rows] for name, array in batch.items()}
                metrics = network.train_on_batch(share, return_dict=True)
                rewards.append(reward)
                logs = {"loss": metrics["loss"], "reward": np.mean(rewards)}
                logs |= {"step_loss": metrics["step_loss"], "step_reward": reward}
                callbacks.on_train_batch_end(step, logs)
            # On several devices of TensorFlow, the metrics of a step are approximate.
            loss = network.get_metrics_result()["loss"]
            callbacks.on_epoch_end(epoch, {"loss": loss, "reward": np.mean(rewards)})
            if network.stop_training:
                break
        callbacks.on_train_end()

    def sample(self, items, step):
        """Return a training batch of samples for these items, and their mean reward."""
        # Samples depend on the seed and the step alone, also after a restart.
        self._generator.state.assign([self.seed, step])
        random = np.random.default_rng((self.seed, step))
        inputs = self.inputs(items, random)
        search_model = self._search_model(
            self._sample, self.max_length(inputs), seed_generator=self._generator
        )
        outputs = distribution.predict_rows(search_model, inputs, self.multiple)
        token_ids, lengths = (
            keras.ops.convert_to_numpy(outputs[name])
            for name in ("token_ids", "lengths")
        )
        reward_lists = [
            [self.reward_of(item, sequence) for sequence in sequences]
            for item, sequences in zip(items, token_ids, strict=True)
        ]
        rewards = np.array(reward_lists, "float32")
        others = rewards.sum(axis=1, keepdims=True) - rewards
        token_ids = token_ids[..., : self.padded_length(lengths.max())]
        is_after = np.arange(token_ids.shape[-1]) >= lengths[..., None]
        starts = np.full((*lengths.shape, 1), START)
        sampled = np.concatenate([starts, np.where(is_after, PAD, token_ids)], axis=-1)
        batch = {
            **inputs,
            self.sequences: sampled.astype("int32"),
            "advantages": rewards - others / (rewards.shape[1] - 1),
        }
        multiple = math.lcm(self.multiple, self.devices)
        rows = rounded_up(len(items), multiple)
        batch = {x: distribution.with_rows(array, rows) for x, array in batch.items()}
        batch[self.sequences][len(items) :] = PAD
        return batch, rewards.mean()
