"""Training in two phases: the decoder on fixed features, then the CNN with it."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
from keras_attention_apps.captioner.config import TrainConfig
from keras_attention_apps.captioner.data import read_dataset
from keras_attention_apps.captioner.evaluate import caption_scores
from keras_attention_apps.captioner.features import (
    Photographs,
    cached_features,
    load_images,
)
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.model import ShowAttendTell
from keras_attention_apps.captioner.text import PAD, Vocabulary
from keras_attention_apps.common.checkpoints import (
    Checkpoints,
    SaveEveryEpoch,
    ValidateDecoded,
)
from keras_attention_apps.common.cli import UserError

# Photographs whose longest captions are compared to form batches of similar length.
BUCKET_BATCHES = 8
VALIDATION_BATCH = 50


class TrainingBatches(keras.utils.PyDataset):
    """Shuffled batches of photographs, each with several of its captions.

    The order depends on the seed and the epoch alone, so an interrupted training
    continues with the same batches. Photographs whose longest captions are about equal
    share a batch, which saves steps of padding.

    Args:
        captions: For each photograph, its captions as lists of token ids.
        features: Array `(photographs, S, D)`, or `None` to read the photographs.
        paths: Their paths.
        image_size: Side of the square in pixels.
        batch_images: Photographs in a batch.
        captions_per_image: Largest number of captions of a photograph in an epoch.
        seed: Seed of the order.
        epoch: First epoch.
    """

    def __init__(
        self,
        captions,
        *,
        features=None,
        paths=None,
        image_size=None,
        batch_images,
        captions_per_image,
        seed,
        epoch=0,
    ):
        super().__init__()
        self.captions = captions
        self.features = features
        self.paths = paths
        self.image_size = image_size
        self.batch_images = batch_images
        self.captions_per_image = min(captions_per_image, max(map(len, captions)))
        self.seed = seed
        self.epoch = epoch
        self._batches = self._plan()

    def __len__(self):
        return len(self._batches)

    def on_epoch_end(self):
        self.epoch += 1
        self._batches = self._plan()

    def _plan(self):
        """The photographs of every batch of this epoch."""
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(len(self.captions))
        longest = np.array([max(map(len, texts)) for texts in self.captions])
        bucket = self.batch_images * BUCKET_BATCHES
        batches = []
        for begin in range(0, len(order), bucket):
            chosen = order[begin : begin + bucket]
            chosen = chosen[np.argsort(longest[chosen], kind="stable")]
            batches += [
                chosen[i : i + self.batch_images]
                for i in range(0, len(chosen), self.batch_images)
            ]
        return [batches[i] for i in random.permutation(len(batches))]

    def __getitem__(self, index):
        chosen = self._batches[index]
        random = np.random.default_rng((self.seed, self.epoch, index))
        batch = {"captions": self._caption_batch(chosen, random)}
        if self.features is not None:
            batch["features"] = self.features[chosen]
        else:
            images = load_images([self.paths[i] for i in chosen], self.image_size)
            mirrored = random.random(len(chosen)) < 0.5
            images[mirrored] = images[mirrored, :, ::-1]
            batch["images"] = images
        return (batch,)

    def _caption_batch(self, chosen, random):
        rows = []
        for photograph in chosen:
            texts = self.captions[photograph]
            picked = random.permutation(len(texts))[: self.captions_per_image]
            rows.append([texts[i] for i in picked])
        longest = max(len(text) for texts in rows for text in texts)
        shape = (len(rows), self.captions_per_image, longest)
        token_ids = np.full(shape, PAD, "int32")
        for row, texts in enumerate(rows):
            for column, text in enumerate(texts):
                token_ids[row, column, : len(text)] = text
        return token_ids


def train(config: TrainConfig):
    """Train a captioner; see `TrainConfig`. Returns the folder of the best model."""
    config = dataclasses.replace(
        config, data=config.data.resolve(), output=config.output.resolve()
    )
    keras.utils.set_random_seed(config.seed)
    training = read_dataset(config.data, "train")
    validation = read_dataset(config.data, "dev")
    texts = [text for image in training for text in image.captions]
    vocabulary = Vocabulary.from_captions(texts, config.min_count)
    print(
        f"{len(training)} photographs with {len(texts)} captions, {len(vocabulary)} "
        f"words; {len(validation)} photographs for validation"
    )
    checkpoints = Checkpoints(config.output / "checkpoints", dataclasses.asdict(config))
    network = ShowAttendTell(
        config.model,
        len(vocabulary),
        backbone_weights=_backbone_weights(config.backbone_weights),
        label_smoothing=config.label_smoothing,
        doubly_stochastic=config.doubly_stochastic,
    )
    network.build()
    captioner = Captioner(config.model, vocabulary, network)
    run = _Run(config, captioner, training, validation, checkpoints)
    for phase in (run.train_decoder, run.fine_tune)[checkpoints.progress.phase :]:
        phase()
        checkpoints.next_phase()
    print(f"The best model is in {run.best}")
    return run.best


def _backbone_weights(name):
    if name in ("none", "imagenet"):
        return None if name == "none" else name
    if not Path(name).is_file():
        raise UserError(
            "backbone_weights must be imagenet, none, or an existing .weights.h5 file. "
            f"Received: {name!r}"
        )
    return name


class _Run:
    """One training: what its two phases share."""

    def __init__(self, config, captioner, training, validation, checkpoints):
        self.config = config
        self.captioner = captioner
        self.network = captioner.network
        self.training = training
        self.validation = validation
        self.checkpoints = checkpoints
        self.best = config.output / "model"
        self.token_ids = [
            [
                captioner.vocabulary.encode(text, config.model.max_length)
                for text in image.captions
            ]
            for image in training
        ]

    def train_decoder(self):
        """Phase 1: the CNN is frozen, its features are computed once."""
        config, backbone = self.config, self.network.backbone
        cache = config.cache or Path(keras.config.keras_home()) / "captioner"
        paths = [image.path for image in self.training]
        features = cached_features(backbone, paths, cache, name="train")
        paths = [image.path for image in self.validation]
        validation = cached_features(backbone, paths, cache, name="dev")

        def batches():
            for begin in range(0, len(validation), VALIDATION_BATCH):
                yield {"features": validation[begin : begin + VALIDATION_BATCH]}

        backbone.trainable = False
        self._fit(
            {"features": features},
            batches,
            epochs=config.epochs,
            learning_rate=config.learning_rate,
        )

    def fine_tune(self):
        """Phase 2: the upper layers of the CNN learn, too."""
        config, backbone = self.config, self.network.backbone
        size = config.model.image_size
        if (self.best / "config.json").exists():
            best = Captioner.from_preset(self.best).network
            self.network.set_weights(best.get_weights())
        backbone.trainable = True
        layers = backbone.cnn.layers
        for layer in layers[: round(len(layers) * (1 - config.fine_tune_share))]:
            layer.trainable = False
        paths = [image.path for image in self.validation]
        photographs = Photographs(paths, size, VALIDATION_BATCH)

        def batches():
            for index in range(len(photographs)):
                yield {"images": photographs[index]}

        self._fit(
            {"paths": [image.path for image in self.training], "image_size": size},
            batches,
            epochs=config.fine_tune_epochs,
            learning_rate=config.fine_tune_learning_rate,
        )

    def _fit(self, source, validation_batches, *, epochs, learning_rate):
        config, progress = self.config, self.checkpoints.progress
        if not epochs:
            return
        batches = TrainingBatches(
            self.token_ids,
            **source,
            batch_images=config.batch_images,
            captions_per_image=config.captions_per_image,
            seed=config.seed + progress.phase,
            epoch=progress.epoch,
        )
        steps = len(batches) * epochs
        warm_up = min(len(batches), steps // 10)
        schedule = keras.optimizers.schedules.CosineDecay(
            learning_rate / 100,
            steps - warm_up,
            warmup_target=learning_rate,
            warmup_steps=warm_up,
        )
        self.network.compile(
            optimizer=keras.optimizers.AdamW(
                schedule,
                weight_decay=config.weight_decay,
                global_clipnorm=config.clip_norm,
                use_ema=True,
                ema_momentum=config.ema_momentum,
            ),
            jit_compile=keras.backend.backend() == "jax",
        )
        self.checkpoints.restore(self.network)
        history = progress.history[len(progress.history) - progress.epoch :]
        callbacks = [
            ValidateDecoded(
                lambda: self._validate(validation_batches),
                config.validation_metric,
                self._keep,
                history=history,
                patience=config.patience,
            ),
            SaveEveryEpoch(self.checkpoints),
        ]
        if config.tensorboard:
            logs = config.output / "logs" / f"phase-{progress.phase}"
            callbacks.append(keras.callbacks.TensorBoard(logs))
        self.network.fit(
            batches,
            initial_epoch=progress.epoch,
            epochs=epochs,
            shuffle=False,
            callbacks=callbacks,
            verbose="auto",
        )

    def _validate(self, batches):
        search = self.captioner.search(beam_size=self.config.validation_beam_size)
        captions = []
        for batch in batches():
            found = search.predict_on_batch(batch)
            captions += [caption.text for caption in self.captioner.captions_of(found)]
        references = [image.captions for image in self.validation]
        scores = caption_scores(captions, references)
        print("\n" + "  ".join(f"{name} {x:.1f}" for name, x in scores.items()))
        return scores

    def _keep(self):
        training = dataclasses.asdict(self.config)
        for private in ("data", "output", "cache", "model"):
            del training[private]
        training["backbone_weights"] = Path(training["backbone_weights"]).name
        self.captioner.save(self.best, training=training)
