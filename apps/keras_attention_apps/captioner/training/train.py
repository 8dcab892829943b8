"""Training in three phases: decoder, fine-tuning, and self-critical training."""

import collections
import contextlib
import dataclasses
import functools
import html
import os
from operator import attrgetter, itemgetter
from os.path import basename, realpath
from pathlib import Path

import numpy as np

from keras_attention_apps.captioner.config import (
    RUNTIME_OPTIONS,
    TrainConfig,
    with_data_defaults,
)
from keras_attention_apps.captioner.data.batches import (
    WHOLE,
    TrainingBatches,
    cached_features,
    image_batches,
    random_views,
)
from keras_attention_apps.captioner.data.dataset import (
    CaptionedImage,
    check_directory,
    read_coco_captions,
    read_dataset,
    readable,
)
from keras_attention_apps.captioner.images import find_images, read_image
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.metrics import caption_scores
from keras_attention_apps.captioner.network.backbone import (
    SUFFIXES,
    build_application,
    find_application,
)
from keras_attention_apps.captioner.network.networks import LossOptions, build_network
from keras_attention_apps.captioner.overlays import photo_style, preview, word_tiles
from keras_attention_apps.captioner.training import self_critical
from keras_attention_apps.captioner.vocabulary import (
    SPECIAL,
    Vocabulary,
    repeatable_words,
    tokenize,
    words_after_an,
)
from keras_attention_apps.common import distribution
from keras_attention_apps.common.errors import UserError, counted
from keras_attention_apps.common.files import (
    check_distinct,
    opened,
    parse_json,
    resolved,
    utf8_lines,
)
from keras_attention_apps.common.models import short_digest
from keras_attention_apps.common.network.decoder_network import shape_multiple
from keras_attention_apps.common.schema import IMAGE
from keras_attention_apps.common.training import data_sets, runner
from keras_attention_apps.common.training.checkpoints import open_checkpoints
from keras_attention_apps.common.training.logs import check_tensorboard
from keras_attention_apps.common.training.report import Samples

# Longer side of an image in the report, in pixels.
SIDE = 400
_LOSS_OPTIONS = [field.name for field in dataclasses.fields(LossOptions)]
VALIDATION_BATCH = 50
# Maximum number of captions of other models that an image receives.
MAX_TEACHER_CAPTIONS = 3
# Maximum number of steps over which the EMA of the weights averages.
MAX_EMA_STEPS = 500


def train(config: TrainConfig):
    """Train a captioner; see `TrainConfig`. Returns the folder of the best model."""
    config = dataclasses.replace(
        config, data=tuple(map(resolved, config.data)), output=resolved(config.output)
    )
    data_sets.check_data_sets(config.data, config.data_weights)
    inputs = (*config.data, *config.teacher_captions, config.from_preset)
    inputs += (config.backbone_weights, config.unlabelled)
    runner.check_output(config.output, inputs)
    check_distinct(inputs, config.cache, whole=False)
    runner.check_epochs(
        config.epochs, config.fine_tune_epochs, config.self_critical_epochs
    )
    check_tensorboard(config.tensorboard)
    if config.self_critical_epochs != 0 and config.captions_per_image < 2:
        raise UserError(
            "captions_per_image must be at least 2 in self-critical training: the "
            "baseline of a sample is the mean reward of the other samples. "
            f"Received: {config.captions_per_image}"
        )
    _check_backbone(config)
    with distribution.training_context(config) as devices:
        return _train(config, devices)


def _check_backbone(config):
    """Raise a `UserError` for an unknown backbone, or weights that it cannot have."""
    weights = config.backbone_weights
    is_named = weights in ("imagenet", "none")
    if config.from_preset:
        if not is_named:
            raise UserError(
                "backbone_weights must not be set with from_preset, which has its own. "
                f"Received: {weights!r} and {config.from_preset!r}"
            )
        return
    if not (is_named or weights.endswith(SUFFIXES)):
        raise UserError(
            "backbone_weights must be imagenet, none, or the path of a file "
            f"{', '.join(SUFFIXES)}. Received: {weights!r}"
        )
    find_application(config.model.backbone)


def _train(config, devices):
    for directory in config.data:
        check_directory(directory)
    if config.backbone_weights == "imagenet" and not config.from_preset:
        # A download, or a package that is missing, is reported before data are read.
        print(f"Loading the ImageNet weights of {config.model.backbone}", flush=True)
        with _errors_of_weights(config):
            model = config.model
            build_application(model.backbone, model.image_size, "imagenet")
    data = _Data(config)
    texts = [text for image in data.training for text in image.captions]
    config = with_data_defaults(config, len(data.mixture), len(texts))
    vocabulary = Vocabulary.from_captions(texts, config.min_count)
    start = None
    if config.from_preset:
        config, start = _from_preset(config)
        vocabulary = start.tokenizer.extended(vocabulary)
    if len(vocabulary) == len(SPECIAL):
        raise UserError(
            f"no word in {' and '.join(map(str, config.data))} occurs "
            f"{config.min_count} times, so the vocabulary would be empty. Choose a "
            "smaller --min-count"
        )
    data_summary = f"{data.summary}; {len(vocabulary)} words"
    print(data_summary)
    _report_texts(texts, vocabulary, config)
    if config.supervision:
        _report_phrases(data.training)
    if config.teacher_captions:
        count = sum(len(image.teacher_captions) for image in data.training)
        print(f"{count} teacher captions")
    of_training = functools.partial(data.fingerprint, validation=False)
    checkpoints = open_checkpoints(
        config,
        start,
        # A preset has its own backbone.
        files=None if start else {"backbone_weights_file": config.backbone_weights},
        teacher_captions=of_training(attrgetter("teacher_captions")),
        text=data.fingerprint(attrgetter("path.name", "captions")),
        boxes=of_training(attrgetter("boxes")) if config.supervision else None,
    )
    model = dataclasses.replace(
        config.model,
        repeatable_words=repeatable_words(texts, vocabulary),
        words_after_an=words_after_an(texts, vocabulary),
    )
    config = dataclasses.replace(config, model=model)
    captioner = Captioner(model, vocabulary, _build(config, len(vocabulary)))
    if start:
        captioner.copy_weights(start)
    training = CaptionTraining(
        config, captioner, data, checkpoints, devices, data_summary
    )
    return training.run()


class _Data:
    """The images of a training; `parts` has the slice of each validation set."""

    def __init__(self, config):
        self.training: list[CaptionedImage] = []
        self.validation: list[CaptionedImage] = []
        self.parts: dict[str, slice] = {}
        sizes, lines = [], {}
        names = data_sets.names_of(config.data)
        for name, directory in zip(names, config.data, strict=True):
            training, validation = (
                readable(read_dataset(directory, split), config.max_unreadable)
                for split in ("train", "dev")
            )
            count = sum(len(image.captions) for image in training)
            lines[name] = (
                f"{len(training)} images with {count} captions, "
                f"{data_sets.validation_summary(len(validation), 'image')}"
            )
            begin = len(self.validation)
            self.parts[name] = slice(begin, begin + len(validation))
            sizes.append(len(training))
            self.training += training
            self.validation += validation
        self.mixture = self.labelled = data_sets.Mixture(sizes, config.data_weights)
        unlabelled: list[CaptionedImage] = []
        if config.unlabelled is not None:
            paths, _ = find_images(config.unlabelled)
            unlabelled = [CaptionedImage(path, (), path.stem) for path in paths]
        if config.teacher_captions:
            images = [*self.training, *unlabelled]
            taught = with_teacher_captions(images, config.teacher_captions)
            count = len(self.training)
            self.training, unlabelled = taught[:count], taught[count:]
        unlabelled = [image for image in unlabelled if image.teacher_captions]
        if config.unlabelled is not None:
            if not unlabelled:
                raise UserError(
                    "unlabelled needs teacher_captions of its images. Received: none "
                    f"of an image in {config.unlabelled}"
                )
            unlabelled = readable(unlabelled, config.max_unreadable)
            total = f"{counted(len(unlabelled), 'image')} with captions of a teacher"
            lines[f"{config.unlabelled.name}, unlabelled"] = total
            # These are the last ones, which the mixture of the others never draws.
            weights = config.data_weights or [1.0] * len(sizes)
            self.training += unlabelled
            self.mixture = data_sets.Mixture(
                [*sizes, len(unlabelled)], [*weights, config.unlabelled_weight]
            )
        self.summary = data_sets.summary_of(lines)

    def fingerprint(self, key, *, validation=True):
        """Return a line with a digest of `key(image)` over the images."""
        splits = self.mixture.split(self.training)
        if validation:
            splits += [self.validation[part] for part in self.parts.values()]
        counts = " and ".join(str(len(images)) for images in splits)
        digest = short_digest([[key(image) for image in x] for x in splits])
        return f"{counts} images, {digest}"


def _from_preset(config):
    """Return the `TrainConfig` with the preset's model, and the `Captioner` itself."""
    start, model = Captioner.load_for_fine_tuning(
        config.from_preset, config.model, image_size=config.model.image_size
    )
    # These words are hundreds, and come from the captions of the data.
    words = ("repeatable_words", "words_after_an")
    names = [name for name in RUNTIME_OPTIONS if name not in words]
    options = (f"{name} {getattr(model, name)}" for name in names)
    print(f"Fine-tuning {config.from_preset} with {', '.join(options)}")
    return dataclasses.replace(config, model=model, backbone_weights="none"), start


def _build(config, vocabulary_size):
    """Build the network with its initial weights."""
    start = config.backbone_weights
    with _errors_of_weights(config):
        return build_network(
            config.model,
            vocabulary_size,
            backbone_weights=None if start == "none" else start,
            sample_temperature=config.self_critical_temperature,
            **{name: getattr(config, name) for name in _LOSS_OPTIONS},
        )


@contextlib.contextmanager
def _errors_of_weights(config):
    """Turn all errors of downloads and files into a `UserError`, in the context."""
    try:
        yield
    except UserError:
        raise
    # They may raise any type of exception.
    except Exception as error:
        raise UserError(
            f"the weights {config.backbone_weights!r} of {config.model.backbone} "
            f"cannot be loaded: {' '.join(str(error).split())}"
        ) from error


class CaptionTraining(runner.Training):
    """The three phases of a training, and the data that they share."""

    task: Captioner

    def __init__(self, config, captioner, data, checkpoints, devices, data_summary):
        metric = config.validation_metric
        sizes = [part.stop - part.start for part in data.parts.values()]
        if metric == "cider" and min(sizes) == 1:
            # BLEU-4 is mostly 0, too.
            print("CIDEr needs several images: the best epoch is chosen by ROUGE-L")
            metric = "rouge-l"
        super().__init__(
            config,
            captioner,
            checkpoints,
            metric=metric,
            rank=itemgetter(metric),
            samples=Samples(data.validation, _head, word_tiles, _style),
            title=f"Training of a captioner with {config.model.attention} attention",
            data_summary=data_summary,
            options=runner.training_options(config, private=("data", "cache")),
        )
        self.devices = devices
        self.data = data
        self.training = data.training
        self.validation = data.validation
        texts = [(*image.captions, *image.teacher_captions) for image in self.training]
        encode, max_length = captioner.tokenizer.encode, config.model.max_length
        self.token_ids = [
            [encode(x, max_length) for x in captions] for captions in texts
        ]

    def phases(self):
        return self.train_decoder, self.fine_tune, self.self_critical

    def validate(self):
        # As in the first phase: on JAX, a change would compile the search again.
        self.network.backbone.trainable = False
        return self._validate(self._validation_features("frozen"))

    def train_decoder(self):
        """Train the decoder on features of the frozen CNN, which are computed once."""
        config = self.config
        if not config.epochs:
            return
        self.network.backbone.trainable = False
        self._fit_captions(
            "Training of the decoder",
            self._training_features("frozen"),
            self._validation_features("frozen"),
            config.epochs,
            config.learning_rate,
        )

    def fine_tune(self):
        """Fine-tune the upper layers of the CNN, with the decoder."""
        config, backbone = self.config, self.network.backbone
        if not config.fine_tune_epochs:
            return
        size = config.model.image_size
        self._load_best(config.fine_tune_dropout)
        backbone.unfreeze(config.fine_tune_share)
        paths = [image.path for image in self.validation]
        self._fit_captions(
            "Fine-tuning",
            {"paths": [image.path for image in self.training], "image_size": size},
            lambda: (
                {"images": x} for x in image_batches(paths, size, VALIDATION_BATCH)
            ),
            config.fine_tune_epochs,
            config.fine_tune_learning_rate,
        )

    def self_critical(self):
        """Train the decoder by self-critical training."""
        config = self.config
        if not config.self_critical_epochs:
            return
        # Samples are drawn without dropout, so the gradient is computed without it.
        self._load_best(dropout_rate=0.0)
        self.network.backbone.trainable = False
        features = self._training_features("tuned")["features"]
        validation_batches = self._validation_features("tuned")
        references = [x.captions for x in self.training if x.captions]
        cider = self_critical.CiderReward(references)
        bleu = self_critical.BleuReward(references)
        batches = self_critical.SelfCriticalCaptions(
            self.task,
            features,
            lambda *x: cider(*x) + config.self_critical_bleu * bleu(*x),
            mixture=self.data.labelled,
            batch_images=config.batch_images,
            samples=config.captions_per_image,
            devices=self.devices,
            seed=config.seed,
        )
        self._fit(
            "Self-critical training",
            batches,
            validation_batches,
            config.self_critical_epochs,
            config.self_critical_learning_rate,
        )

    def _training_features(self, state):
        """Return features of several views of the training images, and the views."""
        count = len(self.training)
        views = [[WHOLE] * count]
        for number in range(1, self.config.frozen_views):
            random = np.random.default_rng((self.config.seed, number))
            views.append(random_views(count, random))
        features = [
            self._features(self.training, f"{state}-train-{number}", views=view)
            for number, view in enumerate(views)
        ]
        return {"features": features, "views": views}

    def _validation_features(self, state):
        """Return a function that yields batches of the dev images."""
        features = self._features(self.validation, f"{state}-dev")
        begins = range(0, len(features), VALIDATION_BATCH)
        return lambda: (
            {"features": features[x : x + VALIDATION_BATCH]} for x in begins
        )

    def _features(self, images, name, **options):
        """Return the features of images by the CNN; see `cached_features`."""
        home = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
        cache = self.config.cache or home / "captioner"
        paths = [image.path for image in images]
        backbone = self.network.backbone
        return cached_features(backbone, paths, cache, name=name, **options)

    def _load_best(self, dropout_rate):
        """Load the best model so far, and set the dropout rate of a phase."""
        self.load_best()
        for layer in self.network.dropouts:
            layer.rate = dropout_rate

    def _fit_captions(self, title, source, validation_batches, epochs, learning_rate):
        """Train by teacher forcing on the captions of the data."""
        config, progress = self.config, self.progress
        boxes = None
        if config.supervision:
            boxes = [self._boxes(image) for image in self.training]
            if not any(boxes):
                raise UserError(
                    "supervision needs images with boxes of words in their "
                    "captions. Received: none in "
                    f"{' and '.join(map(str, config.data))}"
                )
        batches = TrainingBatches(
            self.token_ids,
            mixture=self.data.mixture,
            **source,
            augment=config.augment,
            boxes=boxes,
            grid=self.task.grid,
            batch_images=config.batch_images,
            captions_per_image=config.captions_per_image,
            multiple=self.devices,
            seed=config.seed + progress.phase,
            epoch=progress.epoch,
        )
        self._fit(title, batches, validation_batches, epochs, learning_rate)

    def _fit(self, title, batches, validation_batches, epochs, learning_rate):
        steps = len(batches)
        self.fit(
            title,
            batches,
            lambda: self._validate(validation_batches),
            epochs=epochs,
            learning_rate=learning_rate,
            warm_up=steps,
            ema_momentum=runner.ema_momentum(
                self.config.ema_momentum, steps, MAX_EMA_STEPS
            ),
        )

    def _boxes(self, image):
        """Return a dict from the token ids of words to boxes of an image."""
        vocabulary = self.task.tokenizer
        return {
            vocabulary.encode(word, 2)[1]: boxes
            for word, boxes in image.boxes.items()
            if word in vocabulary
        }

    def _validate(self, validation_batches):
        beam_size = self.config.validation_beam_size
        search_model = self.task.search_model(beam_size=beam_size)
        captions = []
        multiple = shape_multiple(VALIDATION_BATCH)
        for batch in validation_batches():
            outputs = distribution.predict_rows(search_model, batch, multiple)
            captions += [x for [x] in self.task.captions_of(outputs)]
        references = [image.captions for image in self.validation]
        parts = self.data.parts
        scores = self.scored(self.task, captions, references, parts, caption_scores)
        texts = {caption.text for caption in captions}
        if len(captions) > 1 and len(texts) == 1:
            print(f"All images have the same caption: {captions[0].text!r}")
        return scores


def with_teacher_captions(images, files):
    """Return training images with captions of other models.

    Each image receives at most three new captions, best first: those with the highest
    CIDEr-D against its own captions. An image without captions receives the first three
    in the files that are not marked as unsure.

    Reference: [Kim and Rush, 2016](https://arxiv.org/abs/1606.07947).
    """
    candidates = _candidates(images, files)
    reward = self_critical.CiderReward([image.captions for image in images])
    taught = []
    for index, image in enumerate(images):
        known = {tuple(tokenize(text)) for text in image.captions}
        texts = candidates[index]
        if image.captions:
            texts = sorted(texts)
        else:
            texts = [text for text, is_unsure in texts.items() if not is_unsure]
        new = {tuple(tokenize(text)): text for text in texts}
        ranked = [words for words in new if words and words not in known]
        if image.captions:
            ranked.sort(key=lambda words: (-reward(words, index), words))
        best = tuple(new[words] for words in ranked[:MAX_TEACHER_CAPTIONS])
        taught.append(dataclasses.replace(image, teacher_captions=best))
    return taught


def _candidates(images, files):
    """Return a dict from the captions of every image to whether they are unsure."""
    candidates: list[dict[str, bool]] = [{} for _ in images]
    by_name = collections.defaultdict(list)
    for index, image in enumerate(images):
        by_name[image.path.name].append(index)
    for path in files:
        has_caption = False
        for photo, captions in _read_captions(path):
            same_name = by_name.get(basename(photo), [])
            for index in same_name:
                # If several images have the same name, their paths must be equal.
                image = str(images[index].path)
                if len(same_name) == 1 or realpath(image) == realpath(photo):
                    candidates[index] |= captions
                    has_caption |= bool(captions)
        if not has_caption:
            raise UserError(f"{path} has no caption of a training image")
    return candidates


def _read_captions(path):
    """Yield the path of every image in a file, and a dict as `_candidates` returns.

    A file whose name ends in .json has the format of COCO, others have JSON lines.
    """
    if path.suffix == ".json":
        for name, captions in read_coco_captions(path):
            yield str(name), dict.fromkeys(filter(None, captions), False)
        return
    with opened(path) as stream:
        for number, line in enumerate(utf8_lines(stream, path), 1):
            if not line.strip():
                continue
            try:
                entry = parse_json(line)
                entries = entry.get("captions", [entry])
                texts = {
                    x["caption"]: bool(x.get("unsure"))
                    for x in entries
                    if x.get("caption")
                }
                image = entry[IMAGE]
                if not all(isinstance(text, str) for text in (image, *texts)):
                    raise TypeError
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise UserError(
                    f"{path}, line {number}: expected a JSON object with {IMAGE!r} and "
                    f"'caption' or 'captions', from captioner caption --output. "
                    f"Received: {line[:60]!r}"
                ) from error
            yield image, texts


def _report_texts(texts, vocabulary, config):
    """Print the share of unknown words, and how many captions are cut."""
    captions = [tokenize(text) for text in texts]
    words = [word for caption in captions for word in caption]
    unknown = sum(word not in vocabulary for word in words)
    if unknown:
        print(
            f"{unknown / len(words):.1%} of the words occur fewer than "
            f"{config.min_count} times and are unknown; --min-count 1 keeps all words"
        )
    max_length = config.model.max_length
    cut = sum(len(caption) >= max_length for caption in captions)
    if cut:
        print(
            f"{counted(cut, 'caption')} cut to {counted(max_length - 1, 'word')}; "
            "--model.max-length allows more"
        )


def _report_phrases(images):
    """Print how many box names are phrases, which match no single word."""
    names = {name for image in images for name in image.boxes}
    phrases = sorted(name for name in names if " " in name)
    if phrases:
        print(
            f"{len(phrases)} of {len(names)} box names are phrases, the first "
            f"{phrases[0]!r}: only single words supervise the attention"
        )


def _head(image):
    """Return a photograph and its references as HTML of the report."""
    references = "".join(
        f'<li dir="auto">{html.escape(text)}</li>' for text in image.captions
    )
    name = html.escape(image.path.name)
    return (
        f'<div class="head"><div class="photo" role="img" aria-label="{name}">'
        f'</div><ul aria-label="References">{references}</ul></div>'
    )


def _style(image):
    return photo_style(*preview(read_image(image.path), SIDE))
