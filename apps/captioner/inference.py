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
from keras_attention_apps.captioner.config import SHAPELESS, ModelConfig
from keras_attention_apps.captioner.features import feature_model
from keras_attention_apps.captioner.images import (
    ImageError,
    image_to_array,
    read_image,
)
from keras_attention_apps.captioner.model import CaptionSearch, ShowAttendTell
from keras_attention_apps.captioner.text import Vocabulary, detokenize
from keras_attention_apps.common import presets
from keras_attention_apps.common.compiling import (
    compiles,
    computing_in,
    power_of_two,
)
from keras_attention_apps.common.config import (
    check_batch_size,
    check_n_best,
    replaced,
)
from keras_attention_apps.common.files import (
    MODEL,
    atomic_folder,
    read_json,
    write_json,
)
from keras_attention_apps.common.presets import find_preset, loading, save_half

from keras_attention import beam_search

PRESETS = Path(__file__).parent / "presets"
WEIGHTS = "model.weights.h5"

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


# The `ModelConfig` of a preset by its name, or of a trained model by its folder.
read_config = functools.partial(
    presets.read_config, presets=PRESETS, kind=ModelConfig, what="captioner"
)


class Captioner:
    """Captions photographs and tells where it looked for every word.

    Args:
        config: The `ModelConfig` of the network.
        vocabulary: Its `Vocabulary`.
        network: The `ShowAttendTell`. Its CNN is frozen when the first photograph is
            captioned: what it learns later is not seen.
        jit_compile: Whether the search is compiled by XLA, as it always is on JAX. That
            takes seconds for every number of photographs in a batch, and is quicker
            from then on. So that these are few, batches are filled up to powers of two.

    Raises:
        UserError: If `jit_compile` is asked for on PyTorch.

    Example:

    >>> captioner = Captioner.from_preset("flickr8k-soft")
    >>> caption = captioner.caption(np.zeros((300, 400, 3), "uint8"))
    >>> caption.weights.shape == (len(caption.words), 9, 9)
    True
    """

    def __init__(self, config, vocabulary, network, *, jit_compile=False):
        self.config = config
        self.vocabulary = vocabulary
        self.network = network
        self.jit_compile = compiles(jit_compile)
        self._searches = {}

    @classmethod
    def from_preset(cls, name_or_path, *, jit_compile=False, precision=None, **changes):
        """Load a shipped preset by its name, or a model that was trained by its folder.

        Args:
            name_or_path: Name or folder.
            jit_compile: As of a `Captioner`.
            precision: Name of the Keras dtype policy to compute with, such as
                `"mixed_bfloat16"`; the one that is set if omitted.
            **changes: What is to be different from its `ModelConfig`, and changes none
                of its weights: see `SHAPELESS`. So `inference="expectation"` gives hard
                attention the mean of all regions, and `image_size=288` makes more of
                them.

        Raises:
            ValueError: If there is no such preset or folder, it is incomplete, or
                cannot be changed so.
        """
        folder = find_preset(name_or_path, PRESETS)
        config = replaced(read_config(name_or_path), changes, SHAPELESS)
        with loading(folder, "captioner"), computing_in(precision):
            vocabulary = Vocabulary(read_json(folder / "vocabulary.json"))
            network = ShowAttendTell(config, len(vocabulary))
            network.build()
            network.load_weights(folder / WEIGHTS)
        return cls(config, vocabulary, network, jit_compile=jit_compile)

    @property
    def kind(self):
        """What models share whose weights can be averaged."""
        return self.config, self.vocabulary.words

    def save(self, folder, **about):
        """Write the model as a folder that `from_preset` loads.

        Args:
            folder: Where to write; an older model there is replaced as a whole.
            **about: More entries for its `config.json`, such as how it was trained.
        """
        with atomic_folder(folder, MODEL) as temporary:
            model = dataclasses.asdict(self.config)
            write_json(temporary / "config.json", {"model": model, **about})
            write_json(temporary / "vocabulary.json", self.vocabulary.words[4:])
            save_half(self.network, temporary / WEIGHTS)

    def take_over(self, other):
        """Copy the weights of another captioner of the same sizes.

        The embeddings of words are found by the words, of which it may have others.
        """
        embeddings = self.network.embedding.embeddings
        pairs = zip(_lasting(self.network), _lasting(other.network), strict=True)
        for ours, theirs in pairs:
            if ours is not embeddings:
                ours.assign(theirs)
        rows = {word: row for row, word in enumerate(other.vocabulary.words)}
        known = [word in rows for word in self.vocabulary.words]
        rows = [rows.get(word, 0) for word in self.vocabulary.words]
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
        search = self.search(
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
                    found = self._found(search, np.stack(arrays), batch_size)
                    captions = iter(self.captions_of(found, n_best))
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

    def _found(self, search, images, batch_size):
        """What the search finds for an array of photographs, and perhaps a few more."""
        if self.jit_compile:
            rows = power_of_two(len(images), batch_size)
            images = np.resize(images, (rows, *images.shape[1:]))
        # Nor has XLA quick convolutions for CPUs.
        features = [
            self._cnn.predict_on_batch(images[first : first + CNN_BATCH])
            for first in range(0, len(images), CNN_BATCH)
        ]
        return search.predict_on_batch({"features": np.concatenate(features)})

    @functools.cached_property
    def _cnn(self):
        """The CNN alone as a Keras model."""
        return feature_model(self.network.backbone)

    def search(
        self, *, beam_size=5, length_penalty=0.7, no_repeat_ngrams=3, maps="weights"
    ):
        """The compiled search as a Keras model; see `CaptionSearch`."""
        key = (beam_size, length_penalty, no_repeat_ngrams, maps)
        if key not in self._searches:
            find = functools.partial(
                beam_search,
                beam_size=beam_size,
                length_penalty=length_penalty,
                no_repeat_ngrams=no_repeat_ngrams or None,
                early_stopping=True,
                # A word and the end.
                min_length=2,
            )
            self._searches[key] = CaptionSearch(
                self.network,
                self.config.max_length,
                find,
                maps=maps,
                jit_compile=self.jit_compile,
            )
        return self._searches[key]

    def captions_of(self, found, n_best=1):
        """For every photograph that a search returned, its best hypotheses."""
        found = {name: keras.ops.convert_to_numpy(x) for name, x in found.items()}
        return [
            [
                self._caption(found, row, rank)
                for rank in range(n_best)
                if rank == 0 or found["lengths"][row, rank]
            ]
            for row in range(len(found["token_ids"]))
        ]

    def words_of(self, token_ids):
        """The words of one caption that a search has found, `max_length` at most."""
        # Behind the largest number of words there is room for the end alone.
        return self.vocabulary.decode(token_ids[: self.config.max_length])

    def _caption(self, found, row, rank):
        words = self.words_of(found["token_ids"][row, rank])
        weights = found["weights"][row, rank, : len(words)]
        backbone = self.network.backbone
        return Caption(
            text=detokenize(words),
            words=words,
            score=float(found["scores"][row, rank]),
            log_probability=float(found["log_probs"][row, rank]),
            # A view would keep those of the whole batch.
            weights=weights.reshape(-1, backbone.rows, backbone.columns).copy(),
        )


def _lasting(network):
    """The weights of a network, but those of its loss: soft attention has none."""
    of_loss = network.reinforce.weights if network.reinforce else []
    passing = {id(weight) for weight in of_loss}
    return [weight for weight in network.weights if id(weight) not in passing]
