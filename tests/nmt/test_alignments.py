import re

import keras
import numpy as np
import pytest
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.text import START
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.data.dataset import SURE, parse_links, read_pairs
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.metrics import alignment_error_rate

from .conftest import untrained, write_links

# Sentences, translations, reference links, and the links of a model.
SOURCES = ["the red dog", "a cat", ""]
TARGETS = ["le chien rouge", "un chat", ""]
LINES = ["0-0 1-2 2?1", "0-0 0p1 1-1", ""]
FOUND = [[(0, 0), (2, 1), (2, 2)], [(1, 0), (0, 1)], []]
# |A| = 5, |S| = 4, |A and S| = 1, |A and P| = 3.
AER = 100 * (1 - (1 + 3) / (5 + 4))


def references():
    return [
        parse_links(line, source, target, possible=True)
        for line, source, target in zip(LINES, SOURCES, TARGETS, strict=True)
    ]


def test_the_error_rate_worked_by_hand():
    assert alignment_error_rate(FOUND, references()) == pytest.approx(AER)
    sure = [links[links[:, 2] == SURE, :2].tolist() for links in references()]
    assert alignment_error_rate(sure, references()) == pytest.approx(0)
    assert alignment_error_rate([[], [], []], references()) == pytest.approx(100)


@pytest.fixture
def evaluate(tmp_path, model_folder, capsys):
    """A function that evaluates the model, and returns its exit code and outputs."""
    for name, lines in (("en", SOURCES), ("fr", TARGETS), ("links", LINES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))

    def evaluate(*flags, links="links", model=model_folder):
        files = [f"--source={tmp_path / 'en'}", f"--target={tmp_path / 'fr'}"]
        options = [f"--alignments={tmp_path / links}", f"--model={model}"]
        return main(["evaluate", *files, *options, *flags]), capsys.readouterr()

    return evaluate


def test_an_evaluation_prints_the_error_rate(
    echoed, evaluate, monkeypatch, cached_models
):
    def align(self, sources, targets, *, batch_size):
        assert (sources, targets, batch_size) == (SOURCES, TARGETS, 2)
        return FOUND

    monkeypatch.setattr(Translator, "align", align)
    code, printed = evaluate("--batch-size=2")

    assert code == 0
    assert f"aer      {AER:6.2f}  4 sure and 2 possible links" in printed.out


def test_wrong_reference_links(evaluate, tmp_path):
    (tmp_path / "wrong").write_text("0-0\n0-0 2-1\n\n")
    code, printed = evaluate(links="wrong")
    assert code == 2 and not printed.out
    assert re.search(
        "wrong, line 2: expected words below 2, .*Received: '2-1'", printed.err
    )


def test_a_model_without_attention_cannot_align(evaluate, monkeypatch, cached_models):
    monkeypatch.setattr(Translator, "attends", False)
    code, printed = evaluate()
    assert code == 2 and "--alignments needs a model with attention" in printed.err


def test_an_ensemble_cannot_align(evaluate, monkeypatch, model_folder, cached_models):
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("begun"))
    code, printed = evaluate(model=f"{model_folder}+{model_folder}")
    assert code == 2 and not printed.out
    assert "--alignments needs a single translator, not an ensemble" in printed.err


def test_translations_are_written_before_they_are_aligned(
    echoed, evaluate, monkeypatch, cached_models, tmp_path
):
    def align(self, sources, targets, **options):
        raise UserError("it failed")

    monkeypatch.setattr(Translator, "align", align)
    code, _ = evaluate(f"--output={tmp_path / 'out'}")
    assert code == 2
    assert (tmp_path / "out").read_text().splitlines() == SOURCES


def test_a_litert_file_cannot_align(evaluate):
    pytest.importorskip("ai_edge_litert")
    code, printed = evaluate("--runtime=litert", model="tatoeba-multi30k-en-de")
    assert code == 2 and "--alignments needs the runtime keras" in printed.err


def test_forced_decoding_reads_the_given_translation(translator, eager):
    sources = ["the red dog sees a cat", "an unknown bird", "", "a cat"]
    targets = ["le chien rouge voit", "Zoë aime", "oiseau", "un chat chat"]
    found = translator.align(sources, targets, batch_size=3)

    assert found[2] == [] and sum(map(len, found)) > 3
    tokenizer = translator.tokenizer
    for source, target, links in zip(sources, targets, found, strict=True):
        ids = tokenizer.encode(source), [START, *tokenizer.encode(target)]
        inputs = {"source": np.array([ids[0]]), "target": np.array([ids[1]])}
        weights = keras.ops.convert_to_numpy(translator.network.align(inputs))[0]
        words = [tokenizer.word_places(x) for x in (ids[0], ids[1][1:])]
        expected = []
        for place in range(len(target.split()) if source else 0):
            row = weights[:-1][words[1] == place].mean(axis=0)
            by_word = np.bincount([*words[0], words[0][-1] + 1], weights=row)
            # The last word is the end token.
            if by_word.argmax() < len(source.split()):
                expected.append((by_word.argmax(), place))
        assert links == expected


def test_copied_words_are_read_as_one_token(subwords, eager):
    translator = untrained(subwords, "bahdanau", copy=True)
    read = []
    forced = translator._forced_attention
    translator._forced_attention = lambda pairs, *_: (
        read.extend(pairs) or forced(pairs, 64)
    )
    (links,) = translator.align(["the dog Zorba sees"], ["le chien Zorba voit"])

    _, target = read[0]
    assert sum(token >= len(subwords) for token in target) >= 1
    assert len(links) > 1 and [t for _, t in links] == sorted({t for _, t in links})


def test_words_beyond_the_maximum_length_have_no_links(translator, eager):
    (links,) = translator.align(["dog " * 25], ["chien " * 25])

    assert links and np.max(links) < translator.max_length


@pytest.mark.exhaustive
def test_a_guide_lowers_the_error_rate(corpus, subwords, tmp_path):
    links = {
        split: write_links(corpus, tmp_path / split, split)
        for split in ("train", "val")
    }
    pairs = {
        split: read_pairs(corpus / f"{split}.en", corpus / f"{split}.fr", links[split])
        for split in links
    }
    rates = []
    for weight in (0.0, 0.5):
        translator = untrained(subwords, "self-attention", dropout=0.0)
        network = translator.network
        network.guide_weight = weight
        batches = SentenceBatches(
            pairs["train"], subwords, batch_tokens=300, max_length=20, seed=1
        )
        network.compile(optimizer=keras.optimizers.AdamW(1e-2))
        network.fit(batches, epochs=20, shuffle=False, verbose=0)
        found = translator.align(pairs["val"].source, pairs["val"].target)
        rates.append(alignment_error_rate(found, pairs["val"].links))
    assert rates[1] < min(rates[0] - 10, 15)
