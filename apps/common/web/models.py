"""The models of a page, loaded when they are first needed, and their names."""

import collections
import contextlib
import threading
from pathlib import Path

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import BEST, split_names


class Turns:
    """A lock that threads receive in the order in which they asked for it.

    With `threading.Lock`, a thread that asks again at once can keep others waiting.
    """

    def __init__(self):
        self._waiting = collections.deque()
        self._lock = threading.Lock()

    def __enter__(self):
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            self._waiting[0].set()
        turn.wait()

    def __exit__(self, *_):
        with self._lock:
            self._waiting.popleft()
            if self._waiting:
                self._waiting[0].set()


class Models:
    """The models of a page, loaded when they are first needed, and kept.

    A LiteRT file is used if its search has the wanted options, and Keras otherwise.
    Models are loaded and used in `turns`: a second search at the same time would only
    make both slower.
    """

    def __init__(self, runtimes, config):
        self.turns = Turns()
        self._runtimes = runtimes
        self._config = config
        # The loaded models of a name and its options: one on LiteRT, one on Keras.
        self._loaded = {}

    def __call__(self, model, search, **options):
        """Return a model that searches with these options."""
        loaded = self._loaded.setdefault((model, *sorted(options.items())), [])
        for found in loaded:
            with contextlib.suppress(UserError):
                found.search_options(**search)
                return found
        options["search"] = search
        try:
            found = self._runtimes.load(model, self._config, count=None, **options)
        except ImportError as error:
            raise UserError(
                f"these options need Keras, which is not installed ({error})"
            ) from error
        loaded.append(found)
        return found


def name_of(model):
    """Return a model's name without the folders of this computer.

    The folder `model` in the output of a training has the name of the output, too.

    >>> name_of("/home/me/first/model+/home/me/second")
    'first/model+second'
    """
    paths = map(Path, split_names(model))
    return "+".join(
        f"{path.parent.name}/{path.name}"
        if path.name == BEST and path.parent.name
        else path.name
        for path in paths
    )


def other_models(config, runtimes):
    """Return the names of the models of --compare, without that of --model."""
    absolute = runtimes.with_absolute_paths
    others = {absolute(name): name for name in config.compare}
    others.pop(absolute(config.model.name), None)
    return list(others.values())
