"""Averages of the weights of several models."""

import numpy as np
from keras_attention_apps.common.cli import UserError, counted
from keras_attention_apps.common.files import check_folder
from keras_attention_apps.common.inputs import Inputs


def average(config, load):
    """Write the average of several models, as an `AverageConfig` describes it."""
    Inputs(*config.models).check(config.output, whole=False)
    # A user who forgets the output must not lose the first model.
    check_folder(config.output)
    averaged = average_models(config.models, load)
    averaged.save(config.output, average_of=[path.name for path in config.models])
    count = counted(len(config.models), "model")
    print(f"Wrote {config.output}, the average of {count}")


def average_models(folders, load):
    """Return a model with the mean weights of several models.

    It has the options of the first one. Options on which the weights do not depend may
    differ.

    Args:
        folders: Folders of the models.
        load: Function from a folder to a `Task`.

    Raises:
        UserError: If there are no folders, or the models differ in their `identity`.
    """
    if not folders:
        raise UserError("expected at least one folder of a model. Received: none")
    first, sums = None, None
    for folder in folders:
        model = load(folder)
        model.check_single("an average")
        first = first or model
        for name, value in model.identity.items():
            expected = first.identity[name]
            if value != expected:
                raise UserError(
                    f"{folder} and {folders[0]} differ in {name}: {value!r} and "
                    f"{expected!r}"
                )
        weights = [np.asarray(x, "float64") for x in model.network.get_weights()]
        sums = weights if sums is None else list(map(np.add, sums, weights))
    means = [total / len(folders) for total in sums]
    # It is that of the weights of the first model.
    first.calibration = None
    first.network.set_weights([mean.astype("float32") for mean in means])
    return first
