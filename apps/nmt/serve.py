"""`nmt serve`: translations over HTTP, with the interface of LibreTranslate."""

import dataclasses
import functools
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

# HTML needs it.
import lxml.html  # noqa: F401
import pydantic
from fastapi import Request
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.models import (
    CONFIG,
    member_folders,
    name_of,
    read_sealed,
)
from keras_attention_apps.common.web import rest
from keras_attention_apps.common.web.guard import Refusal, received
from keras_attention_apps.nmt.config import PRESETS
from keras_attention_apps.nmt.markup import fitting_parts, translate_html
from keras_attention_apps.nmt.text import split_sentences
from keras_attention_apps.nmt.translations import RUNTIMES, joined_best
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from pydantic import Discriminator, Field, StringConstraints, Tag
from starlette.responses import JSONResponse

AUTO = "auto"
# Characters by which the language of a text is detected.
DETECTED = 2000
TAG = re.compile("<[^<>]*>")
# Texts of a request in HTML that are translated at the same time.
HTML_AT_ONCE = 4

NAMES = dict(
    re.findall(
        r"(\w+) (\w+)",
        """
        ar Arabic bg Bulgarian bn Bengali ca Catalan cs Czech da Danish de German
        el Greek en English eo Esperanto es Spanish et Estonian eu Basque fa Persian
        fi Finnish fr French ga Irish gl Galician he Hebrew hi Hindi hr Croatian
        hu Hungarian id Indonesian is Icelandic it Italian ja Japanese ko Korean
        lt Lithuanian lv Latvian ms Malay nl Dutch no Norwegian pl Polish
        pt Portuguese ro Romanian ru Russian sk Slovak sl Slovenian sq Albanian
        sr Serbian sv Swedish sw Swahili th Thai tl Tagalog tr Turkish uk Ukrainian
        ur Urdu vi Vietnamese zh Chinese
        """,
    )
)


def serve(config):
    """Serve translations as a `ServeConfig` describes it."""
    rest.serve("nmt", config.server, functools.partial(add_routes, config))


def add_routes(config, service):
    """Load the models, and add the routes of LibreTranslate to a `rest.Service`."""
    names, pairs = config.model.names, config.model.pair
    if pairs and len(pairs) != len(names):
        raise UserError(
            "expected one --pair for each --model, or none. Received: "
            f"{len(pairs)} for {len(names)}"
        )
    translators = {}
    for name, pair in zip(names, pairs or map(pair_of, names), strict=True):
        match = re.fullmatch("([A-Za-z]{2,8})-([A-Za-z]{2,8})", pair or "")
        if not match:
            raise UserError(
                f"expected the language pair of {name!r}, such as --pair en-de. "
                f"Received: {pair or 'none, and its configuration has none'}"
            )
        if match.groups() in translators:
            raise UserError(f"expected one model for each language pair: {pair}")
        translators[match.groups()] = Translator(name, config, service)
    Routes(translators, config, service)


def pair_of(model):
    """Return the language pair of the training of a model, or `None`."""
    if is_litert(model):
        return None
    first, *_ = member_folders(model, presets=PRESETS, noun="translator")
    training = read_sealed(first / CONFIG).get("training")
    pair = training.get("pair") if isinstance(training, dict) else None
    return pair if isinstance(pair, str) else None


class Translator:
    """A model whose sentences are translated in batches, whoever sent them.

    `markup.translate_html` can use it like a model.
    """

    def __init__(self, name, config, service):
        self._model = RUNTIMES.load_for(config, name)
        search = self._model.search_options(**config.search.given)
        self.beam_size = search["beam_size"]
        self.tokenizer = self._model.tokenizer
        self.max_length = self._model.max_length
        self._options = {"split": False, "batch_size": config.batch_size}
        self._options |= config.search.given
        observe = service.batch_sizes.labels(name_of(name)).observe
        self._batches = rest.Batches(self._call, config.batch_size, observe)

    def _call(self, inputs):
        sentences, numbers = zip(*inputs, strict=True)
        return self._model.translate_each(
            sentences, n_best=max(numbers), **self._options
        )

    def translate(self, sentences, *, split):
        """Return the best `Translation` of each sentence."""
        found = self._batches([(sentence, 1) for sentence in sentences])
        return [translations[0] for translations in found]

    def texts(self, texts, n_best):
        """Return the best translations of each text as strings, best first.

        Line breaks stay where they are. A part of a sentence that is too long for the
        model, such as a word of a thousand letters, is not translated.
        """
        divided = [
            [
                [
                    part
                    for sentence in split_sentences(line)
                    for part in fitting_parts(sentence, self)
                ]
                for line in text.split("\n")
            ]
            for text in texts
        ]
        parts = [part for lines in divided for line in lines for part in line]
        parts = list(dict.fromkeys(parts))
        ranked = self._batches([(part, n_best) for part in parts])
        found = {
            part: [dataclasses.replace(x, text=part) if x.cut else x for x in best]
            for part, best in zip(parts, ranked, strict=True)
        }
        return [self._joined(lines, found, n_best) for lines in divided]

    def _joined(self, lines, found, n_best):
        """Return the best translations of lines from those of their parts."""
        ranked = [joined_best([found[x] for x in line], n_best) for line in lines]
        # A line with fewer translations repeats its last one.
        places = range(max(map(len, ranked)))
        texts = ("\n".join(x[min(i, len(x) - 1)].text for x in ranked) for i in places)
        return list(dict.fromkeys(texts))

    def html(self, texts, language):
        """Return the translation of each text in HTML."""
        with ThreadPoolExecutor(HTML_AT_ONCE) as pool:
            translate = functools.partial(translate_html, self, language=language)
            return list(pool.map(translate, texts))


class Detector:
    """Detects the language of a text among some languages, with py3langid.

    Its model is loaded in the background, which takes a second. Without a hint, the
    first languages come first.
    """

    def __init__(self, languages):
        self._languages = languages
        self._loaded = ThreadPoolExecutor(1).submit(self._load)

    def _load(self):
        found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        known = set(self._languages).intersection(found.labels)
        if known:
            found.set_languages(known)
        return found if known else None

    def __call__(self, text):
        """Return the languages of a text, most probable first, as LibreTranslate."""
        identifier = self._loaded.result()
        ranked = identifier.rank(text[:DETECTED]) if identifier else ()
        shares = {**dict.fromkeys(self._languages, 0.0), **dict(ranked)}
        best = sorted(self._languages, key=lambda x: -round(shares[x], 3))
        return [{"confidence": round(100 * shares[x], 1), "language": x} for x in best]


class Detected(pydantic.BaseModel):
    """A language, and its probability in percent."""

    confidence: float
    language: str


class Language(pydantic.BaseModel):
    """A language, and those into which it can be translated."""

    code: str
    name: str
    targets: list[str]


class Translated(pydantic.BaseModel):
    """The answer to a text, or to a list of texts: then, each value is a list."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


def bodies(config, beam_size):
    """Return the pydantic models of the bodies of `/translate` and `/detect`."""
    text = Annotated[str, StringConstraints(max_length=config.max_characters)]
    several = Annotated[list[text], Field(min_length=1, max_length=config.max_texts)]

    def kind(value):
        return "list" if isinstance(value, list) else "text"

    class Detect(pydantic.BaseModel):
        q: text
        api_key: str = ""

    class Translate(pydantic.BaseModel):
        q: Annotated[
            Annotated[text, Tag("text")] | Annotated[several, Tag("list")],
            Discriminator(kind),
        ]
        source: str
        target: str
        format: Literal["text", "html"] = "text"
        alternatives: Annotated[int, Field(ge=0, lt=beam_size)] = 0
        api_key: str = ""

    return Translate, Detect


class Routes:
    """The routes of LibreTranslate, with a `Translator` for each language pair."""

    def __init__(self, translators, config, service):
        self._translators, self._service = translators, service
        sources, targets = zip(*translators, strict=True)
        self._codes = list(dict.fromkeys([*sources, *targets]))
        self._detect = Detector(self._codes)
        beam_size = min(x.beam_size for x in translators.values())
        translate, detect = bodies(config, beam_size)
        self._translate_body, self._detect_body = translate, detect
        kinds = ("application/json", *rest.FORMS)
        for path, function, answer, body in (
            ("/translate", self.translate, Translated, translate),
            ("/detect", self.detect, list[Detected], detect),
        ):
            service.route(
                "POST", path, function, answer, **rest.described(body, *kinds)
            )
        service.route("GET", "/languages", self.languages, list[Language])

    async def translate(self, request: Request):
        """Translate a text, or a list of texts."""
        body = await self._service.values(request, self._translate_body)
        return JSONResponse(await self._service.in_thread(self._translated, body))

    async def detect(self, request: Request):
        """Detect the language of a text among those of the server."""
        body = await self._service.values(request, self._detect_body)
        return JSONResponse(await self._service.in_thread(self._detect, body.q))

    def languages(self):
        """List the languages, and those into which each can be translated."""
        return [
            Language(
                code=code,
                name=NAMES.get(code, code),
                targets=[x for x in self._codes if self._has(code, x)],
            )
            for code in self._codes
        ]

    def _has(self, source, target):
        return source == target or (source, target) in self._translators

    def _translated(self, body):
        """Return the answer to a request, a dict."""
        is_list = isinstance(body.q, list)
        texts = body.q if is_list else [body.q]
        is_html = body.format == "html"
        for name, code in (("source", body.source), ("target", body.target)):
            known = [*self._codes, *[AUTO] * (name == "source")]
            if code not in known:
                raise Refusal(
                    400,
                    f"{name}: expected one of {', '.join(known)}. Received: "
                    f"{received(code)}",
                )
        sources, detected = [body.source] * len(texts), None
        if body.source == AUTO:
            plain = (TAG.sub(" ", x) if is_html else x for x in texts)
            detected = [self._detect(x)[0] for x in plain]
            sources = [one["language"] for one in detected]
        found: list[list[str]] = [[]] * len(texts)
        for source in dict.fromkeys(sources):
            own = [i for i, x in enumerate(sources) if x == source]
            n_best = 1 + body.alternatives
            translated = self._one_pair(
                (source, body.target), [texts[i] for i in own], is_html, n_best
            )
            for i, ranked in zip(own, translated, strict=True):
                found[i] = ranked
        answer: dict[str, list] = {"translatedText": [ranked[0] for ranked in found]}
        if body.alternatives:
            answer["alternatives"] = [x[1 : 1 + body.alternatives] for x in found]
        if detected:
            answer["detectedLanguage"] = detected
        return answer if is_list else {name: x[0] for name, x in answer.items()}

    def _one_pair(self, pair, texts, is_html, n_best):
        """Return the best translations of each text, best first."""
        source, target = pair
        if source == target:
            return [[text] for text in texts]
        translator = self._translators.get(pair)
        if translator is None:
            raise Refusal(400, f"there is no model from {source} to {target}")
        if is_html:
            return [[text] for text in translator.html(texts, target)]
        # Different hypotheses may have the same text.
        return translator.texts(texts, translator.beam_size if n_best > 1 else 1)
