"""Inference: hypotheses of a search, and a command from its inputs to its outputs.

Shapes: B rows, K hypotheses, T tokens, S positions that are attended to.
"""

import collections
import contextlib
import dataclasses
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from keras_attention_apps.common import files
from keras_attention_apps.common.confidence import Described, rounded_score
from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.output import note

# Lower bound of the scores of possible hypotheses; a search gives impossible ones -1e9.
MIN_SCORE = -1e8
# Maximum number of characters of an output in a warning.
MAX_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One sequence that a search has found, with T tokens.

    `token_ids` are padded with END after the last token, and `token_log_probabilities`
    with zeros; `length` counts END. Hypotheses are ranked by `score`.
    """

    token_ids: np.ndarray
    score: float
    log_probability: float
    token_log_probabilities: np.ndarray
    length: int
    weights: np.ndarray

    @property
    def mean_log_probability(self) -> float:
        """Mean of the log-probabilities of the tokens, END included."""
        return self.log_probability / max(self.length, 1)


def hypotheses(outputs: dict[str, Any], n_best: int = 1) -> list[list[Hypothesis]]:
    """Return the best hypotheses of every row, best first."""
    outputs = {name: np.asarray(values) for name, values in outputs.items()}
    # A search without a possible hypothesis returns -1e9; comparing NaN is false.
    if not np.all(outputs["scores"][:, 0] > MIN_SCORE):
        raise UserError(
            "The model computes no finite scores: its weights are NaN or infinite. Its "
            "training has diverged, or a file is damaged."
        )
    return [
        [
            Hypothesis(
                outputs["token_ids"][row, rank],
                float(outputs["scores"][row, rank]),
                float(outputs["log_probs"][row, rank]),
                outputs["token_log_probs"][row, rank],
                int(outputs["lengths"][row, rank]),
                outputs["weights"][row, rank],
            )
            # Sampling finds one hypothesis for each sample.
            for rank in range(min(n_best, outputs["lengths"].shape[1]))
            if rank == 0 or outputs["lengths"][row, rank]
        ]
        for row in range(len(outputs["token_ids"]))
    ]


def agreement(hypothesis: Hypothesis, ranked: Iterable[Hypothesis]) -> float:
    """Return the mean share of tokens that a hypothesis shares with each other one.

    It is 1 without others.
    """
    token_ids = hypothesis.token_ids[: hypothesis.length].tolist()
    shares = []
    for other in ranked:
        if other is not hypothesis:
            tokens = other.token_ids[: other.length].tolist()
            common = collections.Counter(token_ids) & collections.Counter(tokens)
            shares.append(common.total() / max(len(token_ids), len(tokens), 1))
    return sum(shares) / len(shares) if shares else 1.0


def check_n_best(n_best: int, search: dict[str, Any]) -> None:
    """Raise a `UserError` if `n_best` exceeds the beam width, or is below 1."""
    beam_size = search["beam_size"]
    if not 1 <= n_best <= beam_size:
        raise UserError(
            f"n_best must be between 1 and beam_size, {beam_size}. Received: {n_best}"
        )


def check_batch_size(batch_size: int) -> None:
    """Raise a `UserError` if the batch size is below 1."""
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1. Received: {batch_size}")


class Predictor(Described):
    """Base class of models that give outputs for inputs, best first.

    Subclasses implement `each`, and set `noun`, the name of the model in messages.
    """

    noun: str
    search_options: Callable[..., dict[str, Any]]

    def each(self, inputs: Iterable[Any], **options: Any) -> Iterator[Any]:
        """Yield the list of the outputs of each input, or the `UserError` of one."""
        raise NotImplementedError

    def best(self, inputs: Any, is_single: bool, **options: Any) -> Any:
        """Return the best output of an input, or those of several as a list."""
        results = []
        for outputs in self.each([inputs] if is_single else inputs, **options):
            if isinstance(outputs, UserError):
                raise outputs
            results.append(outputs[0])
        return results[0] if is_single else results

    def checked_search(
        self, inputs: object, n_best: int, batch_size: int, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Check the arguments of a call, and return all options of its search."""
        search = self.search_options(**options)
        if isinstance(inputs, (str, bytes, os.PathLike)):
            # The items of a string are its characters.
            raise UserError(
                f"expected several inputs, such as a list. Received one: {inputs!r:.60}"
            )
        check_n_best(n_best, search)
        check_batch_size(batch_size)
        return search


class Inputs:
    """The inputs of a command, which subclasses read.

    Attributes:
        program: Name of the program, in messages.
        columns: Names of the columns that tell an input from others in a table.
        failures: Number of inputs that could not be read before the model runs.
    """

    program: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    failures = 0

    def values(self) -> Iterable[Any]:
        """Return the inputs as the model takes them, a list or an iterator."""
        raise NotImplementedError

    def name(self, number: int) -> str:
        """Return the name of an input in messages; inputs are counted from 1."""
        raise NotImplementedError

    def identity(self, number: int) -> dict[str, Any]:
        """Return the entries of JSON that tell an input from others."""
        raise NotImplementedError

    def row(self, number: int) -> dict[str, Any]:
        """Return the `columns` of an input in a table."""
        return self.identity(number)

    def report(self, kind: str, message: object) -> None:
        """Print an error or a warning in one line on the standard error."""
        line = f"{self.program}: {kind}: {printable(message)}"
        bars = sys.modules.get("tqdm")
        if bars:
            # `print` would break a progress bar.
            bars.tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)


def run_command(
    config: Any,
    inputs: Inputs,
    model: Predictor,
    writer: "Writer",
    *,
    draw: Callable[[int, Any], None] | None = None,
    **options: Any,
) -> int:
    """Run a model on inputs, write its outputs, and return the exit code.

    Args:
        config: Options of the command: `n_best`, `batch_size`, `min_score`, `search`.
        inputs: The inputs.
        model: The model, whose `each` takes `**options`, too.
        writer: Where outputs go. It may leave out inputs that it has already.
        draw: Function of the number of an input and its best output, which draws it.

    Returns:
        2 if an input could not be read, or an output not be drawn; otherwise 0.
    """
    failures = 0
    with writer:
        results = model.each(
            inputs.values(),
            n_best=config.n_best,
            batch_size=config.batch_size,
            **options,
            **config.search.given,
        )
        for number, outputs in enumerate(results, 1):
            error, probable = outputs, []
            if not isinstance(outputs, UserError):
                for warning in outputs[0].warnings:
                    inputs.report("warning", f"{inputs.name(number)}: {warning}")
                error, probable = None, _probable(config, inputs, number, outputs)
            if probable and draw:
                try:
                    draw(number, probable[0])
                except (UserError, OSError) as failure:
                    error = failure
            if error:
                inputs.report("error", error)
                failures += 1
            writer.write(number, outputs, probable)
    writer.finish()
    return 2 if failures or inputs.failures else 0


def _probable(config, inputs, number, outputs):
    """Return the outputs that are probable enough; report none, or an unsure one."""
    probable, min_score, noun = outputs, config.min_score, outputs[0].noun
    if min_score is not None:
        probable = [output for output in outputs if rounded_score(output) >= min_score]
    if not probable:
        warning = (
            f"no {noun} with a mean log-probability of at least {min_score}; that "
            f"of the best one is {max(map(rounded_score, outputs))}"
        )
    elif probable[0].unsure:
        text = textwrap.shorten(probable[0].text, MAX_SHOWN, placeholder=" ...")
        warning = f"unsure of the {noun} {text!r}: {probable[0].reason}"
    else:
        return probable
    inputs.report("warning", f"{inputs.name(number)}: {warning}")
    return probable


def json_entry(outputs, probable, *, as_list, details=True):
    """Return the outputs of an input as a dict that JSON can hold.

    Without a probable output, it has the mean log-probability of the best one. Unless
    with `details`, it has texts and what tells how probable they are.
    """
    if isinstance(outputs, UserError):
        return {"error": str(outputs)}
    noun = outputs[0].noun
    if not probable:
        empty: dict = {f"{noun}s": []} if as_list else {noun: None}
        return {**empty, "mean_log_probability": max(map(rounded_score, outputs))}
    if details:
        entries = [output.details() for output in probable]
    else:
        marks = "confidence", "unsure", "reason"
        keys = [noun, "mean_log_probability", *marks, *["score"] * as_list]
        described = [output.details(keys) for output in probable]
        entries = [{key: x[key] for key in keys if key in x} for x in described]
    return {f"{noun}s": entries} if as_list else entries[0]


class Writer(contextlib.AbstractContextManager):
    """Writes the outputs of the inputs of a command; its context opens the output."""

    def write(self, number: int, outputs: Any, probable: list[Any]) -> None:
        """Write the outputs of an input, or their error.

        The `probable` ones are not below `--min-score`.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Say what was written, when everything is."""


class LineWriter(Writer):
    """Writes lines, or a JSON object for each input.

    They go to the standard output, or to a file, which appears at the end.

    Args:
        config: Options of the command: `output`, `json`, `n_best`.
        inputs: The `Inputs`.
        lines: Function of the number of an input and the outputs that are kept, which
            returns their lines.
    """

    def __init__(self, config, inputs, lines):
        self._config, self._inputs, self._lines = config, inputs, lines
        self._stack = contextlib.ExitStack()
        self._file = None

    def __enter__(self):
        if self._config.output:
            path = self._stack.enter_context(files.atomic_path(self._config.output))
            self._file = self._stack.enter_context(
                open(path, "w", encoding="utf-8", newline="")
            )
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def write(self, number, outputs, probable):
        if isinstance(outputs, UserError):
            return
        if self._config.json:
            entry = json_entry(outputs, probable, as_list=self._config.n_best > 1)
            lines = [files.to_json({**self._inputs.identity(number), **entry})]
        else:
            lines = self._lines(number, probable)
        for line in lines:
            # Without a file, to the standard output.
            print(line, file=self._file, flush=True)

    def finish(self):
        if self._config.output:
            note(f"{self._inputs.program}: wrote {printable(self._config.output)}")
