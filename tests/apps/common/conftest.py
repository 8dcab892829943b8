import contextlib
import socket
import threading

import pytest

from keras_attention_apps.common.errors import UserError


def refused(entered, match, error=UserError):
    """Check that a context is refused before anything is done in it."""
    with pytest.raises(error, match=match), entered:
        pytest.fail("it was not refused")


@contextlib.contextmanager
def in_thread(server):
    """Run a server of Uvicorn in a thread of this process, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def full_disk():
    """A context in which no file may have more than a few bytes."""
    resource = pytest.importorskip("resource")

    @contextlib.contextmanager
    def limited():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
