"""Writing SavedModels and LiteRT files."""

import dataclasses

import keras
from keras_attention_apps.common import models
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    Inputs,
    atomic_folder,
    check_file,
    check_folder,
    holds,
    is_litert,
    read_file,
)
from keras_attention_apps.common.litert import write_model_file
from keras_attention_apps.common.models import summed_names, write_sums

from keras_attention import __version__, convert_to_litert


def require_tensorflow():
    """Raise a `UserError` on another backend, whose models cannot be exported."""
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "export needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()}"
        )


def check_export(path, output_format):
    """Check the output of an export, and return whether it is a LiteRT file."""
    to_litert = output_format == "litert" or (output_format is None and is_litert(path))
    if to_litert:
        if not is_litert(path):
            raise UserError(
                "the name of a LiteRT file must end in .tflite. "
                f"Received: {str(path)!r}"
            )
        check_file(path)
    else:
        check_folder(path, _own_names)
    return to_litert


def _own_names(folder):
    """Return the set of the names of an older export in a folder.

    SavedModels of other programs have no digests.
    """
    is_saved_model = holds(folder, ("saved_model.pb", "variables"))
    return summed_names(folder) if is_saved_model else set()


def export_task(config, model, inputs, load, write_lite, write_saved_model):
    """Write the SavedModel, or the LiteRT file, that an `ExportConfig` describes."""
    require_tensorflow()
    to_litert = check_export(config.output, config.format)
    options = {} if config.quantize is None else {"quantize": config.quantize}
    if options and not to_litert:
        raise UserError(
            "--quantize needs a LiteRT file, whose name ends in .tflite. "
            f"Received: {config.quantize} for {str(config.output)!r}"
        )
    # An older LiteRT file in the folder of the model may be replaced.
    Inputs(*(path for path in inputs if not is_litert(path))).check(config.output)
    task = load()
    search = config.search.complete
    if to_litert:
        write_lite(
            task,
            config.output,
            search=search,
            name_or_path=model,
            **options,
        )
    else:
        write_saved_model(task, task.search_model(**search), config.output)
    print(f"Wrote {config.output}")


def fill_chunks(strings, size):
    """Fill a batch of strings up with empty ones, to chunks of one size.

    Args:
        strings: String tensor `(B,)`.
        size: Maximum number of rows of a chunk.

    Returns:
        filled: String tensor `(chunks * rows,)`, never empty.
        chunks: The number of chunks.
    """
    import tensorflow as tf

    count = tf.size(strings)
    chunks = tf.maximum(-(-count // size), 1)
    rows = tf.maximum(-(-count // chunks), 1)
    return tf.concat([strings, tf.fill([chunks * rows - count], "")], axis=0), chunks


def map_chunks(function, batch, chunks, signature):
    """Apply a function to the chunks of a batch, one after the other.

    Only the returned tensors take more memory for a larger batch.

    Args:
        function: Function from a chunk to a dict of tensors with as many rows.
        batch: Tensor `(chunks * rows, ...)`.
        chunks: The number of chunks.
        signature: Dict of `tf.TensorSpec`s of what the function returns.

    Returns:
        The dict of the function, for the whole batch.
    """
    import tensorflow as tf

    parts = tf.reshape(batch, tf.concat([[chunks, -1], tf.shape(batch)[1:]], axis=0))
    found = tf.map_fn(
        function, parts, fn_output_signature=signature, parallel_iterations=1
    )

    def joined(x):
        rows = tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], axis=0))
        return tf.ensure_shape(rows, [None, *x.shape[2:]])

    return {name: joined(x) for name, x in found.items()}


def write_archive(archive, directory, write_errors):
    """Write a SavedModel with the digests of its files; an older one is replaced."""
    with atomic_folder(directory, _own_names) as temporary:
        try:
            archive.write_out(str(temporary), verbose=False)
        except write_errors as error:
            # The reason follows the name of the failed function.
            reason = str(error).rpartition("}} ")[-1]
            raise UserError(
                f"{directory} cannot be written: {' '.join(reason.split())}"
            ) from error
        write_sums(temporary)


# Files of a preset that go with the model: its card, and its licence.
COMPANIONS = ("README.md", "LICENSE")


def save_litert(
    task, path, signatures, *, quantize, metadata, samples=None, name_or_path=None
):
    """Write the search of a task as a LiteRT file.

    Args:
        task: The `Task`.
        path: Name of the file.
        signatures: As of `convert_to_litert`; functions that return the dict of a
            search.
        quantize: As of `convert_to_litert`, or `"none"`.
        metadata: Further entries of the metadata.
        samples: As of `convert_to_litert`.
        name_or_path: The preset or folder that it is from, if any. The file contains
            its name, model card and licence; for `"a+b"`, both names, and the card and
            licence of the first.
    """
    model = convert_to_litert(
        {
            name: (_without_booleans(function), specs)
            for name, (function, specs) in signatures.items()
        },
        quantize=None if quantize == "none" else quantize,
        samples=samples,
    )
    origin, companions = {}, {}
    if name_or_path is not None:
        names = models.split_names(name_or_path)
        folders = [models.find_preset(name, task.presets) for name in names]
        folder = folders[0]
        origin = {"name": "+".join(folder.name for folder in folders)}
        companions = {
            name: read_file(folder / name)
            for name in COMPANIONS
            if (folder / name).is_file()
        }
    write_model_file(
        path,
        model,
        kind=task.noun,
        metadata={
            **origin,
            "written_by": f"keras-attention {__version__}",
            "quantize": quantize,
            "model": dataclasses.asdict(task.config),
            **task.description,
            **metadata,
        },
        files={**task.tokenizer.files, **companions},
    )


def _without_booleans(function):
    """Return a function whose boolean outputs are int32.

    LiteRT in browsers reads only float32, int32 and uint8.
    """
    import tensorflow as tf

    def call(**inputs):
        return {
            name: tf.cast(x, "int32") if x.dtype == tf.bool else x
            for name, x in function(**inputs).items()
        }

    return call
