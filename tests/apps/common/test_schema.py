"""The names of captions and translations, and the types of the page from them."""

import dataclasses
import json

import numpy as np
import pytest

from attention_testing.repository import ROOT
from keras_attention_apps.captioner.bulk import CaptionBatch
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.config import CaptionConfig
from keras_attention_apps.common.schema import RUN_OPTIONS, json_types, typescript
from keras_attention_apps.nmt.bulk import TranslateBatch
from keras_attention_apps.nmt.config import TranslateConfig
from keras_attention_apps.nmt.translations import Translation

CAPTION = Caption("a dog", ["a", "dog"], -1.25, -2.5, -0.83333, [0.5, 0.25], np.eye(2))
TRANSLATION = Translation(
    *("ein Hund", ["a", "dog"], ["ein", "Hund"], -1.25, -2.5),
    np.eye(2),
    np.zeros(2),
    subwords=["ein", "Hund", "</s>"],
    probabilities=[0.5, 0.25, 1.0],
)
OUTPUTS = pytest.mark.parametrize("output", [CAPTION, TRANSLATION])


def test_the_page_has_the_types_of_python():
    # python -m keras_attention_apps.common.schema >apps/browser/src/library/schema.ts
    written = (ROOT / "apps/browser/src/library/schema.ts").read_text("utf-8")

    assert written == typescript()


@OUTPUTS
def test_every_field_is_an_attribute_and_has_its_type_in_json(output):
    kinds = {str: str, float: float, bool: bool}
    for field in output.schema:
        assert hasattr(output, field.name), field
    marks = {"confidence": 0.25, "unsure": True, "reason": "a word is improbable"}
    entries = dataclasses.replace(output, **marks).details()
    assert [*entries] == [field.key for field in output.schema if field.key]
    types = json_types(output.schema)
    for key, value in entries.items():
        kind = kinds.get(types[key], list)
        assert type(value) is kind, (key, value)


@OUTPUTS
def test_the_text_has_the_key_of_the_noun(output):
    assert output.details()[output.noun] == output.text
    assert "unsure" not in output.details()
    assert [*output.details(["words", output.noun])] == [output.noun, "words"]


@OUTPUTS
def test_numbers_in_json_have_four_decimals(output):
    entries = json.loads(json.dumps(output.details()))

    assert entries["mean_log_probability"] == -0.8333
    assert entries["attention"] == [[1, 0], [0, 1]]


@pytest.mark.parametrize("batch", [CaptionBatch, TranslateBatch])
def test_columns_of_tables_have_the_names_of_json(batch):
    types = json_types(batch.output.schema)

    assert batch.columns_of(True) == {
        **{name: types[name] for name in (*batch.fields, *batch.map_fields)},
        "error": str,
    }
    assert not {*batch.map_fields} & {*batch.columns_of(False)}


@pytest.mark.parametrize("config", [CaptionConfig, TranslateConfig])
def test_options_of_a_call_are_those_of_the_command_line(config):
    names = {field.name for field in dataclasses.fields(config)}

    assert {option.name for option in RUN_OPTIONS} <= names
