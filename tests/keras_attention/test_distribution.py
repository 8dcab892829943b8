"""The layers in a model of one's own, on several devices."""

import re
import shutil
import subprocess
import sys
from textwrap import dedent

import keras
import numpy as np
import pytest

from attention_testing.distributed import environment
from attention_testing.repository import blocks, read
from keras_attention import AdditiveAttention, attention_layout_map

# Devices can be made only before any is used. The model holds a layer of each kind
# with weights, and the loss and metric of sequences.
PROGRAM = dedent(
    """
    import contextlib, sys
    import numpy as np
    import keras
    import keras_attention as ka

    way, devices = sys.argv[1], int(sys.argv[2])
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, parts)
    keras.utils.set_random_seed(3)
    scope = contextlib.nullcontext()
    if way == "mirrored":
        names = [device.name for device in tf.config.list_logical_devices("CPU")]
        scope = tf.distribute.MirroredStrategy(names).scope()
    elif way == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    elif way == "model":
        names = keras.distribution.list_devices()
        mesh = keras.distribution.DeviceMesh((1, devices), ["batch", "model"], names)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(
                layout_map=ka.attention_layout_map(mesh), batch_dim_name="batch"
            )
        )
    with scope:
        source = keras.Input((5,), dtype="int32")
        target = keras.Input((4,), dtype="int32")
        embedding = keras.layers.Embedding(11, 8, mask_zero=True)
        encoded = ka.SelfAttention(num_heads=2, key_dim=4)(embedding(source))
        words = embedding(target)
        words = words + ka.AdditiveAttention(6)(words, encoded)
        words = words + ka.LuongAttention("general")(words, encoded)
        cell = ka.AttentionCell(keras.layers.GRUCell(8), ka.AdditiveAttention(6))
        outputs = ka.AttentionDecoder(cell)(words, encoded)
        logits = keras.layers.Dense(11)(outputs["output"])
        model = keras.Model([source, target], logits)
        model.compile(
            keras.optimizers.Adam(0.01), ka.SequenceCrossentropy(), jit_compile=False
        )
    random = np.random.default_rng(0)
    source, target = random.integers(1, 11, (8, 5)), random.integers(1, 11, (8, 4))
    history = model.fit(
        [source, target], target, batch_size=4, epochs=3, shuffle=False, verbose=0
    )
    if way == "model":
        shards = {
            w.path: w.value.sharding.shard_shape(w.shape) for w in model.weights
        }
        query = next(x for x in shards if x.endswith("step/query_projection/kernel"))
        print("shard", *shards[query])
    print("losses", *history.history["loss"])
    """
)


def losses(backend, way, devices):
    """Return the losses of a training in a process of its own, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way, str(devices)],
        env=environment(backend, devices),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = re.search("^losses (.*)", done.stdout, re.MULTILINE)[1]
    return np.array(printed.split(), "float64"), done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("backend", "way"),
    [
        ("tensorflow", "mirrored"),
        pytest.param("jax", "data", marks=pytest.mark.slow),
        ("jax", "model"),
    ],
)
def test_a_model_has_the_losses_of_one_device(backend, way):
    expected, _ = losses(backend, "one", 1)

    actual, output = losses(backend, way, 2)

    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    if way == "model":
        assert "shard 8 4" in output


def test_both_scores_of_mocha_are_sharded():
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    layout_map = attention_layout_map(mesh)
    layer = AdditiveAttention(4, weighting="mocha")
    layer.build((None, 3, 4), (None, 5, 4))
    sharded = [x.path for x in layer.weights if layout_map[x.path] is not None]

    assert sorted(x.rsplit("/", 2)[1] for x in sharded) == [
        *("key_projection", "key_projection_copy"),
        *("query_projection", "query_projection"),
        *("score", "score_copy"),
    ]


def test_the_axis_of_a_layout_map_belongs_to_the_mesh():
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], ["cpu:0"])

    with pytest.raises(ValueError, match=r"one of the axes.*'batch'.*'model'"):
        attention_layout_map(mesh)


@pytest.mark.parametrize("language", ["bash", "yaml"])
def test_the_examples_of_clusters_have_no_syntax_errors(language):
    examples = blocks(read("docs/scale.md"), language)
    assert examples

    for block in examples:
        if language == "bash":
            if not shutil.which("bash"):
                pytest.skip("there is no bash")
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        else:
            yaml = pytest.importorskip("yaml")
            assert all(part["kind"] for part in yaml.safe_load_all(block))
