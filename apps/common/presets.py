"""Finding presets and folders of trained models, and reading their configuration."""

import contextlib
import itertools
from pathlib import Path

from keras_attention_apps.common.cli import UserError, reason
from keras_attention_apps.common.digests import FILE_DIGESTS_KEY, read_sealed
from keras_attention_apps.common.files import (
    MODEL_FILES,
    expanded,
    holds,
    read_json,
    resolved,
)
from keras_attention_apps.common.reading import SizeLimitError, check_local
from keras_attention_apps.common.schema import from_json

# Configuration of a model, in its folder.
CONFIG = "config.json"

# Weights of a model, in its folder.
WEIGHTS = "model.weights.npz"

# Entry of the configuration of an ensemble: the names of its models, and their maximum
# number. Each model takes memory, even if its name is repeated.
ENSEMBLE = "ensemble"
MAX_MEMBERS = 16

# Folder of the best model in the output of a training.
BEST = "model"

# A model as a LiteRT file, in the folder of a preset.
LITERT = "model.tflite"


def find_preset(name_or_path, presets):
    """Return the folder of a shipped preset or of a trained model.

    Args:
        name_or_path: Name of a preset, or path of a folder; `./name` for a folder with
            the name of a preset.
        presets: Folder of the shipped presets.

    Returns:
        A `pathlib.Path` of an existing folder.

    Raises:
        UserError: If there is neither such a preset nor such a folder.
    """
    check_local(name_or_path)
    path = expanded(name_or_path)
    is_name = str(name_or_path) == path.name
    for folder in (presets / path, path) if is_name else (path,):
        if (folder / CONFIG).is_file():
            return folder
    known = sorted(path.parent.name for path in presets.glob(f"*/{CONFIG}"))
    inside = path / BEST
    hint = f". Its model is {str(inside)!r}" if holds(inside, MODEL_FILES) else ""
    raise UserError(
        "expected the name of a preset or the folder of a trained model. Presets: "
        f"{', '.join(known) or 'none'}. Received: {str(name_or_path)!r}{hint}"
    )


def split_names(name_or_path):
    """Split a name such as `"a+b"` into the names of its models, a list.

    The name of a single model, or of an existing file or folder, is not split.
    """
    name = str(name_or_path)
    exists = expanded(name).exists()
    return [name_or_path] if exists or "+" not in name else name.split("+")


def member_names(name_or_path, *, presets, noun):
    """Return the names of the models of an ensemble, or that of a single model.

    An ensemble is a name such as `"a+b"`, or a folder whose configuration lists the
    names of its models. These are presets, or folders inside this folder.

    Args:
        name_or_path: See `find_preset`.
        presets: Folder of the shipped presets.
        noun: See `loading`.

    Raises:
        UserError: If there is no such preset or folder, its configuration cannot be
            read, or there are more than `MAX_MEMBERS`.
    """
    names = split_names(name_or_path)
    _check_count(names)
    if len(names) > 1:
        found = (member_names(name, presets=presets, noun=noun) for name in names)
        names = [*itertools.chain(*found)]
        _check_count(names)
        return names
    folder = find_preset(name_or_path, presets)
    with loading(folder, noun):
        listed = _listed_members(folder)
        _check_count(listed)
        members = [_member(folder, name, presets) for name in listed]
        for member in members:
            if _listed_members(find_preset(member, presets)):
                raise UserError(f"{member!r} is an ensemble itself")
    return members or names


def _check_count(names):
    if len(names) > MAX_MEMBERS:
        raise UserError(
            f"an ensemble has at most {MAX_MEMBERS} models. Received: {len(names)}"
        )


def _member(folder, name, presets):
    """Return the path of a model inside the folder of an ensemble, or a preset's name.

    Raises:
        UserError: If there is neither.
    """
    inside = folder / name
    if resolved(inside).is_relative_to(resolved(folder)) and inside.is_dir():
        return str(inside)
    if Path(name).name == name and (presets / name / CONFIG).is_file():
        return name
    raise UserError(
        f"the models of an ensemble must be presets or folders inside {str(folder)!r}. "
        f"Received: {name!r}"
    )


def _listed_members(folder):
    """Return the names that the configuration of an ensemble lists, or `[]`."""
    members = read_sealed(folder / CONFIG).get(ENSEMBLE, [])
    if not (isinstance(members, list) and all(isinstance(x, str) for x in members)):
        raise UserError(f'"{ENSEMBLE}" of {CONFIG} is not a list of names')
    return members


def find_litert(name_or_path, presets):
    """Return the path of a `.tflite` file, or of that of a preset or a folder.

    Raises:
        UserError: If there is none.
    """
    path = expanded(name_or_path)
    if is_litert(path):
        return path
    is_joined = len(split_names(name_or_path)) > 1
    folder = None if is_joined else find_preset(name_or_path, presets)
    if folder is None or not (folder / LITERT).is_file():
        raise UserError(
            f"{str(name_or_path)!r} has no LiteRT file. The command export writes one, "
            "such as my.tflite, which is given as --model"
        )
    return folder / LITERT


def is_litert(name_or_path):
    """Return whether the name of a model is the path of a LiteRT file."""
    return Path(name_or_path).suffix.lower() == Path(LITERT).suffix


# Errors of files and values, of the C++ code of SentencePiece, LiteRT and the backends,
# and of sizes that no memory can hold. Other exceptions are bugs of the program.
_ERRORS = (OSError, ValueError, RuntimeError, MemoryError)


@contextlib.contextmanager
def loading(model, noun):
    """Replace errors of loading a model by a `UserError` that names the model.

    Args:
        model: The folder or file that is read.
        noun: Word for the expected kind of model, such as `"captioner"`.

    Raises:
        UserError: Instead of an error of reading a model, or of building it from what
            was read.
        SizeLimitError: If a file exceeds the limit of reading.
    """
    try:
        yield
    except SizeLimitError:
        raise
    except _ERRORS as error:
        raise UserError(f"{model} is not a complete {noun}: {reason(error)}") from error


def model_names(folder):
    """Return the set of the names in a folder that belong to a saved model.

    It is empty if the folder has no model of this project. Other libraries also write
    files with the names of `MODEL_FILES`, but no configuration with a `"model"`.
    """
    try:
        content = read_json(folder / CONFIG)
    except (OSError, ValueError):
        return set()
    if not (isinstance(content, dict) and isinstance(content.get("model"), dict)):
        return set()
    files = content.get(FILE_DIGESTS_KEY, {})
    is_model = isinstance(files, dict) and holds(folder, MODEL_FILES)
    return {*MODEL_FILES, LITERT, *files} if is_model else set()


def read_config(name_or_path, *, presets, kind, noun):
    """Return the configuration of a preset, or of a trained model.

    Args:
        name_or_path: See `find_preset`. The configuration of an ensemble is that of its
            first model.
        presets: Folder of the shipped presets.
        kind: The dataclass of the configuration.
        noun: See `loading`.

    Raises:
        UserError: If there is no such preset or folder, or its configuration is
            incomplete or of another kind of model.
    """
    first, *_ = member_names(name_or_path, presets=presets, noun=noun)
    return read_folder_config(find_preset(first, presets), kind=kind, noun=noun)


def read_folder_config(folder, *, kind, noun):
    """Return the configuration of a single model; see `read_config`."""
    with loading(folder, noun):
        return from_json(kind, read_options(folder))


def read_options(folder):
    """Return the options of a single model as a dict, as they are in its folder."""
    content = read_sealed(folder / CONFIG)
    if not isinstance(content.get("model"), dict):
        raise UserError(f'{CONFIG} has no object "model"')
    return content["model"]
