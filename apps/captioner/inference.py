"""Captions for photographs: a trained network, its words, and the search."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
from keras_attention_apps.captioner.config import RUNTIME_OPTIONS, ModelConfig
from keras_attention_apps.captioner.data.text import Vocabulary, detokenize
from keras_attention_apps.captioner.images.reading import (
    ImageError,
    image_to_array,
    read_image,
)
from keras_attention_apps.captioner.network.features import feature_model
from keras_attention_apps.captioner.network.show_attend_tell import ShowAttendTell
from keras_attention_apps.common.config import check_batch_size, check_n_best
from keras_attention_apps.common.network.compiling import power_of_two
from keras_attention_apps.common.network.search_model import hypotheses
from keras_attention_apps.common.task import Task

from keras_attention import MinLength, NoRepeatNgrams, beam_search

PRESETS = Path(__file__).parent / "presets"

# Photographs that go through the CNN together: of more, what a layer hands on to the
# next leaves the caches of a processor. A search has little to hand on.
CNN_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Caption:
    """What a captioner says about one photograph.

    Attributes:
        text: The caption.
        words: Its words.
        score: By which captions are ranked.
        log_probability: Natural logarithm of the caption's probability.
        weights: Attention maps `(len(words), rows, columns)`, each summing to one.
    """

    text: str
    words: list
    score: float
    log_probability: float
    weights: np.ndarray


class Captioner(Task):
    """Captions photographs and tells where it looked for every word.

    Args:
        config: The `ModelConfig` of the network.
        tokenizer: Its `Vocabulary`.
        network: The `ShowAttendTell`. Its CNN is frozen when the first photograph is
            captioned, with the weights of that time.
        jit_compile: Whether XLA compiles the search, as it always does on JAX. That
            takes seconds for every batch size, and is faster from then on. To keep
            their number small, batches are padded to powers of two.

    Raises:
        UserError: If `jit_compile` is requested on PyTorch.

    Example:

    >>> captioner = Captioner.from_preset("flickr8k-soft")
    >>> caption = captioner.caption(np.zeros((300, 400, 3), "uint8"))
    >>> caption.weights.shape == (len(caption.words), 9, 9)
    True

    Options of the network that leave its weights as they are can be changed on loading,
    such as the image size, which sets the number of regions:

    >>> captioner = Captioner.from_preset("flickr8k-soft", image_size=224)
    >>> caption = captioner.caption(np.zeros((300, 400, 3), "uint8"))
    >>> caption.weights.shape[1:]
    (7, 7)
    """

    noun = "captioner"
    presets = PRESETS
    config_type = ModelConfig
    tokenizer_type = Vocabulary
    runtime_options = RUNTIME_OPTIONS

    @staticmethod
    def build_network(config, vocabulary_size):
        network = ShowAttendTell(config, vocabulary_size)
        network.build()
        return network

    def take_over(self, other):
        """Copy the weights of another captioner of the same sizes.

        The embeddings of words are found by the words, of which it may have others.
        """
        embeddings = self.network.embedding.embeddings
        pairs = zip(_lasting(self.network), _lasting(other.network), strict=True)
        for ours, theirs in pairs:
            if ours is not embeddings:
                ours.assign(theirs)
        rows = {word: row for row, word in enumerate(other.tokenizer.words)}
        known = [word in rows for word in self.tokenizer.words]
        rows = [rows.get(word, 0) for word in self.tokenizer.words]
        copied = keras.ops.take(other.network.embedding.embeddings, rows, axis=0)
        known = keras.ops.convert_to_tensor(known)[:, None]
        embeddings.assign(keras.ops.where(known, copied, embeddings))

    def caption(self, images, **options):
        """Caption one photograph or several.

        Args:
            images: One photograph, or a list of them: paths, raw bytes, Pillow
                images or arrays `(height, width, 3)`.
            **options: Those of `caption_each`, but `n_best`.

        Returns:
            A `Caption`, or a list of them for a list of photographs.

        Raises:
            ImageError: If a photograph cannot be read.
        """
        single = not isinstance(images, (list, tuple))
        best = []
        for _, captions in self.caption_each([images] if single else images, **options):
            if isinstance(captions, ImageError):
                raise captions
            best.append(captions[0])
        return best[0] if single else best

    def caption_each(
        self,
        images,
        *,
        beam_size=5,
        length_penalty=0.7,
        no_repeat_ngrams=3,
        batch_size=64,
        n_best=1,
        maps="weights",
    ):
        """Caption any number of photographs, a batch at a time.

        Args:
            images: Iterable of photographs, as for `caption`. Those of a list are read
                while the ones before them are captioned.
            beam_size: Hypotheses that are kept at every step; 1 is greedy search.
            length_penalty: Hypotheses are ranked by log-probability divided by
                `length ** length_penalty`.
            no_repeat_ngrams: No caption says so many words in a row twice; 0 lets it.
            batch_size: Photographs that are captioned together.
            n_best: Captions of a photograph, at most `beam_size`. There are fewer where
                the search finds fewer.
            maps: `"weights"`, or `"probabilities"`: what the attention maps show.
                They differ for hard attention, whose weights are the region that was
                chosen.

        Yields:
            Pairs of a photograph as it was given, in order, and the list of its
            `Caption`s, best first, or the `ImageError` that says why it could not be
            read.
        """
        check_n_best(n_best, beam_size)
        check_batch_size(batch_size)
        self.network.backbone.freeze()
        search_model = self.search_model(
            beam_size=beam_size,
            length_penalty=length_penalty,
            no_repeat_ngrams=no_repeat_ngrams,
            maps=maps,
        )
        # What else may come can depend on what is said of these.
        ahead = isinstance(images, Sequence)
        images = iter(images)
        readers = ThreadPoolExecutor(os.cpu_count())

        def following():
            batch = list(itertools.islice(images, batch_size))
            return batch, readers.map(self._read, batch)

        try:
            batch, read = following()
            while batch:
                read = list(read)
                coming = following() if ahead else None
                arrays = [x for x in read if not isinstance(x, ImageError)]
                captions = iter(())
                if arrays:
                    outputs = self._search(search_model, np.stack(arrays), batch_size)
                    captions = iter(self.captions_of(outputs, n_best))
                for image, result in zip(batch, read, strict=True):
                    failed = isinstance(result, ImageError)
                    yield image, result if failed else next(captions)
                batch, read = coming or following()
        finally:
            readers.shutdown(cancel_futures=True)

    def _read(self, image):
        """A photograph as an array, or the `ImageError` that says why it is none."""
        try:
            return image_to_array(read_image(image), self.config.image_size)
        except ImageError as error:
            return error

    def _search(self, search_model, images, batch_size):
        """Search for captions of an array of photographs, perhaps padded with more."""
        if self.jit_compile:
            rows = power_of_two(len(images), batch_size)
            images = np.resize(images, (rows, *images.shape[1:]))
        # Nor has XLA quick convolutions for CPUs.
        features = [
            self._cnn.predict_on_batch(images[first : first + CNN_BATCH])
            for first in range(0, len(images), CNN_BATCH)
        ]
        return search_model.predict_on_batch({"features": np.concatenate(features)})

    @functools.cached_property
    def _cnn(self):
        """The CNN alone as a Keras model."""
        return feature_model(self.network.backbone)

    def search_model(
        self, *, beam_size=5, length_penalty=0.7, no_repeat_ngrams=3, maps="weights"
    ):
        """Return the compiled beam search as a Keras model; see `SearchModel`."""
        search = functools.partial(
            beam_search,
            beam_size=beam_size,
            length_penalty=length_penalty,
            early_stopping=True,
        )
        # A word and the end.
        constraints = [MinLength(2)]
        if no_repeat_ngrams:
            constraints.append(NoRepeatNgrams(no_repeat_ngrams))
        return self._cached_search_model(
            (beam_size, length_penalty, no_repeat_ngrams, maps),
            search,
            self.config.max_tokens,
            constraints=constraints,
            step_options={"maps": maps},
        )

    def captions_of(self, outputs, n_best=1):
        """Return, for every photograph of a search, its best `Caption`s."""
        return [
            list(map(self._caption, found)) for found in hypotheses(outputs, n_best)
        ]

    def words_of(self, token_ids):
        """Return the words of one sequence of a search, `max_length` at most."""
        # The last position has room for END alone.
        return self.tokenizer.decode(token_ids[: self.config.max_length])

    def _caption(self, hypothesis):
        words = self.words_of(hypothesis.token_ids)
        backbone = self.network.backbone
        maps = hypothesis.weights[: len(words)]
        return Caption(
            text=detokenize(words),
            words=words,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            # A view would keep the maps of the whole batch in memory.
            weights=maps.reshape(-1, backbone.rows, backbone.columns).copy(),
        )


def _lasting(network):
    """The weights of a network, but those of its loss: soft attention has none."""
    of_loss = network.reinforce.weights if network.reinforce else []
    passing = {id(weight) for weight in of_loss}
    return [weight for weight in network.weights if id(weight) not in passing]
