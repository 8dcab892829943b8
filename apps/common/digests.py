"""SHA-256 digests, in JSON files and in `SHA256SUMS`."""

import hashlib
import json

from keras_attention_apps.common.cli import UserError, reason
from keras_attention_apps.common.files import read_json, write_json
from keras_attention_apps.common.reading import opened

# Keys in a JSON file: the digests of other files by name, and its own digest.
FILE_DIGESTS_KEY = "sha256"
DIGEST_KEY = "digest"

# List of the files of a folder with their digests.
SUMS = "SHA256SUMS"


def write_sealed(path, value, files=()):
    """Write a dict as JSON, with digests.

    Args:
        path: Name of the file.
        value: The dict.
        files: Names of other files of its folder.

    Returns:
        The dict that was written.
    """
    content = json.loads(json.dumps(value, default=str))
    content[FILE_DIGESTS_KEY] = {
        name: digest_of_file(path.parent / name) for name in files
    }
    content[DIGEST_KEY] = _digest(content)
    write_json(path, content)
    return content


def update_sealed(path, entries):
    """Replace some entries of a JSON file; those of the digests of files stay.

    Args:
        path: Name of the file.
        entries: Dict that JSON can hold.
    """
    content = {**read_sealed(path), **entries}
    content.pop(DIGEST_KEY, None)
    content[DIGEST_KEY] = _digest(content)
    write_json(path, content)


def read_sealed(path):
    """Return the dict of a JSON file.

    Raises:
        UserError: If it is not a JSON object, or differs from its digest. A file
            without a digest, from an earlier version, is not checked.
    """
    try:
        content = read_json(path)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path.name} is not JSON: {reason(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path.name} is not an object")
    if not isinstance(content.get(FILE_DIGESTS_KEY, {}), dict):
        raise UserError(f'"{FILE_DIGESTS_KEY}" of {path.name} is not an object')
    rest = {name: value for name, value in content.items() if name != DIGEST_KEY}
    if content.get(DIGEST_KEY, _digest(rest)) != _digest(rest):
        raise UserError(
            f"{path.name} differs from its digest: it is damaged, or was edited. "
            f'Remove its "{DIGEST_KEY}" to skip this check'
        )
    return content


def check_file_digest(content, path):
    """Compare a file with its digest.

    Args:
        content: The dict of a JSON file in the same folder.
        path: Name of the file.

    Returns:
        Whether there is a digest of the file.

    Raises:
        UserError: If the file differs from its digest.
    """
    digests = content.get(FILE_DIGESTS_KEY, {})
    if path.name not in digests:
        return False
    if digests[path.name] != digest_of_file(path):
        raise UserError(f"{path.name} is damaged: it differs from its digest")
    return True


def write_sums(folder):
    """Write the digests of all files of a folder to a file in it.

    `sha256sum --check SHA256SUMS` in the folder verifies them.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [
        f"{digest_of_file(path)}  {path.relative_to(folder).as_posix()}\n"
        for path in files
    ]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8", newline="\n")


def summed_names(folder):
    """Return the set of the names in a folder of which `write_sums` wrote the digests.

    `SUMS` is among them. The set is empty if there is no such file.
    """
    try:
        lines = (folder / SUMS).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return set()
    return {SUMS, *(line.partition("  ")[2].partition("/")[0] for line in lines)}


def short_digest(value):
    """Return a short digest of a value, for comparison and for messages.

    Args:
        value: Bytes, or a value that JSON can hold.
    """
    text = json.dumps(value, sort_keys=True, default=repr)
    return f"digest {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _digest(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_of_file(path):
    """Return the SHA-256 digest of a file in hexadecimal digits."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
