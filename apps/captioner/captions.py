"""Captions of images, whichever runtime computes them."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from keras_attention_apps.captioner.config import (
    PRESETS,
    CaptionSearchOptions,
    ImageSize,
    MaxLength,
    ModelConfig,
)
from keras_attention_apps.captioner.images import ImageError, read_array
from keras_attention_apps.captioner.text import Vocabulary, detokenize
from keras_attention_apps.common import models
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.hypotheses import (
    Described,
    Hypothesis,
    check_batch_size,
    check_n_best,
    check_several,
    hypotheses,
)
from keras_attention_apps.common.litert import LiteTask
from keras_attention_apps.common.options import Range
from keras_attention_apps.common.text import StoredTokenizer

# Attention maps that a search can return.
MAPS = ("weights", "probabilities")


@dataclasses.dataclass(frozen=True)
class Caption:
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
        unsure: Whether the mean log-probability is below the limit of the model's
            `Calibration`; `None` for a model without calibration.
    """

    text: str
    words: list[str]
    score: float
    log_probability: float
    mean_log_probability: float
    probabilities: list[float]
    weights: np.ndarray
    unsure: bool | None = None

    def details(self) -> dict[str, Any]:
        """Return everything as a dict that JSON can hold."""
        optional = {} if self.unsure is None else {"unsure": self.unsure}
        return {
            "caption": self.text,
            "score": round(self.score, 4),
            "words": self.words,
            "probabilities": [round(x, 4) for x in self.probabilities],
            "log_probability": round(self.log_probability, 4),
            "mean_log_probability": round(self.mean_log_probability, 4),
            "attention": self.weights.astype(float).round(4).tolist(),
            **optional,
        }


class BaseCaptioner(Described):
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
    search_options: Callable[..., dict[str, Any]]

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
        single = not isinstance(images, (list, tuple))
        best = []
        for _, captions in self.caption_each([images] if single else images, **options):
            if isinstance(captions, ImageError):
                raise captions
            best.append(captions[0])
        return best[0] if single else best

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
            **search: Options of the beam search: `beam_size` (5), where 1 is greedy
                search; `length_penalty` (0.7), which ranks hypotheses by
                log-probability / length ** penalty; `no_repeat_ngrams` (3), the length
                of n-grams that no caption repeats, where 0 disables n-gram blocking;
                `beam_groups` (1) and `diversity_penalty` (0.5) of diverse beam search.

        Yields:
            Pairs of an image as it was given, in order, and the list of its
            `Caption`s, best first, or the `ImageError` of an image that cannot be read.

        Raises:
            ValueError: If an option is out of range, or `images` is a single path.
        """
        if maps not in MAPS:
            raise UserError(f"maps must be {' or '.join(MAPS)}. Received: {maps!r}")
        search = self.search_options(**search)
        check_several(images)
        check_n_best(n_best, search)
        check_batch_size(batch_size)
        yield from self._caption_each(images, n_best, batch_size, maps, search)

    def _caption_each(self, images, n_best, batch_size, maps, search):
        """Caption images with checked options; `search` has all of the search."""
        raise NotImplementedError

    def captions_of(
        self, outputs: dict[str, Any], n_best: int = 1
    ) -> list[list[Caption]]:
        """Return, for every image of a search, its best `Caption`s."""
        found = hypotheses(outputs, n_best)
        return [list(map(self._caption, ranked)) for ranked in found]

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

    def _caption(self, hypothesis: Hypothesis) -> Caption:
        words = self.words_of(hypothesis.token_ids)
        maps = hypothesis.weights[: len(words)]
        caption = Caption(
            text=detokenize(words),
            words=words,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            mean_log_probability=hypothesis.log_probability / max(hypothesis.length, 1),
            probabilities=np.exp(
                hypothesis.token_log_probabilities[: len(words)]
            ).tolist(),
            # A view would keep the maps of the whole batch in memory.
            weights=maps.reshape(-1, *self.grid).copy(),
        )
        return self.marked(caption)


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
            found = self._run_search(run, signature, n_best, images=array[None])
            return list(map(self._caption, found))


def _on_keras():
    from keras_attention_apps.captioner.inference import Captioner

    return Captioner


RUNTIMES = models.Runtimes(_on_keras, LiteCaptioner)


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
