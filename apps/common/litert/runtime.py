"""Running the signatures of a LiteRT model, in one thread or in several."""

import contextlib
import os
import queue
import threading

from keras_attention_apps.common.cli import UserError


def available():
    """Return whether the package of LiteRT is installed."""
    with contextlib.suppress(ImportError):
        _interpreter_type()
        return True
    return False


def _interpreter_type():
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter


class Runtime:
    """Interpreters of one model.

    An interpreter runs one call at a time. A plain call uses all threads, and waits for
    other plain calls. `in_parallel` runs calls concurrently, each with its own
    interpreter and one thread.

    Args:
        path: Name of a checked LiteRT file.
        threads: Number of threads; by default one per processor.

    Raises:
        UserError: If the package of LiteRT is not installed.
    """

    def __init__(self, path, threads=None):
        self.path = path
        self.threads = threads or _processors()
        try:
            self._type = _interpreter_type()
        except ImportError as error:
            raise UserError(
                "a LiteRT model needs the package ai-edge-litert: "
                f"python -m pip install ai-edge-litert ({error})"
            ) from error
        self._sequential = None
        self._lock = threading.Lock()
        self._idle = queue.SimpleQueue()

    def __call__(self, signature, **inputs):
        """Run a signature with all threads; returns a dict of arrays."""
        with self._lock:
            if self._sequential is None:
                self._sequential = self._interpreter(self.threads)
            return _run(self._sequential, signature, inputs)

    def in_parallel(self, signature, **inputs):
        """Run a signature with one thread, concurrently with other calls."""
        try:
            interpreter = self._idle.get_nowait()
        except queue.Empty:
            interpreter = self._interpreter(1)
        try:
            return _run(interpreter, signature, inputs)
        finally:
            self._idle.put(interpreter)

    def _interpreter(self, threads):
        return self._type(model_path=str(self.path), num_threads=threads)


def _processors():
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(interpreter, signature, inputs):
    # The arrays of a runner are copies, so that the next call does not change them.
    return interpreter.get_signature_runner(signature)(**inputs)
