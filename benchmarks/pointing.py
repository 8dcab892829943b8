"""Accuracy of a captioner's attention on synthetic scenes, whose objects are known.

Trains captioners on synthetic scenes of coloured shapes, and tests them on new scenes.
Soft attention is trained from random weights. Hard attention continues from the soft
model for half as many epochs, at a quarter of the learning rate; from random weights,
REINFORCE does not learn where to look. The attention query contains the previous word,
except in the first row, whose query is that of Show, Attend and Tell. Without the
previous word, the query cannot tell two objects of the same size apart whose colour has
just been named.

Prints, for soft attention and for hard attention with either estimator, each with and
without attention supervision:

- exact: share of the captions that equal one of the two true captions;
- pointing: share of the words for shapes whose largest weight is on their object;
- changes: share of the words whose largest weight is on another region than that of the
  word before;
- entropy: entropy of the weights (for hard attention of the probabilities) in nats;
- noise: standard deviation of the gradient `g` of the attention's weights over draws of
  hard attention for one batch, after training, relative to its norm:
  `sqrt(E |g - E g|^2) / |E g|`;
- an epoch: mean seconds of an epoch of 8,000 scenes.

    python benchmarks/pointing.py
    python benchmarks/pointing.py soft hard --epochs 4 --supervision 0 --seed 1 2
"""

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from pathlib import Path

import trainings
import workers

KINDS = {
    "soft, previous state": {"model.no-input-in-query": None},
    "soft": {},
    "hard": {"attention": "hard"},
    "straight-through": {"attention": "hard", "model.estimator": "straight-through"},
}
HARD_RATE = 5e-4
SCENES = 10_000
# Scenes of the batch whose gradient is compared between draws; draws before these, in
# which the moving baseline settles.
BATCH, DRAWS, SETTLING = 64, 200, 50


def captioner(*arguments):
    from keras_attention_apps.captioner.main import main

    if main([str(argument) for argument in arguments]):
        raise SystemExit(f"captioner {arguments[0]} failed")


def recipe(kind, supervision, epochs, folder):
    """Return the options of a training."""
    options = {**KINDS[kind], "supervision": supervision, "fine-tune-epochs": epochs}
    if not kind.startswith("soft"):
        options["from-preset"] = folder / f"soft-{supervision}" / "model"
        options["fine-tune-epochs"] = epochs // 2
        options["fine-tune-learning-rate"] = HARD_RATE
    return options


def train(folder, output, options):
    """Return a captioner, and the seconds that an epoch of its training took."""
    from keras_attention_apps.captioner import Captioner

    options = {**options, "data": folder, "output": output}
    start = time.perf_counter()
    captioner("train-scenes", *trainings.flags(options))
    seconds = (time.perf_counter() - start) / options["fine-tune-epochs"]
    return Captioner.from_preset(output / "model"), seconds


def score(trained, images):
    """Return shares of true captions and of words that point at their object, etc."""
    from keras_attention_apps.captioner.metrics import attention_figures, pointing

    paths = [image.path for image in images]
    # Two objects of the same size and colour repeat a trigram, such as "a large red".
    captions = trained.caption(paths, maps="probabilities", no_repeat_ngrams=0)
    true = [
        caption.text in image.captions
        for caption, image in zip(captions, images, strict=True)
    ]
    hits, count = pointing(captions, [image.boxes for image in images])
    return {
        "exact": sum(true) / len(true),
        "pointing": hits / max(count, 1),
        **attention_figures([caption.weights for caption in captions]),
    }


def gradient_noise(trained, images):
    """Return the deviation of the gradient between draws, relative to its norm."""
    import numpy as np
    import tensorflow as tf

    from keras_attention_apps.captioner.data.batches import TrainingBatches

    network, longest = trained.network, trained.config.max_length
    batches = TrainingBatches(
        [
            [trained.tokenizer.encode(text, longest) for text in image.captions]
            for image in images
        ],
        paths=[image.path for image in images],
        image_size=trained.config.image_size,
        augment=False,
        batch_images=len(images),
        captions_per_image=2,
        seed=0,
    )
    batch = {name: tf.constant(part) for name, part in batches[0][0].items()}

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            outputs = network(batch, training=True)
            loss = network.compute_loss(batch, None, outputs, training=True)
        weights = network.decoder.cell.attention.trainable_variables
        parts = tape.gradient(loss, [weight.value for weight in weights])
        return tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)

    for _ in range(SETTLING):
        gradient()
    gradients = np.stack([gradient() for _ in range(DRAWS)]).astype("float64")
    scatter = gradients.var(axis=0, ddof=1).sum()
    # The squared mean of the draws exceeds that of the expectation by the variance.
    square = np.square(gradients.mean(axis=0)).sum() - scatter / DRAWS
    return float(np.sqrt(scatter / max(square, np.finfo("float64").tiny)))


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("kinds", nargs="*", help=" ".join(KINDS))
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[0], help="One or several random seeds."
    )
    parser.add_argument("--supervision", type=float, nargs="*", default=[0.0, 0.5])
    arguments = parser.parse_args()
    workers.check_names(parser, arguments.kinds, KINDS)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras_attention_apps.captioner.data.dataset import read_dataset

    print(
        "| attention | supervision | seed | exact | pointing | changes | entropy "
        "| noise | an epoch |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        with contextlib.redirect_stdout(open(folder / "log", "w")):
            captioner("scenes", folder / "scenes", "--count", SCENES)
        images = read_dataset(folder / "scenes", "test")
        cases = itertools.product(arguments.seed, arguments.supervision, KINDS)
        for seed, supervision, kind in cases:
            if arguments.kinds and kind not in ("soft", *arguments.kinds):
                continue
            options = recipe(kind, supervision, arguments.epochs, folder)
            options["seed"] = seed
            output = folder / f"{kind}-{supervision}"
            # Hard attention starts from the soft model of its seed.
            shutil.rmtree(output, ignore_errors=True)
            with contextlib.redirect_stdout(open(folder / "log", "a")):
                trained, seconds = train(folder / "scenes", output, options)
                scores = score(trained, images)
                noise = gradient_noise(trained, images[:BATCH])
            print(
                f"| {kind} | {supervision} | {seed} | {scores['exact']:.1%} "
                f"| {scores['pointing']:.1%} | {scores['changes']:.1f} % "
                f"| {scores['entropy']:.2f} | {noise:.2f} | {seconds:.1f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
