"""Decoding of images in a TensorFlow graph, for the SavedModel.

The pixels are the same as those of Pillow, so that the SavedModel captions an image as
the Python program does.
"""

import string

import tensorflow as tf
from keras_attention_apps.captioner import images

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
        (size[0] == -2, images.TOO_MANY_SCANS),
        (size[0] == -3, OTHER_BMP),
        *images.checks_of_size(size[0], size[1], length),
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
    return problem, size[0] * size[1] > images.HALVED_PIXELS


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

    The segments are followed from one to the next, as in `images.count_scans`.
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
        return (place < count) & (scans <= images.MAX_SCANS)

    def follow(place, scans, size):
        scans += tf.cast(kinds[place] == images.SCAN, tf.int64)
        size = tf.where(are_frames[place] & (size == 0), sizes[place], size)
        after = tf.searchsorted(starts, ends[place][None], out_type=tf.int64)[0]
        return tf.where(kinds[place] == images.END, count, after), scans, size

    zero = tf.constant(0, tf.int64)
    first = tf.searchsorted(starts, tf.constant([2], tf.int64), out_type=tf.int64)[0]
    place, scans, size = tf.while_loop(
        unfinished,
        follow,
        (first, zero, tf.stack([zero, zero])),
        maximum_iterations=images.MAX_SEGMENTS,
    )
    are_too_many = (scans > images.MAX_SCANS) | (place < count)
    are_too_many |= scans * size[0] * size[1] > images.MAX_SCANNED_PIXELS
    return tf.where(are_too_many, tf.constant(-2, tf.int64), size)


def read_integer(data, offsets, width, little=False):
    """Read an integer of `width` bytes at each offset; bytes out of range are 0."""
    size = tf.size(data, tf.int64)
    index = tf.cast(offsets, tf.int64)[..., None] + tf.range(width, dtype=tf.int64)
    index = tf.where((index < 0) | (index >= size), size, index)
    digits = tf.cast(tf.gather(tf.pad(data, [[0, 1]]), index), tf.int64)
    digits = tf.where(little, tf.reverse(digits, [-1]), digits)
    return tf.reduce_sum(digits * [256**n for n in reversed(range(width))], axis=-1)


_FRACTION = 22  # fractional bits of a weight, as in Pillow

# Images that are decoded at the same time.
_PARALLEL = 2
# Pixels of the parts in which a large image is converted and resized.
_PART = 2**20


def decode_images(encoded, size):
    """Decode images, turn them upright, and resize each to a square.

    Transparent images get a white background; an animated GIF gives its first frame.
    The pixels are those of `read_image` and `image_to_array`; in images with 16 bits of
    grey some differ by one level. Differences to Pillow:

    - The orientation is read from the EXIF segment of a JPEG alone, neither from XMP
      nor from other formats.
    - Transparent parts of a GIF are black; the fourth channel of a BMP is ignored.
    - A BMP must be uncompressed, have 8, 24 or 32 bits per pixel, and not the short
      header of OS/2.
    - An animated WebP is rejected, since decoding it corrupts TensorFlow's memory.

    Args:
        encoded: String tensor of shape `(B,)`, the bytes of one file in each entry.
        size: Positive integer, height and width of the result.

    Returns:
        images: `uint8` tensor of shape `(B, size, size, 3)`: red, green, blue; black
            for an image that cannot be read.
        problems: String tensor of shape `(B,)`, the reason why an image cannot be read,
            otherwise empty.
    """
    black = tf.zeros([size, size, 3], tf.uint8)

    def prepare(encoded):
        problem, halved = problem_of(encoded)
        square, is_whole = tf.cond(
            problem == "",
            lambda: _decoded(encoded, halved, size),
            lambda: (black, tf.constant(True)),
        )
        return square, tf.where(is_whole, problem, "the image cannot be decoded")

    signature = (
        tf.TensorSpec((size, size, 3), tf.uint8),
        tf.TensorSpec((), tf.string),
    )
    return tf.map_fn(
        prepare,
        encoded,
        fn_output_signature=signature,
        parallel_iterations=_PARALLEL,
    )


def _decoded(encoded, halved, size):
    """Return an image as a square, and whether it was whole.

    TensorFlow's decoders end the graph with an error for a damaged image; only a
    dataset can ignore one.
    """

    def prepare(encoded, halved):
        pixels = _decode(encoded, halved)
        to_rgb = _to_rgb(encoded, pixels)
        orientation = _read_orientation(encoded)
        # Turning after resizing moves fewer pixels.
        square = _turn_upright(_resize(pixels, size, orientation, to_rgb), orientation)
        return square, tf.constant(True)

    decoded = tf.data.Dataset.from_tensors((encoded, halved)).map(prepare)
    black = tf.zeros([size, size, 3], tf.uint8), tf.constant(False)
    otherwise = tf.data.Dataset.from_tensors(black)
    return decoded.ignore_errors().concatenate(otherwise).take(1).get_single_element()


def _decode(encoded, halved):
    """Return pixels `(height, width, channels)`, which `_to_rgb` converts."""
    decoders = [
        (starts_with(encoded, b"\xff\xd8\xff"), lambda: _decode_jpeg(encoded, halved)),
        (starts_with(encoded, b"\x89PNG"), lambda: tf.io.decode_png(encoded, 4)),
    ]
    pixels = tf.case(
        decoders,
        default=lambda: tf.io.decode_image(encoded, expand_animations=False),
    )
    return tf.ensure_shape(pixels, (None, None, None))


def _decode_jpeg(encoded, halved):
    def decode(ratio):
        # Pillow's choices; TensorFlow's own prefer speed to accuracy.
        return tf.io.decode_jpeg(
            encoded,
            channels=3,
            ratio=ratio,
            dct_method="INTEGER_ACCURATE",
            fancy_upscaling=True,
        )

    return tf.cond(halved, lambda: decode(2), lambda: decode(1))


def _to_rgb(encoded, pixels):
    """Return a function that converts parts of the pixels of a file to RGB."""
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, HEAD_LENGTH), tf.uint8)
    channels = tf.shape(pixels)[-1]
    is_bmp = starts_with(encoded, b"BM")
    is_transparent = tf.cond(
        starts_with(encoded, b"\x89PNG"),
        lambda: ~_is_opaque(pixels, head),
        lambda: (channels == 4) & ~is_bmp,
    )

    def convert(part):
        return tf.case(
            [
                (is_transparent, lambda: _composite_on_white(part)),
                (is_bmp & (channels == 1), lambda: _palette_colours(part, head)),
            ],
            default=lambda: part[..., :3],
        )

    return lambda part: tf.ensure_shape(convert(part), (None, None, 3))


def _is_opaque(pixels, head):
    """Return whether the fourth channel of a PNG is opaque everywhere."""
    # Below 8 bits, `decode_png` gives opaque pixels the file's largest value.
    opaque = tf.cast(2 ** tf.minimum(read_integer(head, 24, 1), 8) - 1, tf.uint8)
    # Comparing every pixel would take as much memory as the channel.
    least = tf.reduce_min(pixels, axis=[0, 1])[3]
    most = tf.reduce_max(pixels, axis=[0, 1])[3]
    return (least == opaque) & (most == opaque)


def _palette_colours(part, head):
    """Return the colours of a BMP with a palette."""
    start = 14 + read_integer(head, 14, 4, little=True)
    entries = start + 4 * tf.range(256, dtype=tf.int64)
    palette = read_integer(head, entries[:, None] + [2, 1, 0], 1)
    return tf.gather(tf.cast(palette, tf.uint8), tf.cast(part[..., 0], tf.int32))


def _composite_on_white(pixels):
    pixels = tf.cast(pixels, tf.uint16)  # holds 255 * 255 + 127
    colours, alpha = pixels[..., :3], pixels[..., 3:]
    mixed = (colours * alpha + 255 * (255 - alpha) + 127) // 255
    return tf.cast(mixed, tf.uint8)


def _read_orientation(encoded):
    """Return EXIF's orientation, 1 to 8; 1 if it is missing or invalid."""
    head = tf.strings.substr(encoded, 0, HEAD_LENGTH)
    parts = tf.strings.split(head, b"Exif\0\0", maxsplit=1)
    before = tf.io.decode_raw(parts[0], tf.uint8)
    after = tf.io.decode_raw(tf.strings.reduce_join(parts[1:]), tf.uint8)
    marker, length = tf.unstack(read_integer(before, tf.size(before) - [4, 2], 2))
    # The length counts itself and the six bytes of the split.
    length = tf.where(marker == 0xFFE1, tf.maximum(length - 8, 0), 0)
    return _find_orientation(after[:length])


def _find_orientation(tiff):
    size = tf.size(tiff, tf.int64)
    little = read_integer(tiff, 0, 4) == int.from_bytes(b"II*\0")
    big = read_integer(tiff, 0, 4) == int.from_bytes(b"MM\0*")
    directory = read_integer(tiff, 4, 4, little)
    count = tf.minimum(read_integer(tiff, directory, 2, little), size // 12)
    entries = directory + 2 + 12 * tf.range(count)
    found = (read_integer(tiff, entries, 2, little) == 0x0112) & (entries + 12 <= size)
    entry = tf.boolean_mask(entries, found)[:1]
    is_long = read_integer(tiff, entry + 2, 2, little) == 4
    short, long = (read_integer(tiff, entry + 8, width, little) for width in (2, 4))
    orientation = tf.reduce_sum(tf.where(is_long, long, short))
    is_valid = (little | big) & (orientation >= 1) & (orientation <= 8)
    return tf.where(is_valid, orientation, 1)


def _resize(pixels, size, orientation, to_rgb):
    """Convert to RGB and resize to a square, as `image_to_array` does.

    The longer side is resized first, that of the upright image. It is resized in parts,
    since integers of 32 bits of a whole image would take four times its memory.
    """
    height, width = tf.unstack(tf.shape(pixels)[:2])
    down = tf.where(orientation > 4, height >= width, height > width)
    longer, shorter = tf.where(down, height, width), tf.where(down, width, height)
    weights, step = _bilinear_weights(longer, size), tf.maximum(_PART // longer, 1)
    swaps, keeps = tf.constant([1, 0, 2]), tf.constant([0, 1, 2])

    def resize_part(start, parts):
        end = tf.minimum(start + step, shorter)
        rows, columns = tf.where(down, 0, start), tf.where(down, start, 0)
        part = pixels[
            rows : tf.where(down, height, end), columns : tf.where(down, end, width)
        ]
        part = tf.transpose(to_rgb(part), tf.where(down, keeps, swaps))
        part = tf.transpose(_resize_first_axis(part, size, weights), swaps)
        return end, parts.write(parts.size(), part)

    parts = tf.TensorArray(
        tf.uint8, 0, dynamic_size=True, infer_shape=False, element_shape=(None, size, 3)
    )
    _, parts = tf.while_loop(
        lambda start, parts: start < shorter,
        resize_part,
        (0, parts),
        parallel_iterations=1,
    )
    square = _resize_first_axis(parts.concat(), size, _bilinear_weights(shorter, size))
    # The shorter side is the first axis.
    return tf.transpose(square, tf.where(down, swaps, keeps))


def _resize_first_axis(pixels, size, weights):
    """Resize the first axis, in integers as Pillow does."""
    length, others = tf.unstack(tf.shape(pixels)[:2])
    columns = tf.reshape(tf.cast(pixels, tf.int32), (length, others * 3))
    sums = tf.sparse.sparse_dense_matmul(weights, columns)
    rounded = tf.bitwise.right_shift(sums + 2 ** (_FRACTION - 1), _FRACTION)
    return tf.reshape(tf.saturate_cast(rounded, tf.uint8), (size, others, 3))


def _bilinear_weights(length, size):
    """Return the weights of bilinear resizing of an axis from `length` to `size`.

    A triangle around the centre of each output position:

        weights[i, n] = max(1 - |n + 1/2 - centre[i]| / reach, 0) / sum over n
        centre[i]     = (i + 1/2) length / size,  reach = max(length / size, 1)

    Returns:
        Sparse int32 tensor of shape `(size, length)`, 2**22 times the weights.
    """
    scale = tf.cast(length, tf.float64) / size
    reach = tf.maximum(scale, 1.0)
    centres = (tf.range(size, dtype=tf.float64)[:, None] + 0.5) * scale
    count = 2 * tf.cast(tf.math.ceil(reach), tf.int64) + 1
    first = tf.cast(tf.maximum(centres - reach + 0.5, 0.0), tf.int64)
    places = first + tf.range(count)
    distances = tf.abs(tf.cast(places, tf.float64) + 0.5 - centres) / reach
    inside = places < tf.cast(length, tf.int64)
    weights = tf.where(inside, tf.maximum(1.0 - distances, 0.0), 0.0)
    weights /= tf.reduce_sum(weights, axis=1, keepdims=True)
    weights = tf.cast(weights * 2.0**_FRACTION + 0.5, tf.int32)
    chosen = tf.where(weights > 0)
    indices = tf.stack([chosen[:, 0], tf.gather_nd(places, chosen)], axis=1)
    shape = tf.cast(tf.stack([size, length]), tf.int64)
    return tf.SparseTensor(indices, tf.gather_nd(weights, chosen), shape)


def _turn_upright(square, orientation):
    # Each orientation is at most a transpose, followed by mirrored axes.
    axes = tf.where(orientation > 4, [1, 0, 2], [0, 1, 2])
    mirrored = tf.reduce_any(orientation == [[3, 4, 7, 8], [2, 3, 6, 7]], axis=1)
    upright = tf.reverse(tf.transpose(square, axes), tf.boolean_mask([0, 1], mirrored))
    return tf.ensure_shape(upright, square.shape)
