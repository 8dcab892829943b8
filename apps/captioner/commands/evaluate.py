"""`captioner evaluate` and `captioner calibrate`: scores and confidence of a model."""

import contextlib

import numpy as np
from keras_attention_apps.captioner import metrics
from keras_attention_apps.captioner.captions import RUNTIMES, check_inference
from keras_attention_apps.captioner.data.dataset import read_dataset, readable
from keras_attention_apps.common.files import (
    check_distinct,
    check_file,
    read_json,
    write_json,
)
from keras_attention_apps.common.hypotheses import calibrate as calibrate_model

# Shares of the most probable captions that are scored.
SHARES = (0.9, 0.75, 0.5, 0.25)


def evaluate(config):
    """Print the scores that an `EvaluateConfig` describes, and return them."""
    check_inference(config.model)
    if config.output:
        check_file(config.output)
        if not _are_results(config.output):
            files = RUNTIMES.files(config.model.name)
            check_distinct([config.data, *files], config.output)
    images = readable(read_dataset(config.data, config.split), config.max_unreadable)
    # Scores are those of the Keras model, unless LiteRT is requested.
    captioner = RUNTIMES.load_for(config, auto="keras")
    search = captioner.search_options(**config.search.given)
    options = {"maps": "probabilities", "batch_size": config.batch_size}
    paths = [image.path for image in images]
    captions = captioner.caption(paths, **options, **search)
    texts = [caption.text for caption in captions]
    references = [image.captions for image in images]
    scores = metrics.caption_scores(texts, references, meteor=True)
    print(
        f"{config.model.name} on {len(images)} images of {config.split}, "
        f"beam {search['beam_size']}, length penalty {search['length_penalty']}"
    )
    for name, score in scores.items():
        print(f"{name:8} {score:6.2f}")
    if "meteor" not in scores:
        print("meteor   needs Java, which was not found")
    if "cider" not in scores:
        print("cider    needs several images")
    attention = _print_attention(captions)
    if "cider" in scores:
        _print_confidence(captions, references)
    hits, count = metrics.pointing(captions, [image.boxes for image in images])
    if count:
        attention["pointing"] = 100 * hits / count
        share = f"{attention['pointing']:6.2f} % of {count} words with a box"
        print(f"pointing {share} look at their object")
    if config.output:
        pairs = zip([image.image_id for image in images], texts, strict=True)
        results = [{"image_id": image, "caption": text} for image, text in pairs]
        write_json(config.output, results)
    return scores | attention


def _print_attention(captions):
    """Print figures of the attention, and return them as a dict."""
    attention = metrics.attention_figures([caption.weights for caption in captions])
    changes, entropy = attention["changes"], attention["entropy"]
    moved = "of the words look at another region than the word before"
    print(f"changes  {changes:6.2f} % {moved}")
    print(f"entropy  {entropy:6.2f} nats, the mean of the attention of a word")
    return attention


def _print_confidence(captions, references):
    """Print the CIDEr of the most probable captions, for each of the `SHARES`."""
    probable = metrics.cider_of_probable(
        [caption.text for caption in captions],
        references,
        np.array([caption.mean_log_probability for caption in captions]),
        SHARES,
    )
    for share, (least, cider) in zip(SHARES, probable, strict=True):
        kept = f"of the {share:.0%} with a mean log-probability of at least {least:.2f}"
        print(f"cider    {cider:6.2f} {kept}")


def _are_results(path):
    """Return whether a file has the results of an earlier evaluation."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        entries = read_json(path)
        keys = {"image_id", "caption"}
        return isinstance(entries, list) and all(x.keys() == keys for x in entries)
    return False


def calibrate(config):
    """Calibrate a captioner as a `CalibrateConfig` describes it."""

    def read(path):
        images = readable(read_dataset(path, config.split), config.max_unreadable)
        return [image.path for image in images]

    def run(captioner, images):
        return captioner.caption(images, batch_size=config.batch_size)

    calibrate_model(config, RUNTIMES, read=read, run=run)
