import hashlib

import keras
import pytest

from attention_testing.programs import error_of
from keras_attention_apps.captioner import main as captioner
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.export import check_export, write_served
from keras_attention_apps.common.models import summed_names, write_sums
from keras_attention_apps.nmt import main as nmt

of_both_programs = pytest.mark.parametrize(
    "program", [captioner, nmt], ids=["captioner", "nmt"]
)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="SavedModels need TensorFlow"
)
def test_a_served_model_that_the_disk_is_too_small_for_is_one_line(tmp_path, full_disk):
    import tensorflow as tf

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    served = model.call, tf.TensorSpec([None, 3]), [model], tmp_path / "served"

    with full_disk(), pytest.raises(UserError, match="cannot be written") as reported:
        write_served(*served)
    assert "\n" not in str(reported.value) and "{{" not in str(reported.value)
    assert list(tmp_path.iterdir()) == []

    write_served(*served)
    assert tf.saved_model.load(tmp_path / "served").serve([[1.0, 2, 3]]).shape == (1, 2)

    lines = (tmp_path / "served" / "SHA256SUMS").read_text().splitlines()
    digests = {name: digest for digest, name in map(str.split, lines)}
    files = [path for path in (tmp_path / "served").rglob("*") if path.is_file()]
    assert {"saved_model.pb", "variables/variables.index"} < digests.keys()
    assert len(digests) == len(files) - 1
    for name, digest in digests.items():
        content = (tmp_path / "served" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest


def test_only_an_export_is_replaced_by_an_export(tmp_path):
    served = tmp_path / "served"
    (served / "variables").mkdir(parents=True)
    for name in ("saved_model.pb", "variables/variables.index"):
        (served / name).write_text("a model")
    with pytest.raises(UserError, match=r"other contents: .*served"):
        check_export(served)

    write_sums(served)
    (served / "notes.txt").write_text("mine")
    assert check_export(served) is False
    assert summed_names(served) == {"saved_model.pb", "variables", "SHA256SUMS"}


@of_both_programs
def test_options_of_other_exports_are_errors(program, tmp_path, capsys, monkeypatch):
    arguments = ["export", tmp_path / "x", "--batch-size", "3"]
    assert "--batch-size" in error_of(program.main, arguments, capsys)
    arguments = ["export", tmp_path / "served", "--quantize", "int8"]
    error = error_of(program.main, arguments, capsys)
    assert "--quantize needs a LiteRT file" in error and "Received: int8 for" in error
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    assert "TensorFlow" in error_of(program.main, ["export", tmp_path / "x"], capsys)
