"""Text as subwords, subwords as numbers, and subwords as the words they make."""

import io
import itertools
import re
import threading
import unicodedata

import numpy as np
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import write_files
from keras_attention_apps.common.tokens import END, PAD, START, UNKNOWN
from keras_attention_apps.common.writing_systems import UNSPACED

# What separates words: white space and control characters of all kinds, and the sign
# by which SentencePiece marks the beginning of a word. Both Python and RE2 read it.
BLANKS = (
    r"[\x00-\x20\x7f-\xa0"
    "\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u2581\u3000\ufeff]+"
)
_BLANKS = re.compile(BLANKS)
_SURROGATES = re.compile("[\ud800-\udfff]")
_UNSPACED = re.compile(UNSPACED)
WORD_BEGIN = "\u2581"
SUBWORDS = "subwords.model"

# Sentences that are enough to learn subwords from.
ENOUGH_SENTENCES = 2_000_000
# Characters that are learned from in a row. SentencePiece dies of a word of 65,536.
LONGEST_PIECE = 4000
# Bytes of a character, at most.
LONGEST_UTF_8 = 4


def clean(text):
    """Text in Unicode's normal form C, with single blanks between its words.

    White space and control characters are blanks, and so is U+2581, which marks words
    within a subword model; halves of surrogate pairs become U+FFFD. Nothing else
    changes.

    >>> clean(" a\\tlittle   girl\\n")
    'a little girl'
    """
    text = _SURROGATES.sub("\ufffd", text)
    return _BLANKS.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")


class Subwords:
    """A SentencePiece model: byte-pair encoding, cased and reversible.

    A character that the training text did not have becomes its UTF-8 bytes, so no text
    is unknown and `decode(encode(text)) == clean(text)`.

    Args:
        model: The bytes of a SentencePiece model.

    Attributes:
        model: The same.
        pieces: The subwords in the order of their numbers.
        banned: Token ids that no translation has: special ones, and control characters.
    """

    def __init__(self, model):
        import sentencepiece

        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(f"not a SentencePiece model: {error}") from error
        self.pieces = [
            self._processor.id_to_piece(i)
            for i in range(self._processor.get_piece_size())
        ]
        # Of the subwords that are single bytes, the bytes.
        self._bytes = {
            i: int(piece[3:5], 16)
            for i, piece in enumerate(self.pieces)
            if self._processor.is_byte(i)
        }
        controls = {f"<0x{byte:02X}>" for byte in (*range(33), 127)}
        self.banned = (
            PAD,
            START,
            UNKNOWN,
            *(i for i, piece in enumerate(self.pieces) if piece in controls),
        )

    @classmethod
    def train(cls, sentences, size, *, character_coverage=1.0):
        """Learn subwords.

        Args:
            sentences: Strings of all languages. Very long ones are learned from in
                pieces.
            size: Number of subwords; there are fewer if the text is too small for it.
            character_coverage: Share of the characters, by how often they occur, that
                get a subword of their own.

        Raises:
            UserError: If there are more characters than `size` has room for, or
                SentencePiece refuses a number.
        """
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_in_pieces(sentences),
                model_writer=model,
                model_type="bpe",
                # Of too few for the special tokens, it says nothing to be understood.
                vocab_size=max(size, UNKNOWN + 1),
                hard_vocab_limit=False,
                character_coverage=character_coverage,
                byte_fallback=True,
                normalization_rule_name="identity",
                input_sentence_size=ENOUGH_SENTENCES,
                # In bytes, of which UTF-8 has four for a character, or fewer.
                max_sentence_length=4 * LONGEST_PIECE,
                pad_id=PAD,
                bos_id=START,
                eos_id=END,
                unk_id=UNKNOWN,
                minloglevel=2,
                num_threads=1,
            )
        # Of a number that it cannot read, SentencePiece says that it is no syntax.
        except (RuntimeError, SyntaxError) as error:
            needed = re.search(r"required_chars. \d+ vs (\d+)", str(error))
            if needed is None:
                raise UserError(f"no subwords can be learned: {error}") from error
            raise UserError(
                f"vocabulary_size must be at least {needed[1]}, one subword for every "
                "character and byte, or character_coverage less. "
                f"Received: {size}"
            ) from error
        return cls(model.getvalue())

    @classmethod
    def from_files(cls, files):
        """The subwords of a model, from a dict of names and contents of files."""
        return cls(files[SUBWORDS])

    @property
    def files(self):
        """Dict from the name of the file of the subwords to its content."""
        return {SUBWORDS: self.model}

    @classmethod
    def load(cls, folder):
        """Read the subwords of a model from its folder."""
        return cls.from_files({SUBWORDS: (folder / SUBWORDS).read_bytes()})

    def save(self, folder):
        """Write the subwords into the folder of a model."""
        write_files(folder, self.files)

    @property
    def definition(self):
        """The model file, which is equal if and only if two subword models are."""
        return self.model

    def __len__(self):
        return len(self.pieces)

    def encode(self, text):
        """Token ids of a text, ending with END."""
        return [*self._processor.encode(clean(text)), END]

    def encode_all(self, texts, *, dropout=0.0, seed=0):
        """Token ids of texts, each ending with END.

        Args:
            texts: Clean strings.
            dropout: Probability with which each merge of two subwords is left out, so
                that every call splits words in other ways.
            seed: Integer; the same one splits in the same way.

        Reference:
            [Provilkov et al., 2020](https://arxiv.org/abs/1910.13267), section 3.1.
        """
        if not dropout:
            return [[*ids, END] for ids in self._processor.encode(texts)]
        import sentencepiece

        found = []

        def encode():
            sentencepiece.set_random_generator_seed(seed)
            found.extend(
                self._processor.encode(
                    texts,
                    enable_sampling=True,
                    nbest_size=-1,
                    alpha=dropout,
                    num_threads=1,
                )
            )

        # The generator belongs to the thread, which takes the seed when it begins.
        thread = threading.Thread(target=encode)
        thread.start()
        thread.join()
        return [[*ids, END] for ids in found]

    def decode(self, token_ids):
        """The text of token ids up to, and without, END."""
        return " ".join(map(self._text, self._between_blanks(token_ids)))

    def words(self, token_ids):
        """The words of token ids up to, and without, END.

        They are what stands between blanks. In a script that puts none there, each
        subword is one, or each character that is bytes, with the punctuation behind it;
        words of other scripts beside it are words of their own.

        Returns:
            words: List of strings without blanks. The text, which has blanks between
                some of them, is what `decode` returns.
            places: Integer array: for each token the index of its word.
        """
        words, places = [], []
        for tokens in self._between_blanks(token_ids):
            text = self._text(tokens)
            parts = self._split(tokens) if _UNSPACED.search(text) else [tokens]
            for part in parts:
                places += [len(words)] * len(part)
                words.append(self._text(part) if len(parts) > 1 else text)
        return words, np.array(places, "int32")

    def _between_blanks(self, token_ids):
        """Lists of the tokens, up to END, that stand between two blanks."""
        groups, begun = [], False
        for token in token_ids:
            if token == END:
                break
            # A mark of its own joins the word behind it.
            begins = self.pieces[token].startswith(WORD_BEGIN)
            if not groups or (begins and begun):
                groups.append([])
                begun = False
            begun = begun or self.pieces[token] != WORD_BEGIN
            groups[-1].append(int(token))
        if groups and not self._text(groups[-1]):
            # The mark of a word that never came.
            mark = groups.pop()
            if groups:
                groups[-1] += mark
        return groups

    def _split(self, tokens):
        """Lists of the tokens of each word, where no blanks are between them."""
        words, begun, is_unspaced = [], False, False
        for place, token in enumerate(tokens):
            character = self._first_character(tokens[place : place + LONGEST_UTF_8])
            unspaced = bool(_UNSPACED.match(character))
            # Punctuation and accents belong to what is before them.
            begins = character.isalnum() and (unspaced or is_unspaced)
            if not words or (begins and begun):
                words.append([])
                begun = False
            if not begun:
                is_unspaced = unspaced
            begun = begun or character != ""
            words[-1].append(token)
        return words

    def _first_character(self, tokens):
        """That of the first token; U+FFFD if it is no first byte of a character."""
        if tokens[0] not in self._bytes:
            return self.pieces[tokens[0]].lstrip(WORD_BEGIN)[:1]
        spelt = itertools.takewhile(self._bytes.__contains__, tokens)
        return bytes(map(self._bytes.get, spelt)).decode(errors="replace")[0]

    def _text(self, tokens):
        return clean(self._processor.decode(tokens)).replace(" ", "")


def _in_pieces(sentences):
    for sentence in sentences:
        for begin in range(0, len(sentence), LONGEST_PIECE):
            yield sentence[begin : begin + LONGEST_PIECE]


def merge_weights(weights, source_places, target_places):
    """Attention between subwords as attention between words.

    A word gets what its subwords get, and looks where its subwords look on average.

    Args:
        weights: Array `(T, S)` over subwords, beyond which there may be more.
        source_places, target_places: For each subword the index of its word.

    Returns:
        Array `(target words, source words)`.

    >>> weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    >>> merge_weights(weights, [0, 0, 1], [0, 0]).round(2).tolist()
    [[0.5, 0.5]]
    """
    source_places = np.asarray(source_places, "int32")
    target_places = np.asarray(target_places, "int32")
    sources = 1 + max(source_places, default=-1)
    targets = 1 + max(target_places, default=-1)
    merged = np.zeros((targets, sources))
    weights = np.asarray(weights, "float64")
    rows = weights[: len(target_places), : len(source_places)]
    np.add.at(
        merged, (target_places[:, None], source_places[None, : rows.shape[1]]), rows
    )
    counts = np.bincount(target_places, minlength=targets)
    # Of half precision, they may add up to a little more than one.
    return np.minimum(merged / np.maximum(counts, 1)[:, None], 1.0)


def alignment_of(weights, end_weights=0.0):
    """For every target word the source word it looked at most: pairs (source, target).

    A target word that looked nowhere, or more at the end of the sentence than at any
    word, or whose weights are not numbers, has no pair.

    Args:
        weights: Array `(target words, source words)`.
        end_weights: Array `(target words,)`, what looked at the end.

    >>> alignment_of(np.array([[0.1, 0.6], [0.2, 0.1], [0.8, 0.2]]), [0.3, 0.7, 0.0])
    [(1, 0), (0, 2)]
    """
    if not weights.size:
        return []
    largest = weights.max(axis=1)
    (targets,) = np.nonzero((largest > 0) & (largest >= end_weights))
    best = weights[targets].argmax(axis=1)
    return list(zip(best.tolist(), targets.tolist(), strict=True))
