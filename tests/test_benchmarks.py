"""Every benchmark still runs: the part that measures our code, once."""

import itertools
import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from attention_testing.repository import ROOT, module_of, read

PHOTO = str(ROOT / "docs" / "photographer.jpg")

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="they measure TensorFlow"
)


def printed(script, *arguments, **variables):
    """Run a script of `benchmarks/` without standard input; return what it prints."""
    finished = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **variables},
    )
    assert not finished.returncode, finished.stderr
    return finished.stdout


def run(*arguments, **variables):
    return json.loads(printed(*arguments, **variables))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "command",
    [
        ["layers.py", "dot|2|3|ours|graph|both"],
        ["caption_throughput.py", "whole path", PHOTO, "--count", "1"],
        ["crossentropy.py", "linear_crossentropy"],
        ["encoder.py", "GRU|ours|graph"],
        ["growth.py", "beam search, length|1"],
        ["search.py", "queue"],
        ["sliding_window.py", "256|sliding|both"],
        ["caption_train_step.py", "ours, graph"],
        ["translation_train_step.py", "ours, graph"],
    ],
)
def test_time_and_memory_are_printed(command):
    script, candidate, *arguments = command
    first, memory, _ = run(script, *arguments, "--work", candidate)
    assert first > 0
    assert memory >= 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("attention", ["bahdanau", "self-attention"])
def test_translations_are_timed(tmp_path, attention):
    task = {"attention": attention, "sources": [[4, 5, 2], [6, 2]], "steps": [8, 8]}
    task["beam_size"] = 5
    (tmp_path / "task.json").write_text(json.dumps(task))
    first, _, settings = run(
        "translation_throughput.py",
        *("--work", "Keras: beam search, 64 together"),
        TRANSLATE_TASK=str(tmp_path / "task.json"),
    )
    assert first > 0
    assert {name for name, _ in settings} == {
        f"jit_compile {compiles}, batch {size}"
        for compiles in (False, True)
        for size in (16, 32, 64)
    }


@pytest.mark.exhaustive
def test_backends_are_timed_beside_their_peers():
    options = ["--backends", "tensorflow", "--rounds", "1", "--steps", "1"]
    text = printed("gpu.py", "dot", *options)
    assert "tensorflow: no GPU, runs on the processor" in text
    _, *rows = [x for x in text.splitlines() if x.startswith("| ")]
    cells = [[x.strip() for x in row.split("|")[1:-1]] for row in rows]
    assert [tuple(row[:2]) for row in cells] == [
        (case, precision)
        for case in ("dot, forward", "dot, both")
        for precision in ("float32", "bfloat16")
    ]
    assert all(len(row) == 4 and min(map(float, row[2:])) > 0 for row in cells)


@pytest.mark.exhaustive
def test_the_stages_of_a_caption_are_timed():
    stages = run("caption_latency.py", PHOTO, "--stages")
    assert stages["first caption"] > 0


@pytest.mark.exhaustive
def test_forms_of_a_text_are_translated(tmp_path):
    (tmp_path / "en").write_text("The dog is here.\nThe cat is here.\n")
    (tmp_path / "de").write_text("Der Hund ist hier.\nDie Katze ist hier.\n")
    options = ["--source", tmp_path / "en", "--target", tmp_path / "de"]
    rows = printed("text_forms.py", *options).splitlines()[2:]
    assert len(rows) == 8
    assert all("| 100.0 | 0% |" in row for row in rows), rows


@pytest.mark.exhaustive
def test_the_first_step_of_a_training_is_timed(tmp_path):
    words = ["ape", "bee", "cat", "dog", "eel", "fox"]
    lines = [" ".join(pair) for pair in itertools.product(words, repeat=2)]
    for name in ("train.en", "train.de", "val.en", "val.de"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    options = ["--text", tmp_path, "--pairs", "30", "--rounds", "1"]
    *_, row = printed("first_step.py", *options).splitlines()
    name, *seconds = [x.strip() for x in row.split("|")[1:-1]]
    assert name == "`nmt train, 30 pairs`"
    assert 0 < float(seconds[0]) <= float(seconds[1]) < float(seconds[2])


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("additive", (17, 4, 8)),
        ("additive, value mask", (30, 6, 12)),
        ("dot", (13, 4, 3)),
        ("self-attention", (32, 6, 18)),
        ("decoder step", (25, 7, 12)),
        ("decoder, 4 steps", (180, 12, 115)),
        ("captioner caption PHOTO", (5_000, 17, 95)),
        ("nmt translate SENTENCE", (100_000, 19, 135)),
    ],
)
def test_few_functions_are_between_a_call_and_its_equation(name, limits):
    calls = module_of("benchmarks/calls.py")

    counts = calls.counts(calls.recorded(calls.CALLS[name]()))

    # Calls, files, and changes of file.
    assert all(x <= y for x, y in zip(counts, limits, strict=True)), counts


@pytest.mark.exhaustive
def test_answers_of_a_server_are_counted(tmp_path):
    text = tmp_path / "text"
    text.write_text("A dog runs.\n\nTwo women sing.\n")
    options = ["--clients", "3", "--seconds", "1", "--text", text]
    numbers = [x.split()[0] for x in printed("serving.py", *options).splitlines()]
    assert int(numbers[1].replace(",", "")) > 3
    assert numbers[2:4] == ["0", "0"]


@pytest.mark.exhaustive
def test_honest_clients_are_measured_beside_hostile_ones():
    cases = ["--cases", "half requests", "wrong keys", "odd items"]
    seconds = ["--seconds", "2", "--rounds", "1", "--memory-seconds", "5"]
    table = printed("hostile_clients.py", "nmt", *cases, *seconds).splitlines()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[2:-1]]
    assert [row[1] for row in rows] == [*cases[1:], "all, then SIGTERM"]
    assert all(int(row[2]) and row[-1] == "0" for row in rows)


@pytest.mark.exhaustive
def test_terms_that_replace_words_are_counted(tmp_path):
    words = ("man", "woman", "boy", "girl", "dog", "child", "bus", "horse")
    for language, article in (("en", "A"), ("de", "Ein")):
        text = "".join(f"{article} {word} in the snow.\n" for word in words)
        (tmp_path / f"val.{language}").write_text(text)
    script = ROOT / "benchmarks" / "glossaries.py"
    output = subprocess.run(
        [sys.executable, script, tmp_path, "--count", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    share, without, with_terms = output.stdout.splitlines()
    assert share == "100.0 % of the terms replace their word"
    assert "without the glossary" in without and "with the glossary" in with_terms


@pytest.mark.parametrize(("pair", "known"), [("en-de", "hurt"), ("de-en", "weh")])
def test_judged_sentences_are_those_of_the_pages(tmp_path, pair, known):
    language = pair.split("-")[0]
    # The words of a single sentence of the model card are not rare.
    sentence = {"hurt": "Where does it hurt?", "weh": "Wo tut es weh?"}[known]
    (tmp_path / f"train.{language}").write_text(20 * f"{sentence}\n")
    *_, card, everyday = printed("judged_sentences.py", pair, tmp_path).splitlines()
    card, everyday = ([x.strip() for x in row.split("|")] for row in (card, everyday))

    presets = "apps/keras_attention_apps/nmt/presets"
    text = read(f"{presets}/tatoeba-multi30k-{pair}/README.md")
    (usable,) = re.findall(r"A reader judged (\d+) translations\b.* as\s+usable", text)
    assert usable == card[2].split()[0]
    assert card[2].endswith(" of 60") and card[6] == "1 of 1"
    assert everyday[2].endswith(" of 84") and everyday[6] == "0 of 0"
    page = read("docs/confidence.md")
    assert f"model card | {card[2]} | {card[3]} |" in page
    assert f"this benchmark | {everyday[2]} | {everyday[3]} |" in page
    assert card[7] == everyday[7] == "0"


def test_sentences_are_near_with_half_of_all_words_in_common():
    is_near = module_of("benchmarks/judged_sentences.py").is_near
    assert is_near({*"abc"}, [{*"xyz"}, {*"abd"}])
    assert not is_near({*"abc"}, [{*"ade"}, {*"abdef"}])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["images", "datasets", "markup", "repeats"])
def test_damaged_inputs_are_counted(kind):
    text = printed("robustness.py", kind, "--count", "20")
    row = text.splitlines()[2].strip("| ").split(" | ")
    name, tried, answered, refused, *failures = row
    assert (name, tried, failures) == (kind, "20", 5 * ["0"])
    assert int(answered) + int(refused) == 20


ASYNCHRONOUS = """LIMIT = 3

async def serve(port=1):
    if port:
        await run(
            port,
        )
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (1, [range(1, 8)]),
        (3, [range(4, 8), range(1, 8)]),
        (4, [range(4, 5)]),
        (6, [range(5, 8)]),
    ],
    ids=["module", "default", "condition", "statement"],
)
def test_a_mutant_shows_in_lines_that_tests_reach(monkeypatch, line, expected):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    extents = module_of("benchmarks/mutation_testing.py").extents

    assert list(extents(ASYNCHRONOUS, line)) == expected


@pytest.mark.exhaustive
def test_self_attention_is_fused_on_a_gpu():
    pytest.importorskip("jax")
    table = printed("gpu_programs.py", "--length", "128").splitlines()[3:]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table]
    assert all(row[-1] == "0" for row in rows)
    ours = [row for row in rows if "self-attention" in row[0] and "Keras" not in row[0]]
    assert len(ours) == 6 and all(row[-2] == "2" for row in ours)


@pytest.mark.exhaustive
def test_an_imported_model_is_compared_with_transformers(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    words = ["the", "a", "red", "big", "old", "dog", "cat", "bird", "sees", "runs"]
    random = np.random.default_rng(1)
    for side in ("en", "de"):
        lines = [" ".join(random.choice(words, 6)) for _ in range(120)]
        (tmp_path / side).write_text("\n".join(lines) + "\n")
    options = {
        "source": tmp_path / "en",
        "target": tmp_path / "de",
        "layers": 2,
        "depth": 128,
        "vocabulary": 300,
        "sentences": 5,
        "single": 1,
        "together": 2,
        "rounds": 1,
        "pairs": 20,
        "batch-tokens": 200,
        "only": "LiteRT, int8",
    }
    given = [str(x) for name, value in options.items() for x in (f"--{name}", value)]

    text = printed("opus_mt.py", *given)

    tables = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    _, single, double, files, file, _, single_sentence, both, _, trained = tables
    assert single[1] == "float32" and single[-2:] == ["5 of 5", "5 of 5"]
    assert float(single[2]) < 1e-4 and float(single[5]) < 1e-4
    assert double[1] == "float64"
    assert 0 < float(double[2]) < 1e-10 and float(double[5]) < 1e-10
    assert files[0] == "file" and float(file[0].split()[0]) > 0.1
    assert [single_sentence[0], both[0]] == ["one by one", "2 together"]
    assert float(single_sentence[2]) > 0 and float(both[2]) > 0
    assert trained[:2] == ["200", "20"] and float(trained[3].split()[0]) > 0


@pytest.mark.exhaustive
def test_heads_of_an_imported_model_are_compared(monkeypatch, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    alignment = module_of("benchmarks/alignment.py")
    monkeypatch.setattr(alignment, "CHOOSING", 50)
    small = {"depth": 16, "units": 32, "heads": 2, "layers": 2}
    monkeypatch.setattr(alignment, "PUBLISHED", small)
    language = alignment.Language()
    pairs = language.pairs(210)

    alignment.print_heads(pairs[:200], pairs[200:], language.origin, epochs=1)

    lines = capsys.readouterr().out.splitlines()
    begin = lines.index("| alignments | AER |")
    names, rates = zip(
        *([x.strip() for x in line.split("|")[1:-1]] for line in lines[begin + 2 :]),
        strict=True,
    )
    rates = dict(zip(names, map(float, rates), strict=True))
    assert "which was chosen" in names[0]
    assert rates["best head"] <= rates[names[0]] <= rates["worst head"]
    # Of nine source words, one is right.
    assert rates["random words"] == pytest.approx(8 / 9, abs=0.1)
