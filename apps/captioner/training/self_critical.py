"""Self-critical training on sampled captions."""

import numpy as np
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.network.compiling import shape_multiple
from keras_attention_apps.common.training.data_sets import Mixture
from keras_attention_apps.common.training.self_critical import SelfCritical


def check_samples(config):
    """Raise a `UserError` if the baseline of self-critical training needs more."""
    needs_others = config.self_critical_baseline == "samples"
    if config.self_critical_epochs and needs_others and config.captions_per_image < 2:
        raise UserError(
            "captions_per_image must be at least 2 with the self_critical_baseline "
            "samples, the mean reward of the other samples; greedy needs 1. "
            f"Received: {config.captions_per_image}"
        )


class SelfCriticalCaptions(SelfCritical):
    """Trains a captioner on the reward of captions that it samples.

    Args:
        captioner: The `Captioner`; its network must be compiled.
        features: List of arrays `(images, S, D)`; every step draws one for each image.
        mixture: `Mixture` of the images, from which every epoch is drawn; each once if
            omitted.
        reward: Function of the list of words of a caption and the index of its image
            to its reward, such as a `CiderReward`.
        batch_images: Batch size, in images.
        **options: Further arguments of `SelfCritical`.
    """

    def __init__(
        self, captioner, features, reward, *, mixture=None, batch_images, **options
    ):
        super().__init__(
            captioner.network,
            "captions",
            banned=captioner.tokenizer.banned,
            multiple=shape_multiple(batch_images),
            **options,
        )
        self.captioner = captioner
        self.features = features
        self.reward = reward
        self.mixture = mixture or Mixture([len(features[0])])
        self.batch_images = batch_images

    def __len__(self):
        return -(-len(self.mixture) // self.batch_images)

    def plan(self, epoch):
        random = np.random.default_rng((self.seed, epoch))
        order = self.mixture.draw(random)
        for begin in range(0, len(order), self.batch_images):
            yield order[begin : begin + self.batch_images]

    def inputs(self, items, random):
        drawn = random.integers(len(self.features), size=len(items))
        pairs = zip(drawn, items, strict=True)
        return {"features": np.stack([self.features[view][i] for view, i in pairs])}

    def max_length(self, inputs):
        return self.captioner.config.max_tokens

    def padded_length(self, longest):
        return self.captioner.config.max_tokens

    def reward_of(self, item, token_ids):
        return self.reward(self.captioner.words_of(token_ids), item)
