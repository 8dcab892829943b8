"""Bulk inference as a command of both programs: checks, run and totals."""

import dataclasses
import sys
from pathlib import Path

from keras_attention_apps.common.bulk import engine
from keras_attention_apps.common.bulk.locations import require
from keras_attention_apps.common.bulk.parts import Parts
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.presets import is_litert
from keras_attention_apps.common.runtimes import changes_in
from tqdm import tqdm


def check_options(config, excluded):
    """Raise a `UserError` for options that `--engine ray` does not support.

    Args:
        config: The options of the command.
        excluded: Names of the unsupported options, which must have their defaults.
    """
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
    program,
    inputs,
    model_batch,
    config,
    filesystem,
    describe_input=None,
    **options,
):
    """Run a bulk inference, print its totals, and return the exit code.

    Args:
        program: Name of the program.
        inputs: As for `engine.run`.
        model_batch: Subclass of `ModelBatch`.
        config: The options of the command.
        filesystem: The `pyarrow.fs.FileSystem` of the inputs.
        describe_input: Function that returns a dict of properties of the input, such as
            its digest; needed if the ids alone do not identify it. A job is resumed
            only if they are the same.
        **options: Further arguments of `model_batch`.
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
        "batch_size": config.search.batch_size,
        "search": config.search.beam,
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
    with parts.locked(), tqdm(unit="row") as bar:
        parts.begin(recorded)
        totals = engine.run(
            inputs,
            model_batch,
            parts,
            config=bulk,
            arguments=arguments,
            progress=bar.update,
        )
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
