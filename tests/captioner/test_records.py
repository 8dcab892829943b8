"""Output files that a run can resume: which lines it keeps, and which it refuses."""

import pytest
from keras_attention_apps.captioner.commands.records import Records
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.errors import UserError

from .conftest import lines_of

DETAILS = {"caption": "a dog", "score": -0.5, "words": ["a", "dog"]}


def written(path, *described, **options):
    """Write a line for each dict, and return the lines of the file."""
    with Records(path, "model", **options) as records:
        for number, one in enumerate(described):
            records.add(f"{number}.jpg", one)
    return lines_of(path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DETAILS, {"captions": [DETAILS]}),
        ({"captions": [DETAILS]}, DETAILS),
        ({"caption": "a dog"}, {"captions": [{"caption": "a dog"}]}),
    ],
)
def test_an_output_has_one_caption_or_several_in_each_line(tmp_path, first, second):
    lines = written(tmp_path / "captions.jsonl", first)

    with pytest.raises(UserError, match=r"captions.jsonl was written with other opti"):
        written(tmp_path / "captions.jsonl", {"error": "damaged"}, second)
    assert lines_of(tmp_path / "captions.jsonl")[:1] == lines


@pytest.mark.parametrize(
    "rest",
    [
        '"captions": 5',
        '"captions": ["x"]',
        '"caption": null, "mean_log_probability": "abc"',
        '"caption": "a dog", "mean_log_probability": []',
    ],
)
def test_a_line_of_another_program_is_an_error_of_one_line(tmp_path, rest):
    path = tmp_path / "captions.jsonl"
    path.write_text(f'{{"image": "a.jpg", "model": "model", {rest}}}\n')

    message = r"captions.jsonl, line 1: expected .* Received: b'\{\"image\": \"a.jpg"
    with pytest.raises(UserError, match=message):
        written(path)


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/7"])
def test_an_image_of_an_open_file_is_never_counted_as_captioned(tmp_path, name):
    path = tmp_path / "captions.jsonl"
    for count in (1, 2):
        with Records(path, "model") as records:
            assert name not in records
            records.add(name, {"caption": "a dog"})
            assert name not in records and "./-" not in records
        assert [line["image"] for line in lines_of(path)] == [name] * count


def test_an_output_belongs_to_one_process(tmp_path):
    path = tmp_path / "captions.jsonl"
    with Records(path, "model") as records:
        records.add("a.jpg", {"error": "damaged"})
        with pytest.raises(UserError, match=r"no other process .*captions.jsonl'"):
            written(path, {"caption": "a dog"})
    [line] = written(path, {"caption": "a dog"})
    assert line["caption"] == "a dog"

    path.write_text("My notes\n")
    for _ in range(2):
        with pytest.raises(UserError, match="JSON object"):
            written(path)
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_has_captions_of_one_search(tmp_path):
    path = tmp_path / "captions.jsonl"
    [line] = written(path, {"caption": "a dog"}, options="--beam-size 3")
    assert line == {
        "image": "0.jpg",
        "model": "model",
        "options": "--beam-size 3",
        "caption": "a dog",
    }

    with pytest.raises(UserError) as caught:
        written(path, options="")
    assert str(caught.value) == (
        f"{path}, line 1: expected captions with the default options. Received: those "
        "with --beam-size 3. Choose another output"
    )
    assert written(path, options="--beam-size 3") == [line]


@pytest.fixture
def captioning(cached_models, photographs, model_folder, tmp_path):
    """The arguments that caption one photograph, and the path of their output."""
    output = tmp_path / "captions.jsonl"
    command = ["caption", str(photographs / "red-0.png"), "--model", str(model_folder)]
    return [*command, "--output", str(output)], output


def test_a_resumed_run_must_have_the_same_options(captioning, capsys):
    command, output = captioning
    assert main(command) == 0
    [line] = lines_of(output)
    assert line["options"] == ""
    # These are the defaults.
    assert main([*command, "--length-penalty", "0.7", "--precision", "float32"]) == 0
    capsys.readouterr()

    for name, value in (("beam-size", 3), ("n-best", 2), ("image-size", 24)):
        assert main([*command, f"--{name}", str(value)]) == 2
        expected = f"expected captions with --{name} {value}. Received: those with the "
        assert f"{expected}default options" in capsys.readouterr().err
    assert lines_of(output) == [line]


@pytest.mark.parametrize("left_out", [{"caption": None}, {"captions": []}])
def test_an_image_without_a_caption_is_tried_again_if_it_would_have_one(
    tmp_path, left_out
):
    path = tmp_path / "captions.jsonl"
    lines = written(
        path,
        {**left_out, "mean_log_probability": -1.5},
        {**left_out, "mean_log_probability": -0.9},
        # Earlier versions did not write it.
        left_out,
        {"error": "damaged"},
        {"caption": "a dog", "mean_log_probability": -0.5},
        min_score=-0.5,
    )
    assert len(lines) == 5

    with Records(path, "model", min_score=-1.0) as records:
        finished = [f"{number}.jpg" in records for number in range(5)]
    assert finished == [True, False, False, False, True]
    assert lines_of(path) == [lines[0], lines[4]]
    assert written(path) == [lines[4]]


def scored(mean, **details):
    return {"caption": "a dog", "mean_log_probability": mean, **details}


def test_a_higher_threshold_removes_captions_with_lower_scores(tmp_path):
    path = tmp_path / "captions.jsonl"
    # Earlier versions did not write the score.
    low, high, unknown = written(path, scored(-0.7), scored(-0.5), {"caption": "a cat"})
    assert written(path) == [low, high, unknown]

    with Records(path, "model", min_score=-0.5) as records:
        assert all(f"{number}.jpg" in records for number in range(3))
    removed = {**low, "caption": None}
    assert lines_of(path) == [removed, high, unknown]

    # A lower threshold tries this image alone again.
    with Records(path, "model", min_score=-0.6) as records:
        assert "0.jpg" in records
    with Records(path, "model", min_score=-0.7) as records:
        assert "0.jpg" not in records
    assert lines_of(path) == [high, unknown]


def test_a_removed_caption_leaves_no_details(tmp_path):
    path = tmp_path / "captions.jsonl"
    [line] = written(path, scored(-0.7, words=["a", "dog"], attention=[[0.5], [0.5]]))

    own = {name: line[name] for name in ("image", "model", "options")}
    expected = {**own, "caption": None, "mean_log_probability": -0.7}
    assert written(path, min_score=-0.08) == [expected]


def test_a_higher_threshold_removes_some_of_several_captions(tmp_path):
    path = tmp_path / "captions.jsonl"
    several = [scored(-0.5, score=-0.3), scored(-0.7, score=-0.4)]
    unknown = {"caption": "a cat", "score": -0.9}
    lines = written(
        path, {"captions": several}, {"captions": several[1:]}, {"captions": [unknown]}
    )

    assert written(path, min_score=-0.7) == lines
    first = {**lines[0], "captions": several[:1]}
    second = {**lines[1], "captions": [], "mean_log_probability": -0.7}
    assert written(path, min_score=-0.6) == [first, second, lines[2]]
    first = {**first, "captions": [], "mean_log_probability": -0.5}
    assert written(path, min_score=-0.1) == [first, second, lines[2]]
    assert written(path, min_score=-0.5) == [second, lines[2]]


def test_a_higher_threshold_removes_captions_from_an_output(captioning):
    command, output = captioning
    assert main(command) == 0
    [before] = lines_of(output)
    score = before["mean_log_probability"]
    # The score of the line itself is not below it.
    assert main([*command, "--min-score", str(score)]) == 0
    assert lines_of(output) == [before]

    assert main([*command, "--min-score", str(score + 0.0001)]) == 0
    [after] = lines_of(output)
    assert after == {**before, "caption": None}


def test_a_lower_threshold_adds_captions_to_an_output(captioning):
    command, output = captioning
    command = [*command, "--min-score"]
    assert main([*command, "-0.0001"]) == 0
    [before] = lines_of(output)
    assert before["caption"] is None and before["mean_log_probability"] < -0.0001

    assert main([*command, "-0.001"]) == 0
    assert lines_of(output) == [before]
    assert main([*command, "-100"]) == 0
    [after] = lines_of(output)
    assert after["image"] == before["image"] and after["caption"] is not None
