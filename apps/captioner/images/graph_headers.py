"""Headers of images in a TensorFlow graph: size, scans, and what exceeds the limits."""

import string

import tensorflow as tf
from keras_attention_apps.captioner.images import limits

HEAD_LENGTH = 2**16  # enough for the largest JPEG segment
UNKNOWN_FORMAT = (
    "expected a JPEG, PNG, GIF, BMP or still WebP, got a file of the bytes {start}"
)
OTHER_BMP = (
    "expected an uncompressed BMP of 8, 24 or 32 bits per pixel, not in the format of "
    "OS/2, got a header of {header} bytes, {bits} bits, compression {compression}"
)
# Size of the header of OS/2, which TensorFlow does not read.
_OLD_HEADER = 12


def problem_of(encoded):
    """Return the reason why an image cannot be read, before it is decoded.

    Args:
        encoded: String scalar, the bytes of a file.

    Returns:
        problem: String scalar, empty if there is none.
        halved: Boolean scalar: whether the image is to be decoded at half its size.
    """
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, HEAD_LENGTH), tf.uint8)
    formats = [
        (starts_with(encoded, b"\xff\xd8\xff"), lambda: _read_jpeg(encoded)),
        (starts_with(encoded, b"\x89PNG"), lambda: read_integer(head, [16, 20], 4)),
        (starts_with(encoded, b"BM"), lambda: _read_bmp(head)),
        (starts_with(encoded, b"GIF8"), lambda: _read_little(head, [6, 8])),
        (_is_still_webp(head), lambda: _read_webp(head)),
    ]
    unknown = [-1, -1]
    size = tf.case(formats, default=lambda: tf.constant(unknown, tf.int64))
    length = tf.cast(tf.strings.length(encoded), tf.int64)
    checks = [
        (size[0] == -1, UNKNOWN_FORMAT),
        (size[0] == -2, limits.TOO_MANY_SCANS),
        (size[0] == -3, OTHER_BMP),
        *limits.checks_of_size(size[0], size[1], length),
    ]
    fields = {
        "size": _joined(size, " x "),
        "length": tf.as_string(length),
        "start": _joined(head[:16], " "),
    }
    names = ("header", "bits", "compression")
    fields |= zip(names, map(tf.as_string, _kind_of_bmp(head)), strict=True)
    problem = tf.constant("")
    for exceeds, message in reversed(checks):
        problem = tf.where(exceeds, _filled(message, fields), problem)
    return problem, size[0] * size[1] > limits.HALVED_PIXELS


def starts_with(encoded, signature):
    return tf.strings.substr(encoded, 0, len(signature)) == signature


def _filled(message, fields):
    """Return a message with tensors in its fields, as `str.format` does."""
    parts = []
    for text, field, *_ in string.Formatter().parse(message):
        parts += [text, fields[field]] if field else [text]
    return tf.strings.join(parts)


def _joined(numbers, separator):
    return tf.strings.reduce_join(tf.as_string(numbers), separator=separator)


def _read_little(head, offsets):
    return read_integer(head, offsets, 2, little=True)


def _read_bmp(head):
    """Return width and height, or -3 twice for a kind that TensorFlow cannot decode.

    A file stores a negative height for top-down rows. Compression 3 means colour masks,
    which in 32-bit files nearly always have the usual order. Other values are damage,
    which the decoder reports.
    """
    header, bits, compression = _kind_of_bmp(head)
    is_other = header == _OLD_HEADER
    for field, values in ((bits, (1, 2, 4, 16)), (compression, (1, 2, 4, 5))):
        is_other |= tf.reduce_any(field == tf.constant(values, tf.int64))
    sides = read_integer(head, [18, 22], 4, little=True)
    sides = tf.where(sides >= 2**31, 2**32 - sides, sides)
    return tf.where(is_other, tf.constant(-3, tf.int64), sides)


def _kind_of_bmp(head):
    """Return the size of the header, the bits per pixel, and the compression."""
    header = read_integer(head, 14, 4, little=True)
    is_old = header == _OLD_HEADER
    bits = read_integer(head, tf.where(is_old, 24, 28), 2, little=True)
    compression = read_integer(head, 30, 4, little=True)
    return header, bits, tf.where(is_old, tf.constant(0, tf.int64), compression)


def _is_still_webp(head):
    is_webp = read_integer(head, [0, 8], 4) == [
        int.from_bytes(b"RIFF"),
        int.from_bytes(b"WEBP"),
    ]
    is_extended = read_integer(head, 12, 4) == int.from_bytes(b"VP8X")
    is_animated = is_extended & (read_integer(head, 20, 1) & 2 > 0)
    return tf.reduce_all(is_webp) & ~is_animated


def _read_webp(head):
    """Return width and height; each of the three formats stores them elsewhere."""
    kind = read_integer(head, 12, 4)
    extended = 1 + read_integer(head, [24, 27], 3, little=True)
    bits = read_integer(head, 21, 4, little=True)
    lossless = 1 + tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(bits, tf.constant([0, 14], tf.int64)), 0x3FFF
    )
    lossy = tf.bitwise.bitwise_and(_read_little(head, [26, 28]), 0x3FFF)
    sides = tf.where(kind == int.from_bytes(b"VP8L"), lossless, lossy)
    return tf.where(kind == int.from_bytes(b"VP8X"), extended, sides)


def _read_jpeg(encoded):
    """Return width and height, or -2 twice if there are too many scans.

    The segments are followed from one to the next, as in `limits.count_scans`.
    """
    data = tf.io.decode_raw(encoded, tf.uint8)
    mark, after = data[:-1], data[1:]
    is_restart = (after >= 0xD0) & (after <= 0xD7)
    starts = tf.where((mark == 0xFF) & (after > 0) & (after < 0xFF) & ~is_restart)[:, 0]
    kinds = read_integer(data, starts + 1, 1)
    ends = starts + 2 + read_integer(data, starts + 2, 2)
    sizes = read_integer(data, starts[:, None] + [7, 5], 2)
    are_frames = (kinds >= 0xC0) & (kinds <= 0xCF)
    for other in (0xC4, 0xC8, 0xCC):
        are_frames &= kinds != other
    count = tf.size(starts, tf.int64)

    def unfinished(place, scans, size):
        return (place < count) & (scans <= limits.MAX_SCANS)

    def follow(place, scans, size):
        scans += tf.cast(kinds[place] == limits.SCAN, tf.int64)
        size = tf.where(are_frames[place] & (size == 0), sizes[place], size)
        after = tf.searchsorted(starts, ends[place][None], out_type=tf.int64)[0]
        return tf.where(kinds[place] == limits.END, count, after), scans, size

    zero = tf.constant(0, tf.int64)
    first = tf.searchsorted(starts, tf.constant([2], tf.int64), out_type=tf.int64)[0]
    place, scans, size = tf.while_loop(
        unfinished,
        follow,
        (first, zero, tf.stack([zero, zero])),
        maximum_iterations=limits.MAX_SEGMENTS,
    )
    are_too_many = (scans > limits.MAX_SCANS) | (place < count)
    are_too_many |= scans * size[0] * size[1] > limits.MAX_SCANNED_PIXELS
    return tf.where(are_too_many, tf.constant(-2, tf.int64), size)


def read_integer(data, offsets, width, little=False):
    """Read an integer of `width` bytes at each offset; bytes out of range are 0."""
    size = tf.size(data, tf.int64)
    index = tf.cast(offsets, tf.int64)[..., None] + tf.range(width, dtype=tf.int64)
    index = tf.where((index < 0) | (index >= size), size, index)
    digits = tf.cast(tf.gather(tf.pad(data, [[0, 1]]), index), tf.int64)
    digits = tf.where(little, tf.reverse(digits, [-1]), digits)
    return tf.reduce_sum(digits * [256**n for n in reversed(range(width))], axis=-1)
