"""Subwords and words of a text, and copied words."""

import functools
import io
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np

from keras_attention_apps.common.characters import (
    begins_unspaced,
    has_unspaced,
    remove_invisible,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import (
    END,
    PAD,
    START,
    UNKNOWN,
    StoredTokenizer,
)
from keras_attention_apps.nmt.symbols import SYMBOLS

# Characters that separate words: white space, control characters, the blank of
# Braille, and SentencePiece's mark of the beginning of a word. The pattern is valid in
# Python and in RE2.
BLANKS = (
    r"[\x00-\x20\x7f-\xa0"
    "\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u2581\u2800\u3000]+"
)

_BLANKS = re.compile(BLANKS)
_SURROGATES = re.compile("[\ud800-\udfff]")
WORD_BEGIN = "\u2581"
SUBWORDS = "subwords.model"
# Maximum number of sentences from which subwords are learned.
MAX_SENTENCES = 2_000_000
# Subwords are learned from sentences that are cut to at most this many characters,
# because SentencePiece crashes on 65,536 characters.
MAX_SENTENCE_LENGTH = 4000
# Longer texts are cut before they are tokenized, which takes 150 times their size. No
# model takes as many tokens.
MAX_CHARACTERS = 1_000_000
# Maximum number of bytes of a character in UTF-8.
MAX_UTF_8_BYTES = 4


def clean(text: str) -> str:
    """Normalise a text: Unicode's NFC, with single spaces between words.

    White space, control characters and SentencePiece's mark U+2581 become spaces;
    invisible characters are removed, see `remove_invisible`; unpaired surrogates become
    U+FFFD. Nothing else changes. `cleaned` is its graph version for the SavedModel.

    >>> clean(" a\\tlittle   girl\\n")
    'a little girl'
    """
    if not text.isascii():
        text = remove_invisible(_SURROGATES.sub("\ufffd", text))
        text = unicodedata.normalize("NFC", text)
    return _BLANKS.sub(" ", text).strip(" ")


def decode_line(line: bytes, path: object, number: int) -> str:
    """Decode a line of bytes."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}, is not UTF-8: byte "
            f"0x{line[error.start]:02x} at position {error.start}"
        ) from error


# Token that names the target language at the beginning of a source: `>>deu<<`.
LANGUAGE = re.compile(f"{WORD_BEGIN}>>[^<>]+<<$")
# Number of the field of a SentencePiece model that contains the model of target texts.
# Its format reserves the numbers from 200 on for extensions.
TARGET_FIELD = 200
# Normalisations whose tables SentencePiece contains.
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")


@functools.cache
def normalization_table(name: str) -> bytes:
    """Return the table of a normalisation of SentencePiece, or nothing."""
    import sentencepiece
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    if name not in NORMALIZATIONS:
        return b""
    # It has no function for a table, but every model contains one.
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a"]),
        model_writer=model,
        model_type="char",
        normalization_rule_name=name,
        hard_vocab_limit=False,
        vocab_size=5,
        minloglevel=2,
        num_threads=1,
    )
    spec = ModelProto.FromString(model.getvalue()).normalizer_spec
    return spec.precompiled_charsmap


def target_model(model) -> bytes | None:
    """Return the model of target texts in a parsed SentencePiece model, if any."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for field in UnknownFieldSet(model):
        if field.field_number == TARGET_FIELD and isinstance(field.data, bytes):
            return field.data
    return None


def with_target(source: bytes, target: bytes) -> bytes:
    """Return the SentencePiece model of sources that contains that of targets."""
    # A field of bytes: its number and type, and its length, both of variable length.
    return b"".join(
        [source, _varint(TARGET_FIELD << 3 | 2), _varint(len(target)), target]
    )


def _varint(number):
    """Return a number in the format of Protocol Buffers, 7 bits in each byte."""
    content = bytearray()
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes([*content, number])


class Subwords(StoredTokenizer):
    """A SentencePiece model: byte-pair encoding, cased and reversible.

    A character that was not in the training text becomes its UTF-8 bytes, so there are
    no unknown tokens, and `decode(encode(text)) == clean(text)`. An imported model may
    have no such bytes, a normalisation of its own, and other subwords for target texts,
    those of `target`; otherwise, `target` is the model itself. `pieces` are the
    subwords in the order of their ids, and `bytes` is a dict from the ids of byte
    subwords to their bytes. `symbols` is a dict from the symbols to their ids, empty in
    a model without symbols. No translation contains the `banned` ids: PAD, START,
    UNKNOWN and control characters.
    """

    file_name = SUBWORDS

    def __init__(self, model: bytes):
        import sentencepiece
        from google.protobuf.message import DecodeError
        from sentencepiece.sentencepiece_model_pb2 import ModelProto

        self.content = model
        if not model:
            # SentencePiece would crash.
            raise UserError("not a SentencePiece model: there are no bytes")
        try:
            parsed = ModelProto.FromString(model)
            # SentencePiece reads memory outside of a crafted table. `train` makes
            # models without one, since `clean` normalises texts.
            specs = parsed.normalizer_spec, parsed.denormalizer_spec
            for spec in specs:
                table = spec.precompiled_charsmap
                if table and table != normalization_table(spec.name):
                    raise UserError(
                        "expected a SentencePiece model without a table of a "
                        "normalisation, such as one that was trained with "
                        "normalization_rule_name=identity"
                    )
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (DecodeError, RuntimeError) as error:
            raise UserError(f"not a SentencePiece model: {error}") from error
        tokens = ("pad_id", "bos_id", "eos_id", "unk_id")
        special = [getattr(self._processor, token)() for token in tokens]
        if special != [PAD, START, END, UNKNOWN]:
            raise UserError(
                f"expected a SentencePiece model whose {', '.join(tokens)} are "
                f"{PAD}, {START}, {END} and {UNKNOWN}. Received: "
                f"{', '.join(map(str, special))}"
            )
        kinds = ModelProto.SentencePiece
        self.pieces = [x.piece for x in parsed.pieces]
        for number, piece in enumerate(self.pieces):
            # A string of Protocol Buffers that is not UTF-8 is read as bytes.
            if not isinstance(piece, str):
                raise UserError(
                    f"not a SentencePiece model: piece {number} is not UTF-8: {piece!r}"
                )
        self.bytes = {
            i: int(x.piece[3:5], 16)
            for i, x in enumerate(parsed.pieces)
            if x.type == kinds.BYTE
        }
        # As SentencePiece decodes them, without blanks.
        texts = {kinds.CONTROL: "", kinds.UNKNOWN: "\u2047"}
        self._texts = [
            _BLANKS.sub("", texts.get(x.type, x.piece)) for x in parsed.pieces
        ]
        symbols = {chr(x) for points in SYMBOLS.values() for x in points}
        self.symbols = {
            piece.removeprefix(WORD_BEGIN): i
            for i, piece in enumerate(self.pieces)
            if piece.removeprefix(WORD_BEGIN) in symbols
        }
        self._begins = [piece.startswith(WORD_BEGIN) for piece in self.pieces]
        controls = {f"<0x{byte:02X}>" for byte in (*range(33), 127)}
        spelt = [i for i, piece in enumerate(self.pieces) if piece in controls]
        # Tokens of the target languages of a multilingual model, by their codes.
        self.languages = {
            piece.removeprefix(WORD_BEGIN)[2:-2]: i
            for i, piece in enumerate(self.pieces)
            if LANGUAGE.match(piece)
        }
        self.banned = PAD, START, UNKNOWN, *spelt, *self.languages.values()
        self.target = self
        target = target_model(parsed)
        if target is not None:
            self.target = type(self)(target)
            if self.target.pieces != self.pieces:
                raise UserError(
                    "expected the same subwords, in the same order, for source and "
                    f"target. Received: {len(self.pieces):,} and "
                    f"{len(self.target.pieces):,}"
                )

    @classmethod
    def train(cls, sentences: Iterable[str], size: int) -> Self:
        """Learn subwords."""
        import sentencepiece

        length, model = MAX_SENTENCE_LENGTH, io.BytesIO()
        parts = (
            sentence[begin : begin + length]
            for sentence in sentences
            for begin in range(0, len(sentence), length)
        )
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=parts,
                model_writer=model,
                model_type="bpe",
                # SentencePiece's error for a smaller size is incomprehensible.
                vocab_size=max(size, UNKNOWN + 1),
                hard_vocab_limit=False,
                character_coverage=1.0,
                byte_fallback=True,
                normalization_rule_name="identity",
                input_sentence_size=MAX_SENTENCES,
                max_sentence_length=MAX_UTF_8_BYTES * MAX_SENTENCE_LENGTH,
                pad_id=PAD,
                bos_id=START,
                eos_id=END,
                unk_id=UNKNOWN,
                minloglevel=2,
                num_threads=1,
            )
        # SentencePiece raises a `SyntaxError` for numbers that it cannot parse.
        except (RuntimeError, SyntaxError) as error:
            needed = re.search(r"required_chars. \d+ vs (\d+)", str(error))
            if needed is None:
                raise UserError(f"no subwords can be learned: {error}") from error
            raise UserError(
                f"vocabulary_size must be at least {needed[1]}, one subword for every "
                f"character and byte. Received: {size}"
            ) from error
        return cls(model.getvalue())

    def with_symbols(self) -> Self:
        """Return the same subwords with one for each symbol; see `symbols`."""
        if self.symbols or self.target is not self:
            return self
        from sentencepiece.sentencepiece_model_pb2 import ModelProto

        model = ModelProto.FromString(self.content)
        for code_points in SYMBOLS.values():
            for code_point in code_points:
                piece = model.pieces.add()
                piece.piece, piece.score = WORD_BEGIN + chr(code_point), 0.0
                # BPE-dropout does not split it.
                piece.type = ModelProto.SentencePiece.USER_DEFINED
        model.trainer_spec.vocab_size = len(model.pieces)
        return type(self)(model.SerializeToString())

    @classmethod
    def from_content(cls, content: bytes) -> Self:
        return cls(content)

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, which is cut, ending with END."""
        return [*self._processor.encode(clean(text[:MAX_CHARACTERS])), END]

    def encode_within(self, text: str) -> list[int]:
        """Return the token ids of a text that follows another one without a space."""
        return self._continuing.encode(clean(text))

    @functools.cached_property
    def _continuing(self):
        """The same model, which puts no mark before the first word."""
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=self.content)
        processor.override_normalizer_spec(add_dummy_prefix=False)
        return processor

    def encode_all(
        self, texts: Iterable[str], *, dropout: float = 0.0, seed: int = 0
    ) -> list[list[int]]:
        """Return the token ids of texts, each ending with END.

        Reference:
            [Provilkov et al., 2020](https://arxiv.org/abs/1910.13267), section 3.1.
        """
        texts = [text[:MAX_CHARACTERS] for text in texts]
        if not dropout:
            return [[*ids, END] for ids in self._processor.encode(texts)]
        import sentencepiece

        def sampled():
            sentencepiece.set_random_generator_seed(seed)
            options = {"enable_sampling": True, "nbest_size": -1, "num_threads": 1}
            return self._processor.encode(texts, alpha=dropout, **options)

        # The generator is local to a thread, and takes the seed when the thread starts.
        with ThreadPoolExecutor(1) as thread:
            return [[*ids, END] for ids in thread.submit(sampled).result()]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids up to END, which is left out."""
        return " ".join(map(self._text, self._between_blanks(token_ids)))

    def words(self, token_ids: Iterable[int]) -> tuple[list[str], np.ndarray]:
        """Return the words of token ids up to END, and the index of each token's word.

        Words are separated by spaces. In a script without spaces, each subword, or each
        character that consists of byte subwords, is a word, with the punctuation after
        it. Adjacent words of other scripts are separate words.
        """
        words: list[str] = []
        word_indices: list[int] = []
        for tokens in self._between_blanks(token_ids):
            text = self._text(tokens)
            is_spaced = text.isascii() or not has_unspaced(text)
            parts = [tokens] if is_spaced else self._split(tokens)
            for part in parts:
                word_indices += [len(words)] * len(part)
                words.append(self._text(part) if len(parts) > 1 else text)
        return words, np.array(word_indices, "int32")

    def word_indices(self, token_ids: Iterable[int]) -> np.ndarray:
        """Return for each token up to END the index of its word, between two spaces.

        Unlike those of `words`, these words are separated by spaces in every script.
        """
        sizes = [len(tokens) for tokens in self._between_blanks(token_ids)]
        return np.repeat(np.arange(len(sizes)), sizes)

    def _between_blanks(self, token_ids: Iterable[int]) -> list[list[int]]:
        """Return lists of the tokens between two spaces, up to END."""
        groups: list[list[int]] = []
        begun = False
        for token in map(int, token_ids):
            if token == END:
                break
            # A subword that is only the mark joins the word after it.
            if not groups or (begun and self._begins[token]):
                groups.append([])
                begun = False
            begun = begun or self.pieces[token] != WORD_BEGIN
            groups[-1].append(token)
        if groups and not self._text(groups[-1]):
            # The last group is a mark without a word after it.
            mark = groups.pop()
            if groups:
                groups[-1] += mark
        return groups

    def _split(self, tokens: list[int]) -> list[list[int]]:
        """Return lists of the tokens of each word, in a script without spaces."""
        words: list[list[int]] = []
        begun = is_unspaced = False
        for position, token in enumerate(tokens):
            character = self._first_character(
                tokens[position : position + MAX_UTF_8_BYTES]
            )
            unspaced = begins_unspaced(character)
            # Punctuation and accents belong to the word before them.
            begins = character.isalnum() and (unspaced or is_unspaced)
            if not words or (begins and begun):
                words.append([])
                begun = False
            if not begun:
                is_unspaced = unspaced
            begun = begun or character != ""
            words[-1].append(token)
        return words

    def _first_character(self, tokens: list[int]) -> str:
        """Return the first character of tokens; U+FFFD if their bytes are invalid."""
        if tokens[0] not in self.bytes:
            return self.pieces[tokens[0]].lstrip(WORD_BEGIN)[:1]
        spelt = itertools.takewhile(self.bytes.__contains__, tokens)
        return bytes(map(self.bytes.__getitem__, spelt)).decode(errors="replace")[0]

    def _text(self, tokens: list[int]) -> str:
        """Return the text of tokens between two spaces, without blanks."""
        if self.bytes.keys().isdisjoint(tokens):
            # The same as SentencePiece's, which takes longer.
            text = "".join([self._texts[token] for token in tokens])
            if text.isascii():
                return text
        else:
            text = self._processor.decode(tokens)
        return clean(text).replace(" ", "")


# Kinds of subwords: outside of a word, within a word, at the beginning of a word.
OUTSIDE, WITHIN, BEGINNING = range(3)
# Number of a subword that belongs to no word of several subwords.
NONE = -1


class Copying:
    """Extended ids, beyond the vocabulary, for rare words of a source.

    Subwords can spell every word, so no word is unknown. Rare words, such as names and
    numbers, consist of several subwords. With copying, the words of several subwords
    are numbered in each sentence, and the word with number k has the extended id N + k,
    where N is the vocabulary size. The translation copies such a word as a whole, as
    one token; every other subword of the source can be copied, too, under its own id.

    A word is a sequence of letters, digits and marks between spaces and punctuation,
    and of characters that are outside of the vocabulary and consist of bytes. In
    writing systems without spaces, no word is copied as a whole. `kinds`, `(N,)`, has
    the kind of every subword.
    """

    def __init__(self, subwords: Subwords):
        self._pieces = subwords.pieces
        pieces = enumerate(subwords.pieces)
        kinds = [_kind(piece, subwords.bytes.get(i)) for i, piece in pieces]
        self.kinds = np.array(kinds, "int32")

    def numbers(self, token_ids: Sequence[int]) -> np.ndarray:
        """Return the number of the word of each subword of a source, or `NONE`."""
        kinds = self.kinds[np.asarray(token_ids, "int32")]
        begins, continues = boundaries(kinds, np.append(OUTSIDE, kinds[:-1]))
        unknown = begins & np.append(continues[1:], False)
        return np.where(unknown | continues, np.cumsum(unknown) - 1, NONE)

    def extend(self, source: list[int], target: list[int]) -> list[int]:
        """Return a target in which words of the source are replaced by extended ids.

        If a word occurs several times, its first occurrence in the target is the first
        in the source, and so on.
        """
        in_source = self._words(source)
        if not in_source:
            return target
        replaced = {}
        for word, target_numbers in self._words(target).items():
            numbers = in_source.get(word, ())
            for number, copied in zip(
                target_numbers,
                [*numbers, *numbers[-1:] * len(target_numbers)],
                strict=False,
            ):
                replaced[number] = len(self.kinds) + copied
        extended, before = [], NONE
        for token, number in zip(target, self.numbers(target).tolist(), strict=True):
            if number not in replaced:
                extended.append(token)
            elif number != before:
                extended.append(replaced[number])
            before = number
        return extended

    def expand(
        self, token_ids: Iterable[int], source: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Replace extended ids by the subwords of the source.

        Returns the list of token ids, and the index of the token from which each comes.
        """
        numbers, size = self.numbers(source), len(self.kinds)
        expanded, origins = [], []
        for position, token in enumerate(map(int, token_ids)):
            spelt = [token]
            if token >= size:
                spelt = np.asarray(source)[numbers == token - size].tolist()
            expanded += spelt
            origins += [position] * len(spelt)
        return expanded, origins

    def _words(self, token_ids: list[int]) -> dict[str, list[int]]:
        """Return a dict from words of several subwords to lists of their numbers."""
        texts: dict[int, str] = {}
        words: dict[str, list[int]] = {}
        numbers = self.numbers(token_ids).tolist()
        for token, number in zip(token_ids, numbers, strict=True):
            if number != NONE:
                texts[number] = texts.get(number, "") + self._pieces[token]
        for number, text in texts.items():
            words.setdefault(text, []).append(number)
        return words


def boundaries(kinds, before):
    """Return which subwords begin a word, and which continue one."""
    continues = (kinds == WITHIN) & (before != OUTSIDE)
    return (kinds != OUTSIDE) & ~continues, continues


def _kind(piece: str, byte: int | None) -> int:
    """Return the kind of a subword, which is a byte if `byte` is not `None`."""
    if byte is not None:
        # A byte from 128 on is a part of a character.
        return WITHIN if byte >= 128 or chr(byte).isalnum() else OUTSIDE
    word = piece.removeprefix(WORD_BEGIN)
    # Letters, marks and numbers; or a space in front of characters that are bytes.
    is_word = all(unicodedata.category(x)[0] in "LMN" for x in word)
    if not is_word or has_unspaced(word):
        return OUTSIDE
    return BEGINNING if piece.startswith(WORD_BEGIN) else WITHIN


def pad(
    token_ids: Sequence, rows: int | None = None, columns: int | None = None
) -> np.ndarray:
    """Return lists of token ids as one array, padded with PAD."""
    shape = rows or len(token_ids), columns or max(map(len, token_ids))
    padded = np.full(shape, PAD, "int32")
    for row, ids in zip(padded, token_ids, strict=False):
        row[: len(ids)] = ids
    return padded
