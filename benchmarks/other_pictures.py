"""Draw pictures that are no photographs, for `captioner calibrate --out-of-domain`.

They are pictures of one colour, gradients, documents, tables, charts, shapes, noise,
and strips of photographs, one or a few pixels high. Pictures with another seed test the
result: the captioner should be unsure of all of them.

    python benchmarks/other_pictures.py drawings --photographs coco/val2017
    captioner calibrate my-captioner/model --data coco --out-of-domain drawings
    python benchmarks/other_pictures.py others --photographs coco/val2017 --seed 2
    captioner caption others
"""

import argparse
import io
import random
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

matplotlib.use("Agg")
from matplotlib import font_manager, pyplot

WORDS = [
    "invoice",
    "total",
    "due",
    "date",
    "account",
    "number",
    "please",
    "note",
    "page",
    "table",
    "result",
]
# How often each kind of picture is drawn.
SHARES = {
    "plain": 3,
    "gradient": 1,
    "document": 5,
    "table": 3,
    "chart": 5,
    "strip": 4,
    "shapes": 2,
    "noise": 1,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="Folder of the pictures.")
    parser.add_argument("--photographs", type=Path, required=True, help="Their folder.")
    parser.add_argument("--count", type=int, default=250, help="Number of pictures.")
    parser.add_argument("--seed", type=int, default=1, help="Random seed.")
    arguments = parser.parse_args()
    draw(arguments.output, arguments.photographs, arguments.count, arguments.seed)


def draw(output, photographs, count, seed):
    """Write pictures as PNG and JPEG."""
    artist = Artist(sorted(photographs.iterdir()), seed)
    output.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (kind,) = artist.random.choices([*SHARES], [*SHARES.values()])
        suffix = "jpg" if artist.random.random() < 0.3 else "png"
        getattr(artist, kind)().convert("RGB").save(output / f"{i:04}-{kind}.{suffix}")
    print(f"Wrote {count} pictures to {output}")


class Artist:
    """Draws random pictures, one kind in each method."""

    def __init__(self, photographs, seed):
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self._photographs = photographs
        fonts = (x.fname for x in font_manager.fontManager.ttflist)
        self._fonts = sorted(x for x in fonts if "DejaVuSans" in x)

    def _colour(self, darkest=0):
        return tuple(self.random.randrange(darkest, 256) for _ in range(3))

    def _page(self, width, height):
        image = Image.new("RGB", (width, height), self._colour(225))
        return image, ImageDraw.Draw(image)

    def _font(self, size):
        return ImageFont.truetype(self.random.choice(self._fonts), size)

    def plain(self):
        size = self.random.randrange(20, 700), self.random.randrange(20, 700)
        return Image.new(
            "RGB", size, self.random.choice(["white", "black", self._colour()])
        )

    def gradient(self):
        first, last = (np.array(self._colour()) for _ in range(2))
        share = np.linspace(0, 1, 300)[:, None, None]
        pixels = np.broadcast_to(first + (last - first) * share, (300, 300, 3))
        image = Image.fromarray(pixels.astype(np.uint8))
        return image.rotate(90 * self.random.randrange(2))

    def document(self):
        image, pen = self._page(
            *self.random.choice([(600, 800), (800, 600), (1000, 400)])
        )
        size = self.random.randrange(9, 30)
        font, y = self._font(size), self.random.randrange(10, 60)
        while y < image.height - size:
            line = ""
            while pen.textlength(line, font=font) < image.width - 120:
                line += self.random.choice(WORDS) + " "
            if self.random.random() < 0.15:
                line = line[: len(line) // 2]
            pen.text((20, y), line, font=font, fill=(20, 20, 20))
            y += int(size * self.random.uniform(1.2, 1.7))
        return image

    def table(self):
        image, pen = self._page(self.random.randrange(400, 900), 500)
        font = self._font(self.random.randrange(9, 16))
        rows, columns = self.random.randrange(6, 20), self.random.randrange(3, 8)
        width, height = image.width / columns, image.height / rows
        for row in range(rows):
            for column in range(columns):
                x, y = column * width, row * height
                pen.rectangle([x, y, x + width, y + height], outline=(150, 150, 150))
                text = self.random.choice([*WORDS, str(self.random.randrange(10_000))])
                pen.text((x + 4, y + 3), text, font=font, fill="black")
        return image

    def chart(self):
        size = self.random.uniform(3, 8), self.random.uniform(3, 6)
        figure, axes = pyplot.subplots(figsize=size, dpi=80)
        values = self.numbers.random(7)
        kind = self.random.randrange(6)
        if kind == 0:
            axes.bar(range(7), values)
        elif kind == 1:
            axes.plot(self.numbers.normal(size=(50, 3)).cumsum(axis=0))
        elif kind == 2:
            axes.pie(values, labels=self.random.sample(WORDS, 7))
        elif kind == 3:
            axes.scatter(*self.numbers.normal(size=(2, 80)))
        elif kind == 4:
            axes.hist(self.numbers.normal(size=500), bins=20)
        else:
            axes.imshow(self.numbers.random((8, 8)))
        axes.set_title(" ".join(self.random.sample(WORDS, 3)))
        file = io.BytesIO()
        figure.savefig(file)
        pyplot.close(figure)
        return Image.open(file)

    def strip(self):
        image = Image.open(self.random.choice(self._photographs)).convert("RGB")
        if self.random.random() < 0.5:
            middle = image.height // 2
            image = image.crop((0, middle, image.width, middle + 1))
        else:
            image = image.resize((2000, 200)).crop((0, 90, 2000, 100))
        return image.rotate(90 * self.random.randrange(2), expand=True)

    def shapes(self):
        image, pen = self._page(400, 400)
        for _ in range(self.random.randrange(1, 6)):
            x, y, radius = (self.random.randrange(20, 380) for _ in range(3))
            form = self.random.choice([pen.ellipse, pen.rectangle])
            form([x - radius, y - radius, x + radius, y + radius], fill=self._colour())
        return image

    def noise(self):
        pixels = self.numbers.integers(0, 256, (200, 200, 3), dtype=np.uint8)
        return Image.fromarray(pixels)


if __name__ == "__main__":
    main()
