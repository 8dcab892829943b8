"""Configurations of models with random values: `config.json`, and LiteRT metadata.

The models are tiny, and have no digests, so that every value reaches its reader.
"""

import copy
import json

# Values that JSON can have, by their names in a report.
VALUES = {
    "null": None,
    "true": True,
    "-1": -1,
    "0": 0,
    "-0.0": -0.0,
    "1e-300": 1e-300,
    "0.5": 0.5,
    "1e308": 1e308,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "10**9": 10**9,
    "2**31": 2**31,
    "2**63": 2**63,
    "-2**63": -(2**63),
    "10**400": 10**400,
    "no text": "",
    "text": "nothing",
    "long text": "x" * 1_000_000,
    "control characters": "a\x1b[31m\x00\nb\u202e",
    "a surrogate": "\ud800",
    "a path": "../../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "an address": "https://example.com/model",
    "a format": "{0.__class__} %s %n ${HOME}",
    "a list": [],
    "a list of lists": [[]],
    "numbers": [1, 2, 3],
    "texts": ["a", "b"],
    "many numbers": [0] * 200_000,
    "many names": [f"model-{n}" for n in range(50)],
    "an object": {},
    "an object of nulls": {"a": None},
    "a nested list": None,
    "the same object": None,
}
# Depths at which a reader may fail that another one still reads.
DEPTHS = 50, 900, 990, 3_000, 100_000


CAPTIONER = "captioner"
TRANSLATORS = "bahdanau", "luong", "self-attention"
CALIBRATION = {
    "data": "texts",
    "count": 3,
    "levels": [0.01, 0.5],
    "quantiles": [-2.0, -1.0],
    "out_of_domain": "others",
    "auc": 0.8,
    "threshold": -1.5,
}
CONFIDENCE = {
    "data": ["texts"],
    "count": 3,
    "bias": 0.5,
    "weights": {"mean_log_probability": 1.0},
    "threshold": 0.5,
    "auc": 0.8,
    "doubtful_below": 0.1,
    "out_of_domain": "others",
    "domain_bias": 0.5,
    "domain_weights": {"mean_log_probability": 1.0},
}


def save_models(folder):
    """Write a tiny model of each kind, and an ensemble, to a folder."""
    import keras

    from keras_attention_apps.captioner.config import ModelConfig
    from keras_attention_apps.captioner.inference import Captioner
    from keras_attention_apps.captioner.network.networks import ShowAttendTell
    from keras_attention_apps.captioner.vocabulary import Vocabulary
    from keras_attention_apps.nmt.config import ModelConfig as TranslatorConfig
    from keras_attention_apps.nmt.inference import Translator
    from keras_attention_apps.nmt.subwords import Subwords

    keras.utils.set_random_seed(1)
    sizes = ("region_units", "embedding_units", "units", "attention_units")
    config = ModelConfig(
        backbone="SmallCNN", image_size=16, max_length=7, **dict.fromkeys(sizes, 8)
    )
    vocabulary = Vocabulary(["a", "dog", "runs"])
    for name in (CAPTIONER, "ensemble/a", "ensemble/b"):
        network = ShowAttendTell(config, len(vocabulary))
        network.build()
        Captioner(config, vocabulary, network).save(folder / name)
    _write(folder / "ensemble", {"ensemble": ["a", "b"], "purpose": "tests"})
    subwords = Subwords.train(["A dog runs .", "Ein Hund rennt ."] * 9, 300)
    for attention in TRANSLATORS:
        sizes = ("embedding_units", "units", "attention_units")
        config = TranslatorConfig(
            attention=attention,
            encoder_units=0 if attention == "self-attention" else 8,
            encoder_layers=1,
            decoder_layers=1,
            heads=2,
            dropout=0.1,
            max_length=9,
            length_ratio=1.5,
            **dict.fromkeys(sizes, 8),
        )
        network = Translator.build_network(config, len(subwords))
        network.build((None, None))
        Translator(config, subwords, network).save(folder / attention)
    for path in folder.glob("*/config.json"):
        content = json.loads(path.read_text())
        content.pop("digest", None)
        more = {"calibration": CALIBRATION, "confidence": CONFIDENCE, "purpose": "x"}
        more["training"] = {"pair": "en-de", "data": ["texts"], "epochs": 3}
        _write(path.parent, content | more)


def _write(folder, content):
    (folder / "config.json").write_text(json.dumps(content))


def mutated(random, content):
    """Return a description and the text of a configuration with random values.

    One value is replaced, removed or has another name, or several are replaced.
    """
    content = copy.deepcopy(content)
    how = []
    for _ in range(int(random.choice([1, 1, 1, 2, 5]))):
        entries = list(_places(content))
        path, parent, key = entries[random.integers(len(entries))]
        kind = random.random()
        if kind < 0.1:
            del parent[key]
            how.append(f"without {path}")
        elif kind < 0.2 and isinstance(parent, dict):
            name = str(
                random.choice(["", "x", "__class__", "digest", "\ud800", key * 2])
            )
            parent[name] = parent.pop(key)
            how.append(f"{path} as {name!r}")
        else:
            name = str(random.choice(list(VALUES)))
            value = copy.deepcopy(VALUES[name])
            if name == "a nested list":
                depth = int(random.choice(DEPTHS))
                value, name = _Raw("[" * depth + "]" * depth), f"a list {depth} deep"
            elif name == "the same object":
                value = copy.deepcopy(content)
            parent[key] = value
            how.append(f"{path} is {name}")
    return ", ".join(how), _text(content)


def _places(value, path=""):
    """Yield the path, the container and the key of every value in JSON."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(min(len(value), 9))
        for key in keys:
            inner = f"{path}.{key}"[:60]
            yield inner, value, key
            yield from _places(value[key], inner)


class _Raw(str):
    """A text that is JSON already; `json` cannot write a list that is so deep."""


def _text(content):
    raw = []

    def marked(value):
        if isinstance(value, _Raw):
            raw.append(value)
            return f"raw {len(raw) - 1}"
        if isinstance(value, dict):
            return {key: marked(x) for key, x in value.items()}
        return list(map(marked, value)) if isinstance(value, list) else value

    text = json.dumps(marked(content))
    for number, value in enumerate(raw):
        text = text.replace(f'"raw {number}"', value)
    return text
