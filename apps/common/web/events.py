"""Threads of events, which do not keep the program from ending."""

import asyncio
import concurrent.futures
import functools
import inspect
import threading

# Name of the threads.
NAME = "event"
_END = object()


def in_daemon(function):
    """Return a coroutine function that runs `function` in a daemon thread.

    The program does not wait for such a thread when it ends, unlike for those in which
    Gradio runs functions. A generator function becomes an asynchronous one.
    """
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        async def run(*args):
            iterator = function(*args)
            while (value := await _in_daemon(next, iterator, _END)) is not _END:
                yield value

    else:

        @functools.wraps(function)
        async def run(*args):
            return await _in_daemon(function, *args)

    return run


async def _in_daemon(function, *args):
    """Run a function in a daemon thread, and return its result."""
    future = concurrent.futures.Future()
    # From now on, the future cannot be cancelled, so its result can always be set.
    future.set_running_or_notify_cancel()

    def work():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=NAME, daemon=True).start()
    return await asyncio.wrap_future(future)
