"""The photograph of the documentation, and different crops of it."""

from pathlib import Path

from PIL import Image

PHOTO = Path(__file__).parents[1] / "docs" / "photographer.jpg"


def write_crops(count, folder):
    """Write `count` different crops of the photograph, and return their paths."""
    image = Image.open(PHOTO).convert("RGB")
    paths = []
    for number in range(count):
        side = image.width // 2 + 7 * number % (image.width // 2)
        left = 11 * number % (image.width - side + 1)
        paths.append(folder / f"{number:06}.jpg")
        image.crop((left, left, left + side, left + side)).save(paths[-1], quality=90)
    return paths
