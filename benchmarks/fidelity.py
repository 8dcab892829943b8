"""Fidelity: are numbers, codes and addresses in a translation, in its German form?

Writes sentences by template, in both directions, with numbers, times, codes, addresses,
placeholders and the like that are drawn at random, and translates them. Prints for each
kind how many sentences keep all of them exactly once, how many do not but are marked
unsure, and how many are wrong without a word. With --data, it also prints BLEU, and
with --baseline, how much longer a sentence takes than with another model.

    python benchmarks/fidelity.py
    python benchmarks/fidelity.py --data tatoeba --baseline older-en-de --pair en-de
"""

import argparse
import random
import re
import statistics
import time
from pathlib import Path

from keras_attention_apps.common.options import RuntimeConfig
from keras_attention_apps.nmt.data.dataset import (
    VALIDATION_NAMES,
    find_files,
    read_lines,
)
from keras_attention_apps.nmt.metrics import translation_scores
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.spans import MONTHS

MODELS = {
    "en-de": "tatoeba-multi30k-en-de",
    "de-en": "tatoeba-multi30k-de-en",
}


def grouped(number, separator):
    return f"{number:,}".replace(",", separator)


def integer(r):
    number = str(r.randint(13, 999))
    return number, number


def year(r):
    number = str(r.randint(1400, 2035))
    return number, number


def thousands(r):
    number = r.randint(1000, 9_999_999)
    return grouped(number, ","), grouped(number, ".")


def decimal(r):
    whole, rest = r.randint(0, 99), r.randint(1, 99)
    return f"{whole}.{rest:02}", f"{whole},{rest:02}"


def percent(r):
    whole, rest = r.randint(1, 99), r.randint(1, 9)
    return r.choice(
        [(f"{whole}%", f"{whole} %"), (f"{whole}.{rest}%", f"{whole},{rest} %")]
    )


def money(r):
    whole, cents = r.randint(1, 4999), r.randint(0, 99)
    sign = r.choice("$€£")
    english, german = grouped(whole, ","), grouped(whole, ".")
    return f"{sign}{english}.{cents:02}", f"{german},{cents:02} {sign}"


def unit(r):
    number, name = r.randint(2, 400), r.choice(["km", "kg", "cm", "ml", "GB", "km/h"])
    return f"{number} {name}", f"{number} {name}"


def signed(r):
    number = f"{r.choice('+-')}{r.randint(1, 40)}"
    return f"{number} °C", f"{number} °C"


def same(draw):
    """Return a kind whose text is the same in both languages."""

    def pair(r):
        text = draw(r)
        return text, text

    return pair


def clock(r):
    hour, minute = r.randint(1, 11), r.randint(0, 59)
    return r.choice(
        [
            (f"{hour}:{minute:02} p.m.", f"{hour + 12}:{minute:02} Uhr"),
            (f"{hour}:{minute:02} a.m.", f"{hour}:{minute:02} Uhr"),
        ]
    )


def date(r):
    month, day, year = r.randrange(12), r.randint(1, 28), r.randint(1900, 2030)
    english, german = MONTHS["en"][month], MONTHS["de"][month]
    return r.choice(
        [
            (f"{english} {day}, {year}", f"{day}. {german} {year}"),
            (f"{english} {day}", f"{day}. {german}"),
        ]
    )


def letters(r, count=3):
    return "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(count))


def name(r):
    return "".join(r.choice("bdfgklmnprst") + r.choice("aeiou") for _ in range(3))


def domain(r):
    return f"{name(r)}.{r.choice(['com', 'de', 'org', 'co.uk', 'io'])}"


# Each kind: a function that draws a pair of an English and a German text, and a group
# of sentences in which such a text makes sense.
KINDS = {
    "integer": (integer, "number"),
    "year": (year, "year"),
    "thousands": (thousands, "number"),
    "decimal": (decimal, "value"),
    "percent": (percent, "value"),
    "currency": (money, "money"),
    "unit": (unit, "value"),
    "sign and degrees": (signed, "degrees"),
    "range": (same(lambda r: f"{r.randint(2, 30)}-{r.randint(31, 90)}"), "number"),
    "time of day": (clock, "time"),
    "time, 24 hours": (
        same(lambda r: f"{r.randint(13, 23)}:{r.randint(0, 59):02}"),
        "time",
    ),
    "date": (date, "date"),
    "date, ISO": (
        same(
            lambda r: (
                f"20{r.randint(10, 35)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
            )
        ),
        "date",
    ),
    "telephone": (
        same(
            lambda r: (
                f"+{r.randint(30, 49)} {r.randint(100, 999)} {r.randint(10000, 999999)}"
            )
        ),
        "contact",
    ),
    "order number": (
        same(lambda r: f"{r.randint(100, 9999)}-{r.randint(100, 99999)}"),
        "code",
    ),
    "code": (
        same(lambda r: f"{letters(r, 2)}{r.randint(1, 999)}-{letters(r, 1)}"),
        "code",
    ),
    "flight": (same(lambda r: f"{letters(r, 2)} {r.randint(100, 9999)}"), "flight"),
    "version": (
        same(lambda r: f"v{r.randint(0, 9)}.{r.randint(0, 20)}.{r.randint(0, 20)}"),
        "file",
    ),
    "URL": (
        same(
            lambda r: f"https://{domain(r)}/{name(r)}?{name(r)}={r.randint(1, 99)}&b=2"
        ),
        "contact",
    ),
    "e-mail address": (same(lambda r: f"{name(r)}.{name(r)}+x@{domain(r)}"), "contact"),
    "file": (
        same(
            lambda r: (
                f"{name(r)}_{r.randint(1, 9)}.{r.choice(['pdf', 'csv', 'tar.gz'])}"
            )
        ),
        "file",
    ),
    "path": (
        same(
            lambda r: r.choice(
                [f"C:\\{name(r)}\\{name(r)}.txt", f"/usr/{name(r)}/{name(r)}"]
            )
        ),
        "file",
    ),
    "@name": (same(lambda r: f"@{name(r)}_{r.randint(1, 99)}"), "person"),
    "#tag": (same(lambda r: f"#{name(r)}"), "file"),
    "emoji": (
        same(lambda r: r.choice(["🐶", "🎉", "👩‍👩‍👧", "❤️", "👍🏽", "🇩🇪", "☀️", "🍕"])),
        "mark",
    ),
    "{placeholder}": (
        same(
            lambda r: r.choice(
                [f"{{{name(r)}}}", f"{{{{{name(r)}}}}}", f"${{{name(r)}}}"]
            )
        ),
        "person",
    ),
    "%s, %1$s": (
        same(
            lambda r: r.choice(["%s", f"%{r.randint(1, 9)}$s", f"%({name(r)})s", "%@"])
        ),
        "person",
    ),
    "<0>tags</0>": (same(lambda r: f"<{r.randint(0, 9)}/>"), "file"),
    "`code`": (same(lambda r: f"`{name(r)} --{name(r)} {r.randint(1, 9)}`"), "file"),
    "snake_case, f()": (
        same(
            lambda r: r.choice(
                [f"{name(r)}_{name(r)}", f"{name(r)}()", name(r).upper() + "_MAX"]
            )
        ),
        "file",
    ),
    "HTML entity": (
        same(lambda r: r.choice(["&amp;", "&nbsp;", "&#8211;", "&copy;"])),
        "mark",
    ),
    "other script": (
        same(
            lambda r: r.choice(
                ["Москва", "東京", "Αθήνα", "สวัสดี", "서울", "Łódź", "Dvořák"]
            )
        ),
        "person",
    ),
}
# Pairs of an English and a German sentence of each group, with braces for the text.
SENTENCES = {
    "number": """
        We counted {} birds in the garden.
        Wir haben {} Vögel im Garten gezählt.
        My grandfather has {} books at home.
        Mein Großvater hat {} Bücher zu Hause.
        There are {} students in our school.
        In unserer Schule gibt es {} Schüler.
        She wrote {} letters last year.
        Sie hat letztes Jahr {} Briefe geschrieben.
        """,
    "year": """
        My parents got married in {}.
        Meine Eltern haben {} geheiratet.
        The bridge was destroyed in {}.
        Die Brücke wurde {} zerstört.
        I came to Germany in {}.
        Ich bin {} nach Deutschland gekommen.
        """,
    "value": """
        The difference is only {}.
        Der Unterschied beträgt nur {}.
        I think that {} is too much.
        Ich glaube, dass {} zu viel ist.
        We need at least {}.
        Wir brauchen mindestens {}.
        """,
    "money": """
        I spent {} on this dress.
        Ich habe {} für dieses Kleid ausgegeben.
        He owes me {}.
        Er schuldet mir {}.
        The repair will cost {}.
        Die Reparatur wird {} kosten.
        """,
    "degrees": """
        In the morning it was {}.
        Am Morgen waren es {}.
        The water has a temperature of {}.
        Das Wasser hat eine Temperatur von {}.
        """,
    "time": """
        Dinner is ready at {} every evening.
        Das Abendessen ist jeden Abend um {} fertig.
        The lesson ends at {} today.
        Der Unterricht endet heute um {}.
        Please wake me up at {} tomorrow.
        Bitte wecke mich morgen um {}.
        """,
    "date": """
        The concert is on {} in Berlin.
        Das Konzert ist am {} in Berlin.
        Their son was born on {} in London.
        Ihr Sohn wurde am {} in London geboren.
        Our holidays begin on {} this time.
        Unsere Ferien beginnen diesmal am {}.
        """,
    "contact": """
        You can reach me at {} all day.
        Sie können mich den ganzen Tag unter {} erreichen.
        Please send your answer to {} soon.
        Bitte senden Sie Ihre Antwort bald an {}.
        I found it at {} yesterday.
        Ich habe es gestern unter {} gefunden.
        """,
    "code": """
        Where can I find part {}?
        Wo finde ich das Teil {}?
        The package with the number {} is lost.
        Das Paket mit der Nummer {} ist verloren.
        Please tell me the price of {}.
        Bitte sagen Sie mir den Preis von {}.
        """,
    "flight": """
        We are waiting for flight {} now.
        Wir warten jetzt auf den Flug {}.
        Her plane is {} from Paris.
        Ihr Flugzeug ist {} aus Paris.
        """,
    "file": """
        Have you already read {}?
        Hast du {} schon gelesen?
        I cannot find {} on my computer.
        Ich kann {} auf meinem Computer nicht finden.
        He explained {} to us in detail.
        Er hat uns {} ausführlich erklärt.
        """,
    "person": """
        Yesterday I met {} in town.
        Gestern habe ich {} in der Stadt getroffen.
        {} is not at home.
        {} ist nicht zu Hause.
        Please give {} the key.
        Bitte gib {} den Schlüssel.
        """,
    "mark": """
        I am so happy today {}
        Ich bin heute so glücklich {}
        We are going to the beach {} and it is warm.
        Wir gehen an den Strand {} und es ist warm.
        What a beautiful day {}!
        Was für ein schöner Tag {}!
        """,
}
# Sentences with several, of these kinds.
SEVERAL = """
    On {date} at {time of day} we paid {currency} for {integer} chairs.
    Am {date} um {time of day} haben wir {currency} für {integer} Stühle bezahlt.
    Write to {e-mail address} or call {telephone} before {time of day}.
    Schreiben Sie an {e-mail address} oder rufen Sie vor {time of day} {telephone} an.
    {@name} sent {file} and {URL} to {{placeholder}}.
    {@name} hat {{placeholder}} {file} und {URL} geschickt.
    Order {order number} with {integer} books weighs {unit}.
    Die Bestellung {order number} mit {integer} Büchern wiegt {unit}.
    """


def pairs_of(text):
    """Return the pairs of a text, in which the languages take turns."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return [*zip(lines[::2], lines[1::2], strict=True)]


def examples(count, rng):
    """Return kinds, English and German sentences, and what each must contain."""
    rows = []
    for number in range(count):
        for kind, (draw, group) in KINDS.items():
            pairs = pairs_of(SENTENCES[group])
            english, german = pairs[number % len(pairs)]
            texts = draw(rng)
            rows.append(
                (kind, english.format(texts[0]), german.format(texts[1]), [texts])
            )
    names = sorted(KINDS, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(f"{{{x}}}") for x in names))
    for english, german in pairs_of(SEVERAL) * max(count // 2, 1):
        drawn = {part: KINDS[part[1:-1]][0](rng) for part in pattern.findall(english)}
        sides = [
            pattern.sub(lambda match, spelled=spelled: spelled[match[0]], text)
            for text, spelled in (
                (english, {part: x for part, (x, _) in drawn.items()}),
                (german, {part: x for part, (_, x) in drawn.items()}),
            )
        ]
        rows.append(("several", *sides, list(drawn.values())))
    return rows


def is_kept(translation, texts):
    """Return whether a translation has each of some texts exactly once."""
    return all(
        len(re.findall(rf"(?<![\w.,-]){re.escape(text)}(?![\w]|[.,]\d)", translation))
        == 1
        if text[:1].isalnum() and text[-1:].isalnum()
        else translation.count(text) == 1
        for text in texts
    )


def fidelity(names, runtime, count, seed, shown):
    """Print the table of kinds, and return the share of sentences that keep all."""
    table = {}
    translators = {}
    for pair, model in names.items():
        translator = RUNTIMES.load(model, RuntimeConfig(runtime), search={})
        translators[pair] = translator
        side = pair == "de-en"
        rows = examples(count, random.Random(seed))
        translations = translator.translate([x[1 + side] for x in rows])
        for (kind, english, german, texts), translation in zip(
            rows, translations, strict=True
        ):
            wanted = [x[1 - side] for x in texts]
            column = (
                0
                if is_kept(translation.text, wanted)
                else 1
                if translation.unsure
                else 2
            )
            table.setdefault(kind, [0, 0, 0])[column] += 1
            if column and shown:
                print(
                    f"{(german if side else english)!r} -> {translation.text!r}, "
                    f"not {wanted}"
                )
    print(f"{'kind':20} {'kept':>6} {'marked':>7} {'silent':>7}")
    total = [sum(column) for column in zip(*table.values(), strict=True)]
    for kind, row in [*table.items(), ("all", total)]:
        print(f"{kind:20} {row[0]:6} {row[1]:7} {row[2]:7}")
    print(
        f"{100 * total[0] / sum(total):.1f} % of {sum(total)} keep everything exactly"
    )
    return translators


def bleu(translator, data, pair):
    """Print BLEU on the validation set of a data set."""
    source, target = map(read_lines, find_files(data, pair, VALIDATION_NAMES))
    texts = [x.text for x in translator.translate(source, split=False)]
    scores, _ = translation_scores(texts, target)
    print(f"{pair}: BLEU {scores['bleu']:.2f} on {data.name}")


def compare_speed(translator, baseline, data, pair, rounds=5):
    """Print the ratio of the times of a sentence of two translators."""
    source = read_lines(find_files(data, pair, VALIDATION_NAMES)[0])[:100]
    times = {translator: [], baseline: []}
    for _ in range(rounds):
        for model, seconds in times.items():
            begin = time.perf_counter()
            for sentence in source:
                model.translate(sentence, split=False)
            seconds.append(time.perf_counter() - begin)
    ratios = [x / y for x, y in zip(*times.values(), strict=True)]
    print(
        f"{pair}: a sentence takes {statistics.median(ratios):.2f} times as long as "
        f"with the other model, {1000 * min(times[translator]) / len(source):.1f} ms"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = "Language pair, once for each --model."
    parser.add_argument("--pair", action="append", choices=MODELS, help=text)
    text = "Preset, folder or .tflite file; by default, both presets."
    parser.add_argument("--model", action="append", help=text)
    parser.add_argument(
        "--runtime", default="auto", choices=["auto", "litert", "keras"]
    )
    text = "Number of sentences of each kind and direction."
    parser.add_argument("--count", type=int, default=4, help=text)
    parser.add_argument("--seed", type=int, default=1, help="Random seed.")
    text = "Folder with val.en and val.de: print BLEU."
    parser.add_argument("--data", type=Path, help=text)
    text = "Model to compare the speed with, of the first pair; needs --data."
    parser.add_argument("--baseline", help=text)
    text = "Print the sentences that do not keep everything."
    parser.add_argument("--show", action="store_true", help=text)
    arguments = parser.parse_args()
    pairs = arguments.pair or list(MODELS)
    models = arguments.model or [MODELS[pair] for pair in pairs]
    names = dict(zip(pairs, models, strict=True))
    translators = fidelity(
        names, arguments.runtime, arguments.count, arguments.seed, arguments.show
    )
    if arguments.data:
        for pair, translator in translators.items():
            bleu(translator, arguments.data, pair)
        if arguments.baseline:
            baseline = RUNTIMES.load(
                arguments.baseline, RuntimeConfig(arguments.runtime), search={}
            )
            compare_speed(translators[pairs[0]], baseline, arguments.data, pairs[0])


if __name__ == "__main__":
    main()
