"""`captioner scenes`: a data set of synthetic images."""

import json
import random

from PIL import Image, ImageDraw

from keras_attention_apps.common.files import atomic_folder

COLOURS = {
    "red": (214, 48, 49),
    "green": (39, 174, 96),
    "blue": (41, 98, 214),
    "yellow": (241, 196, 15),
    "purple": (142, 68, 173),
    "white": (250, 250, 250),
}

# Corners of each shape in a square from -1 to 1; a circle has none.
SHAPES = {
    "circle": (),
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "triangle": ((0, -1), (1, 0.9), (-1, 0.9)),
    "diamond": ((0, -1), (0.8, 0), (0, 1), (-0.8, 0)),
    "cross": tuple(
        (x * sign, y * sign)
        for sign in (1, -1)
        for x, y in (
            (-0.35, -1),
            (0.35, -1),
            (0.35, -0.35),
            (1, -0.35),
            (1, 0.35),
            (0.35, 0.35),
        )
    ),
}

# Half the side of an object, as a share of the image.
SIZES = {"small": (0.1, 0.12), "large": (0.17, 0.2)}
OPPOSITE = {"left of": "right of", "above": "below"}
# Images are drawn larger and then reduced, which smooths their edges.
OVERSAMPLING = 4


def scenes(config):
    """Write the data set that a `ScenesConfig` describes."""
    generator = random.Random(config.seed)
    with atomic_folder(config.directory) as temporary:
        (temporary / "images").mkdir()
        lines = []
        for number in range(config.count):
            image, entry = scene(generator, config.image_size)
            name = f"images/{number:06}.png"
            image.save(temporary / name)
            (split,) = generator.choices(list(SPLITS), list(SPLITS.values()))
            lines.append(json.dumps({"file_name": name, "split": split, **entry}))
        text = "".join(f"{line}\n" for line in lines)
        (temporary / "metadata.jsonl").write_text(text, encoding="utf-8")
    print(f"Wrote {config.count} scenes to {config.directory}")


def scene(generator, size):
    """Draw an image of one object, or of two objects of different shapes.

    Returns the image, and a dict with its captions and boxes.
    """
    count = generator.choice((1, 2, 2, 2))
    shapes = generator.sample(list(SHAPES), count)
    objects = [(shape, *_look(generator)) for shape in shapes]
    centres = _centres(generator, [half for *_, half in objects])
    light = generator.randint(30, 90)
    side = size * OVERSAMPLING
    image = Image.new("RGB", (side, side), (light, light, light))
    boxes, names = {}, []
    for (shape, scale, colour, half), (x, y) in zip(objects, centres, strict=True):
        _draw(image, shape, COLOURS[colour], x, y, half)
        boxes[shape] = [[round(v, 4) for v in (x - half, y - half, x + half, y + half)]]
        names.append(f"a {scale} {colour} {shape}")
    entry = {"captions": _captions(names, centres), "boxes": boxes}
    return image.resize((size, size), Image.Resampling.BOX), entry


def _look(generator):
    """Return the name of an object's size, that of its colour, and half its side."""
    scale = generator.choice(list(SIZES))
    return scale, generator.choice(list(COLOURS)), generator.uniform(*SIZES[scale])


def _centres(generator, halves):
    """Return centres of objects that do not overlap and have a clear relation."""
    while True:
        centres = [
            (generator.uniform(half, 1 - half), generator.uniform(half, 1 - half))
            for half in halves
        ]
        if len(centres) == 1:
            return centres
        (x, y), (other_x, other_y) = centres
        across, down = abs(x - other_x), abs(y - other_y)
        if max(across, down) > sum(halves) and abs(across - down) > 0.1:
            return centres


def _draw(image, shape, colour, x, y, half):
    side, draw = image.width, ImageDraw.Draw(image)
    if not SHAPES[shape]:
        corners = [v * side for v in (x - half, y - half, x + half, y + half)]
        draw.ellipse(corners, fill=colour)
        return
    corners = [((x + half * u) * side, (y + half * v) * side) for u, v in SHAPES[shape]]
    draw.polygon(corners, fill=colour)


def _captions(names, centres):
    """Return the captions of a scene: two objects give their relation both ways."""
    if len(names) == 1:
        return names
    (x, y), (other_x, other_y) = centres
    if abs(x - other_x) > abs(y - other_y):
        relation, first = "left of", x < other_x
    else:
        relation, first = "above", y < other_y
    subject, other = names if first else names[::-1]
    return [f"{subject} {relation} {other}", f"{other} {OPPOSITE[relation]} {subject}"]


SPLITS = {"train": 0.8, "dev": 0.1, "test": 0.1}
