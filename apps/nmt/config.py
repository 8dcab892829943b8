"""Everything that can be chosen about a translator: one default, in one place."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro
from keras_attention_apps.common.config import (
    BeamConfig,
    Dropout,
    Flags,
    ModelName,
    Natural,
    Positive,
    Precision,
    Range,
    SearchConfig,
    Seed,
    Share,
    Weight,
)
from tyro.conf import Positional


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What is needed to build the network again; saved with its weights.

    What is not given is as in the recipe of the chosen attention.
    """

    #: bahdanau: a bidirectional GRU, and a GRU whose previous state asks. luong: LSTMs
    #: whose current state asks. self-attention: no recurrence. none: as bahdanau, but
    #: all the decoder has of the source is one vector.
    attention: Annotated[
        Literal["bahdanau", "luong", "self-attention", "none"],
        tyro.conf.arg(aliases=["--attention"]),
    ] = "bahdanau"
    #: Depth of the embeddings; for self-attention, of everything.
    embedding_units: Positive | None = None
    #: Units of the recurrent decoder, or of the feed-forward layers.
    units: Positive | None = None
    #: Units of the recurrent encoder in each direction.
    encoder_units: Natural | None = None
    #: Layers of the encoder.
    encoder_layers: Positive | None = None
    #: Layers of the decoder.
    decoder_layers: Positive | None = None
    #: Whether luong's encoder reads in both directions, as the others always do.
    bidirectional: bool = True
    #: Whether recurrent cells are layer-normalised.
    layer_norm: bool = True
    #: Depth of the hidden layer of additive and concat scores.
    attention_units: Positive = 256
    #: Score of luong; dot wants as many units in the decoder as the encoder has.
    score: Literal["dot", "general", "concat", "location"] = "general"
    #: Where luong looks; by location, everywhere.
    window: Literal["global", "local-m", "local-p"] = "global"
    #: Positions on either side of a local window's centre.
    half_width: Positive = 10
    #: Whether luong's decoder is fed its attentional vector.
    input_feeding: bool = True
    #: Deep output of bahdanau and none.
    readout: Literal["tanh", "maxout"] = "tanh"
    #: The state that it reads: Bahdanau's is the one before the step.
    readout_state: Literal["previous", "current"] = "current"
    #: Heads of self-attention.
    heads: Positive = 4
    #: Whether self-attention normalises before each sublayer instead of behind it.
    pre_norm: bool = True
    #: Whether source and target have the same embeddings. Those of the target are the
    #: output layer, too.
    share_embeddings: bool = True
    #: Dropout rate on embeddings; for self-attention, on every sublayer, too.
    dropout: Dropout | None = None
    #: Dropout rate on what a recurrent decoder attends to.
    context_dropout: Dropout = 0.2
    #: Dropout rate before the output layer of a recurrent decoder.
    output_dropout: Dropout = 0.2
    #: Dropout rate on the weights of self-attention.
    attention_dropout: Dropout = 0.0
    #: Largest number of subwords in a sentence, the end included.
    max_length: Positive = 128
    #: Largest number of subwords of a translation for each of the source; measured on
    #: the training text if omitted.
    length_ratio: Annotated[float, Range(0.1)] | None = None

    @property
    def max_tokens(self):
        """Maximum number of tokens that the network generates, END included."""
        return self.max_length


# Options of a model that leave its weights as they are.
RUNTIME_OPTIONS = (
    "dropout",
    "context_dropout",
    "output_dropout",
    "attention_dropout",
    "length_ratio",
)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Train a translator on two parallel text files.

    Line n of one file translates line n of the other. Pairs with an empty line, and
    pairs that are too long, are left out; how many, is printed. Training has two
    phases: first on the translations that are given; then on how good those are that
    the model samples. Interrupt it at any time: the same command continues where it
    stopped.

    For example: nmt train --source train.en --target train.de --valid-source val.en
    --valid-target val.de --output my-model
    """

    #: Folder for the trained model, its checkpoints and its history.
    output: Path
    #: File with one sentence per line.
    source: Path | None = None
    #: File with their translations.
    target: Path | None = None
    #: Sentences for validation; if omitted, 1,000 pairs of the training are held out,
    #: or a tenth of them if that is less.
    valid_source: Path | None = None
    #: Their translations.
    valid_target: Path | None = None
    #: Instead of the files: a folder with train.en, train.de, val.en and val.de.
    data: Path | None = None
    #: For the folder: the suffixes of source and target, such as en-de.
    pair: str | None = None
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    #: Start from a preset, or the folder of a trained model: its network and its
    #: subwords. The rates of dropout may be others; the sizes of its layers stay.
    from_preset: str | None = None
    #: Subwords of both languages together, 8,000 if omitted; a preset has its own.
    vocabulary_size: Annotated[int, Range(1, 1_000_000)] | None = None
    #: Share of the characters that are subwords; for languages with thousands of
    #: them 0.9995. The others become bytes.
    character_coverage: Annotated[float, Range(0.98, 1)] = 1.0
    #: BPE-dropout: how often a merge of subwords is left out in the source text.
    subword_dropout: Share = 0.1
    #: The same in the target text. What is gained by it takes many more epochs: which
    #: way a word is split cannot be guessed.
    target_subword_dropout: Share = 0.0
    #: Places for tokens in a training step, on either side.
    batch_tokens: Positive | None = None
    #: Fewest training steps of an epoch: where there is little text, they are smaller
    #: than batch_tokens.
    min_steps: Positive = 50
    #: Epochs on the translations that are given.
    epochs: Natural | None = None
    #: What becomes of the learning rate behind the warm-up.
    schedule: Literal["constant", "inverse-square-root", "cosine"] | None = None
    #: Peak learning rate of Adam.
    learning_rate: Weight | None = None
    #: Steps in which the learning rate grows to its peak, at most a tenth of all.
    warm_up: Natural | None = None
    #: Adam's decay of the squared gradients.
    beta_2: Share | None = None
    #: Decoupled from the gradient, as in AdamW.
    weight_decay: Weight = 0.01
    #: Share of the probability that the loss spreads over all subwords.
    label_smoothing: Annotated[float, Range(0, 0.99)] = 0.1
    #: Largest norm of the gradient of a step; 0 for none.
    clip_norm: Weight = 5.0
    #: Momentum of the moving average of the weights that is validated and saved; 0 for
    #: the weights as they are. One that averages two epochs, but at most 1,000 steps,
    #: if omitted. In self-critical epochs it is 0.98 at most.
    ema_momentum: Share | None = None
    #: Behind the first phase, the models of so many epochs, the best or the last, are
    #: averaged; whichever is best stays. 0 for no average.
    average: Natural = 10
    #: Which epochs are averaged.
    average_of: Literal["best", "last"] = "best"
    #: Epochs in which the model learns from what the translations that it samples are
    #: worth: their BLEU and chrF2.
    self_critical_epochs: Natural = 0
    #: Peak learning rate while it does.
    self_critical_learning_rate: Weight = 3e-4
    #: By which the scores of subwords are divided before translations are sampled:
    #: below 1, samples are more like what a search finds.
    self_critical_temperature: Annotated[float, Range(0.1, 10)] = 0.5
    #: Samples of a sentence, each of which has to beat the mean of the others.
    self_critical_samples: Annotated[int, Range(2, 1000)] = 5
    #: Decoded metric by which the best epoch is chosen; chrf where no sentence has the
    #: four words that BLEU needs.
    validation_metric: Literal["bleu", "chrf"] = "bleu"
    #: Beam size with which the validation text is translated for it.
    validation_beam_size: Positive = 1
    #: Epochs in a row, all worse than the best, after which a phase ends.
    patience: Positive = 10
    #: Numbers to compute with; the weights are always float32.
    precision: Precision = "float32"
    #: Share every batch out to all GPUs, or other devices. In self-critical epochs,
    #: TensorFlow gives every device all of it.
    distribute: bool = False
    #: Of everything that is drawn at random.
    seed: Seed = 0
    #: Also write TensorBoard logs to OUTPUT/logs; TensorBoard must be installed.
    tensorboard: bool = False


TRAINING = TrainConfig(output=tyro.MISSING)

_RECURRENT = {
    "vocabulary_size": 8000,
    "embedding_units": 256,
    "units": 256,
    "encoder_units": 256,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.2,
    "batch_tokens": 2000,
    "epochs": 24,
    "schedule": "cosine",
    "learning_rate": 3e-3,
    "warm_up": 800,
    "beta_2": 0.98,
}

# What is chosen where nothing is given.
RECIPES = {
    "bahdanau": _RECURRENT,
    "none": _RECURRENT,
    "luong": {**_RECURRENT, "units": 384, "encoder_units": 192},
    "self-attention": {
        "vocabulary_size": 8000,
        "embedding_units": 128,
        "units": 256,
        "encoder_units": 0,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.2,
        "batch_tokens": 4000,
        "epochs": 50,
        "schedule": "cosine",
        "learning_rate": 4e-3,
        "warm_up": 1000,
        "beta_2": 0.98,
    },
}


def with_recipe(config, attention):
    """A configuration with nothing left open."""
    missing = {
        field.name: RECIPES[attention][field.name]
        for field in dataclasses.fields(config)
        if field.name in RECIPES[attention] and getattr(config, field.name) is None
    }
    return dataclasses.replace(config, **missing)


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """Which translator, and what it computes with."""

    #: Name of a preset, or folder of a trained model.
    model: ModelName = "multi30k-en-de-self-attention"
    #: Numbers to compute with. Half precision is faster where the hardware has it.
    precision: Precision = "float32"


@dataclasses.dataclass(frozen=True)
class TranslateConfig:
    """Translate sentences, and show which words each word came from.

    The sentences are the arguments; without any, the lines of a file or of the standard
    input. Every line gives one line, in order; an empty one an empty one. Many lines
    are read before the first is translated; with --batch-size 1, and at a terminal,
    every line is translated before the next is read. A line that is too long is
    translated as far as the model reads, with a warning. A line that is not UTF-8 gives
    an empty line, a line on the standard error and, in the end, the exit code 2; the
    others are translated all the same.

    For example: nmt translate "A dog runs." --plot alignment.png
    """

    #: Sentences to translate.
    sentences: Positional[tuple[str, ...]] = ()
    #: File to translate, line by line, instead of sentences or the standard input.
    input: Path | None = None
    #: File to write, instead of the standard output.
    output: Path | None = None
    translator: Flags[ChosenModel] = dataclasses.field(default_factory=ChosenModel)
    #: Print so many translations of a sentence, each as: number of the sentence, tab,
    #: score, tab, translation.
    n_best: Positive = 1
    #: Print the alignment behind each translation and a tab: pairs i-j of a source and
    #: a target word, counted from 0. A word that looked most of all at the end of the
    #: sentence has none. In scripts without blanks, words are subwords, which --json
    #: tells.
    alignments: bool = False
    #: Write a heat map of the attention: a file for one sentence, a folder for several,
    #: and for lines of a file or of the standard input.
    plot: Path | None = None
    #: Print one JSON object per translation, with words, scores and attention.
    json: bool = False
    #: Compile the search with XLA: seconds for each of a few lengths of sentences, and
    #: up to four times as fast from then on. It pays for many thousand sentences, and
    #: where a program waits for sentences all day.
    jit_compile: bool = False
    search: Flags[SearchConfig] = dataclasses.field(default_factory=SearchConfig)


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Print BLEU and chrF2 of a model, cased and lower-cased, with their signatures.

    Where the references are Chinese, the words of BLEU are characters, sacrebleu's zh;
    where they are of other scripts without blanks, its char.

    For example: nmt evaluate --data multi30k --pair en-de --split val
    """

    #: File with one sentence per line.
    source: Path | None = None
    #: File with their translations.
    target: Path | None = None
    #: Instead of the files: a folder.
    data: Path | None = None
    #: For the folder: the suffixes of source and target, such as en-de.
    pair: str | None = None
    #: For the folder: the name of its files, val if omitted.
    split: str | None = None
    translator: Flags[ChosenModel] = dataclasses.field(default_factory=ChosenModel)
    #: Write the translations to this file.
    output: Path | None = None
    search: Flags[SearchConfig] = dataclasses.field(default_factory=SearchConfig)


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """Write a TensorFlow SavedModel: sentences in, translations and attention out.

    It holds the splitting into subwords and the beam search, takes any number of
    sentences at once, and needs TensorFlow and tensorflow-text to be loaded.

    For example: nmt export served-translator
    """

    #: Folder to write.
    directory: Positional[Path]
    translator: Flags[ChosenModel] = dataclasses.field(default_factory=ChosenModel)
    search: Flags[BeamConfig] = dataclasses.field(default_factory=BeamConfig)
