"""What can be chosen about every program."""

import dataclasses
from typing import Annotated

import tyro
from keras_attention_apps.common.cli import UserError

ModelName = Annotated[str, tyro.conf.arg(aliases=["--preset"])]
Flags = tyro.conf.OmitArgPrefixes


def check_n_best(n_best, beam_size):
    """Raise a `UserError` if a search cannot give so many."""
    if not 1 <= n_best <= beam_size:
        raise UserError(
            f"n_best must be between 1 and beam_size, {beam_size}. Received: {n_best}"
        )


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """How a beam search searches."""

    beam_size: int = 5
    """Hypotheses that are kept at every step; 1 is greedy search."""
    length_penalty: float = 1.0
    """Hypotheses are ranked by log-probability / length ** length_penalty."""
    batch_size: int = 32
    """Inputs that are worked on together."""

    def check(self):
        """Raise a `UserError` for values that make no sense."""
        for name in ("beam_size", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"{name} must be at least 1. Received: {getattr(self, name)}"
                )
        if not self.length_penalty >= 0:
            raise UserError(
                f"length_penalty must not be negative. Received: {self.length_penalty}"
            )
