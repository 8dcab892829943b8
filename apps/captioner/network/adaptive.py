"""Knowing When to Look: an LSTM that attends to an image or to its own memory.

Shapes: B images, K captions of one image, T words, S regions, D depth of a region.
"""

import keras
from keras import ops
from keras_attention_apps.captioner.network.show_attend_tell import (
    ShowAttendTell,
    mean_region,
)
from keras_attention_apps.common.cli import UserError

from keras_attention import AdditiveAttention, AttentionCell


class AdaptiveCaptioner(ShowAttendTell):
    """The recurrent network with adaptive attention; see `CaptionNetwork`.

    The LSTM reads the last word and a vector of the whole image, and its new state is
    the query. The attention has one more position beside the regions, the visual
    sentinel, which is computed from the carry of the LSTM:

        image       = relu(W_image mean of all regions)
        h[t], m[t]  = LSTM([word[t-1]; image], h[t-1], m[t-1])
        context[t]  = beta[t] * sentinel[t] + (1 - beta[t]) * sum of shares[t] * region

    The scores are additive, with a weight-normalised scale.
    Initial state and output layer are those of `ShowAttendTell`.

    Returns:
        Dict with `"logits"`; `"weights"` `(B, K, T, S)`, `(1 - beta) * shares`;
        `"probabilities"` `(B, K, T, S)`, the shares, which sum to one; and
        `"sentinel"` `(B, K, T)`, beta. In a search, the maps `(B, K, S + 1)` end with
        beta.

    Raises:
        UserError: If there is scheduled sampling.

    Reference: [Lu et al., 2017](https://arxiv.org/abs/1612.01887).
    """

    def __init__(self, config, vocabulary_size, **options):
        if options.get("scheduled_sampling"):
            raise UserError(
                "scheduled_sampling needs soft or hard attention: it samples words, "
                "but the inputs of adaptive attention also contain the image. "
                f"Received: attention {config.attention}"
            )
        super().__init__(config, vocabulary_size, **options)
        self.image_projection = keras.layers.Dense(
            config.region_units or self.backbone.depth, "relu", name="image_projection"
        )

    def make_cell(self, config):
        return AttentionCell(
            keras.layers.LSTMCell(config.units),
            # In the first steps, regions are more useful than an untrained sentinel.
            # Without normalisation, its scores could fall so far in these steps that
            # it would receive no gradient afterwards.
            AdditiveAttention(config.attention_units, use_bias=True, normalize=True),
            order="current",
            sentinel=True,
        )

    def build_decoder(self, embedded_shape, regions_shape):
        self.image_projection.build((None, regions_shape[-1]))
        depth = embedded_shape[-1] + self.image_projection.units
        self.decoder.build((*embedded_shape[:-1], depth), regions_shape)

    def whole_image(self, regions, mask=None):
        return {"image": self.image_projection(mean_region(regions, mask))}

    def cell_inputs(self, embedded, memory):
        image = ops.cast(memory["image"], embedded.dtype)
        shape = (*ops.shape(embedded)[:-1], image.shape[-1])
        for _ in range(len(embedded.shape) - 2):
            image = image[:, None]
        return ops.concatenate([embedded, ops.broadcast_to(image, shape)], axis=-1)

    def reported(self, outputs):
        found = super().reported(outputs)
        weights = ops.cast(found["weights"], "float32")
        # The sum is zero only where the sentinel has the whole weight.
        total = ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1e-7)
        return {**found, "probabilities": weights / total}

    def advance(self, token_ids, state, memory):
        hidden, state, found = super().advance(token_ids, state, memory)
        sentinel = found["sentinel"][..., None]
        maps = {
            name: ops.concatenate([ops.cast(found[name], "float32"), sentinel], -1)
            for name in ("weights", "probabilities")
        }
        return hidden, state, maps
