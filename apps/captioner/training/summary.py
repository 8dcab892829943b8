"""Summaries of data and image encoder before a training."""

import hashlib

from keras_attention_apps.captioner.data.text import tokenize
from keras_attention_apps.common.cli import counted


def report_unknown(texts, vocabulary, min_count):
    """Print the share of unknown words."""
    words = [word for text in texts for word in tokenize(text)]
    unknown = sum(word not in vocabulary for word in words)
    if unknown:
        print(
            f"{unknown / len(words):.1%} of the words occur fewer than {min_count} "
            "times and are unknown; --min-count 1 keeps all words"
        )


def report_cut(texts, max_length):
    """Print how many captions exceed the maximum length."""
    cut = sum(len(tokenize(text)) > max_length for text in texts)
    if cut:
        print(
            f"{counted(cut, 'caption')} cut to {counted(max_length, 'word')}; "
            "--model.max-length allows more"
        )


def report_encoder(backbone):
    """Print the regions and the preprocessing of a third-party encoder."""
    encoder = backbone.encoder
    if not encoder:
        return
    pixels = f"preprocessing {backbone.preprocessing}"
    if backbone.preprocessing == "own":
        pixels = "pixels from 0 to 255"
        if encoder.scale is not None or encoder.offset is not None:
            pixels += f" times {encoder.scale} plus {encoder.offset}"
    print(
        f"{encoder.name}: {backbone.rows} x {backbone.columns} regions of depth "
        f"{backbone.depth}; {pixels}"
    )


def report_phrases(images):
    """Print how many box names are phrases, which match no single word."""
    names = {name for image in images for name in image.boxes}
    several = sorted(name for name in names if " " in name)
    if several:
        print(
            f"{len(several)} of {len(names)} box names are phrases, the first "
            f"{several[0]!r}: only single words supervise the attention"
        )


def fingerprint(key, *splits):
    """Return a line with a digest of `key(image)` over all images of the splits."""
    digest = hashlib.blake2b(digest_size=6)
    for images in splits:
        for image in images:
            digest.update(repr(key(image)).encode())
    counts = " and ".join(str(len(images)) for images in splits)
    # Checkpoints of earlier versions contain this line.
    return f"{counts} photographs, digest {digest.hexdigest()}"
