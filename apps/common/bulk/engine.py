"""Bulk inference with Ray Data: one model per actor, output in parts."""

import contextlib
import dataclasses
import functools
import logging
import os
import sys
from pathlib import Path

from keras_attention_apps.common.bulk.inputs import IO_CPUS
from keras_attention_apps.common.bulk.parts import Parts, require
from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.models import changes_in
from keras_attention_apps.common.output import progress_bar

# Maximum number of batches per actor, queued or running. More take more memory.
BATCHES_IN_FLIGHT = 2


@dataclasses.dataclass(frozen=True)
class Totals:
    """Number of rows written, of those with an error, and of rows of earlier runs."""

    rows: int = 0
    errors: int = 0
    earlier: int = 0


@contextlib.contextmanager
def cluster(address=None):
    """Connect to a Ray cluster, or start one on this machine, inside the context.

    An existing connection is used, and stays open.
    """
    # Ray reads this variable when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = require("ray")
    if ray.is_initialized():
        yield ray
        return
    # Without "local", Ray would connect to the cluster that RAY_ADDRESS names.
    options = {"address": "local", "include_dashboard": False}
    if address:
        options = {"address": address}
    try:
        ray.init(logging_level=logging.WARNING, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        failed = f"connect to Ray at {address!r}" if address else "start Ray"
        raise UserError(f"cannot {failed}: {reason(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def run(inputs, model_batch, parts, *, config, arguments, progress=None):
    """Process all inputs that have no results yet, and return the `Totals`."""
    with cluster(config.address) as ray:
        context = require("ray.data").DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        finished = parts.finished()
        resources, arguments, actors = _resources(ray, config, arguments)
        data = (
            inputs(finished)
            .map_batches(
                model_batch,
                fn_constructor_kwargs={**arguments, "column": "value"},
                batch_size=arguments["batch_size"],
                compute=require("ray.data").ActorPoolStrategy(
                    min_size=1,
                    max_size=actors,
                    # Ray would add none while so few batches are in flight.
                    initial_size=actors,
                    max_tasks_in_flight_per_actor=BATCHES_IN_FLIGHT,
                ),
                **resources,
            )
            .map_batches(
                functools.partial(_write, parts=parts),
                batch_size=config.part_size,
                # As NumPy, a column without any value would become NaN.
                batch_format="pyarrow",
                num_cpus=IO_CPUS,
            )
        )
        rows = errors = 0
        with _errors_of(ray):
            for part in data.iter_rows():
                if part["problem"]:
                    raise UserError(f"cannot write {parts.name!r}: {part['problem']}")
                rows, errors = rows + part["rows"], errors + part["errors"]
                if progress:
                    progress(part["rows"])
        return Totals(rows, errors, len(finished))


def _write(table, *, parts):
    """Write a table as a part, and return a table with its counts or the problem."""
    pa, problem = require("pyarrow"), None
    written = {"rows": [0], "errors": [0]}
    try:
        written = parts.write(table.to_pydict())
    except OSError as error:
        problem = reason(error)
    return pa.table({**written, "problem": pa.array([problem], pa.string())})


def _resources(ray, config, arguments):
    """Return the resources of an actor, its arguments, and the number of actors."""
    available = ray.cluster_resources()
    model, runtime = arguments["model"], arguments.get("runtime", "auto")
    threads = arguments.get("threads") or 1
    arguments = {**arguments, "threads": threads}
    if available.get("GPU") and runtime != "litert" and not is_litert(model):
        arguments["runtime"] = "keras"
        actors = config.actors or int(available["GPU"])
        return {"num_gpus": 1, "num_cpus": threads}, arguments, actors
    actors = config.actors or max(int(available.get("CPU", 1) // threads), 1)
    # If each actor reserved a whole CPU, none would be left for the tasks that read and
    # write, and the last actor would not start. Ray allows fractions below one only.
    cpus = 1 - 2 * IO_CPUS if threads == 1 else threads
    return {"num_cpus": cpus}, arguments, actors


@contextlib.contextmanager
def _errors_of(ray):
    """Replace errors of the cluster, such as a lost actor, by a `UserError`.

    An exception of a function that Ray calls keeps its type and traceback.
    """
    exceptions = ray.exceptions
    try:
        yield
    except (exceptions.RayTaskError, exceptions.UserCodeException):
        raise
    except exceptions.RayError as error:
        raise UserError(f"Ray failed: {reason(error)}") from error


def check_options(config, excluded):
    """Raise a `UserError` for options that `--engine ray` does not support."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in excluded:
        value = getattr(config, name)
        if value != defaults[name]:
            option = name.replace("_", "-")
            shown = str(value) if isinstance(value, Path) else value
            raise UserError(
                f"--{option} cannot be used with --engine ray. Received: {shown!r}"
            )
    if config.output is None:
        raise UserError(
            "--engine ray needs --output, the name of a folder that ends in .parquet "
            "or .jsonl. Received: none"
        )


def run_command(
    program, inputs, model_batch, config, filesystem, describe_input=None, **options
):
    """Run a bulk inference, print its totals, and return the exit code.

    `describe_input` returns a dict of properties of the input, such as its digest. It
    is needed if the ids alone do not identify the input: a job is resumed only if they
    are the same. `**options` are further arguments of the `model_batch`.
    """
    require("ray.data")
    bulk, runtime = config.bulk, config.runtime
    parts = Parts(config.output, model_batch.columns_of(bulk.maps))
    # Workers may have another working directory.
    model = model_batch.runtimes.with_absolute_paths(config.model.name)
    local = isinstance(filesystem, require("pyarrow.fs").LocalFileSystem)
    arguments = {
        "model": model,
        "maps": bulk.maps,
        "runtime": runtime.runtime,
        "threads": runtime.threads,
        "batch_size": config.batch_size,
        "search": config.search.given,
        "options": config.model.options,
        "max_bytes": config.reading.max_bytes,
        "filesystem": None if local else filesystem,
        **options,
    }
    _check_model(model_batch, arguments)
    columns = {"column": bulk.column, "id_column": bulk.id_column}
    names = ("model", "maps", "search", "options", *options)
    recorded = {**{name: arguments[name] for name in names}, **columns}
    recorded["options"] = changes_in(recorded["options"])
    if describe_input is not None:
        recorded |= describe_input()
    with parts.locked(), progress_bar(unit="row") as bar:
        parts.begin(recorded)
        options = {"config": bulk, "arguments": arguments, "progress": bar.update}
        totals = run(inputs, model_batch, parts, **options)
    print(
        f"{program}: wrote {totals.rows:,} rows to {parts.name}, {totals.errors:,} of "
        f"them with an error; {totals.earlier:,} rows were written by earlier runs",
        file=sys.stderr,
    )
    return 2 if totals.errors else 0


def _check_model(model_batch, arguments):
    """Raise a `UserError` for a missing model, or options that contradict one another.

    Otherwise, an actor would find them after the output was begun.
    """
    runtimes = model_batch.runtimes
    if is_litert(arguments["model"]) or arguments["runtime"] == "litert":
        model_batch(column="value", **{**arguments, "threads": 1})
    elif not runtimes.files(arguments["model"]):
        # Loading raises the error that lists the presets.
        model_batch(column="value", **arguments)
    else:
        runtimes.search_options(arguments["search"])
