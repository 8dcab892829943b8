"""Back-translation: sentences of the target language as the targets of more pairs."""

import functools
import itertools

import keras

from keras_attention import sample_search
from keras_attention_apps.common.distribution import on_first_host, wait_for_hosts
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import atomic_path, read_json, write_json
from keras_attention_apps.common.models import WEIGHTS, digest_of_file, find_preset
from keras_attention_apps.nmt.data.dataset import Pairs, read_lines
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.subwords import clean
from keras_attention_apps.nmt.translations import chunks

# Subfolder of the output folder, and the file in it that says what was translated.
BACK_TRANSLATIONS = "back-translations"
ORIGIN = "origin.json"
# Sentences in a file of back-translations: an interrupted run repeats one of them.
PART = 5000
# Tokens of a sentence, on average, in batches of `batch_tokens`.
USUAL_LENGTH = 16
# Minimum number of sentences for which compiling the search with XLA pays off.
LEAST_COMPILED = 5000
# At this temperature and below, sampling is greedy search.
MIN_TEMPERATURE = 1e-6


class Sampler(Translator):
    """A translator that samples instead of searching."""

    def sample(self, sentences, *, temperature, seed, batch_size=64):
        """Return a sampled `Translation` of each sentence.

        Samples depend on the seed and on the batches alone.
        """
        self._temperature = max(temperature, MIN_TEMPERATURE)
        self._seeds = ((seed, batch) for batch in itertools.count())
        return self.translate(sentences, batch_size=batch_size, split=False)

    def search_model(self, max_length=None, **options):
        """Return the `SearchModel` that samples the next batch."""
        generator = keras.random.SeedGenerator(0)
        model = self._search_model(
            functools.partial(
                sample_search,
                samples=1,
                temperature=self._temperature,
                seed=generator,
            ),
            max_length,
            (0.0, None),
            key=(self._temperature,),
            seed_generator=generator,
        )
        model.seed_generator.state.assign(next(self._seeds))
        return model


def back_translate(config):
    """Return the pairs of monolingual text and its back-translations.

    The back-translations are written to `OUTPUT/back-translations`, in files of `PART`
    lines; those that exist are not translated again.

    Reference:
        [Sennrich et al., 2016](https://arxiv.org/abs/1511.06709), section 3.2; sampled
        back-translations: [Edunov et al., 2018](https://arxiv.org/abs/1808.09381),
        section 3.
    """
    targets = list(filter(None, map(clean, read_lines(config.monolingual))))
    folder = config.output / BACK_TRANSLATIONS
    on_first_host(_translate, config, targets, folder)
    wait_for_hosts("back-translations")
    parts = range(0, len(targets), PART)
    sources = [x for begin in parts for x in _read(_part(folder, begin))]
    translated = [i for i, source in enumerate(sources) if source]
    empty_count = len(targets) - len(translated)
    pairs = Pairs(
        sources, targets, empty_count, back_translated=[True] * len(targets)
    ).chosen(translated)
    print(f"{len(pairs)} back-translations")
    return pairs


def _translate(config, targets, folder):
    """Write the back-translations that are missing."""
    model = find_preset(config.reverse_model, Translator.presets)
    origin = {
        "text": digest_of_file(config.monolingual),
        "model": digest_of_file(model / WEIGHTS),
        "temperature": config.back_translation_temperature,
        "seed": config.seed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    previous = read_json(folder / ORIGIN) if (folder / ORIGIN).exists() else origin
    for name, value in origin.items():
        if previous.get(name) != value:
            raise UserError(
                f"{folder} has back-translations of another {name}. Choose another "
                "output folder, or remove that one"
            )
    write_json(folder / ORIGIN, origin)
    begins = range(0, len(targets), PART)
    if all(_part(folder, begin).exists() for begin in begins):
        return
    compiles = len(targets) >= LEAST_COMPILED and keras.backend.backend() != "torch"
    sampler = Sampler.from_preset(
        config.reverse_model, precision=config.precision, jit_compile=compiles
    )
    for begin, part in zip(begins, chunks(targets, PART), strict=True):
        path = _part(folder, begin)
        if path.exists():
            continue
        translations = sampler.sample(
            part,
            temperature=config.back_translation_temperature,
            seed=(config.seed + begin) % 2**32,
            batch_size=max(config.batch_tokens // USUAL_LENGTH, 1),
        )
        with atomic_path(path) as temporary:
            text = "".join(f"{translation.text}\n" for translation in translations)
            temporary.write_text(text, encoding="utf-8", newline="\n")
        print(f"{begin + len(part)} of {len(targets)} sentences are translated back")


def _part(folder, begin):
    return folder / f"part-{begin:09}.txt"


def _read(path):
    # Translations contain no line feeds.
    return path.read_text(encoding="utf-8").split("\n")[:-1]
