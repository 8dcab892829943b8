"""Schedules of the learning rate and of the moving average."""

import keras


def ema_momentum(chosen, steps_per_epoch, longest):
    """Return the momentum of the EMA of the weights.

    By default it averages over two epochs, but at most `longest` steps: in a short
    training, a longer average would still contain the first steps.
    """
    if chosen is not None:
        return chosen
    return 1 - 1 / max(min(2 * steps_per_epoch, longest), 1)


def warm_up_and_cosine(peak, warm_up, steps):
    """Return a schedule: linear warm-up to a peak, then a cosine to zero."""
    decay_steps = max(steps - warm_up, 1)
    cosine = keras.optimizers.schedules.CosineDecay
    if not warm_up:
        return cosine(peak, decay_steps)
    return cosine(peak / 100, decay_steps, warmup_target=peak, warmup_steps=warm_up)
