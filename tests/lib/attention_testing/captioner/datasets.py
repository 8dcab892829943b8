"""Tiny data sets in every layout, and what the tests of reading them share."""

import io
import json
import re
import tarfile

import pytest

from keras_attention_apps.captioner.data.dataset import read_dataset
from keras_attention_apps.common.errors import UserError


def write(path, content=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")


def photograph(folder, *names):
    """Write files, no two with the same content."""
    for name in names:
        write(folder / name, str(folder / name))


def names_of(images):
    return [image.path.name for image in images]


def fails(directory, message, split="train"):
    """Check that reading fails with one line that contains the message."""
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_dataset(directory, split)
    assert "\n" not in str(caught.value)


def official(root, *, texts=None, photographs="Flicker8k_Dataset"):
    texts = texts or root
    write(
        texts / "Flickr8k.token.txt",
        "a.jpg#0\tA dog runs .\na.jpg#1\t A dog , running \n"
        "b.jpg#0\tZwei Hünde .\nc.jpg#0\tA cat .\nd.jpg#0\tA cow .\n",
    )
    write(texts / "Flickr_8k.trainImages.txt", "c.jpg\na.jpg\n")
    write(texts / "Flickr_8k.devImages.txt", "b.jpg\n")
    write(texts / "Flickr_8k.testImages.txt", "d.jpg\n")
    photograph(root / photographs, "a.jpg", "b.jpg", "c.jpg", "d.jpg")


def kaggle(root, rows, *, photographs="Images"):
    write(root / "captions.txt", "image,caption\n" + rows)
    names = [row.split(",")[0] for row in rows.splitlines() if row]
    photograph(root / photographs, *names)


def karpathy_image(name, split, *captions, **fields):
    sentences = [{"raw": caption} for caption in captions]
    return {"filename": name, "split": split, "sentences": sentences, **fields}


def karpathy(root, *images, name="dataset_flickr8k.json", photographs="images"):
    write(root / name, {"images": list(images)})
    photograph(root / photographs, *(image["filename"] for image in images))


def coco(root, *, texts=None, year=2017):
    texts = texts or root
    for split, first in (("train", 3), ("val", 5)):
        images = [
            {"id": first, "file_name": f"{first:012}.jpg"},
            {"id": 1, "file_name": "000000000001.jpg"},
        ]
        captions = [(1, "A bus."), (first, " A tram. "), (first, "Trams.\n")]
        annotations = [{"image_id": x, "caption": caption} for x, caption in captions]
        content = {"images": images, "annotations": annotations}
        write(texts / f"captions_{split}{year}.json", content)
        photograph(root / f"{split}{year}", *(image["file_name"] for image in images))


def coco_content(ids, image_ids):
    """Images 0.jpg, 1.jpg and so on with these ids, and a caption for each image id."""
    images = [{"id": x, "file_name": f"{i}.jpg"} for i, x in enumerate(ids)]
    annotations = [{"image_id": x, "caption": "A ."} for x in image_ids]
    return {"images": images, "annotations": annotations}


def entries(*rows):
    return "\n".join(map(json.dumps, rows))


def table(folder, rows, header="file_name,caption"):
    write(folder / "metadata.csv", f"{header}\n{rows}")


def shard(path, **files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
