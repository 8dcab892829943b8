"""Training: teacher forcing, averaging of epochs, and self-critical training."""

import contextlib
import dataclasses
import html
import itertools
import operator
from pathlib import Path

import keras
import numpy as np
from keras_attention_apps.common.distribution import (
    is_first_host,
    on_first_host,
    training_context,
    wait_for_hosts,
)
from keras_attention_apps.common.errors import UserError, counted
from keras_attention_apps.common.files import (
    MODEL_FILES,
    holds,
    recover_folder,
    remove_folder,
    remove_leftovers,
    resolved,
)
from keras_attention_apps.common.models import BEST, short_digest
from keras_attention_apps.common.network.weights import copy_weights
from keras_attention_apps.common.options import TRAINING_NEEDS, check_needs
from keras_attention_apps.common.task import average_models
from keras_attention_apps.common.training import data_sets, runner, schedules
from keras_attention_apps.common.training.checkpoints import Checkpoints, dependencies
from keras_attention_apps.common.training.report import Samples, best_of, is_epoch
from keras_attention_apps.nmt.config import (
    DECODERS,
    FEW_PAIRS,
    GENTLE,
    MODEL_NEEDS,
    RECIPES,
    TrainConfig,
    with_recipe,
)
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.data.dataset import (
    TRAINING_NAMES,
    VALIDATION_NAMES,
    Pairs,
    check_files,
    find_files,
    joined,
    read_pairs,
)
from keras_attention_apps.nmt.inference import Translator, length_ratio
from keras_attention_apps.nmt.metrics import has_four_words, translation_scores
from keras_attention_apps.nmt.network import build_network
from keras_attention_apps.nmt.text import SUBWORDS, Subwords
from keras_attention_apps.nmt.training.back_translation import (
    BACK_TRANSLATIONS,
    back_translate,
)
from keras_attention_apps.nmt.training.self_critical import (
    BleuChrfReward,
    SelfCriticalTranslations,
)
from keras_attention_apps.nmt.web.views import heat_map


class TranslationSamples(Samples):
    """Translations of a few validation sentences, with their alignments.

    The examples are pairs of a sentence and its reference, the outputs `Translation`s.
    """

    def head(self, example):
        source, reference = map(html.escape, example)
        return (
            f'<div class="head"><p class="source" dir="auto">{source}</p>'
            f'<ul aria-label="Reference"><li dir="auto">{reference}</li></ul></div>'
        )

    def figure(self, output):
        return heat_map(output)


# Subfolder of the output folder for the models to average.
SAVED_EPOCHS = "epochs"
# Maximum number of pairs that are held out for validation.
MAX_HELD_OUT = 1000
# Maximum number of steps over which the EMA of the weights averages.
MAX_EMA_STEPS = 1000
# Tokens in a batch, and steps of the EMA, in self-critical training, where every
# sentence has several samples.
SAMPLED_TOKENS = 2000

SAMPLED_EMA_STEPS = 50

VALIDATION_BATCH = 64


def train(config: TrainConfig):
    """Train a translator; see `TrainConfig`. Returns the folder of the best model."""
    for name in ("vocabulary_size", "character_coverage"):
        value = getattr(config, name)
        if config.from_preset and value != getattr(TrainConfig, name):
            raise UserError(
                f"{name} must not be set with from_preset, which has its own "
                f"vocabulary. Received: {value} and {config.from_preset!r}"
            )
    if not config.model.attention:
        model = dataclasses.replace(config.model, attention="bahdanau")
        config = dataclasses.replace(config, model=model)
    expected = DECODERS[config.model.attention]
    if config.model.decoder != expected:
        raise UserError(
            f"the attention {config.model.attention} needs the {expected} decoder. "
            f"Received: {config.model.decoder}"
        )
    if not runner.is_begun(config.output):
        check_needs(config, TRAINING_NEEDS)
        # The options of a preset may have been saved before this check existed.
        if not config.from_preset:
            recipe = RECIPES[config.model.attention]
            check_needs(config.model, MODEL_NEEDS, "model.", recipe)
    config = dataclasses.replace(
        config,
        model=with_recipe(config.model, config.model.attention),
        output=resolved(config.output),
    )
    if config.guide and config.model.attention == "none":
        raise UserError("guide needs a model with attention. Received: attention=none")
    if (config.monolingual is None) != (config.reverse_model is None):
        raise UserError(
            "expected both --monolingual and --reverse-model, or neither. Received: "
            f"monolingual={config.monolingual}, reverse_model={config.reverse_model}"
        )
    inputs = [config.source, config.target, config.valid_source, config.valid_target]
    models = [config.from_preset, config.reverse_model]
    runner.check_output(
        config.output,
        [*inputs, config.guide, config.monolingual, *config.data, *models],
        (BEST, runner.CHECKPOINTS, SAVED_EPOCHS, BACK_TRANSLATIONS),
        files=(SUBWORDS,),
    )
    runner.check_epochs(config.epochs, config.self_critical_epochs)
    training, validation = read_texts(config)
    few = config.from_preset and len(training) < FEW_PAIRS
    if few:
        print(f"{len(training):,} pairs are few for a preset, which learns gently")
    config = with_recipe(config, config.model.attention, GENTLE if few else {})
    with training_context(config) as devices:
        if config.monolingual is not None:
            training = joined(
                [training, back_translate(config)],
                [1, config.monolingual_weight],
            )
        return _train(config, training, validation, devices)


def read_texts(config):
    """Return the pairs for training, and a dict from data sets to validation pairs."""
    files = [config.source, config.target, config.valid_source, config.valid_target]
    check_files(files, config.data or None, pair=config.pair)
    if any(files[2:]) and not all(files[2:]):
        raise UserError(
            "expected both --valid-source and --valid-target, or neither. Received: "
            f"valid_source={config.valid_source}, valid_target={config.valid_target}"
        )
    if config.data or config.data_weights:
        data_sets.check_data_sets(config.data, config.data_weights)
    if len(config.data) > 1 and config.guide:
        raise UserError(
            f"--guide needs a single data set. Received: {len(config.data)} with --data"
        )
    if not config.data:
        training = read_pairs(*files[:2], config.guide)
        if any(files[2:]):
            return training, {"validation": read_pairs(*files[2:])}
    else:
        training = joined(
            [
                read_pairs(*find_files(x, config.pair, TRAINING_NAMES), config.guide)
                for x in config.data
            ],
            config.data_weights or [1] * len(config.data),
        )
        return training, read_validation(config)
    training, validation = hold_out(training, config.seed)
    return training, {"validation": validation}


def read_validation(config):
    """Return a dict from the names of data sets to their validation pairs, if any."""
    found, problem = {}, None
    for name, folder in zip(data_sets.names_of(config.data), config.data, strict=True):
        try:
            files = find_files(folder, config.pair, VALIDATION_NAMES)
        except UserError as error:
            problem = error
            continue
        found[name] = read_pairs(*files)
    if not found:
        raise problem
    return found


def hold_out(pairs, seed):
    """Hold out random pairs for validation, with all their copies."""
    texts = list(zip(pairs.source, pairs.target, strict=True))
    distinct = list(dict.fromkeys(texts))
    count = min(MAX_HELD_OUT, len(distinct) // 10)
    if not count:
        raise UserError(
            "expected at least 10 different pairs of sentences to hold some out for "
            f"validation. Received: {len(distinct)}"
        )
    order = np.random.default_rng(seed).permutation(len(distinct))
    validation = [distinct[i] for i in order[:count]]
    held_out = set(validation)
    training = [i for i, text in enumerate(texts) if text not in held_out]
    return pairs.chosen(training), Pairs(*map(list, zip(*validation, strict=True)))


def _languages(config):
    """Return the codes of both languages, or the suffixes of the files of text."""
    if config.pair:
        return config.pair.split("-")
    files = (config.source, config.target)
    return [Path(x).suffix.removeprefix(".") for x in files if x]


def text_fingerprint(training, validation):
    """Return a line with the size and a digest of the training text."""
    digest = short_digest(
        [[x.source, x.target] for x in (training, *validation.values())]
    )
    count = sum(map(len, validation.values()))
    return f"{len(training):,} pairs, {count:,} for validation, {digest}"


def guide_fingerprint(training):
    """Return a line with the number of links and their digest, or `None`."""
    if not training.links:
        return None
    digest = short_digest([links.tolist() for links in training.links])
    return f"{sum(map(len, training.links)):,} links, {digest}"


def _train(config, training, validation, devices):
    start = None
    if config.from_preset:
        start, model = Translator.to_fine_tune(config.from_preset, config.model)
        size = len(start.tokenizer)
        config = dataclasses.replace(config, model=model, vocabulary_size=size)
    depends_on = dependencies(
        config,
        start,
        text=text_fingerprint(training, validation),
        guide_links=guide_fingerprint(training),
    )
    checkpoints = Checkpoints(config.output / runner.CHECKPOINTS, depends_on)
    on_first_host(recover_folder, config.output / BEST)
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
        guide_weight=config.guide_weight,
    )
    if start:
        copy_weights(start.network, network)
    translator = Translator(model, subwords, network)
    phases = _Phases(config, translator, training, validation, checkpoints, devices)
    phases.runner.run(
        (phases.teacher_forcing, phases.average_epochs, phases.self_critical),
        phases.validate,
    )
    # A finished training never averages again.
    wait_for_hosts("training")
    _remove_epochs(phases.epochs_folder)
    return phases.runner.best


def _saved_epochs(folder):
    """Return the folders of the saved epochs, in order."""
    return [
        path
        for path in sorted(folder.glob("epoch-*"))
        if path.name.removeprefix("epoch-").isdecimal()
        and holds(path, (*MODEL_FILES, SUBWORDS))
    ]


def _remove_epochs(folder):
    """Remove the saved epochs, and their folder if nothing else is in it."""
    if not is_first_host():
        return
    for epoch in _saved_epochs(folder):
        remove_folder(epoch)
    remove_leftovers(folder, "epoch-[0-9]*")
    with contextlib.suppress(OSError):
        folder.rmdir()


def _subwords(config, training, checkpoints):
    """Return the subwords of the interrupted training, or learn new ones."""
    if checkpoints.resumed and holds(checkpoints.directory, [SUBWORDS]):
        return Subwords.load(checkpoints.directory)
    # Back-translations may contain what no author would write.
    synthetic = training.back_translated or [False] * len(training)
    sources = itertools.compress(training.source, map(operator.not_, synthetic))
    return Subwords.train(
        [*sources, *training.target],
        config.vocabulary_size,
        character_coverage=config.character_coverage,
    )


class _Phases:
    """The phases of a training, and the data that they share."""

    def __init__(self, config, translator, training, validation, checkpoints, devices):
        self.config = config
        self.translator = translator
        self.network = translator.network
        self.training = training
        self.validation = validation
        self.checkpoints = checkpoints
        self.devices = devices
        self.epochs_folder = config.output / SAVED_EPOCHS
        self.metric = config.validation_metric
        if self.metric == "bleu" and not all(
            has_four_words(pairs.target) for pairs in validation.values()
        ):
            self.metric = "chrf"
        # BLEU is 0 without a correct 4-gram: the other metric breaks ties.
        others = {"bleu": "chrf", "chrf": "bleu"}
        self.rank = operator.itemgetter(self.metric, others[self.metric])
        self.samples = TranslationSamples(
            [
                example
                for pairs in validation.values()
                for example in zip(pairs.source, pairs.target, strict=True)
            ]
        )
        self.runner = runner.Runner(
            config,
            translator,
            checkpoints,
            rank=self.rank,
            options=runner.training_options(config, paths=("from_preset",)),
            card={
                "task": "translation",
                "languages": _languages(config),
                "data": data_sets.names_of(config.data),
            },
            optimizer={"beta_2": config.beta_2},
            title=f"Training of a translator, attention: {config.model.attention}",
            data_summary=f"{len(training):,} pairs of sentences; "
            f"{self._validation_summary()}; "
            f"{len(translator.tokenizer):,} subwords",
            metric=self.metric,
            samples=self.samples,
        )

    def teacher_forcing(self):
        """Train by teacher forcing on the reference translations."""
        config = self.config
        batches = self._batches(
            config.batch_tokens, config.subword_dropout, guided=True
        )
        self._report(batches)
        checkpoints = self.checkpoints
        if not checkpoints.progress.weights:
            # Epochs of another training must not be averaged.
            _remove_epochs(self.epochs_folder)
            if not config.from_preset:
                on_first_host(self.translator.tokenizer.save, checkpoints.directory)
        if not config.epochs:
            return
        self.runner.fit(
            "Teacher forcing",
            batches,
            self._validate_and_keep,
            epochs=config.epochs,
            learning_rate=config.learning_rate,
            warm_up=config.warm_up,
            ema_momentum=schedules.ema_momentum(
                config.ema_momentum, len(batches), MAX_EMA_STEPS
            ),
        )

    def average_epochs(self):
        """Average the weights of several epochs, and keep the average if it is best."""
        wait_for_hosts("epochs to average")
        folders = _saved_epochs(self.epochs_folder)
        if len(folders) > 1:
            history = self.checkpoints.progress.history
            averaged = average_models(folders, Translator.from_preset)
            print(f"The average of {len(folders)} epochs:", end="")
            scores = self._scores(averaged)
            self.runner.report.add_epoch(f"Average of {len(folders)} epochs", scores)
            if best_of([*history, scores], self.rank) == len(history):
                names = [folder.name for folder in folders]
                self.runner.save_best(scores, averaged, average_of=names)
            history.append(scores)

    def self_critical(self):
        """Train by self-critical training."""
        config = self.config
        if not config.self_critical_epochs:
            return
        self.runner.load_best()
        batches = self._batches(min(config.batch_tokens, SAMPLED_TOKENS))
        samples = SelfCriticalTranslations(
            self.translator,
            batches,
            BleuChrfReward(self.training.target),
            samples=config.self_critical_samples,
            seed=config.seed,
        )
        momentum = schedules.ema_momentum(
            config.ema_momentum, len(batches), SAMPLED_EMA_STEPS
        )
        self.runner.fit(
            "Self-critical training",
            samples,
            self.validate,
            epochs=config.self_critical_epochs,
            learning_rate=config.self_critical_learning_rate,
            warm_up=config.warm_up,
            ema_momentum=min(momentum, 1 - 1 / SAMPLED_EMA_STEPS),
        )

    def _batches(self, batch_tokens, subword_dropout=0.0, guided=False):
        config, training = self.config, self.training
        batches = SentenceBatches(
            training if guided else dataclasses.replace(training, links=None),
            self.translator.tokenizer,
            batch_tokens=batch_tokens,
            min_batches=config.min_steps,
            max_length=config.model.max_length,
            subword_dropout=subword_dropout,
            seed=config.seed,
            epoch=self.checkpoints.progress.epoch,
            copying=self.translator.copying,
            few_shapes=keras.backend.backend() == "jax",
            devices=self.devices,
        )
        if not len(batches):
            raise UserError(
                "every pair has a side of more subwords than max_length, "
                f"{config.model.max_length}"
            )
        return batches

    def _report(self, batches):
        training = self.training
        parts = [f"{len(batches.pairs)} pairs of sentences for training"]
        if training.empty_count:
            parts.append(f"{training.empty_count} left out with an empty side")
        if batches.too_long_count:
            parts.append(
                f"{batches.too_long_count} left out with more than "
                f"{counted(self.config.model.max_length, 'subword')}"
            )
        parts.append(self._validation_summary())
        if training.links:
            parts.append(f"{sum(map(len, training.links))} links")
        parts.append(f"{len(self.translator.tokenizer)} subwords")
        parts.append(f"{self.network.count_params():,} weights")
        print("; ".join(parts))
        if self.metric != self.config.validation_metric:
            print(
                "No validation sentence has four words, so BLEU is always 0: the "
                f"best epoch is chosen by {self.metric}"
            )

    def _validation_summary(self):
        return data_sets.summary_of(
            {
                x: data_sets.validation_summary(len(y), "pair")
                for x, y in self.validation.items()
            }
        )

    def _validate_and_keep(self):
        """Validate, and store the model if epochs are averaged."""
        scores = self.validate()
        if self.config.average:
            on_first_host(self._save_epoch, scores)
        return scores

    def validate(self):
        """Return the metrics of the model that is trained."""
        return self._scores(self.translator)

    def _scores(self, translator):
        """Print and return the metrics of a model, of several data sets their means."""
        pairs = self.validation.values()
        translations = translator.translate(
            [x for data_set in pairs for x in data_set.source],
            beam_size=self.config.validation_beam_size,
            batch_size=VALIDATION_BATCH,
            split=False,
        )
        names = " and ".join(self.validation)
        translations = translator.calibrate(names, translations)
        for index, translation in enumerate(translations):
            self.samples.keep(index, translation)
        texts = iter([translation.text for translation in translations])
        found = {
            name: translation_scores(
                list(itertools.islice(texts, len(data_set))), data_set.target
            )[0]
            for name, data_set in self.validation.items()
        }
        print(f"\n{data_sets.formatted_scores(found, digits=2)}")
        return data_sets.combined_scores(found)

    def _save_epoch(self, scores):
        """Save the model of this epoch, and remove the epochs that are not averaged."""
        config, history = self.config, self.checkpoints.progress.history
        # Epoch 0, a preset, is not averaged.
        epochs = [*filter(is_epoch, history), scores]
        ranks = [self.rank(metrics) for metrics in epochs]
        ranked = sorted(range(len(ranks)), key=lambda epoch: (ranks[epoch], epoch))
        chosen = {f"epoch-{i + 1:04}" for i in ranked[-config.average :]}
        name = f"epoch-{len(ranks):04}"
        if name in chosen:
            self.translator.save(self.epochs_folder / name)
        for folder in _saved_epochs(self.epochs_folder):
            if folder.name not in chosen:
                remove_folder(folder)
