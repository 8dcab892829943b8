"""All options of the translator, with their defaults."""

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import (
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
    Length,
    LengthRatio,
    LogProbability,
    ModelName,
    Momentum,
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
    Weight,
)
from tyro.conf import Positional

PRESETS = Path(__file__).parent / "presets"
# Preset that commands use unless another model is given.
DEFAULT_MODEL = "tatoeba-multi30k-en-de"

# Minimum length of a translation relative to its source.
MinLengthRatio = Annotated[float, Range(0, 1000)]


@dataclasses.dataclass(frozen=True)
class TranslationSearchOptions(SearchOptions):
    """Options of the beam search. A LiteRT file has its own, which are fixed."""

    defaults: ClassVar = {**SearchOptions.defaults, "min_length_ratio": 0.0}

    #: Minimum length of a translation relative to its source, in subwords; never more
    #: than the maximum length of the model.
    min_length_ratio: Rare[MinLengthRatio | None] = None
    #: Maximum length of a translation relative to its source, in subwords. By default a
    #: translation has about r * (source length + 5) subwords at most; r is the length
    #: ratio of the model.
    max_length_ratio: Rare[LengthRatio | None] = None

    @property
    def complete(self):
        least, largest = self.min_length_ratio, self.max_length_ratio
        if least is not None and largest is not None and least > largest:
            raise UserError(
                f"min_length_ratio must be at most max_length_ratio, {largest}. "
                f"Received: {least}"
            )
        return super().complete


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Configuration of the network, saved with its weights.

    Unless given, the numbers of units and layers and the dropout rate of the embeddings
    are those of the recipe of the attention.
    """

    #: Architecture of the encoder and the decoder. By default that of the attention.
    decoder: Annotated[
        Literal["recurrent", "transformer"] | None,
        tyro.conf.arg(aliases=["--decoder"], help_behavior_hint="(default: recurrent)"),
    ] = None
    #: Kind of attention. bahdanau: a bidirectional GRU encoder, and a GRU decoder whose
    #: previous state is the query. luong: LSTMs, with the current state as the query.
    #: none: as bahdanau, but without attention: the source is encoded as a single
    #: vector. self-attention: that of the transformer, which has no other.
    attention: Annotated[
        Literal["bahdanau", "luong", "self-attention", "none"] | None,
        tyro.conf.arg(
            aliases=["--attention"],
            help_behavior_hint="(default: bahdanau, or self-attention for transformer)",
        ),
    ] = None
    #: Depth of the embeddings; for the transformer, also of all layers.
    embedding_units: Units | None = None
    #: Units of the recurrent decoder, or of the feed-forward layers.
    units: Units | None = None
    #: Units of the recurrent encoder, in each direction.
    encoder_units: Rare[Annotated[int, Range(0, MAX_UNITS)] | None] = None
    #: Layers of the encoder.
    encoder_layers: Layers | None = None
    #: Layers of the decoder.
    decoder_layers: Layers | None = None
    #: Depth of the hidden layer of additive and concat scores.
    attention_units: Rare[Units] = 256
    #: Score of luong; dot needs equal depths of encoder and decoder.
    score: Rare[Literal["dot", "general", "concat"]] = "general"
    #: Window of luong: global, local-m (monotonic) or local-p (predictive).
    window: Rare[Literal["global", "local-m", "local-p"]] = "global"
    #: Half width of a local window: positions on either side of its centre.
    half_width: Rare[Length] = 10
    #: Whether luong has input feeding: the previous attentional vector is an input of
    #: the cell.
    input_feeding: Rare[bool] = True
    #: Number of heads of the transformer.
    heads: Rare[Units] = 4
    #: Dropout rate of the embeddings, and between the layers of a recurrent encoder;
    #: in the transformer, also of every sublayer.
    dropout: Dropout | None = None
    #: Dropout rate of the encoder outputs that a recurrent decoder attends to.
    context_dropout: Rare[Dropout] = 0.2
    #: Dropout rate before the output layer of a recurrent decoder.
    output_dropout: Rare[Dropout] = 0.2
    #: Whether the network can copy words of the source, such as names and numbers that
    #: are not in the training text.
    copy: Annotated[bool, tyro.conf.arg(aliases=["--copy"])] = False
    #: Maximum number of subwords in a sentence, the end token included.
    max_length: Rare[Length] = 128
    #: Maximum length of a translation relative to its source, in subwords; by default
    #: measured on the training text.
    length_ratio: Rare[LengthRatio | None] = None

    def __post_init__(self):
        # The only way to set an attribute of a frozen dataclass.
        if self.attention is None and self.decoder == "transformer":
            object.__setattr__(self, "attention", "self-attention")
        if self.attention is not None and self.decoder is None:
            object.__setattr__(self, "decoder", DECODERS[self.attention])

    @property
    def extra_ids(self):
        """Number of extended ids.

        It is the maximum number of words in a sentence that have several subwords.
        """
        return self.max_length // 2 if self.copy else 0

    def fewest_weights(self, vocabulary_size):
        """Return a lower bound of the number of weights, without building them."""
        sizes = dataclasses.asdict(self)
        missing = [x for x in ("attention", *_RECIPE) if sizes.get(x, 0) is None]
        if missing:
            raise UserError(f"{missing[0]} is missing")
        depth, units = sizes["embedding_units"], sizes["units"]
        layers = sizes["encoder_layers"], sizes["decoder_layers"]
        if self.decoder == "transformer":
            stacks = sum(layers) * depth * (4 * depth + 2 * units)
        else:
            encoder_units = sizes["encoder_units"]
            stacks = 3 * (layers[0] * encoder_units**2 + layers[1] * units**2)
            if self.attention != "luong" or self.score == "concat":
                stacks += self.attention_units * (units + encoder_units)
        return stacks + vocabulary_size * depth


# Architecture of each kind of attention.
DECODERS = {
    **dict.fromkeys(("bahdanau", "luong", "none"), "recurrent"),
    "self-attention": "transformer",
}


def _of(*kinds):
    """Return the requirement of an option of some kinds of attention."""
    return f"--attention {' or '.join(kinds)}", lambda model: model.attention in kinds


# Options that have an effect only together with others; see `check_needs`.
TRAINING_NEEDS = dict.fromkeys(
    ("reverse_model", "monolingual_weight", "back_translation_temperature"),
    ("--monolingual", lambda config: config.monolingual),
)
# Options that some networks ignore.
MODEL_NEEDS = {
    **dict.fromkeys(
        ("encoder_units", "context_dropout", "output_dropout"),
        ("--decoder recurrent", lambda model: model.decoder == "recurrent"),
    ),
    **dict.fromkeys(("score", "window", "input_feeding"), _of("luong")),
    "heads": ("--decoder transformer", lambda model: model.decoder == "transformer"),
    "half_width": (
        "--attention luong with a local window",
        lambda model: model.attention == "luong" and model.window != "global",
    ),
    "attention_units": (
        "--attention bahdanau or none, or luong with the score concat",
        lambda model: (
            model.attention in ("bahdanau", "none")
            or (model.attention == "luong" and model.score == "concat")
        ),
    ),
}

# Options of a model that do not change its weights.
RUNTIME_OPTIONS = ("dropout", "context_dropout", "output_dropout", "length_ratio")


@dataclasses.dataclass(frozen=True)
class TranslationTrainingOptions:
    """Options of the training of a translator."""

    #: Output folder for the best model, the checkpoints and the report (report.html).
    output: Path
    #: Source text: a file with one sentence per line.
    source: Path | None = None
    #: Target text: a file with one translation per line.
    target: Path | None = None
    #: Source text of the validation set. By default, a tenth of the training pairs is
    #: held out, at most 1,000.
    valid_source: Path | None = None
    #: Target text of the validation set.
    valid_target: Path | None = None
    #: Folder with files such as train.en, train.de, val.en and val.de, instead of the
    #: options for single files. Given several times, the model learns from all of them
    #: together. At least one of them needs validation files; the best epoch has the
    #: highest mean of the metric over those that do.
    data: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    #: Language pair, with --data: the suffixes of source and target, such as en-de.
    pair: str | None = None
    #: Monolingual text of the target language, one sentence per line, which the model
    #: of --reverse-model translates back into the source language before the training.
    #: The back-translations join the training pairs, with a tag before the source.
    #: They are kept in OUTPUT/back-translations.
    monolingual: Rare[Path | None] = None
    #: Model from the target language to the source language: a preset or the folder of
    #: a trained model.
    reverse_model: Rare[str | None] = None
    #: Weight of the back-translations, as for --data-weights.
    monolingual_weight: Rare[Weight] = 1.0
    #: Softmax temperature at which back-translations are sampled; 0 is greedy search.
    back_translation_temperature: Rare[Annotated[float, Range(0, 10)]] = 1.0
    model: ModelConfig = ModelConfig()
    #: Fine-tune a preset, or the model in a folder: training starts from its weights
    #: and its vocabulary. Of the options of the model, the dropout rates
    #: and length-ratio may differ from the preset.
    from_preset: str | None = None
    #: Vocabulary size: number of subwords, shared by both languages; 8,000 by default.
    #: A preset has its own vocabulary.
    vocabulary_size: Annotated[int, Range(1, 1_000_000)] | None = None
    #: BPE-dropout of the source text: probability that a merge is skipped.
    subword_dropout: Rare[Fraction] = 0.1
    #: Batch size: maximum number of tokens on either side, padding included. By default
    #: that of the recipe of the attention.
    batch_tokens: Positive | None = None
    #: Minimum number of steps of an epoch: for a small text, batches are smaller
    #: than --batch-tokens.
    min_steps: Rare[Positive] = 50
    #: Epochs of teacher forcing; by default those of the recipe, or 4 with a preset and
    #: few pairs.
    epochs: Natural | None = None
    #: Peak learning rate of AdamW, which falls to zero after the warm-up (cosine); by
    #: default that of the recipe, or 3e-4 with a preset and few pairs.
    learning_rate: NonNegative | None = None
    #: Warm-up steps, at most a tenth of all steps; by default those of the recipe.
    warm_up: Rare[Natural | None] = None
    #: beta_2 of AdamW; by default that of the recipe.
    beta_2: Rare[Momentum | None] = None
    #: Checkpoint averaging: number of best epochs whose weights are averaged after the
    #: first phase (0 disables it). The average is kept if no epoch is better.
    average: Rare[Natural] = 10
    #: Epochs of self-critical training, with BLEU plus chrF2 as reward.
    self_critical_epochs: Natural = 0
    #: Peak learning rate of self-critical training.
    self_critical_learning_rate: Rare[NonNegative] = 3e-4
    #: Number of samples per sentence. The baseline of a sample is the mean reward of
    #: the others.
    self_critical_samples: Rare[Annotated[int, Range(2, 1000)]] = 5
    #: Validation metric that selects the best epoch. BLEU is 0 for a sentence of fewer
    #: than four words: chrf is used if all validation sentences are that short.
    validation_metric: Rare[Literal["bleu", "chrf"]] = "bleu"
    #: Beam width in validation.
    validation_beam_size: Rare[BeamSize] = 1
    #: Patience: epochs without improvement before a phase stops early.
    patience: Positive = 10


# The fields of the last base class come first.
@dataclasses.dataclass(frozen=True)
class TrainConfig(TrainingOptions, TranslationTrainingOptions):
    """Train a translator on two parallel text files.

    Line n of one file translates line n of the other. Pairs with an empty line, and
    pairs that are too long, are left out, and their number is printed. Training has two
    phases: teacher forcing on the reference translations; then, if requested,
    self-critical training, which optimises BLEU and chrF2 of sampled translations. Each
    kind of attention has a recipe of defaults for the options that you omit; see
    docs/nmt.md. The same command resumes an interrupted training.

    For example: nmt train --data multi30k --pair en-de --output my-model
    """


TRAINING = TrainConfig(output=tyro.MISSING)

_RECIPE = {
    "vocabulary_size": 8000,
    "embedding_units": 256,
    "units": 256,
    "encoder_units": 256,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.2,
    "batch_tokens": 2000,
    "epochs": 24,
    "learning_rate": 3e-3,
    "warm_up": 800,
    "beta_2": 0.98,
}

# Defaults of the options that depend on the attention.
RECIPES = {
    "bahdanau": _RECIPE,
    "none": _RECIPE,
    "luong": {**_RECIPE, "units": 384, "encoder_units": 192},
    "self-attention": {
        **_RECIPE,
        "embedding_units": 128,
        "encoder_units": 0,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "batch_tokens": 4000,
        "epochs": 50,
        "learning_rate": 4e-3,
        "warm_up": 1000,
    },
}


# Defaults of fine-tuning a preset on fewer than FEW_PAIRS pairs. It learns them in some
# hundred small steps; after that, it forgets what it knew.
FEW_PAIRS = 10_000
GENTLE = {"epochs": 4, "learning_rate": 3e-4}


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """The translator, and the precision of its computation."""

    #: Name of a preset, folder of a trained model or, except for export, a .tflite
    #: file. Several presets or folders with + between them are an ensemble.
    name: ModelName = DEFAULT_MODEL
    #: Precision of the computation. Half precision is faster on hardware that supports
    #: it.
    precision: Rare[Precision] = "float32"

    @property
    def options(self):
        """Options of the model, as arguments of `Translator.from_preset`."""
        return {"precision": self.precision}


@dataclasses.dataclass(frozen=True)
class TranslateConfig:
    """Translate sentences, and show word alignments.

    The sentences are the arguments, or the lines of a file or of the standard input.
    Every line gives one line, in order; an empty line gives an empty line. Many lines
    are read before the first is translated; with --batch-size 1, and at a terminal,
    every line is translated before the next is read. A line that is too long is
    truncated, with a warning. A line that is not UTF-8 gives an empty line and an error
    message on standard error; the other lines are translated, and the exit code is 2.

    For example: nmt translate "A dog runs." --plot alignment.png, or for a page: nmt
    translate --format html page.html --output seite.html
    """

    #: Sentences to translate.
    sentences: Positional[tuple[str, ...]] = ()
    #: Input file, translated line by line, instead of sentences or the standard input.
    input: Path | None = None
    #: Output file, instead of the standard output; its suffix is the format. .jsonl:
    #: one JSON object per line, as with --json. .txt, or the code of a language such as
    #: .de: one translation on each line. The file appears when all lines are
    #: translated; an interrupted run leaves none. With --engine ray, the same command
    #: resumes an interrupted run.
    output: Path | None = None
    model: Flags[ChosenModel] = ChosenModel()
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    #: Format of the input: lines of text; a file of HTML, whose tags enclose the words
    #: that the attention aligns; or subtitles in SubRip (srt) or WebVTT (vtt). A file
    #: is an argument, or that of --input.
    format: Literal["text", "html", "srt", "vtt"] = "text"
    #: Language of the translation, such as de: the lang of a page. By default that in
    #: the name of a preset.
    language: Rare[str | None] = None
    #: Glossary: a file with a source phrase, a tab and a target phrase in every line.
    #: Where the source phrase occurs in a sentence, the translation contains the target
    #: phrase. A source phrase in lower case matches any case. Needs the runtime keras.
    glossary: Path | None = None
    #: Translate a line of several sentences sentence by sentence, and join the
    #: translations.
    split_sentences: bool = True
    #: Minimum mean_log_probability of a translation, such as -0.8. Translations below
    #: it are left out: the line is empty, and a warning names each sentence that has no
    #: translation left. In JSON, such a sentence has the translation null and the
    #: mean_log_probability of its best translation.
    min_score: LogProbability | None = None
    #: Number of translations per sentence, each printed as: number of the sentence,
    #: tab, score, tab, translation; in JSON they are a list.
    n_best: Positive = 1
    #: Print the alignment after each translation and a tab: pairs i-j of a source and a
    #: target word, counted from 0. A target word whose largest weight is on the end
    #: token has no pair. In writing systems without spaces, words are subwords; --json
    #: lists them.
    alignments: bool = False
    #: Write a heat map of the attention: a file for one sentence, a folder for several
    #: and for lines of a file or of the standard input.
    plot: Path | None = None
    #: Print one JSON object per sentence, with words, subwords, their probabilities,
    #: scores and attention.
    json: bool = False
    #: Run the model on Keras and compile the search with XLA. Compilation takes some
    #: seconds for each of a few sentence lengths, and makes the search on Keras up to
    #: 5.6 times as fast. It pays off for many thousand sentences, and for a
    #: long-running process.
    jit_compile: Rare[bool] = False
    #: Batch size.
    batch_size: BatchSize = 64
    search: Flags[TranslationSearchOptions] = TranslationSearchOptions()
    bulk: Flags[BulkConfig] = BulkConfig()
    reading: Flags[ReadingConfig] = ReadingConfig()


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Print BLEU and chrF2 of a model.

    Both are printed cased and lower-cased, with the signatures of sacrebleu. Also print
    BLEU by the length of the source. BLEU uses the tokenizer zh of sacrebleu for
    Chinese references, and char for other writing systems without spaces.

    For example: nmt evaluate --data multi30k --pair en-de --split val
    """

    #: Source text: a file with one sentence per line.
    source: Path | None = None
    #: Target text: a file with one translation per line.
    target: Path | None = None
    #: Folder of a data set, instead of the options for single files.
    data: Path | None = None
    #: Language pair, with --data: the suffixes of source and target, such as en-de.
    pair: str | None = None
    #: Split, with --data: the name of its files. By default that of the validation set:
    #: val, valid, validation or dev.
    split: str | None = None
    model: Flags[ChosenModel] = ChosenModel()
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    #: Translate a line of several sentences sentence by sentence. Without it, models
    #: are comparable with those that read a line as a whole.
    split_sentences: bool = False
    #: Batch size.
    batch_size: BatchSize = 64
    search: Flags[TranslationSearchOptions] = TranslationSearchOptions()
    reading: Flags[ReadingConfig] = ReadingConfig()


@dataclasses.dataclass(frozen=True)
class CalibrateConfig(CalibrationOptions):
    """Measure how sure a model is of its translations.

    The result is written into the model: the quantiles of the mean log-probability of
    the translations of validation data and, with --out-of-domain, a threshold, and the
    area under the ROC curve that tells how well it separates both. From then on,
    translations below the threshold are marked as unsure.

    For example: nmt calibrate my-translator/model --data multi30k --pair en-de
    --out-of-domain tatoeba --purpose "English to German, descriptions of images"
    """

    #: Language pair: the suffixes of source and target, such as en-de.
    pair: str | None = None
    #: Split: the name of the files. By default that of the validation set: val, valid,
    #: validation or dev.
    split: str | None = None


@dataclasses.dataclass(frozen=True)
class ExportConfig(ExportOptions):
    """Write a TensorFlow SavedModel, or a LiteRT file (.tflite).

    A SavedModel takes sentences and returns translations and attention. It contains the
    tokenizer and the beam search, accepts any batch size, and needs TensorFlow and
    tensorflow-text to be loaded. A LiteRT file takes the token ids of one sentence. It
    contains the beam search and the subwords, needs neither TensorFlow nor Keras, and
    can be given as --model.

    For example: nmt export served-translator, or for a LiteRT file: nmt export
    my-translator.tflite
    """

    model: Flags[ChosenModel] = ChosenModel()
    search: Flags[TranslationSearchOptions] = TranslationSearchOptions()
    reading: Flags[ReadingConfig] = ReadingConfig()


@dataclasses.dataclass(frozen=True)
class WebConfig:
    """Start a web page that translates and shows word alignments.

    For example: nmt web
    """

    model: Flags[ChosenModel] = ChosenModel()
    #: Models whose alignments can be compared with that of --model: presets, folders or
    #: files.
    compare: tuple[str, ...] = ("multi30k-en-de-bahdanau", "multi30k-en-de-luong")
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    server: Flags[ServerConfig] = ServerConfig()


@dataclasses.dataclass(frozen=True)
class ChosenModels:
    """The translators, and the precision of their computation."""

    #: Name of a preset, folder of a trained model, or .tflite file. Given several
    #: times, the server has several language pairs. By default tatoeba-multi30k-en-de.
    models: Annotated[
        tuple[str, ...],
        tyro.conf.UseAppendAction,
        tyro.conf.arg(name="model", aliases=["--preset"]),
    ] = ()
    #: Language pair of a model, such as en-de: once for each --model, in the same
    #: order. By default that of its training (nmt train --pair).
    pair: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    #: Precision of the computation. Half precision is faster on hardware that supports
    #: it.
    precision: Rare[Precision] = "float32"

    @property
    def names(self):
        """Names of the models."""
        return self.models or (DEFAULT_MODEL,)

    @property
    def name(self):
        """Name of the first model."""
        return self.names[0]

    @property
    def options(self):
        """Options of the models, as arguments of `Translator.from_preset`."""
        return {"precision": self.precision}


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """Start a REST server that translates, with the interface of LibreTranslate.

    Programs that can use LibreTranslate can use it. Sentences of requests that wait are
    translated together. SIGTERM ends the server when all accepted requests are
    answered. See docs/rest.md.

    For example: nmt serve --port 5000, and then curl
    http://127.0.0.1:5000/translate -d q="A dog runs." -d source=en -d target=de
    """

    model: Flags[ChosenModels] = ChosenModels()
    #: Maximum number of characters of a text.
    max_characters: Positive = 5000
    #: Maximum number of texts of a request.
    max_texts: Positive = 100
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    #: Maximum number of sentences that are translated together.
    batch_size: BatchSize = 64
    search: Flags[TranslationSearchOptions] = TranslationSearchOptions()
    server: Flags[RestConfig] = RestConfig(port=5000, max_megabytes=4)
