"""Captioners of every kind in the library of apps/browser, beside Python."""

import base64

import numpy as np
import pytest

from attention_testing.arrays import assert_close
from keras_attention_apps.captioner import LiteCaptioner
from keras_attention_apps.captioner.commands.export import save_lite_captioner

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.browser


def test_captions_are_those_of_python(hard_captioner, library, squares, tmp_path):
    path = tmp_path / "tiny.tflite"
    search = hard_captioner.search_options(beam_size=4)
    save_lite_captioner(hard_captioner, path, search=search, quantize="none")
    image = min((squares / "Images").iterdir())
    ((_, expected),) = LiteCaptioner(path).caption_each([image], n_best=3)

    actual = library(
        """async ([model, image]) => {
            const bytes = (text) => Uint8Array.from(atob(text), x => x.charCodeAt(0));
            const captioner = await library.load(bytes(model));
            const found = await captioner.caption(new Blob([bytes(image)]), {nBest: 3});
            await captioner.close();
            return found;
        }""",
        [base64.b64encode(file.read_bytes()).decode() for file in (path, image)],
    )

    for entry, caption in zip(actual, expected, strict=True):
        assert entry["text"] == caption.text
        assert entry["words"] == caption.words
        assert entry["score"] == pytest.approx(caption.score, abs=1e-3)
        assert_close(np.array(entry["weights"]), caption.weights, 1e-3)
        assert_close(np.array(entry["probabilities"]), caption.probabilities, 1e-3)
