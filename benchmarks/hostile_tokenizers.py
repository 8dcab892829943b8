"""SentencePiece models of strangers: crafted tables, fields and pieces.

A model is a message of Protocol Buffers: pieces (1), the options of its training (2)
and of the normalisation of texts before (3) and after (5). A field is a pair of its
number and its value, an integer, bytes, or a list of the fields inside.
"""

import struct

import mutated_inputs
import numpy as np

PIECE, TRAINING, BEFORE, AFTER = 1, 2, 3, 5
TABLE = 2


def decoded(message):
    """Return the fields of a message, in order; others than integers are bytes."""
    fields, position = [], 0
    while position < len(message):
        key, position = _number(message, position)
        if key % 8 == 0:
            value, position = _number(message, position)
        else:
            length, position = (
                (4, position) if key % 8 == 5 else _number(message, position)
            )
            value = message[position : position + length]
            position += length
        fields.append((key // 8, value))
    return fields


def _number(message, position):
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def encoded(fields):
    """Return the message of fields; floats are those of four bytes."""
    parts = []
    for number, value in fields:
        if isinstance(value, list):
            value = encoded(value)
        if isinstance(value, int):
            parts += [_varint(8 * number), _varint(value)]
        elif isinstance(value, float):
            parts += [_varint(8 * number + 5), struct.pack("<f", value)]
        else:
            parts += [_varint(8 * number + 2), _varint(len(value)), value]
    return b"".join(parts)


def _varint(value):
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def mutated_tokenizers(random, model):
    """Yield descriptions and variants of a SentencePiece model."""
    kinds = [_with_table, _with_pieces, _with_pieces, _with_option, _with_bytes, None]
    fields = decoded(model)
    while True:
        kind = kinds[random.integers(len(kinds))]
        if kind is None:
            yield mutated_inputs.mutated_bytes(random, model)
        else:
            yield kind(random, list(fields))


def _with_table(random, fields):
    """Replace the table of a normalisation: the size of a trie, the trie, texts."""
    # SentencePiece refuses other sizes than multiples of a kilobyte.
    units = random.integers(0, 2**32, 256 * int(random.integers(1, 9)), "uint32")
    if random.random() < 0.5:
        units &= int(random.choice([0x7FFFFFFF, 0x3FFFFF, 0xFFFFFDFF]))
    trie = units.astype("<u4").tobytes()
    size = len(trie) if random.random() < 0.9 else int(random.integers(2**32))
    texts = random.bytes(int(random.integers(0, 300))) + b"\0"
    table = struct.pack("<I", size) + trie + texts
    where = BEFORE if random.random() < 0.8 else AFTER
    # Options are joined with earlier ones of the same number.
    fields.append((where, [(1, b"identity"), (TABLE, table)]))
    return f"table of {len(table)} bytes in {where}", encoded(fields)


def _with_pieces(random, fields):
    indices = [n for n, (number, _) in enumerate(fields) if number == PIECE]
    count = int(random.choice([1, 10, 300]))
    for index in random.choice(indices, count, replace=False):
        inner = dict(decoded(fields[index][1]))
        what = random.integers(4)
        if what == 0:
            line = next(mutated_inputs.hostile_lines(random))[1]
            inner[1] = line.encode("utf-8", "surrogatepass")
        elif what == 1:
            inner[1] = random.bytes(int(random.choice([0, 1, 5, 100_000])))
        elif what == 2:
            inner[3] = int(random.integers(0, 8))
        else:
            inner[2] = float(np.float32(random.choice([np.nan, np.inf, -np.inf, 1e38])))
        fields[index] = PIECE, list(inner.items())
    return f"{count} pieces, the last with {what}", encoded(fields)


def _with_bytes(random, fields):
    """Replace a byte of some texts: what is not UTF-8 then is no string in Python."""
    count = int(random.choice([1, 10, 300]))
    for index in random.integers(len(fields), size=count):
        number, value = fields[index]
        inner = decoded(value) if isinstance(value, bytes) else []
        texts = [n for n, (_, x) in enumerate(inner) if isinstance(x, bytes) and x]
        if not texts:
            continue
        field, text = inner[texts[random.integers(len(texts))]]
        changed = bytearray(text)
        changed[random.integers(len(changed))] = random.integers(128, 256)
        inner = [(n, bytes(changed) if n == field else x) for n, x in inner]
        fields[index] = number, inner
    return f"{count} texts with another byte", encoded(fields)


def _with_option(random, fields):
    number = int(random.choice([TRAINING, BEFORE, AFTER]))
    option = int(random.integers(1, 50))
    value = int(random.choice([0, 1, 2, 3, 4, 2**31, 2**63]))
    chosen = value if random.random() < 0.7 else random.bytes(5)
    fields.append((number, [(option, chosen)]))
    return f"option {option} of {number}: {chosen}", encoded(fields)
