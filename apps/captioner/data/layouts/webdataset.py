"""WebDataset's layout: archives of images and captions."""

import re

from keras_attention_apps.captioner.data.archives import archived_samples
from keras_attention_apps.captioner.data.layouts.files import (
    list_some,
    read_json,
    read_lines,
    unexpected,
)
from keras_attention_apps.captioner.data.layouts.listing import SPLITS, Listing
from keras_attention_apps.captioner.data.layouts.metadata import (
    CAPTION_NAMES,
    boxes_of,
    captions_of,
)
from keras_attention_apps.captioner.images.reading import image_suffixes

# The image of a sample has one of these suffixes if other images, such as masks, are
# beside it.
COMMON_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def read_webdataset(root):
    shards = sorted(path for path in root.glob("*.tar") if path.name[0] != ".")
    if not shards:
        return None
    listing = Listing(root)
    for shard in shards:
        split = SPLITS.get(re.match("[a-z]*", shard.name.lower()).group())
        for key, files in archived_samples(shard):
            _read_sample(f"{shard}: {key}", files, split, listing)
    return listing


def _read_sample(where, files, split, listing):
    """Add an image with the captions that share its name."""
    images = [file for file in files if file.suffix in image_suffixes()]
    if len(images) > 1:
        images = [file for file in images if file.suffix in COMMON_SUFFIXES]
    if len(images) != 1:
        found = list_some(file.name for file in files)
        raise unexpected(where, "one image", found)
    texts = [file for file in files if file.suffix == ".txt"]
    captions = [line.strip("\n") for file in texts for line in read_lines(file)]
    boxes = {}
    for file in files:
        if file.suffix == ".json":
            entry = read_json(file)
            if not isinstance(entry, dict):
                raise unexpected(file, "an object", f"{entry!r:.60}")
            boxes |= boxes_of(entry, file)
            if captions and not any(name in entry for name in CAPTION_NAMES):
                continue
            found = captions_of(entry, file, listing, split)
            captions = captions or found
            # img2dataset writes the captions to both files.
            for text in set(found) - set(captions):
                listing.drop("captions in JSON that another file lacks", text, split)
    listing.add(images[0], captions, split, where=where, boxes=boxes)
