"""`nmt serve`: translations over HTTP, with the interface of LibreTranslate."""

import copy
import dataclasses
import functools
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import pydantic
from fastapi import Request
from py3langid.langid import MODEL_FILE, LanguageIdentifier
from pydantic import Discriminator, Field, StringConstraints, Tag
from starlette.responses import JSONResponse

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.litert import read_model_file
from keras_attention_apps.common.models import (
    CONFIG,
    member_folders,
    name_of,
    read_sealed,
)
from keras_attention_apps.common.web import rest
from keras_attention_apps.common.web.fairness import Batches, Quota, current_job
from keras_attention_apps.common.web.guard import Refusal, received
from keras_attention_apps.nmt.config import PRESETS
from keras_attention_apps.nmt.languages import TWO_LETTERS, code_of, language_name
from keras_attention_apps.nmt.markup import fitting_parts, translate_file
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.translations import Translation, joined_best, languages_of

AUTO = "auto"
# Characters by which the language of a text is detected.
DETECTED = 2000
TAG = re.compile("<[^<>]*>")
# A text is in none of some languages if these are together less probable than this
# share of chance, and in another one than it should be if that is more probable than
# `CERTAIN`. Short words are too much like those of other languages to tell.
FOREIGN, CERTAIN = 0.5, 0.8
# Texts of a request in HTML that are translated at the same time.
HTML_AT_ONCE = 4


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
    translators, known = {}, []
    for name, pair in zip(names, pairs or map(pair_of, names), strict=True):
        match = re.fullmatch("([A-Za-z]{2,8})-([A-Za-z]{2,8})", pair or "")
        if not match:
            raise UserError(
                f"expected the language pair of {name!r}, such as --pair en-de. "
                f"Received: {pair or 'none, and its configuration has none'}"
            )
        translator = Translator(name, config, service)
        known += translator.languages
        source, target = match.groups()
        for languages, served in by_pair(translator, source, target, config).items():
            if languages in translators:
                pair = "-".join(languages)
                raise UserError(f"expected one model for each language pair: {pair}")
            translators[languages] = served
    check_target_languages(config.target_languages, list(dict.fromkeys(known)))
    Routes(translators, config, service)


def by_pair(translator, source, target, config):
    """Return a dict from the language pairs of a model to its `Translator` for each.

    A multilingual model has a pair for each of its target languages, or for each of
    those that the `config` names.
    """
    if not translator.languages:
        return {(source, target): translator}
    translators = {}
    for language in translator.languages:
        pair = source, code_of(language)
        is_offered = not config.target_languages or language in config.target_languages
        # Of two tokens for one language, the first counts.
        if is_offered and pair not in translators and len(set(pair)) == 2:
            translators[pair] = translator.into(language)
    return translators


def check_target_languages(languages, known):
    """Raise a `UserError` for a `--target-language` that no model knows."""
    for language in languages:
        if not known:
            raise UserError(
                "--target-language needs an imported multilingual model, whose "
                f"vocabulary has tokens such as >>deu<<. Received: {language!r:.60}"
            )
        if language not in known:
            raise UserError(
                f"--target-language must be one of {', '.join(known)}. "
                f"Received: {language!r:.60}"
            )


def pair_of(model):
    """Return the language pair of the training of a model, or `None`."""
    if is_litert(model):
        metadata, _ = read_model_file(model, "translator")
        languages = languages_of(metadata.get("pair") or metadata.get("name"))
        return "-".join(filter(None, languages)) or None
    first, *_ = member_folders(model, presets=PRESETS, noun="translator")
    content = read_sealed(first / CONFIG)
    training = content.get("training")
    pair = training.get("pair") if isinstance(training, dict) else content.get("pair")
    return pair if isinstance(pair, str) else None


class Translator:
    """A model whose sentences are translated in batches, whoever sent them.

    `markup.translate_file` can use it like a model. A multilingual model has
    `languages`, its target languages as its vocabulary spells them.
    """

    def __init__(self, name, config, service):
        self._model = RUNTIMES.load_for(config, name)
        search = self._model.search_options(**config.search.given)
        self.beam_size = search["beam_size"]
        self.token_count = self._model.token_count
        self.max_length = self._model.max_length
        self.languages = list(self._model.tokenizer.languages)
        self._language = None
        self._options = {"split": False, "batch_size": config.batch_size}
        self._options |= config.search.given
        observe = service.batch_sizes.labels(name_of(name)).observe
        self._batches = Batches(self._call, config.batch_size, observe, _cost)

    def into(self, language):
        """Return a translator into one of the `languages`, which has the same batches.

        A line that begins with the token of another one is translated into that.
        """
        translator = copy.copy(self)
        translator._language = language
        return translator

    def _call(self, inputs):
        requests, numbers = zip(*inputs, strict=True)
        sentences = [self._model.with_target_language(x, y) for x, y in requests]
        return self._model.translate_each(
            sentences, n_best=max(numbers), **self._options
        )

    def translate(self, sentences, *, split):
        """Return the best `Translation` of each sentence."""
        ranked = self._batches([((x, self._language), 1) for x in sentences])
        return [translations[0] for translations in ranked]

    def texts(self, texts, n_best):
        """Return the `Result` of each text.

        Line breaks stay where they are. A part of a sentence that is too long for the
        model, such as a word of a thousand letters, is not translated.
        """
        job, divided = current_job(), []
        for text in texts:
            # Other clients have their turns between two texts.
            with job.pause():
                pass
            divided.append(self._divided(text))
        parts = [
            part
            for lines in divided
            for _, sentences in lines
            for sentence in sentences
            for part in sentence
        ]
        parts = list(dict.fromkeys(parts))
        ranked = self._batches([(part, n_best) for part in parts])
        translations = {
            part: [dataclasses.replace(x, text=part[0]) if x.cut else x for x in best]
            for part, best in zip(parts, ranked, strict=True)
        }
        return [self._joined(lines, translations, n_best) for lines in divided]

    def _divided(self, text):
        """Return the layout of each line, and the parts of its sentences.

        They are pairs of a text and its target language.
        """
        current_job().check()
        divided = []
        for line in text.split("\n"):
            language, line = self._model.target_language_of(line, self._language)
            layout = self._model.layout(line)
            sentences = [
                [(x, language) for x in self._fitting(part)] for part in layout.parts
            ]
            divided.append((layout, sentences))
        return divided

    def _fitting(self, part):
        """Return parts of a sentence that are not too long for the model."""
        if self._model.part_length(part) <= self.max_length:
            return [part.original]
        return fitting_parts(part.original, self)

    def _joined(self, lines, translations, n_best):
        """Return the best translations of lines from those of their parts."""
        ranked = []
        for layout, sentences in lines:
            parts = (
                joined_best([translations[x] for x in sentence], n_best)
                for sentence in sentences
            )
            ranked.append(joined_best(parts, n_best, layout))
        # A line with fewer translations repeats its last one.
        ranks = range(max(map(len, ranked)))
        texts = ("\n".join(x[min(i, len(x) - 1)].text for x in ranked) for i in ranks)
        best = Translation.joined([line[0] for line in ranked])
        # Different hypotheses may have the same text.
        return Result(
            list(dict.fromkeys(texts)), best.confidence, best.unsure, best.reason
        )

    def html(self, texts, language):
        """Return the `Result` of each text in HTML."""
        job = current_job()

        def translate(text):
            file = translate_file(self, text, "html", language=language)
            if not (self._model.confidence or self._model.calibration or file.doubts):
                return Result([file.text])
            reasons = dict.fromkeys(doubt.reason for doubt in file.doubts)
            reason = "; ".join(reasons) or None
            return Result([file.text], None, bool(file.doubts), reason)

        with job.pause(), ThreadPoolExecutor(HTML_AT_ONCE) as pool:
            return list(pool.map(functools.partial(job.run, translate), texts))


@dataclasses.dataclass(frozen=True)
class Result:
    """The best translations of a text, and what the model says of the first one.

    See `Translation` for the attributes.
    """

    texts: list[str]
    confidence: float | None = None
    unsure: bool | None = None
    reason: str | None = None


def _cost(entry):
    """Return the cost of a sentence in a batch; a short one costs about 1."""
    (sentence, _), _ = entry
    return 1 + len(sentence) / 100


class Detector:
    """Detects the language of a text among all languages, with py3langid.

    Its model is loaded in the background, which takes a second.

    Args:
        languages: Codes of the languages of the server. Without a hint, the first ones
            come first.
    """

    def __init__(self, languages):
        self._languages = languages
        self._loaded = ThreadPoolExecutor(1).submit(self._load)

    def _load(self):
        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        is_known = not set(self._languages).isdisjoint(identifier.labels)
        return identifier if is_known else None

    def _shares(self, text):
        """Return the probability of each language, and that of chance."""
        identifier = self._loaded.result()
        ranked = identifier.rank(text[:DETECTED]) if identifier else ()
        shares = {**dict.fromkeys(self._languages, 0.0), **dict(ranked)}
        return {x: float(share) for x, share in shares.items()}, 1 / max(len(ranked), 1)

    def __call__(self, text):
        """Return languages of a text, most probable first, as LibreTranslate does.

        They are those of the server and, if it is none of them, the most probable one.
        """
        shares, chance = self._shares(text)
        codes = list(self._languages)
        if self._is_foreign(shares, chance):
            codes.append(max(shares, key=shares.get))
        return [
            {"confidence": round(100 * shares[x], 1), "language": x}
            for x in sorted(codes, key=lambda x: -round(shares[x], 3))
        ]

    def _is_foreign(self, shares, chance):
        known = sum(shares[x] for x in self._languages)
        return 0 < known < FOREIGN * chance * len(self._languages)

    def is_other(self, text, language):
        """Return whether a text is most probably in another language than this one."""
        shares, chance = self._shares(text)
        best = max(shares, key=shares.get)
        is_improbable = shares.get(language, 1.0) < FOREIGN * chance
        return best != language and is_improbable and shares[best] > CERTAIN


def language_code(code, known):
    """Return one of the known codes for one such as `en-US`, `de_DE`, `EN` or `deu`.

    A code that is none of them is returned as it is. A language without a region or a
    script is the first of its varieties.

    >>> known = ["en", "de", "zh-Hans", "zh-Hant"]
    >>> [language_code(x, known) for x in ("de_AT", "deu", "zh", "xx-YY")]
    ['de', 'de', 'zh-Hans', 'xx-YY']
    """
    plain = code.replace("_", "-").lower()
    codes = {x.replace("_", "-").lower(): x for x in known}
    language, _, variety = plain.partition("-")
    language = TWO_LETTERS.get(language, language)
    if variety:
        plain = f"{language}-{variety}"
    first = next((x for x in codes if x.startswith(f"{language}-")), None)
    names = [plain, language] if variety else [plain, language, first]
    return next((codes[x] for x in names if x in codes), code)


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
    confidence: float | list[float | None] | None = None
    unsure: bool | list[bool | None] | None = None
    reason: str | list[str | None] | None = None


def bodies(config, beam_size):
    """Return the pydantic models of the bodies of `/translate` and `/detect`."""
    text = Annotated[str, StringConstraints(max_length=config.max_characters)]
    text_list = Annotated[list[text], Field(min_length=1, max_length=config.max_texts)]

    def kind(value):
        return "list" if isinstance(value, list) else "text"

    class Detect(pydantic.BaseModel):
        q: text
        api_key: str = ""

    class Translate(pydantic.BaseModel):
        q: Annotated[
            Annotated[text, Tag("text")] | Annotated[text_list, Tag("list")],
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
        self._quota = Quota(config.characters_per_minute, "characters")
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
        return await self._answer(request, self._translate_body, self._translated)

    async def detect(self, request: Request):
        """Detect the language of a text among those of the server."""

        def detected(body):
            return self._detect(body.q)

        return await self._answer(request, self._detect_body, detected)

    async def _answer(self, request, model, function):
        """Answer a request by a function of its body, within the client's quota."""
        body = await self._service.values(request, model)
        texts = body.q if isinstance(body.q, list) else [body.q]
        size, client = sum(map(len, texts)), request.state.client
        self._quota.check(client, size)
        self._quota.use(client, size)
        answer = await self._service.in_thread(request, function, body, size=size)
        return JSONResponse(answer)

    def languages(self):
        """List the languages, and those into which each can be translated."""
        return [
            Language(
                code=code,
                name=language_name(code),
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
        plain = [TAG.sub(" ", x) if is_html else x for x in texts]
        target = self._code("target", body.target, self._codes)
        source = self._code("source", body.source, [*self._codes, AUTO])
        sources, detected = [source] * len(texts), None
        if source == AUTO:
            detected = [self._detect(x)[0] for x in plain]
            sources = [detection["language"] for detection in detected]
        translated: list[Result] = [Result([text]) for text in texts]
        for source in dict.fromkeys(sources):
            indices = [i for i, x in enumerate(sources) if x == source]
            n_best = 1 + body.alternatives
            results = self._one_pair(
                (source, target),
                [texts[i] for i in indices],
                is_html,
                n_best,
                is_single=not is_list,
            )
            for i, result in zip(indices, results, strict=True):
                translated[i] = result
        if detected is None and sources[0] != target:
            translated = [
                self._checked(result, text, source)
                for result, text in zip(translated, plain, strict=True)
            ]
        answer: dict[str, list] = {"translatedText": [x.texts[0] for x in translated]}
        if body.alternatives:
            answer["alternatives"] = [
                x.texts[1 : 1 + body.alternatives] for x in translated
            ]
        if detected:
            answer["detectedLanguage"] = detected
        for name in ("confidence", "unsure", "reason"):
            values = [getattr(x, name) for x in translated]
            if any(x is not None for x in values):
                answer[name] = values
        return answer if is_list else {name: x[0] for name, x in answer.items()}

    def _code(self, name, code, known):
        """Return a known code of a language, or refuse the request."""
        matched = language_code(code, known)
        if matched not in known:
            raise Refusal(
                400,
                f"{name}: expected one of {', '.join(known)}. Received: "
                f"{received(code)}",
            )
        return matched

    def _checked(self, result, text, source):
        """Return a result; it is unsure if its text is in another language."""
        if not self._detect.is_other(text, source):
            return result
        reason = f"the text seems not to be in {language_name(source)}"
        return dataclasses.replace(result, unsure=True, reason=reason)

    def _one_pair(self, pair, texts, is_html, n_best, *, is_single):
        """Return the `Result` of each text.

        A single text in an unknown language is refused; of several, it stays as it is.
        """
        source, target = pair
        if source == target:
            return [Result([text]) for text in texts]
        if source not in self._codes:
            reason = f"the text seems to be in {language_name(source)} ({source})"
            if is_single:
                expected = f"expected a text in one of {', '.join(self._codes)}"
                raise Refusal(400, f"q: {expected}. Received: {reason}")
            return [Result([text], None, True, reason) for text in texts]
        translator = self._translators.get(pair)
        if translator is None:
            raise Refusal(400, f"there is no model from {source} to {target}")
        if is_html:
            return translator.html(texts, target)
        return translator.texts(texts, translator.beam_size if n_best > 1 else 1)
