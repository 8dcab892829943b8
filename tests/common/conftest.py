import contextlib

import pytest


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
