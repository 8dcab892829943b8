"""Training: teacher forcing, averaging of epochs, and self-critical training."""

import contextlib
import dataclasses
import functools
import html
import itertools
import operator

import keras
import numpy as np

from keras_attention_apps.common import distribution
from keras_attention_apps.common.errors import UserError, counted
from keras_attention_apps.common.files import (
    holds,
    remove_folder,
    remove_leftovers,
    resolved,
)
from keras_attention_apps.common.models import MODEL_FILES, short_digest
from keras_attention_apps.common.options import check_needs, with_defaults
from keras_attention_apps.common.task import average_models
from keras_attention_apps.common.training import data_sets, runner
from keras_attention_apps.common.training.checkpoints import is_begun, open_checkpoints
from keras_attention_apps.common.training.logs import check_tensorboard
from keras_attention_apps.common.training.report import Samples, best_of, is_epoch
from keras_attention_apps.common.training.self_critical import SelfCritical
from keras_attention_apps.nmt.config import (
    DECODERS,
    FEW_PAIRS,
    GENTLE,
    MODEL_NEEDS,
    RECIPES,
    TRAINING_NEEDS,
    TrainConfig,
)
from keras_attention_apps.nmt.data import dataset
from keras_attention_apps.nmt.data.augmentation import Augmentation
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.data.pair_files import is_pair_file
from keras_attention_apps.nmt.inference import Translator, length_ratio
from keras_attention_apps.nmt.metrics import (
    has_four_words,
    tokenizer_for,
    translation_scores,
)
from keras_attention_apps.nmt.network import build_network
from keras_attention_apps.nmt.subwords import SUBWORDS, Subwords, pad
from keras_attention_apps.nmt.training.back_translation import (
    BACK_TRANSLATIONS,
    back_translate,
)
from keras_attention_apps.nmt.views import heat_map

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
    if config.from_preset and config.vocabulary_size is not None:
        raise UserError(
            "vocabulary_size must not be set with from_preset, which has its own "
            f"vocabulary. Received: {config.vocabulary_size} and {config.from_preset!r}"
        )
    attention = config.model.attention or "bahdanau"
    recipe, expected = RECIPES[attention], DECODERS[attention]
    model = dataclasses.replace(config.model, attention=attention)
    if model.decoder != expected:
        raise UserError(
            f"the attention {attention} needs the {expected} decoder. "
            f"Received: {model.decoder}"
        )
    if not is_begun(config.output):
        check_needs(config, TRAINING_NEEDS)
        # The options of a preset may have been saved before this check existed.
        if not config.from_preset:
            check_needs(model, MODEL_NEEDS, "model.", recipe)
    model = with_defaults(model, recipe)
    config = dataclasses.replace(config, model=model, output=resolved(config.output))
    if (config.monolingual is None) != (config.reverse_model is None):
        raise UserError(
            "expected both --monolingual and --reverse-model, or neither. Received: "
            f"monolingual={config.monolingual}, reverse_model={config.reverse_model}"
        )
    inputs = [config.source, config.target, config.valid_source, config.valid_target]
    models = [config.from_preset, config.reverse_model]
    runner.check_output(
        config.output,
        [*inputs, config.monolingual, *config.data, *models],
        (*runner.FOLDERS, SAVED_EPOCHS, BACK_TRANSLATIONS),
        files=(SUBWORDS,),
    )
    runner.check_epochs(config.epochs, config.self_critical_epochs)
    check_tensorboard(config.tensorboard)
    training, validation = read_texts(config)
    if config.from_preset and len(training) < FEW_PAIRS:
        config = with_defaults(config, GENTLE, f"{len(training):,} pairs")
    config = with_defaults(config, recipe)
    with distribution.training_context(config) as devices:
        if config.monolingual is not None:
            parts = [training, back_translate(config)]
            training = dataset.joined(parts, [1, config.monolingual_weight])
        return _train(config, training, validation, devices)


def read_texts(config):
    """Return the pairs for training, and a dict from data sets to validation pairs."""
    files = [config.source, config.target, config.valid_source, config.valid_target]
    options = {"pair": config.pair, "columns": config.columns or None}
    dataset.check_files(files, config.data or None, **options)
    if any(files[2:]) and not all(files[2:]):
        raise UserError(
            "expected both --valid-source and --valid-target, or neither. Received: "
            f"valid_source={config.valid_source}, valid_target={config.valid_target}"
        )
    if config.data or config.data_weights:
        data_sets.check_data_sets(config.data, config.data_weights)
    if config.data:
        parts = [
            dataset.read_split(x, config.pair, dataset.TRAINING_NAMES, config.columns)
            for x in config.data
        ]
        training = dataset.joined(parts, config.data_weights or [1] * len(parts))
        if validation := read_validation(config):
            return training, validation
        # Files of pairs alone.
        training, held_out = hold_out(training, config.seed)
        return training, {"validation": held_out}
    training = dataset.read_pairs(*files[:2])
    if any(files[2:]):
        validation = dataset.read_pairs(*files[2:])
    else:
        training, validation = hold_out(training, config.seed)
    return training, {"validation": validation}


def read_validation(config):
    """Return a dict from the names of data sets to their validation pairs, if any.

    A file of pairs has none.
    """
    validation, problem = {}, None
    for name, folder in zip(data_sets.names_of(config.data), config.data, strict=True):
        if is_pair_file(folder):
            continue
        try:
            files = dataset.find_files(folder, config.pair, dataset.VALIDATION_NAMES)
        except UserError as error:
            problem = error
            continue
        validation[name] = dataset.read_pairs(*files)
    if problem and not validation:
        raise problem
    return validation


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
    source, target = map(list, zip(*validation, strict=True))
    return pairs.chosen(training), dataset.Pairs(source, target)


def _train(config, training, validation, devices):
    start = None
    if config.from_preset:
        start, model = Translator.load_for_fine_tuning(config.from_preset, config.model)
        if config.symbols:
            start = with_symbols(start, config.seed)
        size = len(start.tokenizer)
        config = dataclasses.replace(config, model=model, vocabulary_size=size)
    texts = [[x.source, x.target] for x in (training, *validation.values())]
    count = sum(map(len, validation.values()))
    text = f"{len(training):,} pairs, {count:,} for validation, {short_digest(texts)}"
    checkpoints = open_checkpoints(config, start, text=text)
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
    best = TranslationTraining(
        config, translator, training, validation, checkpoints, devices
    ).run()
    # A finished training never averages again.
    distribution.wait_for_hosts("training")
    _remove_epochs(config.output / SAVED_EPOCHS)
    return best


def _saved_epochs(folder):
    """Return the folders of the saved epochs, in order."""
    folders = sorted(folder.glob("epoch-[0-9][0-9][0-9][0-9]"))
    return [path for path in folders if holds(path, (*MODEL_FILES, SUBWORDS))]


def _remove_epochs(folder):
    """Remove the saved epochs, and their folder if nothing else is in it."""
    if not distribution.is_first_host():
        return
    for epoch in _saved_epochs(folder):
        remove_folder(epoch)
    remove_leftovers(folder, "epoch-[0-9]*")
    with contextlib.suppress(OSError):
        folder.rmdir()


def _subwords(config, training, checkpoints):
    """Return the subwords of the interrupted training, or learn new ones."""
    if is_begun(config.output) and holds(checkpoints.directory, [SUBWORDS]):
        return Subwords.load(checkpoints.directory)
    # Back-translations may contain what no author would write.
    synthetic = training.back_translated or [False] * len(training)
    sources = itertools.compress(training.source, map(operator.not_, synthetic))
    subwords = Subwords.train([*sources, *training.target], config.vocabulary_size)
    return subwords.with_symbols() if config.symbols else subwords


def with_symbols(translator, seed):
    """Return a translator whose vocabulary has the symbols.

    A new embedding is near the mean of all, with noise that makes it unlike the others.
    """
    old, subwords = translator.tokenizer, translator.tokenizer.with_symbols()
    if len(subwords) == len(old):
        return translator
    network = build_network(translator.config, len(subwords))
    random = np.random.default_rng(seed)
    weights = translator.network.get_weights()
    for i, weight in enumerate(weights):
        if weight.ndim == 2 and len(weight) == len(old):
            mean, deviation = weight.mean(axis=0), weight.std()
            shape = len(subwords) - len(old), weight.shape[1]
            rows = mean + deviation * random.standard_normal(shape)
            weights[i] = np.concatenate([weight, rows.astype(weight.dtype)])
    network.set_weights(weights)
    return Translator(translator.config, subwords, network)


class TranslationTraining(runner.Training):
    """The phases of a training, and the data that they share."""

    task: Translator

    def __init__(self, config, translator, training, validation, checkpoints, devices):
        metric = config.validation_metric
        if metric == "bleu" and not all(
            has_four_words(pairs.target) for pairs in validation.values()
        ):
            metric = "chrf"
        self.training = training
        self.sources: list[str] = []
        self.references: list[str] = []
        self.parts: dict[str, slice] = {}
        for name, pairs in validation.items():
            begin = len(self.sources)
            self.parts[name] = slice(begin, begin + len(pairs))
            self.sources += pairs.source
            self.references += pairs.target
        self.validation_summary = data_sets.summary_of(
            {
                name: data_sets.validation_summary(len(pairs), "pair")
                for name, pairs in validation.items()
            }
        )
        super().__init__(
            config,
            translator,
            checkpoints,
            metric=metric,
            # BLEU is 0 without a correct 4-gram: the other metric breaks ties.
            rank=operator.itemgetter(metric, "chrf" if metric == "bleu" else "bleu"),
            samples=Samples(
                [*zip(self.sources, self.references, strict=True)], _head, heat_map
            ),
            title=f"Training of a translator, attention: {config.model.attention}",
            data_summary=f"{len(training):,} pairs of sentences; "
            f"{self.validation_summary}; {len(translator.tokenizer):,} subwords",
            options=runner.training_options(config),
        )
        self.beta_2 = config.beta_2
        self.devices = devices
        self.epochs_folder = config.output / SAVED_EPOCHS

    def phases(self):
        return self.teacher_forcing, self.average_epochs, self.self_critical

    def teacher_forcing(self):
        """Train by teacher forcing on the reference translations."""
        config = self.config
        batches = self._batches(config.batch_tokens, config.subword_dropout)
        self._report(batches)
        if not self.progress.weights:
            # Epochs of another training must not be averaged.
            _remove_epochs(self.epochs_folder)
            if not config.from_preset:
                distribution.on_first_host(
                    self.task.tokenizer.save, self.checkpoints.directory
                )
        if not config.epochs:
            return
        self.fit(
            "Teacher forcing",
            batches,
            self._validate_and_keep,
            epochs=config.epochs,
            learning_rate=config.learning_rate,
            warm_up=config.warm_up,
            ema_momentum=runner.ema_momentum(
                config.ema_momentum, len(batches), MAX_EMA_STEPS
            ),
        )

    def average_epochs(self):
        """Average the weights of several epochs, and keep the average if it is best."""
        distribution.wait_for_hosts("epochs to average")
        folders = _saved_epochs(self.epochs_folder)
        if len(folders) > 1:
            history = self.progress.history
            averaged = average_models(folders, Translator.from_preset)
            print(f"The average of {len(folders)} epochs:")
            scores = self.validate(averaged)
            self.add_epoch(f"Average of {len(folders)} epochs", scores)
            if best_of([*history, scores], self.rank) == len(history):
                names = [folder.name for folder in folders]
                self.save_best(averaged, average_of=names)
            history.append(scores)

    def self_critical(self):
        """Train by self-critical training."""
        config = self.config
        if not config.self_critical_epochs:
            return
        self.load_best()
        batches = self._batches(min(config.batch_tokens, SAMPLED_TOKENS))
        samples = SelfCriticalTranslations(
            self.task,
            batches,
            BleuChrfReward(self.training.target),
            samples=config.self_critical_samples,
            seed=config.seed,
        )
        momentum = runner.ema_momentum(
            config.ema_momentum, len(batches), SAMPLED_EMA_STEPS
        )
        self.fit(
            "Self-critical training",
            samples,
            self.validate,
            epochs=config.self_critical_epochs,
            learning_rate=config.self_critical_learning_rate,
            warm_up=config.warm_up,
            ema_momentum=min(momentum, 1 - 1 / SAMPLED_EMA_STEPS),
        )

    def _batches(self, batch_tokens, subword_dropout=0.0):
        config = self.config
        return SentenceBatches(
            self.training,
            self.task.tokenizer,
            batch_tokens=batch_tokens,
            min_batches=config.min_steps,
            max_length=config.model.max_length,
            subword_dropout=subword_dropout,
            seed=config.seed,
            epoch=self.progress.epoch,
            copying=self.task.copying,
            augment=self._augment(),
            few_shapes=keras.backend.backend() == "jax",
            devices=self.devices,
        )

    def _augment(self):
        """Return a function that makes the `Augmentation` of pairs, or `None`."""
        config = self.config
        symbols = config.symbols and bool(self.task.tokenizer.symbols)
        if not symbols and not config.vary_forms:
            return None
        languages = config.pair.split("-") if config.pair else (None, None)
        return functools.partial(
            Augmentation,
            languages=languages,
            symbols=symbols,
            forms=config.vary_forms,
        )

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
        parts.append(self.validation_summary)
        parts.append(f"{len(self.task.tokenizer)} subwords")
        parts.append(f"{self.network.count_params():,} weights")
        print("; ".join(parts))
        if self.metric != self.config.validation_metric:
            print(
                "No validation sentence has four words, so BLEU is always 0: the "
                f"best epoch is chosen by {self.metric}"
            )

    def _validate_and_keep(self):
        """Validate, and store the model if epochs are averaged."""
        scores = self.validate()
        if self.config.average:
            distribution.on_first_host(self._save_epoch, scores)
        return scores

    def validate(self, translator=None):
        translator = translator or self.task
        translations = translator.translate(
            self.sources,
            beam_size=self.config.validation_beam_size,
            batch_size=VALIDATION_BATCH,
            split=False,
        )
        return self.scored(
            translator,
            translations,
            self.references,
            self.parts,
            lambda *texts: translation_scores(*texts)[0],
            digits=2,
        )

    def _save_epoch(self, scores):
        """Save the model of this epoch, and remove the epochs that are not averaged."""
        # Epoch 0, a preset, is not averaged.
        epochs = [*filter(is_epoch, self.progress.history), scores]
        ranks = [self.rank(metrics) for metrics in epochs]
        ranked = sorted(range(len(ranks)), key=lambda epoch: (ranks[epoch], epoch))
        chosen = {f"epoch-{i + 1:04}" for i in ranked[-self.config.average :]}
        name = f"epoch-{len(ranks):04}"
        if name in chosen:
            self.task.save(self.epochs_folder / name)
        for folder in _saved_epochs(self.epochs_folder):
            if folder.name not in chosen:
                remove_folder(folder)


class BleuChrfReward:
    """Sentence-level BLEU plus chrF2.

    Reference:
        [Post, 2018](https://aclanthology.org/W18-6319), whose sacrebleu computes both.
    """

    def __init__(self, texts):
        from sacrebleu.metrics import BLEU, CHRF

        bleu = BLEU(effective_order=True, tokenize=tokenizer_for(texts))
        self._metrics = bleu, CHRF()

    def __call__(self, text, reference):
        """Return the reward of a translation, from 0 to 2."""
        scores = (x.sentence_score(text, [reference]).score for x in self._metrics)
        return sum(scores) / 100


class SelfCriticalTranslations(SelfCritical):
    """Trains a translator on the reward of translations that it samples.

    `reward` is a function of a translation and its reference, both strings, such as a
    `BleuChrfReward`. The network of the translator must be compiled.
    """

    def __init__(self, translator, batches, reward, **options):
        super().__init__(
            translator.network,
            "target",
            multiple=8 if batches.few_shapes else 1,
            devices=batches.devices,
            **options,
        )
        self.translator = translator
        self.batches = batches
        self.reward = reward

    def __len__(self):
        return len(self.batches)

    def plan(self, epoch):
        return self.batches.plan(epoch)

    def inputs(self, items, random):
        sources = [source for source, _ in items]
        columns = self.batches.padded_length(max(map(len, sources)))
        return {"source": pad(sources, columns=columns)}

    def max_length(self, inputs):
        return self.translator.max_search_length(inputs["source"].shape[1], {})

    def padded_length(self, longest):
        return self.batches.padded_length(longest)

    def reward_of(self, item, token_ids):
        source, target = item
        copying = self.translator.copying
        decode = self.translator.tokenizer.decode
        if copying:
            token_ids, target = (
                copying.expand(x, source)[0] for x in (token_ids, target)
            )
        return self.reward(decode(token_ids), decode(target))


def _head(example):
    """Return a source sentence and its reference as HTML of the report."""
    source, reference = map(html.escape, example)
    return (
        f'<div class="head"><p class="source" dir="auto">{source}</p>'
        f'<ul aria-label="Reference"><li dir="auto">{reference}</li></ul></div>'
    )
