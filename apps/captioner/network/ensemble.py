"""Several caption networks that search together."""

from keras_attention_apps.common.network.ensemble import Ensemble


class CaptionEnsemble(Ensemble):
    """Caption networks that share one CNN, which sees every image once."""

    @property
    def backbone(self):
        """The CNN of all networks."""
        return self.networks[0].backbone

    def begin(self, inputs, max_length):
        if "features" not in inputs:
            inputs = {"features": self.backbone(inputs["images"])}
        return super().begin(inputs, max_length)
