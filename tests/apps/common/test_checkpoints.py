import json
from operator import itemgetter

import keras
import numpy as np
import pytest

from attention_testing.arrays import numpy
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import at_most
from keras_attention_apps.common.models import write_sealed
from keras_attention_apps.common.training.checkpoints import (
    Checkpoints,
    Progress,
    check_checkpoints,
)
from keras_attention_apps.common.training.runner import ValidateDecoded

pytestmark = pytest.mark.usefixtures("eager")


def small_model(around=lambda optimizer: optimizer):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5)
    model.compile(around(optimizer), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def dropping_model():
    layers = [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    return model


def take_step(model):
    model.train_on_batch(np.ones((5, 3)), np.ones((5, 2)))


def test_a_new_process_continues_with_weights_and_optimizer(tmp_path):
    model, checkpoints = small_model(), Checkpoints(tmp_path, {"seed": 1})
    take_step(model)
    checkpoints.save(model, {"bleu-4": 7.0})

    again, continued = small_model(), Checkpoints(tmp_path, {"seed": 1})
    continued.restore(again)

    assert continued.progress.epoch == 1
    assert continued.progress.history == [{"bleu-4": 7.0}]
    for _ in range(2):
        take_step(model)
        take_step(again)
    for ours, theirs in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_last_two_checkpoints_and_other_files_are_kept(tmp_path):
    model, checkpoints = small_model(), Checkpoints(tmp_path, {})
    (tmp_path / "mine.weights.npz").write_text("mine")
    for _ in range(3):
        checkpoints.save(model, {})

    names = {path.name for path in tmp_path.iterdir()}
    weights = {f"phase-0-epoch-{epoch}.weights.npz" for epoch in (2, 3)}
    assert names == {*weights, "mine.weights.npz", "previous.json", "progress.json"}


@pytest.mark.parametrize("name", ["previous.json", "mine.weights.npz", "thesis.tex"])
def test_a_folder_with_other_contents_is_refused(tmp_path, name):
    folder = tmp_path / "checkpoints"
    check_checkpoints(folder)
    folder.mkdir()
    for left in (".part-7-progress.json", "phase-0-epoch-0.weights.npz", "a.model"):
        (folder / left).touch()
    check_checkpoints(folder, ["a.model"])

    (folder / name).touch()
    with pytest.raises(UserError, match=f"other contents: .*{name}"):
        check_checkpoints(folder, ["a.model"])
    (folder / "progress.json").touch()
    check_checkpoints(folder)


@pytest.fixture
def two_epochs(tmp_path):
    """A folder with the checkpoints of two epochs, whose weights are 1 and 2."""
    model, checkpoints = small_model(), Checkpoints(tmp_path, {"units": 7})
    for epoch in (1.0, 2.0):
        model.set_weights([np.full_like(x, epoch) for x in model.get_weights()])
        checkpoints.save(model, {"cider": epoch})
    return tmp_path


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


DAMAGED = {
    "phase-0-epoch-2.weights.npz": "phase-0-epoch-2.weights.npz is damaged",
    "progress.json": "progress.json",
}


@pytest.mark.parametrize("place", [0, 40, -60])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_named_and_the_one_before_continues(
    two_epochs, name, place, capsys
):
    flip(two_epochs / name, place)
    checkpoints, model = Checkpoints(two_epochs, {"units": 7}), small_model()
    checkpoints.restore(model)

    assert DAMAGED[name] in capsys.readouterr().err
    assert checkpoints.progress.history == [{"cider": 1.0}]
    assert {x.flat[0] for x in model.get_weights()} == {1.0}
    # The intact checkpoint is kept until the next one is written.
    checkpoints.save(model, {"cider": 3.0})
    flip(two_epochs / "progress.json", place)
    assert Checkpoints(two_epochs, {"units": 7}).progress.history == [{"cider": 1.0}]


def test_without_an_intact_checkpoint_the_training_stops(two_epochs):
    for epoch in (1, 2):
        flip(two_epochs / f"phase-0-epoch-{epoch}.weights.npz", 9)
    message = "intact: phase-0-epoch-2.* is damaged.*; phase-0-epoch-1.* another output"
    with pytest.raises(UserError, match=message):
        Checkpoints(two_epochs, {"units": 7})


def test_a_checkpoint_without_digests_is_loaded(two_epochs):
    progress = json.loads((two_epochs / "progress.json").read_text())
    for name in ("digest", "sha256"):
        del progress[name]
    (two_epochs / "progress.json").write_text(json.dumps(progress))
    (two_epochs / "previous.json").unlink()

    checkpoints = Checkpoints(two_epochs, {"units": 7})
    assert checkpoints.progress.epoch == 2
    flip(two_epochs / "phase-0-epoch-2.weights.npz", 0)
    with pytest.raises(UserError, match=r"no checkpoint in .* is intact"):
        checkpoints.restore(small_model())


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": "../phase-0-epoch-2.weights.npz"},
        {"weights": "phase-0-epoch-2.weights.h5"},
        {"phase": -1},
        {"seeds": 3},
        {"history": [[]]},
        {"config": []},
        {"option": 1},
    ],
)
def test_progress_stays_in_its_folder_and_its_types(two_epochs, changes):
    progress = json.loads((two_epochs / "progress.json").read_text())
    write_sealed(two_epochs / "progress.json", progress | changes)
    (two_epochs / "previous.json").unlink()
    with pytest.raises(UserError, match=r"no checkpoint in .* is intact"):
        Checkpoints(two_epochs, {"units": 7})


def test_a_kill_while_writing_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    model, checkpoints = small_model(), Checkpoints(tmp_path, {})
    checkpoints.save(model, {})
    expected = model.get_weights()
    take_step(model)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", die)
        checkpoints.save(model, {})

    again, continued = small_model(), Checkpoints(tmp_path, {})
    continued.restore(again)
    assert continued.progress.epoch == 1
    np.testing.assert_array_equal(again.get_weights()[0], expected[0])


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, full_disk):
    model, checkpoints = small_model(), Checkpoints(tmp_path, {})
    checkpoints.save(model, {})

    with full_disk(), pytest.raises(OSError):
        checkpoints.save(model, {})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["phase-0-epoch-1.weights.npz", "progress.json"]


def test_a_phase_that_dies_in_its_first_epoch_starts_again_as_it_did(tmp_path):
    model, checkpoints = dropping_model(), Checkpoints(tmp_path, {})
    checkpoints.restore(model)
    take_step(model)
    checkpoints.save(model, {})
    checkpoints.next_phase()
    checkpoints.restore(model)
    # The weights, and the state of the random generator.
    expected = numpy([*model.weights, *model.non_trainable_variables])
    take_step(model)

    again, continued = dropping_model(), Checkpoints(tmp_path, {})
    continued.restore(again)

    progress = continued.progress
    assert (progress.phase, progress.epoch) == (1, 0)
    assert progress.weights == "phase-1-epoch-0.weights.npz"
    assert len(expected) == 3
    actual = numpy([*again.weights, *again.non_trainable_variables])
    for ours, theirs in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_another_number_of_epochs_is_refused_with_the_way_to_train_further(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    Checkpoints(folder, {"fine_tuning_epochs": 2}).next_phase()

    with pytest.raises(UserError, match="was 2, and is now 3") as error:
        Checkpoints(folder, {"fine_tuning_epochs": 3})
    model = tmp_path / "run" / "model"
    assert f"further: --from-preset {str(model)!r} and an" in str(error.value)


DIGESTS = {"from_preset's vocabulary": "digest 1", "backbone_weights_file": "digest 2"}


@pytest.mark.parametrize("name", ["from_preset", "backbone_weights"])
def test_a_training_resumes_although_a_file_was_moved(tmp_path, name):
    Checkpoints(tmp_path, {name: "./first/model", **DIGESTS}).next_phase()
    Checkpoints(tmp_path, {name: "/elsewhere/model", **DIGESTS})
    with pytest.raises(UserError, match=f"{name} was 'model', and is now 'other'"):
        Checkpoints(tmp_path, {name: "first/other", **DIGESTS})


def test_a_size_limit_is_no_damage(tmp_path):
    Checkpoints(tmp_path, {"units": 16}).next_phase()
    with at_most(10), pytest.raises(UserError) as caught:
        Checkpoints(tmp_path, {"units": 16})
    assert str(caught.value).startswith(f"{tmp_path / 'progress.json'} has more than 1")


def test_a_training_resumes_although_options_were_added(tmp_path):
    Checkpoints(tmp_path, {"units": 16, "model": {"depth": 2}}).next_phase()

    config = {"units": 16, "width": 3, "model": {"depth": 2, "height": 5}}
    Checkpoints(tmp_path, config)
    with pytest.raises(UserError, match=r"model\.depth was 2, and is now 4"):
        Checkpoints(tmp_path, {**config, "model": {"depth": 4, "height": 5}})


FIVE = [{"bleu": 5.0, "chrf": 0.0}]


@pytest.mark.parametrize(
    "progress, scores, patience, epochs, expected",
    [
        (Progress(), [(1, 0), (3, 0), (2, 0), (2.5, 0), (9, 0)], 2, 4, [1, 2]),
        # Scores from before an interruption count.
        (Progress(epoch=1, history=FIVE), [(4, 0), (6, 0)], 1, 1, []),
        # A new phase must exceed the phase before, but has a patience of its own.
        (Progress(phase=1, history=FIVE), [(3, 0), (4, 0), (6, 0)], 1, 3, [3]),
        # Of equal scores, the latest counts.
        (Progress(), [(0, 0), (0, 0), (0, 0), (-1, 0)], 2, 4, [1, 2, 3]),
        # The second figure breaks ties.
        (Progress(), [(0, 3), (0, 9), (0, 5), (0, 6), (1, 1)], 2, 4, [1, 2]),
    ],
)
def test_training_stops_when_the_decoded_score_no_longer_improves(
    progress, scores, patience, epochs, expected
):
    model, names, validated, kept_epochs = small_model(), ("bleu", "chrf"), [], []

    def score():
        validated.append(scores[len(validated)])
        return dict(zip(names, validated[-1], strict=True))

    def keep():
        kept_epochs.append(len(validated))

    options = {"progress": progress, "patience": patience}
    validate = ValidateDecoded(score, itemgetter(*names), keep, int, **options)
    x, y = np.ones((5, 3)), np.ones((5, 2))
    fitted = model.fit(x, y, epochs=len(scores), callbacks=[validate], verbose=0)

    assert fitted.history["bleu"] == [bleu for bleu, _ in scores[:epochs]]
    assert kept_epochs == expected


def scaled(optimizer):
    """Wrap an optimizer as Keras does in float16."""
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)


@pytest.mark.parametrize("around", [lambda optimizer: optimizer, scaled])
def test_the_averaged_weights_are_kept_and_training_goes_on_with_its_own(around):
    model = small_model(around)
    start = model.get_weights()[0]
    seen = {}

    def keep():
        seen.update(kept=model.get_weights()[0])

    options = {"progress": Progress(), "patience": 1}
    rank = itemgetter("cider")
    validate = ValidateDecoded(lambda: {"cider": 1.0}, rank, keep, int, **options)
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.update(after=model.get_weights()[0])
    )
    # The target is so far away that both steps go towards it.
    x, y = np.ones((2, 3)), np.full((2, 2), 100.0)
    model.fit(x, y, batch_size=1, epochs=1, callbacks=[validate, note], verbose=0)

    # Two steps with momentum 0.5: the average lies between them.
    assert not np.allclose(seen["kept"], seen["after"])
    between = np.abs(seen["kept"] - start) < np.abs(seen["after"] - start)
    assert between.all()
