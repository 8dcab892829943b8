"""Writing SavedModels and LiteRT files."""

import contextlib
import dataclasses
import logging

import keras
import tensorflow as tf

from keras_attention import __version__, convert_to_litert
from keras_attention_apps.common import files, models
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.litert import write_model_file


def check_export(path):
    """Check the output of an export, and return whether it is a LiteRT file."""
    to_litert = files.is_litert(path)
    if to_litert:
        files.check_file(path)
    else:
        files.check_folder(path, _own_names)
    return to_litert


def _own_names(folder):
    """Return the names of an older export in a folder; others have no digests."""
    is_saved_model = files.holds(folder, ("saved_model.pb", "variables"))
    return models.summed_names(folder) if is_saved_model else set()


def export_task(config, runtimes, write_lite, write_saved_model):
    """Write the SavedModel, or the LiteRT file, that an `ExportConfig` describes."""
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "export needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()}"
        )
    to_litert = check_export(config.output)
    options = {} if config.quantize is None else {"quantize": config.quantize}
    if options and not to_litert:
        raise UserError(
            "--quantize needs a LiteRT file, whose name ends in .tflite. "
            f"Received: {config.quantize} for {str(config.output)!r}"
        )
    name = config.model.name
    # An older LiteRT file in the folder of the model may be replaced.
    inputs = [x for x in runtimes.files(name) if not files.is_litert(x)]
    files.check_distinct(inputs, config.output)
    task = runtimes.keras().from_preset(name, **config.model.options)
    search = config.search.complete
    if to_litert:
        write_lite(task, config.output, search=search, name_or_path=name, **options)
    else:
        write_saved_model(task, task.search_model(**search), config.output)
    print(f"Wrote {config.output}")


def fill_chunks(strings, size):
    """Fill strings `(B,)` up with empty ones, to chunks of at most `size` rows.

    Returns the strings, at least one, and the number of chunks.
    """
    count = tf.size(strings)
    chunks = tf.maximum(-(-count // size), 1)
    rows = tf.maximum(-(-count // chunks), 1)
    return tf.concat([strings, tf.fill([chunks * rows - count], "")], axis=0), chunks


def map_chunks(function, batch, chunks, signature):
    """Apply a function to the chunks of a batch, one after the other, to save memory.

    Only the tensors of the dict that the function returns, of `signature`, take more
    memory for a larger batch.
    """
    parts = tf.reshape(batch, tf.concat([[chunks, -1], tf.shape(batch)[1:]], axis=0))
    outputs = tf.map_fn(
        function, parts, fn_output_signature=signature, parallel_iterations=1
    )

    def joined(x):
        rows = tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], axis=0))
        return tf.ensure_shape(rows, [None, *x.shape[2:]])

    return {name: joined(x) for name, x in outputs.items()}


def write_served(serve, signature, parts, directory):
    """Write a function as a SavedModel with the digests of its files.

    `parts` are the layers and resources that it uses; an older export is replaced.
    """
    archive = keras.export.ExportArchive()
    for part in parts:
        archive.track(part)
    archive.add_endpoint("serve", serve, input_signature=[signature])
    with files.atomic_folder(directory, _own_names) as temporary:
        try:
            with _without_warnings():
                archive.write_out(str(temporary), verbose=False)
        except tf.errors.OpError as error:
            # The reason follows the name of the failed function.
            reason = str(error).rpartition("}} ")[-1]
            raise UserError(
                f"{directory} cannot be written: {' '.join(reason.split())}"
            ) from error
        models.write_sums(temporary)


@contextlib.contextmanager
def _without_warnings():
    """Silence the warnings of TensorFlow about its own functions without gradients."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# Files of a preset that go with the model: its card, and its licence.
COMPANIONS = ("README.md", "LICENSE")


def companions_in(folder):
    """Return the contents of the files of a preset that go with the model."""
    return {
        name: files.read_file(folder / name)
        for name in COMPANIONS
        if (folder / name).is_file()
    }


def save_litert(
    task, path, searches, *, quantize, metadata, samples=None, name_or_path=None
):
    """Write the searches of a task as a LiteRT file.

    `searches` has a `SearchModel` and the specifications of its inputs for each
    signature. The file contains the name of the preset or folder that it is from, its
    model card and licence; for `"a+b"`, both names, and the files of the first.
    """
    model = convert_to_litert(
        {
            name: (_without_booleans(search_model), specs)
            for name, (search_model, specs) in searches.items()
        },
        quantize=None if quantize == "none" else quantize,
        samples=samples,
    )
    origin, companions = {}, {}
    if name_or_path is not None:
        names = models.split_names(name_or_path)
        folders = [models.find_preset(name, task.presets) for name in names]
        origin = {"name": "+".join(folder.name for folder in folders)}
        companions = companions_in(folders[0])
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
        files={
            task.tokenizer.file_name: task.tokenizer.content,
            **task.description_files,
            **companions,
        },
    )


def _without_booleans(search_model):
    """Return a search whose boolean outputs are int32, which browsers can read."""

    def call(**inputs):
        return {
            name: tf.cast(x, "int32") if x.dtype == tf.bool else x
            for name, x in search_model(inputs).items()
        }

    return call
