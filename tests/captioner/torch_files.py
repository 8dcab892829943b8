"""Checkpoints of PyTorch as it wrote them before version 1.6, made without PyTorch."""

import pickle

import numpy as np

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C


def write_checkpoint(path, tensors):
    """Write a state dict.

    Args:
        path: Where to write.
        tensors: Dict from names to arrays, or to `(storage, offset, shape, strides)`.
    """
    entries, bytes_ = b"", b""
    for number, (name, tensor) in enumerate(tensors.items()):
        if isinstance(tensor, np.ndarray):
            strides = [step // tensor.itemsize for step in tensor.strides]
            tensor = tensor.ravel("K"), 0, tensor.shape, strides
        storage, offset, shape, strides = tensor
        kind = {"f4": "FloatStorage", "i8": "LongStorage"}[storage.dtype.str[1:]]
        key = str(number)
        persistent = (
            b"("
            + _plain("storage")
            + f"ctorch\n{kind}\n".encode()
            + b"".join(map(_plain, (key, "cpu", storage.size, None)))
            + b"tQ"
        )
        values = (offset, tuple(shape), tuple(strides), False)
        entries += _plain(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + persistent
        entries += b"".join(map(_plain, values)) + b"tR"
        bytes_ += storage.size.to_bytes(8, "little") + storage.tobytes()
    state = b"\x80\x02ccollections\nOrderedDict\n)R(" + entries + b"u."
    keys = [str(number) for number in range(len(tensors))]
    head = [pickle.dumps(value, 2) for value in (MAGIC_NUMBER, 1001, {})]
    path.write_bytes(b"".join([*head, state, pickle.dumps(keys, 2), bytes_]))


def _plain(value):
    """The opcodes of a value, without those of the pickle around it."""
    return pickle.dumps(value, 2)[2:-1]
