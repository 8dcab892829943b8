"""Decoding of images in a TensorFlow graph, for the SavedModel.

The pixels are the same as those of Pillow, so that the SavedModel captions an image as
the Python program does.
"""

import tensorflow as tf

_HEAD_LENGTH = 2**16  # enough for the largest JPEG segment

_FRACTION = 22  # fractional bits of a weight, as in Pillow


def decode_images(encoded, size):
    """Decode images, turn them upright, and resize each to a square.

    Transparent images get a white background; an animated GIF gives its first frame.
    The pixels are those of `read_image` and `image_to_array`; in images with 16 bits of
    grey some differ by one level. Differences to Pillow:

    - The orientation is read from the EXIF segment of a JPEG alone, neither from XMP
      nor from other formats.
    - Transparent parts of a GIF are black; the fourth channel of a BMP is ignored.
    - A BMP must be uncompressed and have 8, 24 or 32 bits per pixel.
    - An animated WebP is rejected, since decoding it corrupts TensorFlow's memory.

    Args:
        encoded: String tensor of shape `(B,)`, the bytes of one file in each entry.
        size: Positive integer, height and width of the result.

    Returns:
        `uint8` tensor of shape `(B, size, size, 3)`: red, green, blue.

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs, and for the whole batch, if
            an entry is damaged or is no JPEG, PNG, GIF, BMP or still WebP.
    """

    def prepare(encoded):
        pixels = tf.ensure_shape(_decode(encoded), (None, None, 3))
        orientation = _read_orientation(encoded)
        # Turning after resizing moves fewer pixels.
        return _turn_upright(_resize(pixels, size, orientation), orientation)

    squares = tf.TensorSpec((size, size, 3), tf.uint8)
    return tf.map_fn(prepare, encoded, fn_output_signature=squares)


def _decode(encoded):
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, _HEAD_LENGTH), tf.uint8)

    def starts(signature):
        return tf.strings.substr(encoded, 0, len(signature)) == signature

    decoders = [
        (starts(b"\xff\xd8\xff"), lambda: _decode_jpeg(encoded)),
        (starts(b"\x89PNG"), lambda: _decode_png(encoded, head)),
        (starts(b"BM"), lambda: _decode_bmp(encoded, head)),
        (starts(b"RIFF"), lambda: _decode_webp(encoded, head)),
    ]
    return tf.case(decoders, default=lambda: _decode_gif(encoded, head))


def _decode_jpeg(encoded):
    # Pillow's choices; TensorFlow's own prefer speed to accuracy.
    return tf.io.decode_jpeg(
        encoded, channels=3, dct_method="INTEGER_ACCURATE", fancy_upscaling=True
    )


def _decode_png(encoded, head):
    pixels = tf.io.decode_png(encoded, channels=4)
    # Below 8 bits, `decode_png` gives opaque pixels the file's largest value.
    opaque = tf.cast(2 ** tf.minimum(_read(head, 24, 1), 8) - 1, tf.uint8)
    is_opaque = tf.reduce_all(pixels[..., 3] == opaque)
    return tf.cond(is_opaque, lambda: pixels[..., :3], lambda: _lay_on_white(pixels))


def _decode_bmp(encoded, head):
    pixels = tf.io.decode_image(encoded, expand_animations=False)

    def look_up():
        start = 14 + _read(head, 14, 4, little=True)
        entries = start + 4 * tf.range(256, dtype=tf.int64)
        palette = _read(head, entries[:, None] + [2, 1, 0], 1)
        return tf.gather(tf.cast(palette, tf.uint8), tf.cast(pixels[..., 0], tf.int32))

    has_palette = tf.shape(pixels)[-1] == 1
    return tf.cond(has_palette, look_up, lambda: pixels[..., :3])


def _decode_webp(encoded, head):
    is_webp = _read(head, 8, 4) == int.from_bytes(b"WEBP")
    is_extended = _read(head, 12, 4) == int.from_bytes(b"VP8X")
    is_animated = is_extended & (_read(head, 20, 1) & 2 > 0)
    encoded = _require(is_webp & ~is_animated, encoded, head)
    pixels = tf.io.decode_image(encoded, expand_animations=False)
    has_alpha = tf.shape(pixels)[-1] == 4
    return tf.cond(has_alpha, lambda: _lay_on_white(pixels), lambda: pixels)


def _decode_gif(encoded, head):
    encoded = _require(_read(head, 0, 4) == int.from_bytes(b"GIF8"), encoded, head)
    return tf.io.decode_image(encoded, expand_animations=False)


def _require(is_readable, encoded, head):
    expected = "Expected a JPEG, PNG, GIF, BMP or still WebP, got a file of the bytes"
    # The bytes are printed as numbers, as an error message must be UTF-8.
    check = tf.debugging.Assert(is_readable, [expected, head], summarize=24)
    with tf.control_dependencies([check]):
        return tf.identity(encoded)


def _lay_on_white(pixels):
    pixels = tf.cast(pixels, tf.uint16)  # holds 255 * 255 + 127
    colours, alpha = pixels[..., :3], pixels[..., 3:]
    mixed = (colours * alpha + 255 * (255 - alpha) + 127) // 255
    return tf.cast(mixed, tf.uint8)


def _read_orientation(encoded):
    """Return EXIF's orientation, 1 to 8; 1 if it is missing or invalid."""
    head = tf.strings.substr(encoded, 0, _HEAD_LENGTH)
    parts = tf.strings.split(head, b"Exif\0\0", maxsplit=1)
    before = tf.io.decode_raw(parts[0], tf.uint8)
    after = tf.io.decode_raw(tf.strings.reduce_join(parts[1:]), tf.uint8)
    marker, length = tf.unstack(_read(before, tf.size(before) - [4, 2], 2))
    # The length counts itself and the six bytes of the split.
    length = tf.where(marker == 0xFFE1, tf.maximum(length - 8, 0), 0)
    return _find_orientation(after[:length])


def _find_orientation(tiff):
    size = tf.size(tiff, tf.int64)
    little = _read(tiff, 0, 4) == int.from_bytes(b"II*\0")
    big = _read(tiff, 0, 4) == int.from_bytes(b"MM\0*")
    directory = _read(tiff, 4, 4, little)
    count = tf.minimum(_read(tiff, directory, 2, little), size // 12)
    entries = directory + 2 + 12 * tf.range(count)
    found = (_read(tiff, entries, 2, little) == 0x0112) & (entries + 12 <= size)
    entry = tf.boolean_mask(entries, found)[:1]
    is_long = _read(tiff, entry + 2, 2, little) == 4
    short, long = (_read(tiff, entry + 8, width, little) for width in (2, 4))
    orientation = tf.reduce_sum(tf.where(is_long, long, short))
    is_valid = (little | big) & (orientation >= 1) & (orientation <= 8)
    return tf.where(is_valid, orientation, 1)


def _resize(pixels, size, orientation):
    """Resize to a square, the longer side first, as `image_to_array` does.

    The longer side is that of the upright image.
    """
    height, width = tf.unstack(tf.shape(pixels)[:2])
    down = tf.where(orientation > 4, height >= width, height > width)
    # The side to resize first becomes the first axis.
    pixels = tf.transpose(pixels, tf.where(down, [0, 1, 2], [1, 0, 2]))
    for _ in range(2):
        pixels = tf.transpose(_resize_down(pixels, size), [1, 0, 2])
    # Each pass has swapped the axes, so they are in their first order again.
    return tf.transpose(pixels, tf.where(down, [0, 1, 2], [1, 0, 2]))


def _resize_down(pixels, size):
    """Resize the first axis, in integers as Pillow does."""
    length, others = tf.unstack(tf.shape(pixels)[:2])
    columns = tf.reshape(tf.cast(pixels, tf.int32), (length, others * 3))
    sums = tf.sparse.sparse_dense_matmul(_weights(length, size), columns)
    rounded = tf.bitwise.right_shift(sums + 2 ** (_FRACTION - 1), _FRACTION)
    return tf.reshape(tf.saturate_cast(rounded, tf.uint8), (size, others, 3))


def _weights(length, size):
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


def _read(data, offsets, width, little=False):
    """Read an integer of `width` bytes at each offset; bytes out of range are 0."""
    size = tf.size(data, tf.int64)
    index = tf.cast(offsets, tf.int64)[..., None] + tf.range(width, dtype=tf.int64)
    index = tf.where((index < 0) | (index >= size), size, index)
    digits = tf.cast(tf.gather(tf.pad(data, [[0, 1]]), index), tf.int64)
    digits = tf.where(little, tf.reverse(digits, [-1]), digits)
    return tf.reduce_sum(digits * [256**n for n in reversed(range(width))], axis=-1)
