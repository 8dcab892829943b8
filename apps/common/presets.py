"""Models as folders: half-precision weights beside readable files."""

import contextlib
from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import MODEL, WeightsInMemory, holds, read_json
from keras_attention_apps.common.training.runner import BEST


def save_half(model, path):
    """Write a model's weights as a Keras `.weights.h5` file in float16.

    They are rounded to eight significant bits, as many as bfloat16 has: the file is a
    quarter smaller than one of all eleven.

    Args:
        model: A built Keras model. Its optimiser's state is left out.
        path: Name of the file, ending in `.weights.h5`.
    """
    full, half = WeightsInMemory(), WeightsInMemory()
    model.save_weights(full)
    with h5py.File(full) as source, h5py.File(half, "w", libver="latest") as target:
        _copy_half(source, target)
    half.save(path)


def _copy_half(source, target):
    target.attrs.update(source.attrs)
    for name, item in source.items():
        if name == "optimizer":
            continue
        if isinstance(item, h5py.Group):
            _copy_half(item, target.create_group(name))
            continue
        value = item[()]
        if item.dtype.kind == "f":
            value = _rounded(value.astype("float16"))
        packed = {"compression": "gzip", "shuffle": True, "chunks": value.shape}
        target.create_dataset(
            name, data=value, **packed if value.size > 1 else {}
        ).attrs.update(item.attrs)


def _rounded(value):
    """The nearest float16 whose last three bits are zero; ties go to the even one."""
    bits = value.view("uint16")
    carry = 3 + (bits >> 3 & 1)
    rounded = (bits + carry & 0xFFF8).astype("uint16").view("float16")
    return np.where(np.isfinite(value) & np.isfinite(rounded), rounded, value)


def find_preset(name_or_path, presets):
    """The folder of a shipped preset, or of a model of one's own.

    Args:
        name_or_path: Name of a preset, or path of a folder: `./name` where there is a
            preset of that name.
        presets: Folder of the shipped presets.

    Returns:
        A `pathlib.Path` of an existing folder.

    Raises:
        UserError: If there is neither such a preset nor such a folder.
    """
    path = Path(name_or_path).expanduser()
    is_name = str(name_or_path) == path.name
    for folder in (presets / path, path) if is_name else (path,):
        if (folder / "config.json").is_file():
            return folder
    known = sorted(path.parent.name for path in presets.glob("*/config.json"))
    inside = path / BEST
    hint = f". Its model is {str(inside)!r}" if holds(inside, MODEL) else ""
    raise UserError(
        "expected the name of a preset or the folder of a trained model. Presets: "
        f"{', '.join(known) or 'none'}. Received: {str(name_or_path)!r}{hint}"
    )


@contextlib.contextmanager
def loading(folder, what):
    """Turn every error inside into one line about an incomplete folder.

    Args:
        folder: The folder that is read.
        what: The expected kind of model, such as `"captioner"`.

    Raises:
        UserError: In place of any error of reading and building a model.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder} is not a complete {what}: {' '.join(str(error).split())}"
        ) from error


def read_config(name_or_path, *, presets, kind, what):
    """The configuration of a preset by its name, or of a trained model by its folder.

    Args:
        name_or_path: As of `find_preset`.
        presets: Folder of the shipped presets.
        kind: The dataclass of the configuration.
        what: As of `loading`.

    Raises:
        UserError: If there is no such preset or folder, or it has none.
    """
    folder = find_preset(name_or_path, presets)
    with loading(folder, what):
        options = read_json(folder / "config.json")["model"]
        unknown = sorted({*options} - {field.name for field in fields(kind)})
        if unknown:
            raise UserError(
                f"{folder} holds another kind of model: a {what} has no {unknown[0]}"
            )
        return kind(**options)
