"""The models of a page, which its users share."""

import contextlib
import threading

from keras_attention_apps.common.errors import UserError


class Turns:
    """A lock that threads receive in the order in which they asked for it.

    With `threading.Lock`, a thread that asks again at once can keep others waiting.
    """

    def __init__(self):
        self._tickets = self._served = 0
        self._changed = threading.Condition()

    def __enter__(self):
        with self._changed:
            ticket = self._tickets
            self._tickets += 1
            self._changed.wait_for(lambda: self._served == ticket)

    def __exit__(self, *_):
        with self._changed:
            self._served += 1
            self._changed.notify_all()


class Models:
    """The models of a page, loaded when they are first needed, and kept.

    A LiteRT file is used if its search has the wanted options, and Keras otherwise.
    Models are loaded and used in `turns`: a second search at the same time would only
    make both slower. The main model is that of the `config`, a `WebConfig`; the page
    shows the `defaults` of its search, and its `purpose`.
    """

    def __init__(self, runtimes, config):
        self.turns = Turns()
        self.config = config
        self._runtimes = runtimes
        # The loaded models of a name and its options: one on LiteRT, one on Keras.
        self._loaded = {}
        model = self.load({})
        self.defaults = model.search_options()
        self.purpose = model.purpose

    def outputs(self, input_of, search, *, n_best=1, other=None):
        """Return the outputs of the main model, or another one, best first.

        `input_of` is a function from the model to its input. There are `n_best`
        outputs, or as many as the beam is wide.
        """
        with self.turns:
            model = self.load(search, other)
            n_best = min(n_best, model.search_options(**search)["beam_size"])
            (outputs,) = model.each([input_of(model)], n_best=n_best, **search)
        return outputs

    def load(self, search, other=None):
        """Return the main model, or another one, which searches with these options."""
        chosen = self.config.model
        model, options = (other, {}) if other else (chosen.name, chosen.options)
        loaded = self._loaded.setdefault((model, *sorted(options.items())), [])
        for task in loaded:
            with contextlib.suppress(UserError):
                task.search_options(**search)
                return task
        try:
            task = self._runtimes.load(
                model, self.config.runtime, search=search, **options
            )
        except ImportError as error:
            raise UserError(
                f"these options need Keras, which is not installed ({error})"
            ) from error
        loaded.append(task)
        return task
