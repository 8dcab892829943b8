"""Building the network that a configuration describes."""

from keras_attention_apps.captioner.network.show_attend_tell import ShowAttendTell
from keras_attention_apps.captioner.network.transformer import TransformerCaptioner

NETWORKS = {"recurrent": ShowAttendTell, "transformer": TransformerCaptioner}


def build_network(config, vocabulary_size, **options):
    """Build the network of a `ModelConfig`, with all its weights.

    Args:
        config: The `ModelConfig`.
        vocabulary_size: Number of words.
        **options: Further arguments of `CaptionNetwork`.
    """
    network = NETWORKS[config.decoder](config, vocabulary_size, **options)
    network.build()
    return network
