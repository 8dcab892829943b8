"""`captioner scenes`: a data set of synthetic images."""

import json
import random

from keras_attention_apps.captioner.data.scenes import scene
from keras_attention_apps.common.files import atomic_folder

SPLITS = {"train": 0.8, "dev": 0.1, "test": 0.1}


def scenes(config):
    """Write the data set that a `ScenesConfig` describes.

    Raises:
        UserError: If the folder is not empty.
    """
    generator = random.Random(config.seed)
    with atomic_folder(config.directory) as temporary:
        (temporary / "images").mkdir()
        lines = []
        for number in range(config.count):
            image, entry = scene(generator, config.image_size)
            name = f"images/{number:06}.png"
            image.save(temporary / name)
            (split,) = generator.choices(list(SPLITS), SPLITS.values())
            lines.append(json.dumps({"file_name": name, "split": split, **entry}))
        text = "".join(f"{line}\n" for line in lines)
        (temporary / "metadata.jsonl").write_text(text, encoding="utf-8")
    print(f"Wrote {config.count} scenes to {config.directory}")
