import numpy as np
import pytest

from attention_testing.losses.values import BATCH, POSITIONS, STEPS, WORDS


@pytest.fixture
def weights(rng):
    return rng.dirichlet(np.ones(POSITIONS), size=(BATCH, STEPS)).astype("float32")


@pytest.fixture
def sentences(rng):
    token_ids = rng.integers(WORDS, size=(BATCH, STEPS))
    return token_ids, rng.normal(size=(BATCH, STEPS, WORDS)).astype("float32")
