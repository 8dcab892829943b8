"""All options of the translator: a dataclass for each command.

The names, defaults and texts of a command's options are its fields. A field that is
`group(X())` has those of the dataclass `X`, and so has a base class; where both
programs have the same ones, such as those of `RuntimeConfig`, `X` is in
`common.options`.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import (
    MAX_LAYERS,
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
    Length,
    LengthPenalty,
    LengthRatio,
    LogProbability,
    ModelOptions,
    Momentum,
    Natural,
    NonNegative,
    Positive,
    Precision,
    Quantize,
    Range,
    ReadingConfig,
    RestConfig,
    RuntimeConfig,
    SearchOptions,
    ServerConfig,
    Threads,
    TrainingOptions,
    Units,
    Weight,
    group,
    option,
    redeclared,
)

PRESETS = Path(__file__).parent / "presets"
# Preset that commands use unless another model is given.
DEFAULT_MODEL = "tatoeba-multi30k-en-de"
# The same for the other direction.
REVERSE_MODEL = "tatoeba-multi30k-de-en"

# Minimum length of a translation relative to its source.
MinLengthRatio = Annotated[float, Range(0, 1000)]


@dataclasses.dataclass(frozen=True)
class TranslationSearchOptions(SearchOptions):
    """Options of the beam search. A LiteRT file has its own, which are fixed.

    Those of both programs, with their help and ranges, are in `SearchOptions`.
    """

    ordered: ClassVar = (("min_length_ratio", "max_length_ratio"),)
    # Products with int8 weights compute four rows at a time, as fast as one.
    beam_size: BeamSize | None = redeclared(SearchOptions, "beam_size", if_omitted=4)
    length_penalty: LengthPenalty | None = redeclared(
        SearchOptions, "length_penalty", if_omitted=1.0
    )
    min_length_ratio: MinLengthRatio | None = option(
        None,
        """Minimum length of a translation relative to its source, in subwords; never
        more than the maximum length of the model.""",
        rare=True,
        if_omitted=0.0,
    )
    max_length_ratio: LengthRatio | None = option(
        None,
        """Maximum length of a translation relative to its source, in subwords. By
        default a translation has about r * (source length + 5) subwords at most; r is
        the length ratio of the model.""",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Configuration of the network, saved with its weights.

    Unless given, the numbers of units and layers and the dropout rate of the embeddings
    are those of the recipe of the attention.
    """

    decoder: Literal["recurrent", "transformer"] | None = option(
        None,
        """Architecture of the encoder and the decoder. By default that of the
        attention.""",
        aliases=("--decoder",),
        default_text="recurrent",
    )
    attention: Literal["bahdanau", "luong", "self-attention", "none"] | None = option(
        None,
        """Kind of attention. bahdanau: a bidirectional GRU encoder, and a GRU decoder
        whose previous state is the query. luong: LSTMs, with the current state as the
        query. none: as bahdanau, but without attention: the source is encoded as a
        single vector. self-attention: that of the transformer, which has no other.""",
        aliases=("--attention",),
        default_text="bahdanau, or self-attention for transformer",
    )
    embedding_units: Units | None = option(
        None,
        "Embedding size; for the transformer, the size of all layers (d_model).",
    )
    units: Units | None = option(
        None,
        """Hidden size of the recurrent decoder; for the transformer, feed-forward
        size.""",
    )
    encoder_units: Annotated[int, Range(0, MAX_UNITS)] | None = option(
        None,
        "Units of the recurrent encoder, in each direction.",
        rare=True,
    )
    encoder_layers: Layers | None = option(None, "Layers of the encoder.")
    decoder_layers: Layers | None = option(None, "Layers of the decoder.")
    attention_units: Units = option(
        256,
        "Depth of the hidden layer of additive and concat scores.",
        rare=True,
    )
    score: Literal["dot", "general", "concat"] = option(
        "general",
        "Score of luong; dot needs equal depths of encoder and decoder.",
        rare=True,
    )
    window: Literal["global", "local-m", "local-p"] = option(
        "global",
        "Window of luong: global, local-m (monotonic) or local-p (predictive).",
        rare=True,
    )
    half_width: Length = option(
        10,
        "Half width of a local window: positions on either side of its centre.",
        rare=True,
    )
    input_feeding: bool = option(
        True,
        """Whether luong has input feeding: the previous attentional vector is an
        input of the cell.""",
        rare=True,
    )
    heads: Units = option(4, "Number of heads of the transformer.", rare=True)
    norm_first: bool = option(
        True,
        """Whether the layer normalisation of the transformer comes before each
        sublayer (pre-norm) rather than after it (post-norm).""",
        rare=True,
    )
    activation: Literal["relu", "swish", "gelu"] = option(
        "relu",
        "Activation of the feed-forward layers of the transformer.",
        rare=True,
    )
    epsilon: Annotated[float, Range(1e-12, 1)] = option(
        1e-3,
        """Number that the layer normalisations of the transformer add to the
        variance.""",
        rare=True,
    )
    position_layout: Literal["interleaved", "halves"] = option(
        "interleaved",
        """Order of the sines and cosines that encode the positions of the transformer:
        in turn, or all sines before all cosines.""",
        rare=True,
    )
    max_wavelength: Annotated[float, Range(1, 1e9)] = option(
        10_000.0,
        "Base of the wavelengths of these sines and cosines.",
        rare=True,
    )
    output_bias: bool = option(
        False,
        "Whether the output layer of the transformer has a bias.",
        rare=True,
    )
    separate_embeddings: bool = option(
        False,
        """Whether the encoder of the transformer has embeddings of its own, as models
        with two vocabularies have.""",
        rare=True,
    )
    alignment_layer: Annotated[int, Range(0, MAX_LAYERS - 1)] | None = option(
        None,
        """Decoder layer of the transformer whose attention aligns the words, counted
        from 0. By default the mean of all layers but the lowest, and of all heads.""",
        rare=True,
    )
    alignment_head: Annotated[int, Range(0, MAX_UNITS - 1)] | None = option(
        None,
        """Head of --model.alignment-layer that aligns the words, counted from 0. By
        default the mean of its heads.""",
        rare=True,
    )
    dropout: Dropout | None = option(
        None,
        """Dropout rate of the embeddings, and between the layers of a recurrent
        encoder; in the transformer, also of every sublayer.""",
    )
    context_dropout: Dropout = option(
        0.2,
        "Dropout rate of the encoder outputs that a recurrent decoder attends to.",
        rare=True,
    )
    output_dropout: Dropout = option(
        0.2,
        "Dropout rate before the output layer of a recurrent decoder.",
        rare=True,
    )
    copy: bool = option(
        False,
        """Whether the network can copy words of the source, such as names and numbers
        that are not in the training text.""",
        aliases=("--copy",),
    )
    max_length: Length = option(
        128,
        "Maximum number of subwords in a sentence, the end token included.",
        rare=True,
    )
    length_ratio: LengthRatio | None = option(
        None,
        """Maximum length of a translation relative to its source, in subwords; by
        default measured on the training text.""",
        rare=True,
    )

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
    **dict.fromkeys(
        (
            "heads",
            "norm_first",
            "activation",
            "epsilon",
            "position_layout",
            "max_wavelength",
            "output_bias",
            "separate_embeddings",
            "alignment_layer",
        ),
        ("--decoder transformer", lambda model: model.decoder == "transformer"),
    ),
    "alignment_head": (
        "--model.alignment-layer",
        lambda model: model.alignment_layer is not None,
    ),
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
RUNTIME_OPTIONS = (
    "dropout",
    "context_dropout",
    "output_dropout",
    "length_ratio",
    "alignment_layer",
    "alignment_head",
)


@dataclasses.dataclass(frozen=True)
class TranslationTrainingOptions:
    """Options of the training of a translator."""

    output: Path = option(
        REQUIRED,
        """Output folder for the best model, the checkpoints, the report (report.html)
        and the metrics of every step and epoch (steps.csv, epochs.csv).""",
    )
    source: Path | None = option(
        None,
        "Source text: a file with one sentence per line.",
    )
    target: Path | None = option(
        None,
        "Target text: a file with one translation per line.",
    )
    valid_source: Path | None = option(
        None,
        """Source text of the validation set. By default, a tenth of the pairs of
        --source and --target is held out, at most 1,000.""",
    )
    valid_target: Path | None = option(None, "Target text of the validation set.")
    data: tuple[Path, ...] = option(
        (),
        """Folder with files such as train.en, train.de, val.en and val.de, instead of
        the options for single files; or a file of pairs: a table (.tsv, .csv), a
        translation memory (.tmx), messages of gettext (.po), or an archive of two
        texts (.zip). Given several times, the model learns from all of them together.
        At least one folder needs validation files; the best epoch has the highest mean
        of the metric over those that do. From files alone, pairs are held out.""",
        repeated=True,
    )
    pair: str | None = option(
        None,
        """Language pair, with --data: the suffixes of source and target, such as en-de;
        in a translation memory the languages, in a table the names of columns.""",
    )
    columns: tuple[str, ...] = option(
        (),
        """Columns of the source and the target in a table of --data: two names, or two
        numbers from 1. By default those that are named as in --pair, or source and
        target; otherwise the first two that are no numbers.""",
        rare=True,
    )
    monolingual: Path | None = option(
        None,
        """Monolingual text of the target language, one sentence per line, which the
        model of --reverse-model translates back into the source language before the
        training. The back-translations join the training pairs, with a tag before the
        source. They are kept in OUTPUT/back-translations.""",
        rare=True,
    )
    reverse_model: str | None = option(
        None,
        """Model from the target language to the source language: a preset or the
        folder of a trained model.""",
        rare=True,
    )
    monolingual_weight: Weight = option(
        1.0,
        "Weight of the back-translations, as for --data-weights.",
        rare=True,
    )
    back_translation_temperature: Annotated[float, Range(0, 10)] = option(
        1.0,
        """Softmax temperature at which back-translations are sampled; 0 is greedy
        search.""",
        rare=True,
    )
    model: ModelConfig = group(ModelConfig(), prefix="model.")
    from_preset: str | None = option(
        None,
        """Fine-tune a preset, or the model in a folder: training starts from its
        weights and its vocabulary. Of the options of the model, the dropout rates and
        length-ratio may differ from the preset.""",
    )
    vocabulary_size: Annotated[int, Range(1, 1_000_000)] | None = option(
        None,
        """Vocabulary size: number of subwords, shared by both languages; 8,000 by
        default. Symbols are added to them. A preset has its own vocabulary.""",
    )
    symbols: bool = option(
        True,
        """Replace numbers, times, names and codes that stand on both sides of a pair
        by symbols of the vocabulary (placeholders), so that the model learns to copy
        them.""",
    )
    vary_forms: bool = option(
        True,
        """Vary the forms of the pairs: lower case, titles, labels, and sentences
        without final punctuation.""",
    )
    subword_dropout: Fraction = option(
        0.1,
        "BPE-dropout of the source text: probability that a merge is skipped.",
        rare=True,
    )
    batch_tokens: Positive | None = option(
        None,
        """Batch size: maximum number of tokens on either side, padding included. By
        default that of the recipe of the attention.""",
    )
    min_steps: Positive = option(
        50,
        """Minimum number of steps of an epoch: for a small text, batches are smaller
        than --batch-tokens.""",
        rare=True,
    )
    epochs: Natural | None = option(
        None,
        """Epochs of teacher forcing; by default those of the recipe, or 4 with a
        preset and few pairs.""",
    )
    learning_rate: NonNegative | None = option(
        None,
        """Peak learning rate of AdamW, which falls to zero after the warm-up
        (cosine); by default that of the recipe, or 3e-4 with a preset and few
        pairs.""",
    )
    warm_up: Natural | None = option(
        None,
        """Warm-up steps, at most a tenth of all steps; by default those of the
        recipe.""",
        rare=True,
    )
    beta_2: Momentum | None = option(
        None,
        "beta_2 of AdamW; by default that of the recipe.",
        rare=True,
    )
    average: Natural = option(
        10,
        """Checkpoint averaging: number of best epochs whose weights are averaged
        after the first phase (0 disables it). The average is kept if no epoch is
        better.""",
        rare=True,
    )
    self_critical_epochs: Natural = option(
        0,
        """Epochs of self-critical training (REINFORCE with a baseline), with BLEU plus
        chrF2 as reward.""",
    )
    self_critical_learning_rate: NonNegative = option(
        3e-4,
        "Peak learning rate of self-critical training.",
        rare=True,
    )
    self_critical_samples: Annotated[int, Range(2, 1000)] = option(
        5,
        """Number of samples per sentence. The baseline of a sample is the mean reward
        of the others.""",
        rare=True,
    )
    validation_metric: Literal["bleu", "chrf"] = option(
        "bleu",
        """Validation metric that selects the best epoch. BLEU is 0 for a sentence of
        fewer than four words: chrf is used if all validation sentences are that
        short.""",
        rare=True,
    )
    validation_beam_size: BeamSize = option(1, "Beam width in validation.", rare=True)
    patience: Positive = option(
        10,
        "Patience: epochs without improvement before a phase stops early.",
    )


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


TRAINING = TrainConfig(output=REQUIRED)

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
class TranslationRuntimeConfig(RuntimeConfig):
    """The runtime of the model."""

    runtime: Literal["auto", "litert", "keras", "ctranslate2"] = option(  # type: ignore[assignment]
        "auto",
        """litert: the LiteRT file of the model, which starts in half a second. keras:
        Keras, which computes in batches and uses GPUs. ctranslate2: the engine of that
        name, for long lists and models with self-attention (the extra ctranslate2).
        auto: litert if the model has a LiteRT file, and the command changes neither its
        options nor those of the search; otherwise, and for evaluation, keras. If it is
        installed, ctranslate2 takes the place of keras from 1,000 lines on, and on
        processors with AVX-512 that of litert from 10,000 lines on; not for imported
        models, and not with a glossary. On Ray, auto is keras on GPUs.""",
    )
    threads: Threads | None = option(
        None,
        """Number of threads of LiteRT and CTranslate2. By default one per processor; on
        Ray, one per actor.""",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class ChosenModel(ModelOptions):
    """The translator, and the precision of its computation."""

    name: str = option(
        DEFAULT_MODEL,
        """Name of a preset, folder of a trained model or, except for export, a
        .tflite file. Several presets or folders with + between them are an
        ensemble.""",
        flags=("--model", "--preset"),
    )


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

    sentences: tuple[str, ...] = option(
        (),
        "Sentences to translate; with --format, the file.",
        positional=True,
    )
    input: Path | None = option(
        None,
        """Input file, translated line by line, instead of sentences or the standard
        input.""",
    )
    output: Path | None = option(
        None,
        """Output file, instead of the standard output; its suffix is the format.
        .jsonl: one JSON object per line, as with --json. .csv or .tsv: a table for a
        spreadsheet, with the sources. .txt, or the code of a language such as .de:
        one translation on each line. The file appears when all lines are translated;
        an interrupted run leaves none. With --engine ray, the same command resumes an
        interrupted run.""",
    )
    model: ChosenModel = group(ChosenModel())
    runtime: TranslationRuntimeConfig = group(TranslationRuntimeConfig())
    format: Literal["text", "html", "markdown", "po", "srt", "vtt", "ass"] = option(
        "text",
        """Format of the input: lines of text, or a file, an argument or that of
        --input, of which only the language changes: a page in HTML or XHTML, whose
        tags enclose the words that the attention aligns; Markdown; messages of
        gettext (po), of which those without a translation get one; or subtitles in
        SubRip (srt), WebVTT (vtt) or SubStation Alpha (ass), which are converted if
        the file has another of these formats.""",
    )
    language: str | None = option(
        None,
        """With --format, language of the translation, such as de: the lang of a page,
        and that of messages. By default that in the name of a preset.""",
        rare=True,
    )
    target_language: str | None = option(
        None,
        """Target language of an imported multilingual model, as its vocabulary spells
        it, such as deu: every sentence that the model reads begins with >>deu<<. A
        line that begins with such a token itself has that language.""",
        rare=True,
    )
    glossary: Path | None = option(
        None,
        """Glossary: a file with a source phrase, a tab and a target phrase in every
        line. Where the source phrase occurs in a sentence, the translation contains
        the target phrase. A source phrase in lower case matches any case. Needs the
        runtime keras, or ctranslate2, which decodes such sentences on Keras.""",
    )
    split_sentences: bool = option(
        True,
        """Translate a line of several sentences sentence by sentence, and join the
        translations.""",
    )
    min_score: LogProbability | None = option(
        None,
        """Minimum mean_log_probability of a translation, such as -0.8. Translations
        below it are left out: the line is empty, and a warning names each sentence
        that has no translation left. In JSON, such a sentence has the translation
        null and the mean_log_probability of its best translation. With --format, such
        a sentence stays in the source language.""",
    )
    n_best: Positive = option(
        1,
        """Number of translations per sentence, each printed as: number of the
        sentence, tab, score, tab, translation; in JSON they are a list.""",
    )
    alignments: bool = option(
        False,
        """Print the alignment after each translation and a tab: pairs i-j of a source
        and a target word, counted from 0. A target word whose largest weight is on
        the end token has no pair. In writing systems without spaces, words are
        subwords; --json lists them.""",
    )
    plot: Path | None = option(
        None,
        """Write a heat map of the attention: a file for one sentence, a folder for
        several and for lines of a file or of the standard input.""",
    )
    json: bool = option(
        False,
        """Print one JSON object per sentence, with words, subwords, their
        probabilities, scores and attention.""",
    )
    jit_compile: bool = option(
        False,
        """Run the model on Keras and compile the search with XLA. Compilation takes
        some seconds for each of a few sentence lengths, and makes the search on Keras
        up to 5.6 times as fast. It pays off for many thousand sentences, and for a
        long-running process.""",
        rare=True,
    )
    batch_size: BatchSize = option(64, "Batch size.")
    search: TranslationSearchOptions = group(TranslationSearchOptions())
    bulk: BulkConfig = group(BulkConfig())
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """The sentence pairs of a command."""

    source: Path | None = option(
        None,
        "Source text: a file with one sentence per line.",
    )
    target: Path | None = option(
        None,
        "Target text: a file with one translation per line.",
    )
    data: Path | None = option(
        None,
        """Folder of a data set, or a file of pairs (.tsv, .csv, .tmx, .po or .zip),
        instead of the options for single files.""",
    )
    pair: str | None = option(
        None,
        """Language pair, with --data: the suffixes of source and target, such as en-de;
        in a translation memory the languages, in a table the names of columns.""",
    )
    split: str | None = option(
        None,
        """Split, with a folder as --data: the name of its files. By default that of the
        validation set: val, valid, validation or dev.""",
    )
    columns: tuple[str, ...] = option(
        (),
        """Columns of the source and the target in a table of --data: two names, or two
        numbers from 1. By default those that are named as in --pair, or source and
        target; otherwise the first two that are no numbers.""",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class AlignmentOptions:
    """The reverse model of an alignment in both directions."""

    reverse_model: str | None = option(
        None,
        """Model from the target language to the source language, a preset or the
        folder of a trained model: alignments then join the links of both.""",
    )
    symmetrize: Literal["intersection", "union", "grow-diag-final-and"] | None = option(
        None,
        """How --reverse-model joins the links of both directions. intersection: links
        of both, the most precise. union: all links. grow-diag-final-and: between them,
        as in statistical machine translation; the default.""",
    )


@dataclasses.dataclass(frozen=True)
class AlignConfig(AlignmentOptions, PairOptions):
    """Align the words of sentence pairs.

    The model reads each source and its given translation (forced decoding), and each
    target word is aligned with the source word of its largest attention. Prints a line
    for each pair in the format of Pharaoh: pairs i-j of a source and a target word,
    counted from 0. Words are separated by spaces. A target word whose largest weight is
    on the end token has no link.

    For example: nmt align --source text.en --target text.de --plot plots, or in both
    directions: nmt align --source text.en --target text.de --reverse-model
    tatoeba-multi30k-de-en
    """

    output: Path | None = option(
        None,
        "Output file, instead of the standard output.",
    )
    plot: Path | None = option(
        None,
        "Folder for a heat map of the attention of each pair, such as 0001.png.",
    )
    model: ChosenModel = group(ChosenModel())
    batch_size: BatchSize = option(64, "Batch size.")
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class ComparedModels:
    """The translators, and the precision of their computation."""

    models: tuple[str, ...] = option(
        (),
        f"""Name of a preset, folder of a trained model, or .tflite file. Several
        presets or folders with + between them are an ensemble. Given several times, the
        models are compared with the first one. By default {DEFAULT_MODEL}.""",
        repeated=True,
        flags=("--model", "--preset"),
    )
    precision: Precision = option(
        "float32",
        """Precision of the computation. Half precision is faster on hardware that
        supports it.""",
        rare=True,
    )

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
class EvaluateConfig(AlignmentOptions, PairOptions):
    """Print BLEU and chrF2 of a model.

    Both are printed cased and lower-cased, with the signatures of sacrebleu. Also print
    BLEU by the length of the source. BLEU uses the tokenizer zh of sacrebleu for
    Chinese references, and char for other writing systems without spaces. Several
    models are compared: a table has 95 % confidence intervals, and the p-value of the
    paired bootstrap test against the first model. With --alignments, print the
    alignment error rate of the references, as nmt align reads them, instead.

    For example: nmt evaluate --data multi30k --pair en-de --split val
    """

    model: ComparedModels = group(ComparedModels())
    runtime: TranslationRuntimeConfig = group(TranslationRuntimeConfig())
    plot: Path | None = option(
        None,
        """Write a figure of the scores of several models with their confidence
        intervals, and of BLEU by the length of the source.""",
    )
    alignments: Path | None = option(
        None,
        """Reference alignments of the pairs, one line for each: links such as 0-1, and
        0?1 for those that are only possible.""",
    )
    target_language: str | None = option(
        None,
        """Target language of an imported multilingual model, as its vocabulary spells
        it, such as deu: every source begins with >>deu<<.""",
        rare=True,
    )
    split_sentences: bool = option(
        False,
        """Translate a line of several sentences sentence by sentence. Without it,
        models are comparable with those that read a line as a whole.""",
    )
    batch_size: BatchSize = option(64, "Batch size.")
    search: TranslationSearchOptions = group(TranslationSearchOptions())
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class CalibrateConfig(CalibrationOptions):
    """Fit the confidence of a model, by which it marks translations as unsure.

    Validation data are translated and compared with their references. A logistic model
    learns from that how probably a translation is usable, by what it shows of itself:
    how probable its words are, which source words it leaves untranslated, and more. The
    logistic model is written into the translator. For each data set, the area under the
    ROC curve is printed (AUC: 1 for perfect marks, 0.5 for marks at random), and how
    many usable and unusable translations are marked.

    For example: nmt calibrate my-translator/model --data tatoeba --data multi30k
    --pair en-de --purpose "English to German, everyday sentences"
    """

    source: Path | None = option(
        None,
        "Source text of the validation data, instead of --data.",
    )
    target: Path | None = option(None, "Target text of the validation data.")
    pair: str | None = option(
        None,
        "Language pair: the suffixes of source and target, such as en-de.",
    )
    split: str | None = option(
        None,
        """Split: the name of the files. By default that of the validation set: val,
        valid, validation or dev.""",
    )
    columns: tuple[str, ...] = option(
        (),
        """Columns of the source and the target in a table of --data: two names, or two
        numbers from 1. By default those that are named as in --pair, or source and
        target; otherwise the first two that are no numbers.""",
        rare=True,
    )
    target_language: str | None = option(
        None,
        """Target language of an imported multilingual model, as its vocabulary spells
        it, such as deu: every source begins with >>deu<<.""",
        rare=True,
    )
    lexicon_data: tuple[Path, ...] = option(
        (),
        """Folder with the training text, such as train.en and train.de, from which a
        lexicon is learned: it finds words without a translation. Given several times,
        all count. By default the folders of --data that have a training text.""",
        repeated=True,
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig(ExportOptions):
    """Write a SavedModel, a LiteRT file, or a model of CTranslate2 or Argos Translate.

    A SavedModel takes sentences and returns translations and attention. It contains the
    tokenizer and the beam search, accepts any batch size, and needs TensorFlow and
    tensorflow-text to be loaded. A LiteRT file (.tflite) takes the token ids of one
    sentence. It contains the beam search and the subwords, needs neither TensorFlow nor
    Keras, and can be given as --model. Models with self-attention can also be written
    as a folder for CTranslate2, and as a package (.argosmodel) that Argos Translate and
    LibreTranslate install; both need the extra ctranslate2.

    For example: nmt export served-translator, or for a LiteRT file: nmt export
    my-translator.tflite, or for CTranslate2: nmt export folder --format ctranslate2
    """

    output: Path = option(
        REQUIRED,
        """Output file of LiteRT, whose name ends in .tflite, or of Argos Translate,
        .argosmodel; or output folder of a SavedModel or of CTranslate2.""",
        positional=True,
    )
    quantize: Quantize | None = option(
        None,
        """Precision of the weights in a LiteRT file, by default int8, or for
        CTranslate2 and Argos Translate, by default none. int8: eight bits for dense
        layers and embeddings. float16: larger. none: unchanged.""",
    )
    format: Literal["saved-model", "litert", "ctranslate2", "argos"] | None = option(
        None,
        """Format. By default that of the name of the output: litert for .tflite, argos
        for .argosmodel, and saved-model for a folder.""",
    )
    pair: str | None = option(
        None,
        """Language pair of a package of Argos Translate, such as en-de. By default
        that of the training. Also that of --shortlist-data.""",
        rare=True,
    )
    shortlist_data: tuple[Path, ...] = option(
        (),
        """Folder with training text, such as train.en and train.de, for a LiteRT file:
        the likely translations of each subword are learned from it, and a search
        chooses among those of its sentence. It takes less time, and some translations
        differ. Given several times, all count.""",
        repeated=True,
    )
    shortlist_size: Annotated[int, Range(64, 100_000)] = option(
        512,
        "Number of subwords among which a search with --shortlist-data chooses.",
        rare=True,
    )
    model: ChosenModel = group(ChosenModel())
    search: TranslationSearchOptions = group(TranslationSearchOptions())
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class ImportConfig:
    """Import a published translator, such as one of OPUS-MT, as a model of nmt.

    The folder is one that transformers has saved (MarianMTModel.save_pretrained and
    MarianTokenizer.save_pretrained), or that of a model of Marian itself. Neither
    transformers nor PyTorch is needed.

    For example: nmt import opus-mt-en-de --output my-translator
    """

    folder: Path = option(
        REQUIRED,
        """Folder of the published model: config.json, vocab.json, source.spm,
        target.spm, and model.safetensors or pytorch_model.bin; or a .npz file of Marian
        with its decoder.yml, vocabulary, source.spm and target.spm.""",
        positional=True,
    )
    output: Path = option(REQUIRED, "Output folder.")
    max_length: Length | None = option(
        None,
        """Maximum number of subwords in a sentence, the end token included. By default
        that of the published model, such as 512. The shorter it is, the less memory
        does the export of a LiteRT file take.""",
        rare=True,
    )
    pair: str | None = option(
        None,
        """Language pair, such as en-de. By default the end of the name of the folder,
        if that is a pair.""",
    )
    source: Path | None = option(
        None,
        """Source text, a file with one sentence per line, such as 1,000 of them. With
        its translations, the attention head is chosen that aligns words best. By
        default, it is the first head of the last layer, which most models of OPUS-MT
        trained to align words.""",
    )
    target: Path | None = option(
        None,
        "Translations of the source text, a file with one per line.",
    )
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class WebConfig:
    """Start a web page that translates and shows word alignments.

    For example: nmt web
    """

    model: ChosenModel = group(ChosenModel())
    compare: tuple[str, ...] = option(
        ("multi30k-en-de-bahdanau", "multi30k-en-de-luong"),
        """Models whose alignments can be compared with that of --model: presets,
        folders or files.""",
    )
    target_language: str | None = option(
        None,
        """Target language of an imported multilingual model that the page shows at
        first, as its vocabulary spells it, such as deu. By default the first.""",
        rare=True,
    )
    runtime: TranslationRuntimeConfig = group(TranslationRuntimeConfig())
    server: ServerConfig = group(ServerConfig())


@dataclasses.dataclass(frozen=True)
class ChosenModels:
    """The translators, and the precision of their computation."""

    models: tuple[str, ...] = option(
        (),
        """Name of a preset, folder of a trained model, or .tflite file. Given several
        times, the server has several language pairs. By default
        both tatoeba-multi30k-en-de and tatoeba-multi30k-de-en.""",
        repeated=True,
        flags=("--model", "--preset"),
    )
    pair: tuple[str, ...] = option(
        (),
        """Language pair of a model, such as en-de: once for each --model, in the same
        order. By default that of its training (nmt train --pair).""",
        repeated=True,
    )
    precision: Precision = option(
        "float32",
        """Precision of the computation. Half precision is faster on hardware that
        supports it.""",
        rare=True,
    )

    @property
    def names(self):
        """Names of the models."""
        return self.models or (DEFAULT_MODEL, REVERSE_MODEL)

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

    model: ChosenModels = group(ChosenModels())
    max_characters: Positive = option(5000, "Maximum number of characters of a text.")
    max_texts: Positive = option(100, "Maximum number of texts of a request.")
    characters_per_minute: Positive | None = option(
        None,
        """Maximum number of characters of a client in a minute; see
        --requests-per-minute.""",
    )
    runtime: TranslationRuntimeConfig = group(TranslationRuntimeConfig())
    target_languages: tuple[str, ...] = option(
        (),
        """Target language of an imported multilingual model that the server offers, as
        the vocabulary spells it, such as deu. A request names it by its code: de. By
        default all of them. Can be given several times.""",
        repeated=True,
        flags=("--target-language",),
        rare=True,
    )
    batch_size: BatchSize = option(
        64,
        "Maximum number of sentences that are translated together.",
    )
    search: TranslationSearchOptions = group(TranslationSearchOptions())
    server: RestConfig = group(RestConfig(port=5000, max_megabytes=4))
