"""Output files that a run can resume: which lines it keeps, and which it refuses."""

import pytest
from keras_attention_apps.captioner.commands.records import Records
from keras_attention_apps.common.cli import UserError

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
