import pytest


@pytest.fixture(autouse=True)
def same_weights(seeded):
    """Initial weights and random draws are the same in every run of a test."""
