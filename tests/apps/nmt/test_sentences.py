import types

import numpy as np
import pytest

from keras_attention_apps.nmt import translations
from keras_attention_apps.nmt.bulk import TranslateBatch
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.sentences import (
    Part,
    Prepared,
    join_sentences,
    split_sentences,
)
from keras_attention_apps.nmt.translations import BaseTranslator, Translation


@pytest.mark.parametrize(
    "sentences",
    [
        ["A dog runs"],
        [" A  dog "],
        [""],
        ["Dr. Smith met Mr. Jones.", "They talked."],
        ["He paid $3.5 million.", "It was too much."],
        ["Version 3.5.1 is out.", "Try it."],
        ["See No. 5 for details.", "Thank you."],
        ["Is it good?", "No.", "It is bad."],
        ["I like fruit, e.g. apples, i.e. Fuji.", "Do you?"],
        ["He lives in the U.S. Army base.", "She does not."],
        ["He lives in the U.S.", "She lives in the U.K.", "They meet."],
        ["J. R. R. Tolkien wrote it.", "George W. Bush came."],
        ["It was vitamin C.", "We ate it."],
        ["The meeting is at 5 p.m.", "Please come."],
        ["The meeting is at 5 p.m. Monday."],
        ["I work at Smith Inc. in Boston.", "It is fun."],
        ["Wait... what did you say?", "Well...", "Then he left."],
        ["I ... I do not know.", "Ask ... Tom!"],
        ["What?!", "No!", "3 people left."],
        ['"Stop!" he cried.', '"I am here."', "Then he left."],
        ["He said (I am here. You too.) and left.", "(Bye.)", "End."],
        ["Visit www.example.com.", "See https://a.b/c?d=e.F and read.", "Bye!"],
        ["1. Open the door.", "2. Close it."],
        ["Das ist z. B. die Katze.", "Das z.B. auch."],
        ["Am 3. Oktober feiern wir.", "Der 1. Mai ist frei.", "Komm um 10."],
        ["Um 10.", "Die Tür!", "Am 3. 4. 2020 war es.", "Hauptstr. 5, Nr. 7, S. 12."],
        ["„Halt!“, rief er.", "„Ich bin hier.“", "Ein »Ja!«", "»Nein!«"],
        ["« Oui ! » dit-il.", "Vraiment ?", "« Oui ! »", "Il parle."],
        ["你好。", "「行く。」と言った。", "そうです！", "A?"],
        ["مرحبا؟", "نعم."],
        ["A man .", "A dog ."],
        ["it was me. i know."],
    ],
)
def test_sentences_of_a_line(sentences):
    unspaced = "你" in sentences[0]
    assert split_sentences(("" if unspaced else " ").join(sentences)) == sentences


def test_sentences_are_joined_as_their_scripts_are_written():
    assert join_sentences(["A.", "", "B."]) == "A. B."
    assert join_sentences(["你好。", "「我。」", "A."]) == "你好。「我。」A."


class Doubling(BaseTranslator):
    """Translates each word to itself in upper case; hypothesis k has k more words."""

    max_length, attends, extra_ids = 5, True, 0
    tokenizer = types.SimpleNamespace(languages=())
    has_symbols = False

    def __init__(self):
        self.batches = []

    def search_options(self, **search):
        return {"beam_size": 3, **search}

    def _source(self, part, glossary, target_language):
        sentence = part.text
        words = sentence.split()
        cut = len(words) > self.max_length
        phrases = list(glossary.find(sentence)) if glossary else []
        token_ids = [*words[: self.max_length], None]
        prepared = Prepared(part, (None, None))
        return translations._Source(token_ids, cut, [], [], phrases, prepared)

    def marked(self, output, features=None):
        return output

    def _search(self, token_ids, *args, **options):
        n_best = args[1]
        self.batches.append(len(token_ids))
        return [range(n_best) for _ in token_ids]

    def _translation(self, source, hypothesis, ranked):
        source_words = source.token_ids[:-1]
        words = [word.upper() for word in source_words] + ["X"] * hypothesis
        log_probabilities = [-float(len(words) + hypothesis)] + [-0.5] * len(words)
        return Translation(
            text=" ".join(words),
            source_words=source_words,
            words=words,
            score=sum(log_probabilities) / len(log_probabilities),
            log_probability=sum(log_probabilities),
            weights=np.eye(len(words), len(source_words)) * 0.75,
            end_weights=np.full(len(words), 0.25),
            cut=source.cut,
            omitted=source.omitted,
            subwords=[*words, "</s>"],
            probabilities=np.exp(log_probabilities).tolist(),
        )


LINES = ["One dog. A cat runs! No.", "", "Dog.", "One two three four five six. Yes."]


def test_sentences_of_a_line_are_translated_apart_and_joined():
    translator = Doubling()

    translations = translator.translate(LINES, glossary={"cat": "Katze", "dog": "Hund"})

    texts = ["ONE DOG. A CAT RUNS! NO.", "", "DOG.", "ONE TWO THREE FOUR FIVE YES."]
    assert [x.text for x in translations] == texts
    assert [x.cut for x in translations] == [False, False, False, True]
    assert translator.batches == [6]
    line = translations[0]
    parts = translator.translate(["One dog.", "A cat runs!", "No."])
    assert line.source_words == LINES[0].split()
    assert line.words == line.text.split()
    assert line.alignment == [(i, i) for i in range(6)]
    np.testing.assert_array_equal(line.weights, 0.75 * np.eye(6))
    np.testing.assert_array_equal(line.end_weights, np.full(6, 0.25))
    assert line.omitted == ["Hund", "Katze"]
    assert line.subwords == [x for part in parts for x in part.subwords]
    assert line.log_probability == sum(part.log_probability for part in parts)
    assert line.probabilities == [x for part in parts for x in part.probabilities]
    assert line.score == pytest.approx(np.mean([part.score for part in parts]))
    assert line.details().keys() == parts[0].details().keys()


def test_best_translations_of_a_line_have_the_best_mean_scores():
    translator = Doubling()
    first, second = translator.translate_each(["A dog.", "B."], n_best=3)
    scores = sorted((x.score + y.score) / 2 for x in first for y in second)

    (translations,) = translator.translate_each(["A dog. B."], n_best=3)

    assert [x.score for x in translations] == pytest.approx(scores[:-4:-1])
    assert translations[0].text == "A DOG. B."


def test_a_line_is_not_split_on_request():
    translations = Doubling().translate(LINES, split=False)
    texts = ["ONE DOG. A CAT RUNS!", "ONE TWO THREE FOUR FIVE"]
    assert [x.text for x in translations][::3] == texts


def test_with_a_batch_size_of_one_a_line_is_translated_before_the_next_is_read():
    read = []
    lines = (read.append(line) or line for line in LINES)
    next(Doubling().translate_each(lines, batch_size=1))
    assert len(read) == 1


def test_a_text_has_at_most_a_hundred_sentences():
    text = " ".join(["Yes."] * 101)

    assert not Doubling().translate(text[:-5]).cut
    translations = Doubling().translate(text)
    assert translations.cut
    assert len(translations.words) == 100


@pytest.mark.usefixtures("cached_models")
@pytest.mark.parametrize("command", ["translate", "bulk", "evaluate"])
def test_programs_split_sentences_unless_they_evaluate(
    command, model_folder, tmp_path, monkeypatch, capsys
):
    calls = []

    def search(self, token_ids, *arguments, **options):
        calls.append(len(token_ids))
        return [[] for _ in token_ids]

    monkeypatch.setattr(Translator, "_search", search)
    nothing = [translations._copied_translation(Prepared(Part(""), (None, None)))]
    monkeypatch.setattr(translations, "joined_best", lambda *_: nothing)
    names = ("input",) if command == "translate" else ("source", "target")
    for name in names:
        (tmp_path / name).write_text("The red dog. A cat!\n")
    files = [f"--{name}={tmp_path / name}" for name in names]

    def run(*options):
        calls.clear()
        if command == "bulk":
            split = "--no-split-sentences" not in options
            batch = TranslateBatch(str(model_folder), split=split)
            batch({"text": ["The red dog. A cat!"]})
        else:
            main([command, *files, "--model", str(model_folder), *options])
        return calls

    default = 1 if command == "evaluate" else 2
    assert run() == [default]
    assert run("--split-sentences") == [2]
    assert run("--no-split-sentences") == [1]
