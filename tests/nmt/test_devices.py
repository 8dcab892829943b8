import subprocess
import sys
from textwrap import dedent

import keras
import pytest
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main

from .test_train import command, history


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="devices are made in another way"
)
def test_batches_are_shared_out_to_all_devices(corpus, tmp_path):
    # Logical devices can be made only before any is used.
    program = dedent(
        """
        import sys, tensorflow as tf
        from keras_attention_apps.nmt.main import main

        (cpu,) = tf.config.list_physical_devices("CPU")
        half = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [half, half])
        sys.exit(main(sys.argv[1:]))
        """
    )
    changes = {"epochs": 2, "self-critical-epochs": 1}
    arguments = [*command(corpus, tmp_path, **changes), "--distribute"]

    subprocess.run([sys.executable, "-c", program, *arguments], check=True)

    first, second, _, sampled = history(tmp_path)
    assert second["loss"] < first["loss"]
    assert sampled["reward"] > 0
    assert Translator.from_preset(tmp_path / "model").config.units == 14


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="others distribute")
def test_pytorch_is_not_distributed(corpus, tmp_path, capsys):
    assert main([*command(corpus, tmp_path), "--distribute"]) == 2
    assert "needs TensorFlow or JAX" in capsys.readouterr().err
