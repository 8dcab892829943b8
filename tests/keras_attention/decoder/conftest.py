import pytest

from attention_testing.arrays import random_fixture
from attention_testing.decoder.reference import INPUTS, VALUE

inputs, value = random_fixture(*INPUTS), random_fixture(*VALUE)


@pytest.fixture(autouse=True)
def same_weights(seeded):
    """Initial weights and random draws are the same in every run of a test."""
