"""Training: epochs that end with translating the validation text, then an average."""

import contextlib
import dataclasses
import hashlib
import math
from pathlib import Path

import keras
import numpy as np
from keras import ops
from keras_attention_apps.common.averaging import average_models
from keras_attention_apps.common.checkpoints import (
    Checkpoints,
    SaveEveryEpoch,
    ValidateDecoded,
)
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import (
    MODEL,
    atomic_path,
    holds,
    remove_folder,
    remove_leftovers,
)
from keras_attention_apps.common.training import (
    BEST,
    CHECKPOINTS,
    LossIsANumber,
    all_devices,
    check_output,
    ema_momentum,
    numerics,
    tell_best,
)
from keras_attention_apps.nmt.batches import SentenceBatches
from keras_attention_apps.nmt.config import TrainConfig, with_recipe
from keras_attention_apps.nmt.data import (
    TRAINING_NAMES,
    VALIDATION_NAMES,
    Pairs,
    check_files,
    find_files,
    read_pairs,
)
from keras_attention_apps.nmt.evaluate import has_four_words, translation_scores
from keras_attention_apps.nmt.inference import SUBWORDS, Translator, length_ratio
from keras_attention_apps.nmt.model import build_network
from keras_attention_apps.nmt.text import Subwords

# Folder in the output folder: of the models to average.
EPOCHS = "epochs"
HELD_OUT = 1000
# Training steps that the moving average of the weights remembers.
LONGEST_AVERAGE = 1000
VALIDATION_BATCH = 64


def train(config: TrainConfig):
    """Train a translator; see `TrainConfig`. Returns the folder of the best model."""
    config = with_recipe(config, config.model.attention)
    config = dataclasses.replace(
        config,
        model=with_recipe(config.model, config.model.attention),
        output=config.output.resolve(),
    )
    check_output(config.output)
    training, validation = read_texts(config)
    with (
        numerics(config.seed, config.precision),
        all_devices(config.distribute) as devices,
    ):
        return _train(config, training, validation, devices)


def read_texts(config):
    """The pairs for training and for validation."""
    files = [config.source, config.target, config.valid_source, config.valid_target]
    check_files(files, config.data, pair=config.pair)
    if any(files[2:]) and not all(files[2:]):
        raise UserError(
            "expected both --valid-source and --valid-target, or neither. Received: "
            f"valid_source={config.valid_source}, valid_target={config.valid_target}"
        )
    if config.data is not None:
        pair = config.pair or ""
        files = [
            *find_files(config.data, pair, TRAINING_NAMES),
            *find_files(config.data, pair, VALIDATION_NAMES),
        ]
    training = read_pairs(*files[:2])
    if any(files[2:]):
        return training, read_pairs(*files[2:])
    return hold_out(training, config.seed)


def hold_out(pairs, seed):
    """Some pairs, drawn at random, are kept for validation."""
    count = min(HELD_OUT, len(pairs) // 10)
    if not count:
        raise UserError(
            "expected at least 10 pairs of sentences to hold some out for validation. "
            f"Received: {len(pairs)}"
        )
    order = np.random.default_rng(seed).permutation(len(pairs))
    parts = order[count:], order[:count]
    training, validation = (
        Pairs([pairs.source[i] for i in part], [pairs.target[i] for i in part])
        for part in parts
    )
    return dataclasses.replace(training, empty=pairs.empty), validation


def text_of(training, validation):
    """A line by which the text of a training is known: other texts have others.

    Args:
        training, validation: `Pairs`.
    """
    digest = hashlib.sha256()
    for pairs in (training, validation):
        # No line has a line feed.
        for line in (*pairs.source, *pairs.target):
            digest.update(f"{line}\n".encode())
    return (
        f"{len(training):,} pairs, {len(validation):,} for validation, "
        f"digest {digest.hexdigest()[:12]}"
    )


def _train(config, training, validation, devices):
    depends_on = dataclasses.asdict(config) | {"text": text_of(training, validation)}
    checkpoints = Checkpoints(config.output / CHECKPOINTS, depends_on)
    subwords = _subwords(config, training, checkpoints.resumed)
    model = config.model
    if model.length_ratio is None:
        ratio = length_ratio(subwords, training)
        model = dataclasses.replace(model, length_ratio=ratio)
    network = build_network(
        model, len(subwords), label_smoothing=config.label_smoothing
    )
    run = _Run(config, Translator(model, subwords, network), validation, checkpoints)
    phases = (lambda: run.fit(training, devices), run.average)
    for phase in phases[checkpoints.progress.phase :]:
        phase()
        checkpoints.next_phase()
    tell_best(run.best)
    # No other start needs them from now on.
    _remove_epochs(run.epochs)
    return run.best


def _epochs(folder):
    """The folders of the models of epochs, in order."""
    return [
        path
        for path in sorted(folder.glob("epoch-*"))
        if path.name.removeprefix("epoch-").isdecimal()
        and holds(path, (*MODEL, SUBWORDS))
    ]


def _remove_epochs(folder):
    """Remove the models of epochs, and their folder if nothing else is in it."""
    for epoch in _epochs(folder):
        remove_folder(epoch)
    remove_leftovers(folder, "epoch-[0-9]*")
    with contextlib.suppress(OSError):
        folder.rmdir()


def _subwords(config, training, resumed):
    """Those that an earlier start of this training has learned, or new ones."""
    path = config.output / SUBWORDS
    if resumed and path.exists():
        return Subwords(path.read_bytes())
    subwords = Subwords.train(
        [*training.source, *training.target],
        config.vocabulary_size,
        character_coverage=config.character_coverage,
    )
    with atomic_path(path) as temporary:
        temporary.write_bytes(subwords.model)
    return subwords


class _Run:
    """One training: what its phases share."""

    def __init__(self, config, translator, validation, checkpoints):
        self.config = config
        self.translator = translator
        self.network = translator.network
        self.validation = validation
        self.checkpoints = checkpoints
        self.best = config.output / BEST
        self.epochs = config.output / EPOCHS
        self.metric = config.validation_metric
        if self.metric == "bleu" and not has_four_words(validation.target):
            self.metric = "chrf"

    def fit(self, training, devices):
        """Phase 1: epochs."""
        config, progress = self.config, self.checkpoints.progress
        # JAX compiles for every shape.
        multiple = 8 if keras.backend.backend() == "jax" else 1
        batches = SentenceBatches(
            training,
            self.translator.subwords,
            batch_tokens=config.batch_tokens,
            min_batches=config.min_steps,
            max_length=config.model.max_length,
            subword_dropout=config.subword_dropout,
            target_subword_dropout=config.target_subword_dropout,
            seed=config.seed,
            epoch=progress.epoch,
            multiple=math.lcm(multiple, devices),
        )
        self._report(training, batches)
        if not len(batches):
            raise UserError(
                f"no pair has at most max_length={config.model.max_length} subwords a "
                "side"
            )
        if not self.checkpoints.resumed:
            # Another training may have left some, which are not to be averaged.
            _remove_epochs(self.epochs)
        self._compile(len(batches))
        validate = ValidateDecoded(
            self._validate,
            self.metric,
            self._keep,
            progress=progress,
            patience=config.patience,
        )
        if validate.exhausted:
            return
        callbacks = [LossIsANumber(), validate, SaveEveryEpoch(self.checkpoints)]
        if config.tensorboard:
            callbacks.append(keras.callbacks.TensorBoard(config.output / "logs"))
        self.network.fit(
            batches,
            initial_epoch=progress.epoch,
            epochs=config.epochs,
            shuffle=False,
            callbacks=callbacks,
        )

    def average(self):
        """Phase 2: the mean of several epochs, if it is as good as each of them."""
        folders = _epochs(self.epochs)
        if len(folders) > 1:
            history = self.checkpoints.progress.history
            averaged = average_models(folders, Translator.from_preset)
            scores = self._scores(averaged)
            print(f"The average of {len(folders)} epochs: {_told(scores)}")
            best = max(figures[self.metric] for figures in history)
            if scores[self.metric] >= best:
                about = [folder.name for folder in folders]
                averaged.save(self.best, training=self._about(), average_of=about)

    def _report(self, training, batches):
        said = [f"{len(batches.pairs)} pairs of sentences for training"]
        if training.empty:
            said.append(f"{training.empty} left out with an empty side")
        if batches.too_long:
            said.append(
                f"{batches.too_long} left out with more than "
                f"{self.config.model.max_length} subwords"
            )
        said.append(f"{len(self.validation)} for validation")
        said.append(f"{len(self.translator.subwords)} subwords")
        said.append(f"{self.network.count_params():,} weights")
        print("; ".join(said))
        if self.metric != self.config.validation_metric:
            print(
                "No sentence for validation has four words, so BLEU is always 0: the "
                f"best epoch is chosen by {self.metric}"
            )

    def _compile(self, steps_per_epoch):
        config = self.config
        steps = steps_per_epoch * config.epochs
        momentum = ema_momentum(config.ema_momentum, steps_per_epoch, LONGEST_AVERAGE)
        self.network.compile(
            optimizer=keras.optimizers.AdamW(
                WarmUp(
                    config.schedule,
                    config.learning_rate,
                    min(config.warm_up, steps // 10),
                    steps,
                ),
                beta_2=config.beta_2,
                weight_decay=config.weight_decay,
                global_clipnorm=config.clip_norm,
                use_ema=momentum > 0,
                ema_momentum=momentum,
            ),
            jit_compile=keras.backend.backend() == "jax",
        )
        self.checkpoints.restore(self.network)

    def _validate(self):
        scores = self._scores(self.translator)
        print(f"\n{_told(scores)}")
        if self.config.average:
            self._keep_epoch(scores[self.metric])
        return scores

    def _scores(self, translator):
        translations = translator.translate(
            self.validation.source,
            beam_size=self.config.validation_beam_size,
            batch_size=VALIDATION_BATCH,
        )
        texts = [translation.text for translation in translations]
        scores, _ = translation_scores(texts, self.validation.target)
        return scores

    def _keep_epoch(self, score):
        """Store the model of this epoch, and remove those that no average needs."""
        config, history = self.config, self.checkpoints.progress.history
        scores = [figures[self.metric] for figures in history] + [score]
        order = range(len(scores))
        if config.average_of == "best":
            order = sorted(order, key=lambda epoch: (scores[epoch], epoch))
        chosen = {f"epoch-{i + 1:04}" for i in list(order)[-config.average :]}
        name = f"epoch-{len(scores):04}"
        if name in chosen:
            self.translator.save(self.epochs / name)
        for folder in _epochs(self.epochs):
            if folder.name not in chosen:
                remove_folder(folder)

    def _keep(self):
        self.translator.save(self.best, training=self._about())

    def _about(self):
        """How the model was trained, without what is nobody's business."""
        about = dataclasses.asdict(self.config)
        del about["output"], about["model"]
        for name, value in about.items():
            if isinstance(value, Path):
                about[name] = value.name
        return about


def _told(scores):
    return "  ".join(f"{name} {score:.2f}" for name, score in scores.items())


@keras.saving.register_keras_serializable(package="keras_attention_apps")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that grows linearly to its peak and then stays, or falls.

        rate[t] = peak * t / warm_up                                        before
        rate[t] = peak                                                  (constant)
        rate[t] = peak * sqrt(warm_up / t)                   (inverse-square-root)
        rate[t] = peak * (1 + cos(pi (t - warm_up) / (steps - warm_up))) / 2
                                                                          (cosine)

    where steps count from one.

    Args:
        kind: `"constant"`, `"inverse-square-root"` or `"cosine"`.
        peak: The largest rate.
        warm_up: Steps before the peak.
        steps: Steps of the training.
    """

    def __init__(self, kind, peak, warm_up, steps):
        self.kind = kind
        self.peak = peak
        self.warm_up = warm_up
        self.steps = steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1
        warm_up = float(max(self.warm_up, 1))
        rising = ops.minimum(step / warm_up, 1.0)
        falling = 1.0
        if self.kind == "inverse-square-root":
            falling = ops.rsqrt(ops.maximum(step / warm_up, 1.0))
        elif self.kind == "cosine":
            done = (step - warm_up) / max(self.steps - warm_up, 1.0)
            falling = (1 + ops.cos(np.pi * ops.clip(done, 0.0, 1.0))) / 2
        return self.peak * rising * falling

    def get_config(self):
        return {
            "kind": self.kind,
            "peak": self.peak,
            "warm_up": self.warm_up,
            "steps": self.steps,
        }
