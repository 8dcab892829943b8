"""`captioner evaluate` and `captioner calibrate`: scores and confidence of a model."""

import contextlib
import dataclasses

import numpy as np

from keras_attention_apps.captioner import confidence_features, metrics
from keras_attention_apps.captioner.captions import check_inference
from keras_attention_apps.captioner.data.dataset import read_dataset, readable
from keras_attention_apps.captioner.images import find_images
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common.calibrate import Program, print_figures
from keras_attention_apps.common.calibrate import calibrate as calibrate_model
from keras_attention_apps.common.comparison import LEGEND, check_plot, table, write_plot
from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.files import (
    check_distinct,
    check_file,
    read_json,
    write_json,
)
from keras_attention_apps.common.output import note

# Shares of the most probable captions that are scored.
SHARES = (0.9, 0.75, 0.5, 0.25)


def evaluate(config):
    """Print the scores that an `EvaluateConfig` describes, and return them."""
    names = config.model.names
    _check(config)
    images = readable(read_dataset(config.data, config.split), config.max_unreadable)
    captioner, search, captions_of_each = _captioned(config, images)
    references = [image.captions for image in images]
    print(
        f"{', '.join(names)} on {len(images)} images of {config.split}, "
        f"beam {search['beam_size']}, length penalty {search['length_penalty']}"
    )
    if len(names) > 1:
        return _compare(config, captions_of_each, references)
    (captions,) = captions_of_each
    texts = [caption.text for caption in captions]
    scores = metrics.caption_scores(texts, references, meteor=True)
    for name, score in scores.items():
        print(f"{name:8} {score:6.2f}")
    if "meteor" not in scores:
        print("meteor   needs Java, which was not found")
    if "cider" not in scores:
        print("cider    needs several images")
    attention = _print_attention(captions)
    if "cider" in scores:
        _print_confidence(captions, references)
        print_figures(captioner.confidence, captions, judge(captions, references))
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


def _check(config):
    """Raise a `UserError` for options that exclude one another."""
    names = config.model.names
    for name in names:
        check_inference(dataclasses.replace(config.model, models=(name,)))
    check_plot(config.plot, names)
    if config.output:
        if len(names) > 1:
            raise UserError(
                f"--output takes the captions of one model. Received: {len(names)} "
                "models"
            )
        check_file(config.output)
        if not _are_results(config.output):
            files = RUNTIMES.files(config.model.name)
            check_distinct([config.data, *files], config.output)


def _captioned(config, images):
    """Return the last model, the options of its search, and the captions of each."""
    captions_of_each = []
    for name in config.model.names:
        captioner = RUNTIMES.load_for(config, name)
        search = captioner.search_options(**config.search.given)
        options = {"maps": "probabilities", "batch_size": config.batch_size}
        paths = [image.path for image in images]
        captions_of_each.append(captioner.caption(paths, **options, **search))
    return captioner, search, captions_of_each


def _compare(config, captions_of_each, references):
    """Print the scores of several models as a table, draw and return them."""
    texts = [[caption.text for caption in captions] for captions in captions_of_each]
    scores = metrics.compared_scores(texts, references)
    print(table(config.model.names, scores))
    print(LEGEND)
    if config.plot is not None:
        write_plot(config.plot, config.model.names, scores)
        note(f"captioner: wrote {printable(config.plot)}")
    return scores


def _print_attention(captions):
    """Print figures of the attention, and return them as a dict."""
    attention = metrics.attention_figures([caption.weights for caption in captions])
    changes, entropy, cosine = (attention[x] for x in ("changes", "entropy", "cosine"))
    moved = "of the words look at another region than the word before"
    print(f"changes  {changes:6.2f} % {moved}")
    print(f"entropy  {entropy:6.2f} nats, the mean of the attention of a word")
    print(f"cosine   {cosine:6.2f} between the attention of two words of a caption")
    return attention


def _print_confidence(captions, references):
    """Print the CIDEr of the most probable captions, for each of the `SHARES`."""
    probable = metrics.cider_of_probable(
        [caption.text for caption in captions],
        references,
        np.array([caption.mean_log_probability for caption in captions]),
        SHARES,
    )
    for share, (lowest, cider) in zip(SHARES, probable, strict=True):
        label = (
            f"of the {share:.0%} with a mean log-probability of at least {lowest:.2f}"
        )
        print(f"cider    {cider:6.2f} {label}")


def _are_results(path):
    """Return whether a file has the results of an earlier evaluation."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        entries = read_json(path)
        keys = {"image_id", "caption"}
        return isinstance(entries, list) and all(x.keys() == keys for x in entries)
    return False


# CIDEr, in percent, from which a caption is usable, and below which it is not. Between
# them, the references do not tell.
USABLE, UNUSABLE = 50, 20


def judge(captions, references):
    """Return whether each caption is usable; `None` where that is not clear."""
    ciders = metrics.cider_of_each([caption.text for caption in captions], references)
    return [
        bool(cider >= USABLE) if cider >= USABLE or cider < UNUSABLE else None
        for cider in ciders
    ]


def calibrate(config):
    """Calibrate a captioner as a `CalibrateConfig` describes it."""

    def read(path):
        images = readable(read_dataset(path, config.split), config.max_unreadable)
        return [x.path for x in images], [x.captions for x in images]

    def read_others(path):
        # A folder of images need not be a data set with captions.
        with contextlib.suppress(UserError):
            paths, _ = find_images(path)
            return paths
        paths, _ = read(path)
        return paths

    def run(captioner, images):
        return captioner.caption(images, batch_size=config.batch_size)

    program = Program(
        read,
        read_others,
        run,
        judge,
        domain_features=confidence_features.IMAGE_FEATURES,
    )
    calibrate_model(config, RUNTIMES, program)
