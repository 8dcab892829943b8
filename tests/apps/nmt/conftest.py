"""A toy language in which adjectives follow their nouns, and its tiny translator."""

import functools
import itertools

import keras
import numpy as np
import pytest

from attention_testing.nmt.trainings import TINY
from attention_testing.programs import begin_training
from keras_attention_apps.common.inference import Hypothesis
from keras_attention_apps.common.options import with_defaults
from keras_attention_apps.nmt.config import RECIPES, ModelConfig
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.network import build_network
from keras_attention_apps.nmt.subwords import Subwords
from keras_attention_apps.nmt.training.back_translation import Sampler

ADJECTIVES = {"red": "rouge", "big": "grand", "old": "vieux"}
NOUNS = {"dog": "chien", "cat": "chat", "bird": "oiseau"}
VERBS = {"sees": "voit", "likes": "aime"}
WORDS = {"the": "le", "a": "un", **ADJECTIVES, **NOUNS, **VERBS}


def translate(words):
    """Translate word by word; adjectives come after their nouns."""
    turned, waiting = [], []
    for word in words:
        if word in ADJECTIVES:
            waiting.append(word)
        else:
            turned.append(word)
            # Adjectives follow the noun, but not an article.
            if word not in ("the", "a"):
                turned += waiting
                waiting = []
    return " ".join(WORDS[word] for word in turned)


def sentences():
    things = list(itertools.product(("the", "a"), ADJECTIVES, NOUNS))
    for i, subject in enumerate(things):
        for verb, step in itertools.product(VERBS, (1, 5, 8)):
            yield (*subject, verb, *things[(i + step) % len(things)])


def write_corpus(folder, training, validation):
    for name, part in (("train", training), ("val", validation)):
        source = "".join(f"{' '.join(words)}\n" for words in part)
        target = "".join(f"{translate(words)}\n" for words in part)
        (folder / f"{name}.en").write_text(source, encoding="utf-8")
        (folder / f"{name}.fr").write_text(target, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder with `train.en`, `train.fr`, `val.en` and `val.fr`."""
    every = list(sentences())
    return write_corpus(tmp_path_factory.mktemp("corpus"), every[8:], every[:8])


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """Ten short pairs for training and two for validation, laid out like `corpus`."""
    every = [
        ("the", subject, verb, "a", object_noun)
        for subject, object_noun in itertools.permutations(NOUNS, 2)
        for verb in VERBS
    ]
    return write_corpus(tmp_path_factory.mktemp("few"), every[2:], every[:2])


@pytest.fixture(scope="session")
def subwords(corpus):
    text = (corpus / "train.en").read_text() + (corpus / "train.fr").read_text()
    return Subwords.train(text.splitlines(), 340)


def unspaced_sentences():
    """Chinese sentences, some with spaces, and with words of other scripts."""
    who = ("我们", "他们的小狗", "the dog", "Zoë ")
    does = ("看见了", "喜欢", "没有", " 2 ")
    what = ("手机", "火车票", " iPhone 手机", "15只猫", "龘")
    ends = ("", "。", "，很好！", "\U0001f600", " ?")
    for parts in itertools.product(who, does, what, ends):
        yield " ".join("".join(parts).split())


@pytest.fixture(scope="session")
def unspaced_subwords():
    return Subwords.train(unspaced_sentences(), 330)


def untrained(subwords, attention, **changes):
    config = ModelConfig(attention=attention, **{**TINY, **changes})
    config = with_defaults(config, RECIPES[attention])
    # With these weights, some words are aligned with words, and not only with the end.
    keras.utils.set_random_seed(2)
    return Translator(config, subwords, build_network(config, len(subwords)))


@pytest.fixture(scope="session")
def translator(subwords):
    """An untrained translator."""
    return untrained(subwords, "bahdanau")


@pytest.fixture(scope="session")
def task():
    return Translator


@pytest.fixture(scope="session")
def model_folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    translator.save(folder)
    return folder


def echo(token_ids, rank=0):
    """Return the hypothesis that a sentence is its own translation."""
    count = len(token_ids)
    # The mean log-probability depends on the sentence.
    mean = -0.5 - rank / 10_000 - sum(token_ids) % 97 / 1000
    log_probabilities, total = np.full(count, mean), mean * count
    weights = 0.9 * np.eye(count)
    tokens = np.array(token_ids)
    return Hypothesis(tokens, total, total, log_probabilities, count, weights)


def echo_searches(patch):
    """Replace the search by one that finds each sentence itself, `n_best` times.

    In a sample, words have another order, which depends on the seed.
    """

    def search(self, token_ids, batch_size, n_best, *arguments):
        if isinstance(self, Sampler):
            random = np.random.default_rng(next(self._seeds))
            token_ids = [[*random.permutation(x[:-1]), x[-1]] for x in token_ids]
        return [[echo(ids, rank) for rank in range(n_best)] for ids in token_ids]

    patch.setattr(Translator, "_search", search)


@pytest.fixture
def echoed(monkeypatch):
    """Translate every sentence into itself, without a search."""
    echo_searches(monkeypatch)


@pytest.fixture
def untrained_copies(without_steps, echoed):
    """Train without steps, and translate without a search."""


@pytest.fixture
def begin(monkeypatch):
    """A function that starts a training and interrupts it before its first step."""
    return functools.partial(begin_training, main, monkeypatch)
