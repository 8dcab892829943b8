"""Captions of images, whichever runtime computes them."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from keras_attention_apps.captioner import confidence_features
from keras_attention_apps.captioner.config import (
    PRESETS,
    CaptionSearchOptions,
    ImageSize,
    MaxLength,
    ModelConfig,
)
from keras_attention_apps.captioner.images import ImageError, read_array
from keras_attention_apps.captioner.overlays import notebook_figure
from keras_attention_apps.captioner.vocabulary import Vocabulary, detokenize
from keras_attention_apps.common import models
from keras_attention_apps.common.confidence import Features
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.inference import Hypothesis, Predictor, hypotheses
from keras_attention_apps.common.litert import LiteTask
from keras_attention_apps.common.options import Range
from keras_attention_apps.common.schema import CAPTION, Output
from keras_attention_apps.common.tokenizer import StoredTokenizer
from keras_attention_apps.common.web import markup

# Attention maps that a search can return.
MAPS = ("weights", "probabilities")


@dataclasses.dataclass(frozen=True)
class Caption(Output):
    """A caption of one image.

    Attributes:
        text: The caption.
        words: Its words.
        score: Score by which captions are ranked.
        log_probability: Natural logarithm of the caption's probability.
        mean_log_probability: Mean over the words and the end token. The larger it is,
            the more confident the model is.
        probabilities: Probability of each word, given those before it.
        weights: Attention maps `(len(words), rows, columns)`. Each map sums to one.
        confidence: Probability that the caption is usable; `None` for a model without
            `Confidence`.
        unsure: Whether the caption is probably not usable; `None` for a model without
            calibration.
        reason: Why it is unsure, in a few words; otherwise `None`.
        doubtful: Indices of the words that are probably wrong.
        features: The features of its `confidence`.
        image: The image as it was given to `caption`, for notebooks; otherwise `None`.
    """

    text: str
    words: list[str]
    score: float
    log_probability: float
    mean_log_probability: float
    probabilities: list[float]
    weights: np.ndarray
    confidence: float | None = None
    unsure: bool | None = None
    reason: str | None = None
    doubtful: list[int] = dataclasses.field(default_factory=list)
    features: Features | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    image: Any = dataclasses.field(default=None, repr=False, compare=False)

    schema: ClassVar = CAPTION
    noun: ClassVar = "caption"

    def _repr_html_(self) -> str:
        """Return the caption for a notebook: words that show their maps."""
        return markup.notebook_output(notebook_figure, self)

    @property
    def word_probabilities(self) -> list[float]:
        """The same as `probabilities`, under the name that translations have."""
        return self.probabilities


class BaseCaptioner(Predictor):
    """Captions images, with the attention map of every word.

    Subclasses set the attributes and implement `_caption_each`. They also inherit from
    `Task` or `LiteTask`, which implement `search_options`.

    Attributes:
        tokenizer: The `Vocabulary`.
        image_size: Images are resized to a square of this side in pixels.
        max_length: Maximum number of words of a caption, END included.
        grid: Numbers of rows and columns of the regions.
    """

    noun = "captioner"
    presets = PRESETS
    tokenizer_type: type[StoredTokenizer] = Vocabulary
    tokenizer: Vocabulary
    image_size: int
    max_length: int
    grid: Sequence[int]

    def caption(self, images: Any, **options: Any) -> Caption | list[Caption]:
        """Caption one image or several.

        Args:
            images: One image, or a list of them: paths, raw bytes, Pillow
                images or arrays `(height, width, 3)`.
            **options: Options of `caption_each`, except `n_best`.

        Returns:
            A `Caption`, or a list of them for a list of images.

        Raises:
            ImageError: If an image cannot be read.
        """
        if isinstance(images, (list, tuple)):
            pairs = zip(images, self.best(images, False, **options), strict=True)
            return [dataclasses.replace(x, image=image) for image, x in pairs]
        caption = self.best(images, True, **options)
        return dataclasses.replace(caption, image=images)

    def each(self, inputs, **options):
        return (captions for _, captions in self.caption_each(inputs, **options))

    def caption_each(
        self,
        images: Iterable[Any],
        *,
        n_best: int = 1,
        batch_size: int = 64,
        maps: str = "weights",
        **search: Any,
    ) -> Iterator[tuple[Any, list[Caption] | ImageError]]:
        """Caption any number of images.

        Args:
            images: Iterable of images, as for `caption`. The images of a list are read
                ahead, while those before them are captioned.
            n_best: Captions of an image, at most the beam width. There are fewer where
                the search finds fewer.
            batch_size: Batch size, in images.
            maps: Attention maps to return: `"weights"`, or `"probabilities"`. They
                differ for hard attention, whose weights are one-hot.
            **search: Options of the beam search, `CaptionSearchOptions`: `beam_size`,
                where 1 is greedy search; `length_penalty`, which ranks hypotheses by
                log-probability / length ** penalty; `no_repeat_ngrams`, the length of
                n-grams that no caption repeats, where 0 disables n-gram blocking;
                `beam_groups` and `diversity_penalty` of diverse beam search.

        Yields:
            Pairs of an image as it was given, in order, and the list of its
            `Caption`s, best first, or the `ImageError` of an image that cannot be read.

        Raises:
            ValueError: If an option is out of range, or `images` is a single path.
        """
        if maps not in MAPS:
            raise UserError(f"maps must be {' or '.join(MAPS)}. Received: {maps!r}")
        search = self.checked_search(images, n_best, batch_size, search)
        yield from self._caption_each(images, n_best, batch_size, maps, search)

    def _caption_each(self, images, n_best, batch_size, maps, search):
        """Caption images with checked options; `search` has all of the search."""
        raise NotImplementedError

    def captions_of(
        self,
        outputs: dict[str, Any],
        n_best: int = 1,
        images: Iterable[np.ndarray | None] = (),
    ) -> list[list[Caption]]:
        """Return, for every image of a search, its best `Caption`s.

        `images` are the arrays of the images; without them, a caption is not marked by
        what its image shows.
        """
        beam_size = np.shape(outputs["scores"])[1]
        pairs = itertools.zip_longest(hypotheses(outputs, beam_size), images)
        return [self._ranked(ranked, image, n_best) for ranked, image in pairs]

    def _ranked(
        self, ranked: list[Hypothesis], image: np.ndarray | None, n_best: int
    ) -> list[Caption]:
        """Return the best captions of an image from all hypotheses of its search."""
        features = {} if image is None else confidence_features.image_features(image)
        # Hypotheses that differed in an article may be the same caption.
        distinct: dict[bytes, Hypothesis] = {}
        for hypothesis in ranked:
            distinct.setdefault(hypothesis.token_ids.tobytes(), hypothesis)
        best = [*distinct.values()][:n_best]
        return [self._caption(x, ranked, features) for x in best]

    def words_of(self, token_ids: np.ndarray) -> list[str]:
        """Return the words of one sequence of a search."""
        # The last position has room for END alone.
        return self.tokenizer.decode(token_ids[: self.max_length - 1])

    def _read(self, image: Any) -> np.ndarray | ImageError:
        """Read an image as an array, or return the `ImageError`."""
        try:
            return read_array(image, self.image_size)
        except ImageError as error:
            return error

    def _caption(
        self, hypothesis: Hypothesis, ranked: list[Hypothesis], image: Features
    ) -> Caption:
        """Return the caption of one of the `ranked` hypotheses of an image.

        `image` are the features of the image.
        """
        words = self.words_of(hypothesis.token_ids)
        maps = hypothesis.weights[: len(words)]
        caption = Caption(
            text=detokenize(words),
            words=words,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            mean_log_probability=hypothesis.mean_log_probability,
            probabilities=np.exp(
                hypothesis.token_log_probabilities[: len(words)]
            ).tolist(),
            # A view would keep the maps of the whole batch in memory.
            weights=maps.reshape(-1, *self.grid).copy(),
        )
        token_ids = hypothesis.token_ids[: len(words)].tolist()
        features = confidence_features.features_of(token_ids, hypothesis, ranked)
        return self.marked(caption, {**features, **image})

    def marked(self, output, features=None):
        return confidence_features.with_doubts(
            super().marked(output, features), self.confidence
        )


@dataclasses.dataclass(frozen=True)
class LiteMetadata:
    """The metadata of a LiteRT file; see the attributes of `BaseCaptioner`."""

    image_size: ImageSize
    max_length: MaxLength
    grid: list[Annotated[int, Range(1, 4096)]]
    maps: list[Literal["weights", "probabilities"]]


class LiteCaptioner(LiteTask, BaseCaptioner):
    """Captions images with a LiteRT file, without Keras or TensorFlow.

    It starts in a fraction of a second. The options of the search are those with which
    the file was exported. `caption` and `caption_each` are those of `Captioner`.
    Several images are captioned in parallel, each in a thread.

    Args:
        path: Name of an exported file.
        threads: Number of threads; by default one per processor.
    """

    search_type = CaptionSearchOptions
    metadata_type = LiteMetadata
    tokenizer: Vocabulary
    maps: list[str]

    def _caption_each(self, images, n_best, batch_size, maps, search):
        # Soft attention has one signature, as its weights are the probabilities.
        signature = maps if maps in self.maps else "weights"
        # A generator may produce its next image from the captions of those before.
        if isinstance(images, Sequence) and len(images) > 1:
            run = self.runtime.in_parallel
            yield from self.in_parallel(
                lambda image: self._caption_one(image, run, signature, n_best), images
            )
        else:
            for image in images:
                yield image, self._caption_one(image, self.runtime, signature, n_best)

    def _caption_one(self, image, run, signature, n_best):
        """Return the captions of an image, or the `ImageError`."""
        array = self._read(image)
        if isinstance(array, ImageError):
            return array
        with models.loading(self.path, self.noun):
            beam_size = self.search["beam_size"]
            ranked = self._run_search(run, signature, beam_size, images=array[None])
            return self._ranked(ranked, array, n_best)


def member_configs(model: str) -> list[ModelConfig]:
    """Return the `ModelConfig` of each model of a captioner, without Keras."""
    folders = models.member_folders(model, presets=PRESETS, noun="captioner")
    return [models.read_config(x, kind=ModelConfig, noun="captioner") for x in folders]


def check_inference(chosen):
    """Raise a `UserError` if `--inference` of a `ChosenModel` would have no effect.

    A LiteRT file is not checked here: loading it raises the error.
    """
    if chosen.inference is None or is_litert(chosen.name):
        return
    kinds = sorted({config.attention for config in member_configs(chosen.name)})
    if "hard" not in kinds:
        raise UserError(
            "--inference needs a model with hard attention. Received: "
            f"{chosen.name!r}, with {' and '.join(kinds)} attention"
        )
