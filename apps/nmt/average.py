"""One model of several: the mean of their weights."""

import numpy as np
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.nmt.inference import Translator


def average(config):
    """Write the average that an `AverageConfig` asks for."""
    averaged = average_models(config.models)
    averaged.save(config.output, average_of=[str(path) for path in config.models])
    print(f"Wrote {config.output}, the average of {len(config.models)} models")


def average_models(folders):
    """A `Translator` whose weights are the mean of those of several models.

    Args:
        folders: Folders of models with the same configuration and subwords.

    Raises:
        UserError: If there are none, or they are no models of one kind.
    """
    if not folders:
        raise UserError("expected at least one folder of a model, got none")
    first, sums = None, None
    for folder in folders:
        translator = Translator.from_preset(folder)
        first = first or translator
        same = (
            translator.config == first.config
            and translator.subwords.model == first.subwords.model
        )
        if not same:
            raise UserError(
                f"{folder} has another configuration, or other subwords, than "
                f"{folders[0]}"
            )
        weights = [np.asarray(x, "float64") for x in translator.network.get_weights()]
        sums = weights if sums is None else list(map(np.add, sums, weights))
    means = [total / len(folders) for total in sums]
    first.network.set_weights([mean.astype("float32") for mean in means])
    return first
