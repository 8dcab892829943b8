"""Options of a training on detected regions, which has no CNN."""

import dataclasses

from keras_attention_apps.captioner.data.regions import depth_of_regions
from keras_attention_apps.common.cli import UserError


def check_epochs_of_regions(config):
    """Raise a `UserError` if a training on regions has epochs of fine-tuning only."""
    if not config.epochs and not config.self_critical_epochs:
        raise UserError(
            "expected an epoch of --epochs or --self-critical-epochs, since --regions "
            "skips fine-tuning. Received: 0 of both"
        )


def with_regions(config, images):
    """Return the `TrainConfig` with the depth of the detected regions, if any.

    Raises:
        UserError: If options of the training do not fit, or regions cannot be read.
    """
    model = config.model
    if not config.regions:
        if model.region_depth:
            raise UserError(
                "regions must be given: the model attends to detected regions of depth "
                f"{model.region_depth}. Received: None"
            )
        return config
    if config.frozen_views > 1:
        raise UserError(
            "frozen_views must be 1 with regions, which belong to whole images. "
            f"Received: {config.frozen_views}"
        )
    if config.backbone_weights not in ("imagenet", "none"):
        raise UserError(
            "backbone_weights must not be set with regions, which need no CNN. "
            f"Received: {config.backbone_weights!r}"
        )
    model = dataclasses.replace(
        model, region_depth=depth_of_regions(images, config.regions)
    )
    print(
        f"At most {model.max_regions} detected regions of depth {model.region_depth} "
        "for each image; no fine-tuning of a CNN"
    )
    return dataclasses.replace(config, model=model)
