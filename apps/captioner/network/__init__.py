"""The networks of captioners, and building the one that a configuration describes."""

from keras_attention_apps.captioner.network.recurrent import (
    AdaptiveCaptioner,
    ShowAttendTell,
)
from keras_attention_apps.captioner.network.transformer import TransformerCaptioner


def build_network(config, vocabulary_size, **options):
    """Build the network of a `ModelConfig`, with all its weights."""
    kind = ShowAttendTell
    if config.decoder == "transformer":
        kind = TransformerCaptioner
    elif config.attention == "adaptive":
        kind = AdaptiveCaptioner
    network = kind(config, vocabulary_size, **options)
    network.build()
    return network
