"""The REST requests of the page on serving, answered by a stand-in for the server."""

import base64
import io
import json
import urllib.request

from attention_testing.repository import blocks, read


def documented_functions(monkeypatch, answer):
    """Return the functions of the page, whose requests `answer` gets.

    Requests are decoded as TensorFlow Serving decodes them: rows become one list for
    each input, and `{"b64": ...}` becomes bytes.

    Args:
        monkeypatch: The fixture of pytest.
        answer: Function of the address and a dict from inputs of the signature to lists
            that returns a dict from outputs to lists.
    """
    names = {}
    exec(next(x for x in blocks(read("docs/serving.md")) if "instances" in x), names)

    def urlopen(request):
        rows = json.loads(request.data)["instances"]
        inputs = {name: [_decoded(row[name]) for row in rows] for name in rows[0]}
        outputs = answer(request.full_url, inputs)
        predictions = [
            dict(zip(outputs, row, strict=True))
            for row in zip(*outputs.values(), strict=True)
        ]
        return io.BytesIO(json.dumps({"predictions": predictions}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return names


def _decoded(value):
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value
