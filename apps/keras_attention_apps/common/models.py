"""Models: where they are, what their files contain, and which runtime runs them."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keras_attention_apps.common import files
from keras_attention_apps.common.errors import (
    UserError,
    did_you_mean,
    listed,
    printable,
    reason,
)
from keras_attention_apps.common.files import StrPath
from keras_attention_apps.common.options import Config, RuntimeConfig, from_json

# Keys in a JSON file: the digests of other files by name, and its own digest.
FILE_DIGESTS_KEY = "sha256"
DIGEST_KEY = "digest"
# List of the files of a folder with their digests.
SUMS = "SHA256SUMS"


# Maximum size of a file of options. Those of models have some kilobytes, and the
# progress of a training a few for every epoch.
MAX_CONFIG_BYTES = 32_000_000


def write_sealed(path: Path, value: dict, names: Iterable[str] = ()) -> dict[str, Any]:
    """Write a dict as JSON, with digests; return the dict that was written."""
    content = json.loads(json.dumps(value, default=str))
    content[FILE_DIGESTS_KEY] = {
        name: digest_of_file(path.parent / name) for name in names
    }
    content[DIGEST_KEY] = _digest(content)
    files.write_json(path, content)
    return content


def update_sealed(
    path: Path,
    entries: dict[str, Any],
    contents: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Replace some entries of a JSON file, and some of the files beside it.

    An entry that is `None` is removed. The digests of other files stay. If the process
    is killed in between, the model is one without these files.
    """
    content = {
        k: x for k, x in {**read_sealed(path), **entries}.items() if x is not None
    }
    digests = dict(content.get(FILE_DIGESTS_KEY, {}))
    if contents:
        others = {k: x for k, x in digests.items() if k not in contents}
        before = {**read_sealed(path), FILE_DIGESTS_KEY: others}
        files.write_json(path, {**before, DIGEST_KEY: _digest(before)})
    for name, data in contents.items():
        with files.atomic_path(path.parent / name) as temporary:
            temporary.write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    content[FILE_DIGESTS_KEY] = digests
    files.write_json(path, {**content, DIGEST_KEY: _digest(content)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the dict of a JSON file."""
    if path.is_file() and path.stat().st_size > MAX_CONFIG_BYTES:
        raise UserError(f"{path.name} has more than {MAX_CONFIG_BYTES:,} bytes")
    try:
        content = files.read_json(path)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path.name} is not JSON: {reason(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path.name} is not an object")
    if not isinstance(content.get(FILE_DIGESTS_KEY, {}), dict):
        raise UserError(f'"{FILE_DIGESTS_KEY}" of {path.name} is not an object')
    try:
        digest = _digest(content)
    except RecursionError:
        # Writing fails at a smaller depth than reading.
        raise UserError(f"{path.name} is nested too deeply") from None
    if content.get(DIGEST_KEY, digest) != digest:
        raise UserError(
            f"{path.name} differs from its digest: it is damaged, or was edited. "
            f'Remove its "{DIGEST_KEY}" to skip this check'
        )
    return content


def check_file_digest(content: dict[str, Any], path: Path) -> None:
    """Raise a `UserError` if a file has a digest, and differs from it."""
    digest = content.get(FILE_DIGESTS_KEY, {}).get(path.name)
    if digest is not None and digest != digest_of_file(path):
        raise UserError(f"{path.name} is damaged: it differs from its digest")


def read_listed(folder: Path, content: dict[str, Any], name: str) -> bytes | None:
    """Return the content of a file of a folder, or `None` if it is not one of a model.

    `content` is the configuration of the model, which has the digest of the file.
    """
    if name not in content.get(FILE_DIGESTS_KEY, {}):
        return None
    check_file_digest(content, folder / name)
    return files.read_file(folder / name)


def write_sums(folder: Path) -> None:
    """Write the digests of all files of a folder to a file in it.

    `sha256sum --check SHA256SUMS` in the folder verifies them.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [
        f"{digest_of_file(path)}  {path.relative_to(folder).as_posix()}\n"
        for path in paths
    ]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8", newline="\n")


def summed_names(folder: Path) -> set[str]:
    """Return the names in a folder whose digests `write_sums` wrote, and `SUMS`."""
    try:
        lines = (folder / SUMS).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return set()
    return {SUMS, *(line.partition("  ")[2].partition("/")[0] for line in lines)}


def short_digest(value: Any) -> str:
    """Return a short digest of a value, for comparison and for messages."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return f"digest {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _digest(content):
    """Return the digest of a dict without the entry of its digest."""
    rest = {name: value for name, value in content.items() if name != DIGEST_KEY}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: StrPath) -> str:
    """Return the SHA-256 digest of a file in hexadecimal digits."""
    with files.opened(path) as file:
        # The types of `hashlib` do not know `IO[bytes]`.
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


# Configuration of a model, in its folder.
CONFIG = "config.json"
# Weights of a model, in its folder.
WEIGHTS = "model.weights.npz"
# Files that a folder of a model contains.
MODEL_FILES = (CONFIG, WEIGHTS)

# Entry of the configuration of an ensemble: the names of its models, and their maximum
# number. Each model takes memory, even if its name is repeated.
ENSEMBLE = "ensemble"
MAX_MEMBERS = 16
# Entry of the configuration of a model whose CNN is stored in a preset: its name.
BACKBONE_OF = "backbone_of"
# Folders of the best model, and of that of the last epoch, in the output of a training.
BEST, LAST = "model", "last"


def find_preset(name_or_path: StrPath, presets: Path) -> Path:
    """Return the folder of a shipped preset or of a trained model, which exists."""
    files.check_local(name_or_path)
    path = files.expanded(name_or_path)
    is_name = str(name_or_path) == path.name
    for folder in (presets / path, path) if is_name else (path,):
        if (folder / CONFIG).is_file():
            return folder
    known = [path.parent.name for path in presets.glob(f"*/{CONFIG}")]
    inside = path / BEST
    if files.holds(inside, MODEL_FILES):
        hint = f". Its model is {str(inside)!r}"
    else:
        hint = did_you_mean(name_or_path, known)
    raise UserError(
        "expected the name of a preset or the folder of a trained model. Presets: "
        f"{listed(name_or_path, known)}. Received: {str(name_or_path)!r}{hint}"
    )


def split_names(name_or_path: StrPath) -> list:
    """Return the names of the models of `"a+b"`; an existing path is not split."""
    name = str(name_or_path)
    exists = files.expanded(name).exists()
    return [name_or_path] if exists or "+" not in name else name.split("+")


def name_of(model: StrPath) -> str:
    """Return a model's name without the folders of this computer.

    The folder `model` in the output of a training has the name of the output, too.

    >>> name_of("/home/me/first/model+/home/me/second")
    'first/model+second'
    """
    paths = map(Path, split_names(model))
    return "+".join(
        f"{path.parent.name}/{path.name}"
        if path.name == BEST and path.parent.name
        else path.name
        for path in paths
    )


def member_folders(name_or_path: StrPath, *, presets: Path, noun: str) -> list[Path]:
    """Return the folders of the models of an ensemble, or that of a single model.

    An ensemble is a name such as `"a+b"`, or a folder whose configuration lists the
    names of its models. These are presets, or folders inside this folder.
    """
    names = split_names(name_or_path)
    if len(names) > 1:
        _check_count(names)
        folder_lists = (
            member_folders(name, presets=presets, noun=noun) for name in names
        )
        folders = [*itertools.chain(*folder_lists)]
        _check_count(folders)
        return folders
    folder = find_preset(name_or_path, presets)
    with loading(folder, noun):
        names = _listed_members(read_sealed(folder / CONFIG))
        _check_count(names)
        members = [_member(folder, name, presets) for name in names]
        for member in members:
            if _listed_members(read_sealed(member / CONFIG)):
                raise UserError(f"{member.name!r} is an ensemble itself")
    return members or [folder]


def _check_count(models):
    if len(models) > MAX_MEMBERS:
        raise UserError(
            f"an ensemble has at most {MAX_MEMBERS} models. Received: {len(models)}"
        )


def _member(folder, name, presets):
    """Return the folder of a member inside that of an ensemble, or of its preset."""
    inside, outer = folder / name, files.resolved(folder)
    if files.resolved(inside).is_relative_to(outer) and inside.is_dir():
        return inside
    if Path(name).name == name and (presets / name / CONFIG).is_file():
        return presets / name
    raise UserError(
        f"the models of an ensemble must be presets or folders inside {str(folder)!r}. "
        f"Received: {name!r}"
    )


def _listed_members(content):
    """Return the names that the configuration of an ensemble lists, or `[]`."""
    members = content.get(ENSEMBLE, [])
    if not (isinstance(members, list) and all(isinstance(x, str) for x in members)):
        raise UserError(f'"{ENSEMBLE}" of {CONFIG} is not a list of names')
    return members


def backbone_folder(content: dict[str, Any], presets: Path) -> Path | None:
    """Return the folder of the preset in which the CNN of a model is stored.

    `content` is the configuration of the model. Return `None` if its own file has all
    of its weights, as those of the other preset must.
    """
    name = content.get(BACKBONE_OF)
    if name is None:
        return None
    if not (isinstance(name, str) and Path(name).name == name):
        raise UserError(
            f'"{BACKBONE_OF}" of {CONFIG} is not the name of a preset: {name!r}'
        )
    if not (presets / name / CONFIG).is_file():
        raise UserError(f"its CNN is that of the preset {name!r}, which is missing")
    if BACKBONE_OF in read_sealed(presets / name / CONFIG):
        raise UserError(f"the preset {name!r} does not contain its own CNN")
    return presets / name


def find_litert(name_or_path: StrPath, presets: Path) -> Path:
    """Return the path of a `.tflite` file, or of that of a preset or a folder."""
    path = files.expanded(name_or_path)
    if files.is_litert(path):
        return path
    is_joined = len(split_names(name_or_path)) > 1
    folder = None if is_joined else find_preset(name_or_path, presets)
    if folder is None or not (folder / files.LITERT).is_file():
        raise UserError(
            f"{str(name_or_path)!r} has no LiteRT file. The command export writes one, "
            "such as my.tflite, which is given as --model"
        )
    return folder / files.LITERT


# Errors of files and values, of the C++ code of SentencePiece, LiteRT and the backends,
# and of sizes that no memory can hold. Other exceptions are bugs of the program.
_ERRORS = (OSError, ValueError, RuntimeError, MemoryError)


@contextlib.contextmanager
def loading(model: StrPath, noun: str) -> Iterator[None]:
    """Replace errors of loading a model by a `UserError` that names the model."""
    try:
        yield
    except files.SizeLimitError:
        raise
    except _ERRORS as error:
        raise UserError(f"{model} is not a complete {noun}: {reason(error)}") from error


def model_names(folder: Path) -> set[str]:
    """Return the set of the names in a folder that belong to a saved model.

    Other libraries also write `MODEL_FILES`, but no configuration with a `"model"`.
    """
    try:
        content = files.read_json(folder / CONFIG)
    except (OSError, ValueError):
        return set()
    if not (isinstance(content, dict) and isinstance(content.get("model"), dict)):
        return set()
    digests = content.get(FILE_DIGESTS_KEY, {})
    is_model = isinstance(digests, dict) and files.holds(folder, MODEL_FILES)
    return {*MODEL_FILES, files.LITERT, *digests} if is_model else set()


def read_config(folder: Path, *, kind: type[Config], noun: str) -> Config:
    """Return the configuration of a single model in a folder, a `kind`."""
    with loading(folder, noun):
        return from_json(kind, _options(read_sealed(folder / CONFIG)))


def _options(content):
    """Return the options of a single model, from the dict of its configuration."""
    if not isinstance(content.get("model"), dict):
        raise UserError(f'{CONFIG} has no object "model"')
    return content["model"]


# Values of options that leave a model as it is.
_DEFAULT_VALUES = (None, False, "float32")


def changes_in(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a model, a dict, without those that leave it as it is."""
    return {name: x for name, x in options.items() if x not in _DEFAULT_VALUES}


# Numbers of inputs from which CTranslate2 is chosen in place of LiteRT, if there is
# AVX-512, and of Keras.
MANY_FOR_LITERT, MANY_FOR_KERAS = 10_000, 1_000
# Properties of the processor, on Linux.
CPUINFO = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class Runtimes:
    """The classes that run the models of a program.

    `litert` is the `LiteTask`; `keras` imports the `Task`, and returns it. So does
    `ctranslate2`, if there is one, for a `Task` on CTranslate2, and `converts` returns
    whether that runs a model.
    """

    keras: Callable[[], Any]
    litert: Any
    ctranslate2: Callable[[], Any] | None = None
    converts: Callable[[StrPath], bool] | None = None

    def load(
        self,
        model: StrPath,
        config: RuntimeConfig,
        *,
        search: dict[str, Any],
        auto: str = "litert",
        n_best: int = 1,
        needs_keras: str | None = None,
        has_at_least: Callable[[int], bool] = lambda count: False,
        **options: Any,
    ) -> Any:
        """Load a model for the options of the beam `search` that were given.

        `auto` is what the runtime `"auto"` chooses if the model has a LiteRT file of
        the same configuration, and with these search options. `needs_keras` is an
        option that was given and that LiteRT does not have, if any. `has_at_least` is a
        function from a number to whether there are as many inputs: for many, `"auto"`
        prefers CTranslate2 if it is installed, to LiteRT only on processors with
        AVX-512. `**options` are further arguments of `Task.from_preset`.
        """
        # NumPy, which --help does not need, takes as long to import as all the rest.
        from keras_attention_apps.common.inference import check_n_best

        changes = changes_in(options)
        if files.is_litert(model) or config.runtime == "litert":
            # A LiteRT file loads quickly, and has its own beam width.
            return self._requested_litert(model, config, changes, search, needs_keras)
        if config.runtime == "ctranslate2":
            check_n_best(n_best, self.search_options(search))
            return self._on_ctranslate2(model, config.threads, options)
        keras_only = bool(changes) or needs_keras is not None or auto == "keras"
        if config.runtime == "auto" and not keras_only:
            lite = self._available_litert(model, config.threads)
            if lite is not None and not search.items() <= lite.search.items():
                lite = None
            if (
                self.converts is not None
                and has_ctranslate2()
                and self.converts(model)
                and (lite is None or has_avx512())
                # Lines that come from a pipe are read ahead.
                and has_at_least(MANY_FOR_LITERT if lite else MANY_FOR_KERAS)
            ):
                check_n_best(n_best, self.search_options(search))
                return self._on_ctranslate2(model, config.threads, options)
            if lite is not None:
                return lite
        # Checked before Keras loads the model, which takes seconds.
        check_n_best(n_best, self.search_options(search))
        return self.keras().from_preset(model, **options)

    def _on_ctranslate2(self, model, threads, options):
        if self.ctranslate2 is None or not has_ctranslate2():
            raise UserError(
                "the runtime ctranslate2 needs the extra ctranslate2: "
                'python -m pip install . "./apps[ctranslate2]"'
            )
        return self.ctranslate2().from_preset(model, threads=threads, **options)

    def load_for(self, config: Any, model: StrPath = "", **options: Any) -> Any:
        """Load the model that the options of a command choose, or another `model`."""
        chosen, search = config.model, config.search.given
        options |= chosen.options
        return self.load(model or chosen.name, config.runtime, search=search, **options)

    def search_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return all options of the search on Keras: those given, and the defaults."""
        return self.litert.search_type(**options).complete

    def files(self, model):
        """Return the files of a model; an empty list if there is no model."""
        if files.is_litert(model):
            return [model]
        lite = self.litert
        file_names = (*MODEL_FILES, files.LITERT, lite.tokenizer_type.file_name)
        try:
            named = [find_preset(x, lite.presets) for x in split_names(model)]
            members = member_folders(model, presets=lite.presets, noun=lite.noun)
            contents = [read_sealed(folder / CONFIG) for folder in members]
            backbones = [backbone_folder(x, lite.presets) for x in contents]
        except UserError:
            return []
        folders = dict.fromkeys([*named, *members, *filter(None, backbones)])
        return [folder / name for folder in folders for name in file_names]

    def described_files(self, model: StrPath) -> list[Path]:
        """Return the files of a model that have its calibration; check each."""
        paths = [files.expanded(model)]
        if not files.is_litert(model):
            folder = find_preset(model, self.litert.presets)
            paths = [x for x in (folder / files.LITERT, folder / CONFIG) if x.exists()]
        for path in paths:
            files.check_file(path)
        return paths

    def with_absolute_paths(self, model: StrPath) -> str:
        """Return a name of the same model that is valid in every working directory."""
        presets, names = self.litert.presets, []
        for name in split_names(model):
            path = files.expanded(name)
            if not files.is_litert(name):
                with contextlib.suppress(UserError):
                    path = find_preset(name, presets)
            is_path = path.exists() and path.parent != presets
            names.append(str(path.absolute()) if is_path else name)
        return "+".join(names)

    def others(self, names: Iterable[str], model: str) -> list[str]:
        """Return the names of all models but one, which may have another name."""
        others = {self.with_absolute_paths(name): name for name in names}
        others.pop(self.with_absolute_paths(model), None)
        return list(others.values())

    def _requested_litert(self, model, config, changes, search, needs_keras):
        """Return the model on LiteRT, or say which of the options excludes it."""
        if config.runtime not in ("auto", "litert"):
            raise UserError(
                f"a LiteRT file needs --runtime litert. Received: {model!r}"
            )
        if needs_keras is not None:
            raise UserError(
                f"{needs_keras} needs the runtime keras. Received: {model!r} on litert"
            )
        if changes:
            name, value = next(iter(changes.items()))
            is_fixed = name != "jit_compile"
            fault = "is fixed in a LiteRT file" if is_fixed else "needs Keras"
            raise UserError(f"{name} {fault}. Received: {value}")
        lite = self.litert.from_preset(model, threads=config.threads)
        lite.search_options(**search)
        return lite

    def _available_litert(self, model, threads):
        """Return the model on LiteRT, or `None` if there is no intact file of it.

        A file that is damaged, or has other options than its folder, is a warning.
        """
        if len(split_names(model)) > 1 or not _has_litert():
            return None
        lite = self.litert
        folder = find_preset(model, lite.presets)
        if not (folder / files.LITERT).is_file():
            return None
        try:
            lite_model = lite(folder / files.LITERT, threads=threads)
            _check_options(lite_model, folder)
            return lite_model
        except UserError as error:
            print(f"Warning: {printable(error)}. Keras runs the model", file=sys.stderr)
            return None


def _has_litert():
    return importlib.util.find_spec("ai_edge_litert") is not None


def has_avx512() -> bool:
    """Return whether the processor has AVX-512; only Linux tells."""
    try:
        return "avx512f" in CPUINFO.read_text(encoding="utf-8").split()
    except OSError:
        return False


def has_ctranslate2() -> bool:
    """Return whether CTranslate2 is installed."""
    return importlib.util.find_spec("ctranslate2") is not None


def _check_options(lite, folder):
    """Raise a `UserError` if a LiteRT file and its folder have different options.

    Those of an ensemble are the options of its first model. A folder whose options
    cannot be read, such as an ensemble without its models, has only the file to run.
    """
    try:
        content = read_sealed(folder / CONFIG)
        for first in _listed_members(content)[:1]:
            content = read_sealed(_member(folder, first, lite.presets) / CONFIG)
        options = _options(content)
    except (UserError, OSError):
        return
    for name, value in lite.options.items():
        if options.get(name, value) != value:
            path = folder / files.LITERT
            raise UserError(
                f"{path} has {name}={value!s:.60}, and its folder {options[name]!s:.60}"
            )
