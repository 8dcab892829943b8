"""Progress of a program: bars on a terminal alone, and nothing with --quiet."""

import contextlib
import contextvars
import sys

_QUIET = contextvars.ContextVar("quiet", default=False)


@contextlib.contextmanager
def quiet():
    """Show no progress in the context."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


def note(text):
    """Print a line about finished work on the standard error, unless it is quiet."""
    if not _QUIET.get():
        print(text, file=sys.stderr)


def progress_bar(**options):
    """Return a `tqdm.tqdm`, which shows nothing where the output is no terminal."""
    from tqdm import tqdm

    # `None` means: unless it is a terminal.
    return tqdm(disable=_QUIET.get() or None, **options)


def fit_verbosity():
    """Return the `verbose` of `keras.Model.fit`: a bar, a line for each epoch, or 0."""
    if _QUIET.get():
        return 0
    return 1 if sys.stdout.isatty() else 2
