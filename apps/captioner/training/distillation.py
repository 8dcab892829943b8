"""Distillation: captions of other models for the training images."""

import collections
import dataclasses
from os.path import basename, realpath

from keras_attention_apps.captioner.text import tokenize
from keras_attention_apps.captioner.training.self_critical import CiderReward
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import opened, parse_json, utf8_lines

# Maximum number of teacher captions of an image.
MAX_CAPTIONS = 3


def with_teacher_captions(images, files):
    """Return training images with captions of other models.

    Each image receives at most three new captions, best first: those with the highest
    CIDEr-D against its own captions.

    Reference: [Kim and Rush, 2016](https://arxiv.org/abs/1606.07947).
    """
    candidates = _candidates(images, files)
    reward = CiderReward([image.captions for image in images])
    taught = []
    for place, image in enumerate(images):
        known = {tuple(tokenize(text)) for text in image.captions}
        new = {tuple(tokenize(text)): text for text in sorted(candidates[place])}
        ranked = sorted(
            (words for words in new if words and words not in known),
            key=lambda words, place=place: (-reward(words, place), words),
        )
        best = tuple(new[words] for words in ranked[:MAX_CAPTIONS])
        taught.append(dataclasses.replace(image, teacher_captions=best))
    return taught


def _candidates(images, files):
    """Return a set of the captions in the files for every image."""
    candidates = [set() for _ in images]
    by_name = collections.defaultdict(list)
    for place, image in enumerate(images):
        by_name[image.path.name].append(place)
    for path in files:
        found = False
        for photo, captions in _read(path):
            same_name = by_name.get(basename(photo), [])
            for place in same_name:
                # If several images have the same name, their paths must be equal.
                image = str(images[place].path)
                if len(same_name) == 1 or realpath(image) == realpath(photo):
                    candidates[place].update(captions)
                    found |= bool(captions)
        if not found:
            raise UserError(f"{path} has no caption of a training image")
    return candidates


def _read(path):
    """Yield the path of every image in a file, and its captions."""
    with opened(path) as stream:
        for number, line in enumerate(utf8_lines(stream, path), 1):
            if not line.strip():
                continue
            try:
                entry = parse_json(line)
                entries = entry.get("captions", [entry])
                texts = [x["caption"] for x in entries if x.get("caption")]
                image = entry["image"]
                if not all(isinstance(text, str) for text in (image, *texts)):
                    raise TypeError
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise UserError(
                    f"{path}, line {number}: expected a JSON object with 'image' and "
                    f"'caption' or 'captions', from captioner caption --output. "
                    f"Received: {line[:60]!r}"
                ) from error
            yield image, texts
