"""A captioner as a TensorFlow SavedModel or a LiteRT file: images in, captions out."""

import functools

import tensorflow as tf

from keras_attention_apps.captioner import image_headers, images
from keras_attention_apps.captioner.captions import check_inference
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.captioner.vocabulary import JOINTS
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.export import (
    check_export,
    export_task,
    fill_chunks,
    map_chunks,
    save_litert,
    write_served,
)
from keras_attention_apps.common.files import check_distinct
from keras_attention_apps.common.tokenizer import END

# Images that are captioned at the same time.
CHUNK = 32
# Images of a chunk that are decoded at the same time.
_PARALLEL = 2
# Images that set the limits of the activations of a LiteRT file.
CALIBRATION_IMAGES = 128
# Pixels of the parts in which a large image is converted and resized.
_PART = 2**20

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG"
HEAD_LENGTH = 2**16  # enough for the largest JPEG segment
_FRACTION = 22  # fractional bits of a weight, as in Pillow
UNKNOWN_FORMAT = (
    "expected a JPEG or PNG file, got a file of the bytes {}; convert other formats "
    "before"
)


def export(config):
    """Write the SavedModel, or the LiteRT file, that an `ExportConfig` describes."""
    folder = config.calibration_images
    if folder is not None:
        if not check_export(config.output):
            raise UserError(
                "--calibration-images needs a LiteRT file, whose name ends in .tflite. "
                f"Received: {str(config.output)!r}"
            )
        if config.quantize not in (None, "int8"):
            raise UserError(
                "--calibration-images needs --quantize int8. "
                f"Received: {config.quantize}"
            )
        check_distinct([folder], config.output)
    check_inference(config.model)
    write_lite = functools.partial(save_lite_captioner, calibration_images=folder)
    export_task(config, RUNTIMES, write_lite, write_saved_model)


def write_saved_model(captioner, search_model, directory):
    """Write a search as a SavedModel.

    Its signature takes `encoded`, strings `(B,)` with the bytes of JPEG or PNG files,
    and returns a dict:

    - `"caption"`, strings `(B,)`;
    - `"words"`, strings `(B, L)`, empty after the last word;
    - `"log_probability"`, `(B,)`;
    - `"attention"`, `(B, L, rows, columns)`, zero after the last word;
    - `"error"`, strings `(B,)`: the reason why an image cannot be read, otherwise
      empty. Such an image has an empty caption, and the others are captioned.

    Batches of any size, also empty ones, are captioned in chunks of `CHUNK` images. The
    limits of images are those of `images`.
    """
    words = tf.constant(captioner.tokenizer.words)
    rows, columns = captioner.grid
    length = search_model.max_length - 1
    signature = {
        "caption": tf.TensorSpec([None], tf.string),
        "words": tf.TensorSpec([None, length], tf.string),
        "log_probability": tf.TensorSpec([None], tf.float32),
        "attention": tf.TensorSpec([None, length, rows, columns], tf.float32),
        "error": tf.TensorSpec([None], tf.string),
    }

    def caption(encoded):
        arrays, problems = decode_images(encoded, captioner.config.image_size)
        hypotheses = search_model({"images": arrays})
        token_ids = hypotheses["token_ids"][:, 0, :-1]
        is_read = problems == ""
        is_word = tf.math.cumprod(tf.cast(token_ids != END, "int32"), axis=1) > 0
        is_word = tf.logical_and(is_word, is_read[:, None])
        chosen = tf.where(is_word, tf.gather(words, token_ids), "")
        attention = tf.where(is_word[..., None], hypotheses["weights"][:, 0, :-1], 0.0)
        return {
            "caption": joined(chosen),
            "words": chosen,
            "log_probability": tf.where(is_read, hypotheses["log_probs"][:, 0], 0.0),
            "attention": tf.reshape(attention, (-1, length, rows, columns)),
            "error": problems,
        }

    def serve(encoded):
        filled, chunks = fill_chunks(encoded, CHUNK)
        captions = map_chunks(caption, filled, chunks, signature)
        return {name: x[: tf.size(encoded)] for name, x in captions.items()}

    spec = tf.TensorSpec([None], tf.string, "encoded")
    write_served(serve, spec, [search_model], directory)


def joined(words):
    """Join words `(B, T)`, empty after the last, to captions `(B,)`.

    The graph version of `detokenize`.
    """
    text = tf.strings.strip(tf.strings.reduce_join(words, -1, separator=" "))
    for pattern, replacement in JOINTS:
        text = tf.strings.regex_replace(text, pattern, replacement)
    return text


def save_lite_captioner(
    captioner, path, *, search, quantize="int8", calibration_images=None, **origin
):
    """Write CNN, decoder and beam search as a LiteRT file that `LiteCaptioner` reads.

    Its signature `weights` takes `images`, uint8 `(1, size, size, 3)`, and returns the
    dict of `keras_attention.beam_search`. For hard attention there is another one,
    `probabilities`, whose maps are the probabilities of the regions.
    With `calibration_images`, a folder, the convolutions compute in 8-bit integers.
    """
    captioner.network.backbone.freeze()
    size = captioner.image_size
    maps = ("weights",) if captioner.is_soft else ("weights", "probabilities")
    specs = {"images": tf.TensorSpec([1, size, size, 3], tf.uint8)}
    save_litert(
        captioner,
        path,
        {name: (captioner.search_model(**search, maps=name), specs) for name in maps},
        quantize=quantize,
        samples=calibration_images and _samples(calibration_images, size),
        metadata={
            "image_size": size,
            "max_length": captioner.max_length,
            "grid": captioner.grid,
            "maps": maps,
            "search": search,
        },
        **origin,
    )


def _samples(folder, size):
    """Return the inputs of a search for images that are spread over a folder."""
    paths, _ = images.find_images(folder)
    step = max(len(paths) / CALIBRATION_IMAGES, 1)
    chosen = [paths[int(n * step)] for n in range(min(len(paths), CALIBRATION_IMAGES))]
    return [{"images": images.read_array(path, size)[None]} for path in chosen]


def decode_images(encoded, size):
    """Decode JPEG and PNG files `(B,)`, turn them upright, and resize each to a square.

    The pixels are those of `read_image` and `image_to_array`, so that a SavedModel
    captions an image as the Python program does; in PNGs with 16 bits of grey some
    differ by one level. Transparent images get a white background. The orientation is
    read from the EXIF segment of a JPEG alone. The limits are those of Python.

    Returns:
        images: uint8 `(B, size, size, 3)`, black for a file that cannot be read.
        problems: Strings `(B,)`, the reason why a file cannot be read, otherwise empty.
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

    specs = tf.TensorSpec((size, size, 3), tf.uint8), tf.TensorSpec((), tf.string)
    return tf.map_fn(
        prepare, encoded, fn_output_signature=specs, parallel_iterations=_PARALLEL
    )


def problem_of(encoded):
    """Return why an image cannot be read, or "", and whether it is to be halved."""
    start = tf.io.decode_raw(tf.strings.substr(encoded, 0, 24), tf.uint8)
    formats = [
        (_starts_with(encoded, JPEG), lambda: _read_jpeg(encoded)),
        (_starts_with(encoded, PNG), lambda: _read_integer(start, [16, 20], 4)),
    ]
    unknown = [-1, -1]
    size = tf.case(formats, default=lambda: tf.constant(unknown, tf.int64))
    length = tf.cast(tf.strings.length(encoded), tf.int64)
    checks = [
        (size[0] == -1, UNKNOWN_FORMAT, (start[:16],)),
        (size[0] == -2, image_headers.TOO_MANY_SCANS, ()),
        *images.checks_of_size(size[0], size[1], length),
    ]
    problem = tf.constant("")
    for exceeds, message, values in reversed(checks):
        text = tf.strings.format(message, values, summarize=-1)
        problem = tf.where(exceeds, text, problem)
    return problem, size[0] * size[1] > images.HALVED_PIXELS


def _starts_with(encoded, signature):
    return tf.strings.substr(encoded, 0, len(signature)) == signature


def _read_jpeg(encoded):
    """Return width and height, or -2 twice if there are too many scans.

    The segments are followed from one to the next, as in `image_headers.inspect`.
    """
    data = tf.io.decode_raw(encoded, tf.uint8)
    mark, after = data[:-1], data[1:]
    is_restart = (after >= 0xD0) & (after <= 0xD7)
    starts = tf.where((mark == 0xFF) & (after > 0) & (after < 0xFF) & ~is_restart)[:, 0]
    kinds = _read_integer(data, starts + 1, 1)
    ends = starts + 2 + _read_integer(data, starts + 2, 2)
    sizes = _read_integer(data, starts[:, None] + [7, 5], 2)
    are_frames = (kinds >= 0xC0) & (kinds <= 0xCF)
    for other in (0xC4, 0xC8, 0xCC):
        are_frames &= kinds != other
    count = tf.size(starts, tf.int64)

    def unfinished(segment, scans, size):
        return (segment < count) & (scans <= image_headers.MAX_SCANS)

    def follow(segment, scans, size):
        scans += tf.cast(kinds[segment] == image_headers.SCAN, tf.int64)
        size = tf.where(are_frames[segment] & (size == 0), sizes[segment], size)
        after = tf.searchsorted(starts, ends[segment][None], out_type=tf.int64)[0]
        return tf.where(kinds[segment] == image_headers.END, count, after), scans, size

    zero = tf.constant(0, tf.int64)
    first = tf.searchsorted(starts, tf.constant([2], tf.int64), out_type=tf.int64)[0]
    segment, scans, size = tf.while_loop(
        unfinished,
        follow,
        (first, zero, tf.stack([zero, zero])),
        maximum_iterations=image_headers.MAX_SEGMENTS,
    )
    are_too_many = (scans > image_headers.MAX_SCANS) | (segment < count)
    are_too_many |= scans * size[0] * size[1] > image_headers.MAX_SCANNED_PIXELS
    return tf.where(are_too_many, tf.constant(-2, tf.int64), size)


def _read_integer(data, offsets, width, little=False):
    """Read an integer of `width` bytes at each offset; bytes out of range are 0."""
    size = tf.size(data, tf.int64)
    index = tf.cast(offsets, tf.int64)[..., None] + tf.range(width, dtype=tf.int64)
    index = tf.where((index < 0) | (index >= size), size, index)
    digits = tf.cast(tf.gather(tf.pad(data, [[0, 1]]), index), tf.int64)
    digits = tf.where(little, tf.reverse(digits, [-1]), digits)
    return tf.reduce_sum(digits * [256**n for n in reversed(range(width))], axis=-1)


def _decoded(encoded, halved, size):
    """Return an image as a square, and whether it was whole.

    TensorFlow's decoders end the graph with an error for a damaged image; only a
    dataset can ignore one.
    """

    def prepare(encoded, halved):
        is_jpeg = _starts_with(encoded, JPEG)
        pixels = tf.cond(
            is_jpeg,
            lambda: _decode_jpeg(encoded, halved),
            lambda: tf.io.decode_png(encoded, 4),
        )
        pixels = tf.ensure_shape(pixels, (None, None, None))
        is_opaque = tf.cond(
            is_jpeg, lambda: tf.constant(True), lambda: _is_opaque(pixels, encoded)
        )

        def to_rgb(part):
            rgb = tf.cond(
                is_opaque, lambda: part[..., :3], lambda: _composite_on_white(part)
            )
            return tf.ensure_shape(rgb, (None, None, 3))

        orientation = _read_orientation(encoded)
        # Turning after resizing moves fewer pixels.
        square = _turn_upright(_resize(pixels, size, orientation, to_rgb), orientation)
        return square, tf.constant(True)

    decoded = tf.data.Dataset.from_tensors((encoded, halved)).map(prepare)
    black = tf.zeros([size, size, 3], tf.uint8), tf.constant(False)
    otherwise = tf.data.Dataset.from_tensors(black)
    return decoded.ignore_errors().concatenate(otherwise).take(1).get_single_element()


def _decode_jpeg(encoded, halved):
    # Pillow's choices; TensorFlow's own prefer speed to accuracy.
    choices = {"dct_method": "INTEGER_ACCURATE", "fancy_upscaling": True}
    decode = functools.partial(tf.io.decode_jpeg, encoded, channels=3, **choices)
    return tf.cond(halved, lambda: decode(ratio=2), decode)


def _is_opaque(pixels, encoded):
    """Return whether the fourth channel of a PNG is opaque everywhere."""
    # Below 8 bits, `decode_png` gives opaque pixels the file's largest value.
    bits = tf.io.decode_raw(tf.strings.substr(encoded, 24, 1), tf.uint8)[0]
    opaque = tf.cast(2 ** tf.minimum(tf.cast(bits, tf.int32), 8) - 1, tf.uint8)
    # Comparing every pixel would take as much memory as the channel.
    lowest = tf.reduce_min(pixels, axis=[0, 1])[3]
    highest = tf.reduce_max(pixels, axis=[0, 1])[3]
    return (lowest == opaque) & (highest == opaque)


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
    marker, length = tf.unstack(_read_integer(before, tf.size(before) - [4, 2], 2))
    # The length counts itself and the six bytes of the split.
    length = tf.where(marker == 0xFFE1, tf.maximum(length - 8, 0), 0)
    return _find_orientation(after[:length])


def _find_orientation(tiff):
    size = tf.size(tiff, tf.int64)
    little = _read_integer(tiff, 0, 4) == int.from_bytes(b"II*\0")
    big = _read_integer(tiff, 0, 4) == int.from_bytes(b"MM\0*")
    directory = _read_integer(tiff, 4, 4, little)
    count = tf.minimum(_read_integer(tiff, directory, 2, little), size // 12)
    entries = directory + 2 + 12 * tf.range(count)
    is_orientation = (_read_integer(tiff, entries, 2, little) == 0x0112) & (
        entries + 12 <= size
    )
    entry = tf.boolean_mask(entries, is_orientation)[:1]
    is_long = _read_integer(tiff, entry + 2, 2, little) == 4
    short, long = (_read_integer(tiff, entry + 8, width, little) for width in (2, 4))
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

    The sparse int32 tensor `(size, length)` has 2**22 times the weights.
    """
    scale = tf.cast(length, tf.float64) / size
    reach = tf.maximum(scale, 1.0)
    centres = (tf.range(size, dtype=tf.float64)[:, None] + 0.5) * scale
    count = 2 * tf.cast(tf.math.ceil(reach), tf.int64) + 1
    first = tf.cast(tf.maximum(centres - reach + 0.5, 0.0), tf.int64)
    positions = first + tf.range(count)
    distances = tf.abs(tf.cast(positions, tf.float64) + 0.5 - centres) / reach
    inside = positions < tf.cast(length, tf.int64)
    weights = tf.where(inside, tf.maximum(1.0 - distances, 0.0), 0.0)
    weights /= tf.reduce_sum(weights, axis=1, keepdims=True)
    weights = tf.cast(weights * 2.0**_FRACTION + 0.5, tf.int32)
    chosen = tf.where(weights > 0)
    indices = tf.stack([chosen[:, 0], tf.gather_nd(positions, chosen)], axis=1)
    shape = tf.cast(tf.stack([size, length]), tf.int64)
    return tf.SparseTensor(indices, tf.gather_nd(weights, chosen), shape)


def _turn_upright(square, orientation):
    # Each orientation is at most a transpose, followed by mirrored axes.
    axes = tf.where(orientation > 4, [1, 0, 2], [0, 1, 2])
    mirrored = tf.reduce_any(orientation == [[3, 4, 7, 8], [2, 3, 6, 7]], axis=1)
    upright = tf.reverse(tf.transpose(square, axes), tf.boolean_mask([0, 1], mirrored))
    return tf.ensure_shape(upright, square.shape)
