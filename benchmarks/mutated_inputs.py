"""Mutated images, data sets and models, and hostile sentences."""

import copy
import io
import json
import tarfile
import zlib

from PIL import Image

MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK", "YCbCr"),
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "LAB"),
    "GIF": ("1", "L", "P", "RGB"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "WEBP": ("RGB", "RGBA"),
    "PPM": ("1", "L", "RGB", "I;16"),
    "JPEG2000": ("L", "LA", "RGB", "RGBA", "I;16"),
    "AVIF": ("RGB", "RGBA"),
}
OPTIONS = {
    "JPEG": ({}, {"progressive": True}, {"icc_profile": b"no profile"}),
    "TIFF": ({}, *({"compression": x} for x in ("tiff_lzw", "tiff_deflate", "jpeg"))),
    "PNG": ({}, {"icc_profile": b"\0" * 200}),
}
SIZES = ((1, 1), (3, 200), (64, 48), (300, 200))

# Kinds of mutations of bytes.
KINDS = ("none", "cut", "flip", "drop", "repeat", "number", "huge")

# Blocks from which characters are drawn, as first and last code points.
BLOCKS = (
    (0x20, 0x7E),
    (0x00, 0x1F),
    (0xA0, 0x24F),
    (0x300, 0x36F),
    (0x590, 0x6FF),
    (0x900, 0xDFF),
    (0x1100, 0x11FF),
    (0x2000, 0x206F),
    (0x2580, 0x27BF),
    (0x4E00, 0x9FFF),
    (0xD800, 0xDFFF),
    (0xE000, 0xF8FF),
    (0xFE00, 0xFFFF),
    (0x1F000, 0x1FAFF),
    (0xE0000, 0xE01EF),
)
WORDS = ("A", "man", "in", "a", "blue", "shirt", "is", "cleaning", "windows", ".")

# Values that no option of a model has, or that are too large for memory.
WRONG = (
    None,
    True,
    -1,
    0,
    1_000_000_000,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "nothing",
    [],
    {},
    [[]],
    {"a": 1},
)


def mutated_images(random):
    """Yield names and contents of image files, most of them damaged."""
    while True:
        kind = str(random.choice(list(MODES)))
        mode = str(random.choice(MODES[kind]))
        content = _encoded(random, kind, mode)
        how, content = mutated_bytes(random, content)
        yield f"{kind} {mode}, {how}", content


def _encoded(random, kind, mode):
    """Return a random image in a format and a mode, or RGB where Pillow refuses."""
    width, height = SIZES[random.integers(len(SIZES))]
    noise = random.integers(0, 256, (height, width, 3)).astype("uint8")
    noise[: height // 2] = noise[0, 0]
    image = Image.fromarray(noise)
    options = OPTIONS.get(kind, ({},))
    options = dict(options[random.integers(len(options))])
    if options.get("compression") == "jpeg" and mode not in ("L", "RGB"):
        # Pillow 12.3 corrupts the memory of the process when it refuses to write it.
        del options["compression"]
    if kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        exif = Image.Exif()
        exif[0x0112] = int(random.integers(0, 12))
        options["exif"] = exif
    for chosen, more in ((mode, options), ("RGB", {})):
        file = io.BytesIO()
        try:
            _converted(image, chosen).save(file, kind, **more)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            continue
        return file.getvalue()
    raise ValueError(f"Pillow cannot write {kind}")


def _converted(image, mode):
    if mode in ("I;16", "F", "I", "1", "P", "LA"):
        image = image.convert("L")
    return image.convert(mode)


def mutated_bytes(random, content):
    """Return a description and the content after one mutation, or none."""
    how = str(random.choice(KINDS))
    changed = bytearray(content)
    position = int(random.integers(len(changed)))
    count = int(random.integers(1, 64))
    if how == "cut":
        changed = changed[:position]
    elif how == "flip":
        for _ in range(count):
            changed[random.integers(len(changed))] ^= 1 << random.integers(8)
    elif how == "drop":
        del changed[position : position + count]
    elif how == "repeat":
        changed[position:position] = changed[position : position + count] * 50
    elif how == "number":
        # Sizes and offsets are mostly in the first bytes.
        position = int(random.integers(min(len(changed), 64)))
        changed[position : position + 4] = random.bytes(4)
    elif how == "huge" and content.startswith(b"\x89PNG"):
        header = changed[12:29]
        header[4:12] = int(random.choice([1, 70_000, 170_000_000])).to_bytes(
            4, "big"
        ) + int(random.choice([1, 70_000, 170_000_000])).to_bytes(4, "big")
        changed[12:29] = header
        changed[29:33] = zlib.crc32(bytes(header)).to_bytes(4, "big")
    return how, bytes(changed)


def hostile_lines(random):
    """Yield names and sentences with characters of all kinds."""
    while True:
        words = []
        for _ in range(int(random.integers(0, 12))):
            if random.random() < 0.4:
                words.append(str(random.choice(WORDS)))
                continue
            first, last = BLOCKS[random.integers(len(BLOCKS))]
            size = int(random.choice([1, 2, 5, 20]))
            words.append("".join(map(chr, random.integers(first, last + 1, size))))
        if random.random() < 0.01:
            words *= int(random.choice([100, 1000]))
        line = str(random.choice(["", " ", "\u200b"])).join(words)
        if random.random() < 0.5:
            line = " ".join(words)
        yield f"{len(line)} characters: {line[:40]!r}", line


def data_sets():
    """Return tiny data sets in all layouts: dicts from names to dicts of files."""
    image = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(image, "PNG")
    image = image.getvalue()
    names = [f"{letter}.png" for letter in "abcdef"]
    splits = ["train", "train", "train", "train", "val", "test"]
    texts = ["A dog runs .", "Zwei Hünde , die laufen", "The dog's ball"]
    captions = [(name, text) for name in names for text in texts]
    images = {f"images/{name}": image for name in names}
    parts = {
        split: "".join(
            f"{n}\n" for n, s in zip(names, splits, strict=True) if s == of_name
        )
        for split, of_name in (("train", "train"), ("dev", "val"), ("test", "test"))
    }
    boxes = {"dog": [[0.1, 0.2, 0.5, 0.9]]}
    rows = [{"file_name": name, "captions": texts, "boxes": boxes} for name in names]
    sentences = [{"raw": text, "tokens": text.split()} for text in texts]
    described = [
        {"filename": name, "split": split, "sentences": sentences, "imgid": number}
        for number, (name, split) in enumerate(zip(names, splits, strict=True))
    ]
    coco = {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
        "annotations": [
            {"image_id": n, "caption": text} for n in range(6) for text in texts
        ],
    }
    text = "".join(f"{line}\n" for line in texts * 5)
    return {
        "kaggle": {
            "captions.txt": "image,caption\n"
            + "".join(f'{name},"{text}"\n' for name, text in captions),
            **{f"{split}Images.txt": part for split, part in parts.items()},
            **images,
        },
        "flickr": {
            "Flickr8k.token.txt": "".join(
                f"{name}#{n}\t{text}\n" for n, (name, text) in enumerate(captions)
            ),
            **{f"Flickr_8k.{split}Images.txt": part for split, part in parts.items()},
            **images,
        },
        "karpathy": {"dataset.json": json.dumps({"images": described}), **images},
        "coco": {"captions_train2017.json": json.dumps(coco), **images},
        "jsonl": {
            "metadata.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows),
            **{name: image for name in names},
        },
        "csv": {
            "metadata.csv": "file_name,caption,split\n"
            + "".join(f"{n},A dog,{s}\n" for n, s in zip(names, splits, strict=True)),
            **{name: image for name in names},
        },
        "webdataset": {"train-0.tar": _shard(names, image, texts)},
        "corpus": {f"{x}.{y}": text for x in ("train", "val") for y in ("en", "de")},
    }


def _shard(names, image, texts):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in names:
            entry = json.dumps({"captions": texts}).encode()
            for suffix, content in ((".png", image), (".json", entry)):
                info = tarfile.TarInfo(name.replace(".png", suffix))
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def mutated_text(random, content):
    """Return a description and the content of a file of text with another value.

    A value of JSON is replaced or removed, or something is inserted into a line.
    """
    try:
        how, value = mutated_json(random, json.loads(content))
        return how, json.dumps(value).encode()
    except ValueError:
        lines = content.split(b"\n")
    number = int(random.integers(len(lines)))
    line = lines[number]
    if line.startswith(b"{") and random.random() < 0.7:
        how, value = mutated_json(random, json.loads(line))
        lines[number] = json.dumps(value).encode()
        return f"line {number}, {how}", b"\n".join(lines)
    _, hostile = next(hostile_lines(random))
    parts = ("\0", ",", '"', "\t", "\r", "../", "/", "\ud800", "x" * 10_000, hostile)
    part = parts[random.integers(len(parts))].encode("utf-8", "surrogatepass")
    column = int(random.integers(len(line) + 1))
    lines[number] = line[:column] + part + line[column:]
    return f"line {number} with {part[:20]!r}", b"\n".join(lines)


def mutated_json(random, value):
    """Return a description and a JSON value of which a part is replaced or removed."""
    value, path = copy.deepcopy(value), []
    inner = value
    while isinstance(inner, dict | list) and inner:
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        parent, key = inner, keys[random.integers(len(keys))]
        path.append(str(key))
        inner = parent[key]
        if random.random() < 0.1:
            break
    if random.random() < 0.2:
        del parent[key]
        return f"without {'.'.join(path)}", value
    parent[key] = WRONG[random.integers(len(WRONG))]
    return f"{'.'.join(path)} {str(parent[key])[:20]}", value


def mutated_config(random, text):
    """Return a description and the text of a configuration with another value."""
    config = json.loads(text)
    if random.random() < 0.05:
        return "nested 200,000 deep", "[" * 200_000 + "]" * 200_000
    parent, path = config, []
    while isinstance(parent, dict) and parent:
        key = str(random.choice(list(parent)))
        path.append(key)
        if not isinstance(parent[key], dict) or random.random() < 0.2:
            break
        parent = parent[key]
    name = ".".join(path)
    if random.random() < 0.15:
        del parent[path[-1]]
        return f"without {name}", json.dumps(config)
    value = WRONG[random.integers(len(WRONG))]
    parent[path[-1]] = value
    return f"{name} {str(value)[:20]}", json.dumps(config)
