"""Training in two phases: on translations that are given, then on a reward."""

import contextlib
import dataclasses
import hashlib
import math
import operator
from pathlib import Path

import keras
import numpy as np
from keras import ops
from keras_attention_apps.common.averaging import average_models
from keras_attention_apps.common.checkpoints import Checkpoints
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.config import replaced
from keras_attention_apps.common.files import (
    MODEL,
    holds,
    recover_folder,
    remove_folder,
    remove_leftovers,
)
from keras_attention_apps.common.training import (
    BEST,
    CHECKPOINTS,
    all_devices,
    callbacks_of_phase,
    check_output,
    ema_momentum,
    numerics,
    tell_best,
)
from keras_attention_apps.nmt.batches import SentenceBatches
from keras_attention_apps.nmt.config import RUNTIME_OPTIONS, TrainConfig, with_recipe
from keras_attention_apps.nmt.data import (
    TRAINING_NAMES,
    VALIDATION_NAMES,
    Pairs,
    check_files,
    find_files,
    read_pairs,
)
from keras_attention_apps.nmt.evaluate import has_four_words, translation_scores
from keras_attention_apps.nmt.inference import Translator, length_ratio
from keras_attention_apps.nmt.model import build_network
from keras_attention_apps.nmt.rewards import LikenessReward
from keras_attention_apps.nmt.self_critical import SelfCriticalTranslations
from keras_attention_apps.nmt.text import SUBWORDS, Subwords

# Folder in the output folder: of the models to average.
EPOCHS = "epochs"
HELD_OUT = 1000
# Training steps that the moving average of the weights remembers.
LONGEST_AVERAGE = 1000
# In self-critical epochs, where every sentence has several samples: places for its
# tokens in a training step, and steps that the average remembers.
SAMPLED_TOKENS = 2000
SAMPLED_AVERAGE = 50
VALIDATION_BATCH = 64


def train(config: TrainConfig):
    """Train a translator; see `TrainConfig`. Returns the folder of the best model."""
    if config.from_preset and config.vocabulary_size is not None:
        raise UserError(
            "vocabulary_size is for subwords to be learned, and a preset has its own. "
            f"Received: {config.vocabulary_size} and {config.from_preset!r}"
        )
    config = with_recipe(config, config.model.attention)
    config = dataclasses.replace(
        config,
        model=with_recipe(config.model, config.model.attention),
        output=config.output.resolve(),
    )
    check_output(config.output, config.tensorboard)
    if not config.epochs + config.self_critical_epochs:
        raise UserError("expected epochs of one of the phases. Received: 0 of each")
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
        files = [
            *find_files(config.data, config.pair, TRAINING_NAMES),
            *find_files(config.data, config.pair, VALIDATION_NAMES),
        ]
    training = read_pairs(*files[:2])
    if any(files[2:]):
        return training, read_pairs(*files[2:])
    return hold_out(training, config.seed)


def hold_out(pairs, seed):
    """Some pairs, drawn at random, are kept for validation, with all their copies."""
    texts = list(zip(pairs.source, pairs.target, strict=True))
    distinct = list(dict.fromkeys(texts))
    count = min(HELD_OUT, len(distinct) // 10)
    if not count:
        raise UserError(
            "expected at least 10 different pairs of sentences to hold some out for "
            f"validation. Received: {len(distinct)}"
        )
    order = np.random.default_rng(seed).permutation(len(distinct))
    validation = [distinct[i] for i in order[:count]]
    held_out = set(validation)
    training = [text for text in texts if text not in held_out]
    training, validation = (
        Pairs(*map(list, zip(*x, strict=True))) for x in (training, validation)
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
    start, depends_on = None, {}
    if config.from_preset:
        start = Translator.from_preset(config.from_preset)
        changes = dataclasses.asdict(config.model)
        model = replaced(start.config, changes, RUNTIME_OPTIONS)
        size = len(start.tokenizer)
        config = dataclasses.replace(config, model=model, vocabulary_size=size)
        # A preset that was trained anew may have others, and another configuration.
        digest = hashlib.sha256(start.tokenizer.model).hexdigest()
        depends_on = {"from_preset's subwords": f"digest {digest[:12]}"}
    depends_on |= dataclasses.asdict(config)
    depends_on |= {"text": text_of(training, validation)}
    checkpoints = Checkpoints(config.output / CHECKPOINTS, depends_on)
    recover_folder(config.output / BEST)
    subwords = start.tokenizer if start else _subwords(config, training, checkpoints)
    model = config.model
    if model.length_ratio is None:
        ratio = length_ratio(subwords, training)
        model = dataclasses.replace(model, length_ratio=ratio)
    network = build_network(
        model,
        len(subwords),
        label_smoothing=config.label_smoothing,
        sample_temperature=config.self_critical_temperature,
    )
    if start:
        network.set_weights(start.network.get_weights())
    translator = Translator(model, subwords, network)
    run = _Run(config, translator, training, validation, checkpoints, devices)
    phases = (run.fit, run.average, run.self_criticise)
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


def _subwords(config, training, checkpoints):
    """Those that an earlier start of this training has learned, or new ones."""
    if checkpoints.resumed and holds(config.output, [SUBWORDS]):
        return Subwords.load(config.output)
    subwords = Subwords.train(
        [*training.source, *training.target],
        config.vocabulary_size,
        character_coverage=config.character_coverage,
    )
    subwords.save(config.output)
    return subwords


class _Run:
    """One training: what its phases share."""

    def __init__(self, config, translator, training, validation, checkpoints, devices):
        self.config = config
        self.translator = translator
        self.network = translator.network
        self.training = training
        self.validation = validation
        self.checkpoints = checkpoints
        # JAX compiles for every shape.
        multiple = 8 if keras.backend.backend() == "jax" else 1
        self.multiple = math.lcm(multiple, devices)
        self.best = config.output / BEST
        self.epochs = config.output / EPOCHS
        self.metric = config.validation_metric
        if self.metric == "bleu" and not has_four_words(validation.target):
            self.metric = "chrf"
        # BLEU is 0 where no translation has four words right: the other one decides.
        others = {"bleu": "chrf", "chrf": "bleu"}
        self.rank = operator.itemgetter(self.metric, others[self.metric])

    def fit(self):
        """Phase 1: epochs on the translations that are given."""
        config, progress = self.config, self.checkpoints.progress
        batches = self._batches(
            config.batch_tokens,
            subword_dropout=config.subword_dropout,
            target_subword_dropout=config.target_subword_dropout,
        )
        self._report(batches)
        if not self.checkpoints.resumed:
            # Another training may have left some, which are not to be averaged.
            _remove_epochs(self.epochs)
        if not config.epochs:
            return
        self._compile(
            len(batches),
            config.epochs,
            config.schedule,
            config.learning_rate,
            ema_momentum(config.ema_momentum, len(batches), LONGEST_AVERAGE),
        )
        callbacks = self._callbacks(self._validate_and_keep)
        if callbacks is None:
            return
        self.network.fit(
            batches,
            initial_epoch=progress.epoch,
            epochs=config.epochs,
            shuffle=False,
            callbacks=callbacks,
        )

    def average(self):
        """After it: the mean of several epochs, if it is as good as each of them."""
        folders = _epochs(self.epochs)
        if len(folders) > 1:
            history = self.checkpoints.progress.history
            averaged = average_models(folders, Translator.from_preset)
            scores = self._scores(averaged)
            print(f"The average of {len(folders)} epochs: {_told(scores)}")
            if self.rank(scores) >= max(map(self.rank, history)):
                about = [folder.name for folder in folders]
                averaged.save(self.best, training=self._about(), average_of=about)
            history.append(scores)

    def self_criticise(self):
        """Phase 2: it learns from what its own samples are worth."""
        config, progress = self.config, self.checkpoints.progress
        epochs = config.self_critical_epochs
        if not epochs:
            return
        if progress.history:
            best = Translator.from_preset(self.best).network
            self.network.set_weights(best.get_weights())
        batches = self._batches(min(config.batch_tokens, SAMPLED_TOKENS))
        samples = SelfCriticalTranslations(
            self.translator,
            batches,
            LikenessReward(self.training.target),
            samples=config.self_critical_samples,
            seed=config.seed,
        )
        momentum = ema_momentum(config.ema_momentum, len(batches), SAMPLED_AVERAGE)
        self._compile(
            len(batches),
            epochs,
            "cosine",
            config.self_critical_learning_rate,
            min(momentum, 1 - 1 / SAMPLED_AVERAGE),
        )
        callbacks = self._callbacks(self._validate)
        if callbacks is not None:
            samples.fit(
                epochs=epochs, initial_epoch=progress.epoch, callbacks=callbacks
            )

    def _batches(self, batch_tokens, **dropout):
        config = self.config
        batches = SentenceBatches(
            self.training,
            self.translator.tokenizer,
            batch_tokens=batch_tokens,
            min_batches=config.min_steps,
            max_length=config.model.max_length,
            seed=config.seed,
            epoch=self.checkpoints.progress.epoch,
            multiple=self.multiple,
            **dropout,
        )
        if not len(batches):
            raise UserError(
                f"no pair has at most max_length={config.model.max_length} subwords a "
                "side"
            )
        return batches

    def _callbacks(self, validate):
        """Those of a phase, or `None`; see `callbacks_of_phase`."""
        return callbacks_of_phase(
            self.config,
            self.checkpoints,
            validate,
            self.rank,
            self._keep,
        )

    def _report(self, batches):
        training = self.training
        said = [f"{len(batches.pairs)} pairs of sentences for training"]
        if training.empty:
            said.append(f"{training.empty} left out with an empty side")
        if batches.too_long:
            said.append(
                f"{batches.too_long} left out with more than "
                f"{self.config.model.max_length} subwords"
            )
        said.append(f"{len(self.validation)} for validation")
        said.append(f"{len(self.translator.tokenizer)} subwords")
        said.append(f"{self.network.count_params():,} weights")
        print("; ".join(said))
        if self.metric != self.config.validation_metric:
            print(
                "No sentence for validation has four words, so BLEU is always 0: the "
                f"best epoch is chosen by {self.metric}"
            )

    def _compile(self, steps_per_epoch, epochs, schedule, learning_rate, momentum):
        """A fresh optimiser for a phase, or the one that was interrupted."""
        config, steps = self.config, steps_per_epoch * epochs
        self.network.compile(
            optimizer=keras.optimizers.AdamW(
                WarmUp(
                    schedule, learning_rate, min(config.warm_up, steps // 10), steps
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

    def _validate_and_keep(self):
        """`_validate`, and store the model if it may be averaged."""
        scores = self._validate()
        if self.config.average:
            self._keep_epoch(scores)
        return scores

    def _validate(self):
        scores = self._scores(self.translator)
        print(f"\n{_told(scores)}")
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

    def _keep_epoch(self, scores):
        """Store the model of this epoch, and remove those that no average needs."""
        config, history = self.config, self.checkpoints.progress.history
        ranks = [self.rank(figures) for figures in (*history, scores)]
        order = range(len(ranks))
        if config.average_of == "best":
            order = sorted(order, key=lambda epoch: (ranks[epoch], epoch))
        chosen = {f"epoch-{i + 1:04}" for i in list(order)[-config.average :]}
        name = f"epoch-{len(ranks):04}"
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
        if self.config.from_preset:
            about["from_preset"] = Path(self.config.from_preset).name
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
