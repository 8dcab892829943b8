"""Translations for the page: loading models and searching."""

from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.web.models import Models
from keras_attention_apps.nmt.runtimes import RUNTIMES

# Characters of a sentence; the models cut what is longer than they can read.
MAX_CHARACTERS = 2000


class TranslationService:
    """The translator of the page, and those to compare it with.

    Args:
        config: The `WebConfig`.

    Attributes:
        defaults: Options of the beam search of the model.
        others: Names of the models to compare it with.
        purpose: What the model is for; `None` if unknown.
    """

    def __init__(self, config):
        self._config = config
        self._models = Models(RUNTIMES, config.runtime)
        self.others = other_models(config)
        model = self._main({})
        self.defaults = model.search_options()
        self.purpose = model.purpose

    def translations(self, sentence, search, *, n_best=1):
        """Return the best `Translation`s of a sentence, best first.

        Args:
            sentence: The sentence.
            search: Dict of options of the beam search.
            n_best: Maximum number of translations.

        Raises:
            UserError: If the sentence is too long for the page.
        """
        with self._models.turns:
            return _translations(self._main(search), sentence, search, n_best)

    def other_translation(self, model, sentence, search):
        """Return the best translation of another model."""
        with self._models.turns:
            return _translations(self._models(model, search), sentence, search, 1)[0]

    def _main(self, search):
        chosen = self._config.model
        return self._models(chosen.name, search, **chosen.options)


def other_models(config):
    """Return the names of the models of --compare, each once, without that of --model.

    Args:
        config: The `WebConfig`.
    """
    absolute = RUNTIMES.with_absolute_paths
    others = {absolute(name): name for name in config.compare}
    others.pop(absolute(config.model.name), None)
    return list(others.values())


def _translations(model, sentence, search, n_best):
    if len(sentence) > MAX_CHARACTERS:
        raise UserError(
            f"expected a sentence of at most {MAX_CHARACTERS} characters. Received: "
            f"{len(sentence)}"
        )
    n_best = min(n_best, model.search_options(**search)["beam_size"])
    (found,) = model.translate_each([sentence], n_best=n_best, **search)
    return found
