"""Read an HDF5 file completely, in a process of its own.

`python read_hdf5.py FILE LIMIT` ends with status 0 unless the HDF5 library crashes or
hangs. Other damage raises an exception in the process that reads the file next. Arrays
of more bytes than the limit together are not read.
"""

import contextlib
import sys


def read(path, limit):
    # A library that is missing here says nothing about the file.
    import h5py

    items = []
    with h5py.File(path) as file:
        file.visititems(lambda _, item: items.append(item))
        arrays = [item for item in items if isinstance(item, h5py.Dataset)]
        for item in items:
            dict(item.attrs)
        if sum(array.nbytes for array in arrays) <= limit:
            for array in arrays:
                array[()]


if __name__ == "__main__":
    with contextlib.suppress(Exception):
        read(sys.argv[1], int(sys.argv[2]))
