"""Several networks that search together."""

import functools

import keras

from keras_attention import ensemble_step


class Ensemble(keras.Model):
    """Networks whose mean probability a search follows; see `ensemble_step`.

    Args:
        networks: List of networks with `begin` and `step`, as for `SearchModel`, with
            the same tokens and positions.
    """

    def __init__(self, networks):
        # The policy decides whether a search casts the weights once.
        policy, *others = {network.dtype_policy.name for network in networks}
        super().__init__(name="ensemble", dtype="float32" if others else policy)
        self.networks = list(networks)
        self.built = True

    def begin(self, inputs, max_length):
        """Return the memories of the networks, and their first states."""
        begun = [network.begin(inputs, max_length) for network in self.networks]
        return [memory for memory, _ in begun], [state for _, state in begun]

    def step(self, token_ids, state, memory, **options):
        """Run one step of a search with all networks."""
        steps = [
            functools.partial(network.step, memory=part, **options)
            for network, part in zip(self.networks, memory, strict=True)
        ]
        return ensemble_step(steps)(token_ids, state)
