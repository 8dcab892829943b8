"""Captions for images: a trained network, its vocabulary, and the search."""

import functools
import itertools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import ops

from keras_attention import Constraint, MinLength, NoRepeatNgrams, beam_search
from keras_attention_apps.captioner.captions import BaseCaptioner
from keras_attention_apps.captioner.config import (
    RUNTIME_OPTIONS,
    CaptionSearchOptions,
    ModelConfig,
)
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.captioner.network.backbone import feature_model
from keras_attention_apps.captioner.network.networks import (
    CaptionEnsemble,
    build_network,
)
from keras_attention_apps.captioner.vocabulary import Vocabulary
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import power_of_two
from keras_attention_apps.common.task import Task

# Batch size of the CNN. The activations of larger batches do not fit the caches of a
# processor; a search has small activations and takes larger batches.
CNN_BATCH = 32


class Captioner(BaseCaptioner, Task):
    """Captions images, with the attention map of every word.

    Args:
        config: The `ModelConfig` of the network.
        tokenizer: Its `Vocabulary`.
        network: The `CaptionNetwork`. When the first image is captioned, the weights
            of its CNN are frozen.
        jit_compile: Whether XLA compiles the search, as it always does on JAX. The
            first batch of a size takes seconds longer, all others are faster. Batches
            are padded to powers of two, so that there are few sizes.

    Raises:
        UserError: If `jit_compile` is requested on PyTorch.

    Example:

    >>> captioner = Captioner.from_preset("flickr8k-coco-soft")
    >>> caption = captioner.caption(np.zeros((300, 400, 3), "uint8"))
    >>> caption.weights.shape == (len(caption.words), 9, 9)
    True

    Options of the network that do not change its weights can be changed on loading,
    such as the image size, which sets the number of regions:

    >>> captioner = Captioner.from_preset("flickr8k-coco-soft", image_size=224)
    >>> caption = captioner.caption(np.zeros((300, 400, 3), "uint8"))
    >>> caption.weights.shape[1:]
    (7, 7)
    """

    tokenizer: Vocabulary
    config_type = ModelConfig
    search_type = CaptionSearchOptions
    runtime_options = RUNTIME_OPTIONS
    ensemble_type = CaptionEnsemble

    build_network = staticmethod(build_network)

    def __init__(self, config, tokenizer, network, **options):
        super().__init__(config, tokenizer, network, **options)
        self.image_size = config.image_size
        self.grid = network.backbone.rows, network.backbone.columns

    def parts_to_share(self, config):
        # A CNN takes most of the time of building a network.
        names = "backbone", "image_size"
        same = all(getattr(config, x) == getattr(self.config, x) for x in names)
        return {"backbone": self.network.backbone} if same else {}

    @classmethod
    def backbone_of(cls, network):
        return network.backbone

    def member_network(self, other):
        """Return the network of another captioner for an ensemble with this one.

        The other captioner then has the order of the words of this one.
        """
        ours, theirs = self.network.backbone, other.network.backbone
        are_same = ours is theirs or (
            (self.image_size, self.grid) == (other.image_size, other.grid)
            and len(ours.weights) == len(theirs.weights)
            and all(map(np.array_equal, ours.get_weights(), theirs.get_weights()))
        )
        if not are_same:
            received = (
                f"{x.backbone} at {x.image_size} pixels"
                for x in (self.config, other.config)
            )
            raise UserError(
                "the captioners of an ensemble must have the same image size, and a "
                f"CNN with the same weights. Received: {' and '.join(received)}"
            )
        if {*self.tokenizer.words} != {*other.tokenizer.words}:
            return super().member_network(other)
        other.renumber_words(self.tokenizer)
        return other.network

    @property
    def identity(self):
        # Hard and soft attention have the same weights, but not for the same use.
        return {**super().identity, "attention": self.config.attention}

    def copy_weights(self, other):
        """Copy the weights of another captioner whose layers have the same sizes.

        Embeddings are matched by word, as the vocabularies may differ.
        """
        embeddings = self.network.embedding.embeddings
        networks = (self.network, other.network)
        for ours, theirs in zip(*map(_inference_weights, networks), strict=True):
            if ours is not embeddings:
                ours.assign(theirs)
        row_of = {word: row for row, word in enumerate(other.tokenizer.words)}
        known = [word in row_of for word in self.tokenizer.words]
        rows = [row_of.get(word, 0) for word in self.tokenizer.words]
        copied = keras.ops.take(other.network.embedding.embeddings, rows, axis=0)
        known = keras.ops.convert_to_tensor(known)[:, None]
        embeddings.assign(keras.ops.where(known, copied, embeddings.value))

    def renumber_words(self, tokenizer):
        """Order the words and their embeddings as a vocabulary of the same words does.

        The captions stay the same.
        """
        row_of = {word: row for row, word in enumerate(self.tokenizer.words)}
        rows = [row_of[word] for word in tokenizer.words]
        embeddings = self.network.embedding.embeddings
        embeddings.assign(keras.ops.take(embeddings, rows, axis=0))
        self.tokenizer = tokenizer
        # The constraints of searches have the old order.
        self._search_models.clear()

    @property
    def is_soft(self):
        """Whether attention is soft, so that weights and probabilities are the same."""
        networks = self.network.networks if self.is_ensemble else [self.network]
        return all(network.config.attention == "soft" for network in networks)

    def _caption_each(self, images, n_best, batch_size, maps, search):
        self.network.backbone.freeze()
        search_model = self.search_model(**search, maps=maps)
        # A generator may need the captions of these images for its next one.
        ahead = isinstance(images, Sequence)
        images = iter(images)
        readers = ThreadPoolExecutor(os.cpu_count())

        def next_batch():
            batch = list(itertools.islice(images, batch_size))
            return batch, readers.map(self._read, batch)

        try:
            batch, read = next_batch()
            while batch:
                read = list(read)
                prefetched = next_batch() if ahead else None
                arrays = [x for x in read if not isinstance(x, ImageError)]
                captions = iter(())
                if arrays:
                    captions = iter(
                        self._search(search_model, arrays, batch_size, n_best)
                    )
                for image, result in zip(batch, read, strict=True):
                    failed = isinstance(result, ImageError)
                    yield image, result if failed else next(captions)
                batch, read = prefetched or next_batch()
        finally:
            readers.shutdown(cancel_futures=True)

    def _search(self, search_model, images, batch_size, n_best):
        """Return the captions of a list of arrays."""
        arrays = np.stack(images)
        if self.jit_compile:
            # XLA compiles for every batch size, so there are only a few.
            rows = power_of_two(len(images), batch_size)
            arrays = np.resize(arrays, (rows, *arrays.shape[1:]))
        # The CNN runs outside XLA, whose convolutions are slow on CPUs.
        parts = [
            self._cnn.predict_on_batch(arrays[first : first + CNN_BATCH])
            for first in range(0, len(arrays), CNN_BATCH)
        ]
        outputs = search_model.predict_on_batch({"features": np.concatenate(parts)})
        count, to_numpy = len(images), keras.ops.convert_to_numpy
        arrays_by_name = {name: to_numpy(x)[:count] for name, x in outputs.items()}
        return self.captions_of(arrays_by_name, n_best, images)

    @functools.cached_property
    def _cnn(self):
        """The CNN as a Keras model of its own."""
        return feature_model(self.network.backbone)

    def search_model(self, *, maps="weights", **options):
        """Return the compiled `SearchModel` for options of `caption_each`."""
        search = self.search_options(**options)
        no_repeat_ngrams = search.pop("no_repeat_ngrams")
        # A caption has at least one word, and END.
        constraints: list[Constraint] = [MinLength(2)]
        if no_repeat_ngrams:
            constraints.append(NoRepeatNgrams(no_repeat_ngrams))
        words = self.config.repeatable_words
        if words is not None:
            constraints.append(NoRepeatNgrams(1, self.tokenizer.ids_of(words)))
        return self._cached_search_model(
            (*sorted(search.items()), no_repeat_ngrams, maps),
            functools.partial(beam_search, early_stopping=True, **search),
            self.max_length,
            constraints=constraints,
            rewrite=self._agreeing,
            positions=math.prod(self.grid),
            step_options={"maps": maps},
        )

    def _agreeing(self, token_ids):
        """Return token ids of captions with "a" or "an" by the word that follows."""
        if self.config.words_after_an is None:
            return token_ids
        articles = a, an = self.tokenizer.ids_of(["a", "an"])
        after_an = np.zeros(len(self.tokenizer), "int32")
        after_an[self.tokenizer.ids_of(self.config.words_after_an)] = 1
        # The last token has no follower.
        following = ops.concatenate([token_ids[..., 1:], token_ids[..., -1:]], axis=-1)
        agreeing = ops.where(ops.take(after_an, following, axis=0) == 1, an, a)
        is_article = ops.logical_or(*(token_ids == article for article in articles))
        return ops.where(is_article, ops.cast(agreeing, token_ids.dtype), token_ids)


def _inference_weights(network):
    """Return the weights of a network without those of its loss and its training."""
    of_loss = network.reinforce.weights if network.reinforce else []
    excluded = {id(weight) for weight in of_loss}
    return [weight for weight in network.weights if id(weight) not in excluded]
