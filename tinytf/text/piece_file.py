"""SentencePiece's own files: pieces with scores and types, the table of characters, and the rules around them.

The file is a protocol buffer, of which a tokenizer needs eight fields. They are read here: the sentencepiece package
does not give out the table of characters, and would need protobuf for it. Source: sentencepiece_model.proto.
"""

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError
from tinytf.files import TOKENIZER, read_bytes
from tinytf.text.printable import printable

CONTROL, USER_DEFINED = 3, 4
"""Types of pieces: those that only a program inserts, and those that are never split."""
LONGEST_PIECE = 512
"""The most characters of a piece; SentencePiece's default limit is 16."""
_NORMAL = 1
_KINDS = {1: "Unigram", 2: "BPE", 3: "words", 4: "characters"}


@dataclass(frozen=True)
class PieceFile:
    """The pieces of a file in the order of their ids, each with its score and type.

    ``kind`` is Unigram or BPE, ``charsmap`` the table of characters in base 64, as a tokenizer.json has it;
    ``prefix`` says whether a space is put before a text.
    """

    kind: str
    pieces: Sequence[tuple[str, float]]
    types: Sequence[int]
    unknown_id: int
    charsmap: str | None
    prefix: bool

    def of_types(self, *types: int) -> dict[str, int]:
        """The pieces of these types, each with its type."""
        return {piece: kind for (piece, _), kind in zip(self.pieces, self.types, strict=True) if kind in types}


def read_piece_file(path: Path) -> PieceFile:
    """The pieces of a SentencePiece file. Raises CheckpointError, with the file, if it is damaged or another kind."""
    pieces, types, parts = list[tuple[str, float]](), list[int](), dict[int, dict[int, Any]]()
    try:
        for number, value in message_fields(read_bytes(path, TOKENIZER)):
            message = dict(message_fields(value)) if number in (1, 2, 3) else {}
            if number == 1:
                pieces.append((message[1].decode("utf-8"), *struct.unpack("<f", message.get(2, bytes(4)))))
                types.append(message.get(3, _NORMAL))
            else:
                parts[number] = message
        trainer, normalizer = parts[2], parts[3]  # they follow the pieces
        kind = _KINDS[trainer.get(3, 1)]
        charsmap = base64.b64encode(normalizer.get(2, b"")).decode()
        unknown_id, prefix = int(trainer.get(40, 0)), bool(normalizer.get(3, 1))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (AttributeError, LookupError, TypeError, ValueError, struct.error):
        raise CheckpointError(
            f"{path} is not a SentencePiece vocabulary, or is cut off", "compare its size with the published file's"
        ) from None
    if kind not in ("Unigram", "BPE"):
        raise CheckpointError(f"{path} is a SentencePiece vocabulary of {kind}", "tinytf reads Unigram and BPE")
    if len(longest := max((piece for piece, _ in pieces), key=len, default="")) > LONGEST_PIECE:
        raise CheckpointError(
            f"{path}: the piece {printable(longest)[:60]} has {len(longest):,} characters",
            f"at most {LONGEST_PIECE} are allowed",
        )
    return PieceFile(kind, pieces, types, unknown_id, charsmap or None, prefix)


def message_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a message: an integer, or bytes for anything else.

    Raises IndexError, TypeError or ValueError for bytes that are none.
    """
    position = 0
    while position < len(data):
        key, position = _integer(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _integer(data, position)
            yield key >> 3, value
            continue
        size, position = _integer(data, position) if kind == 2 else ({1: 8, 5: 4}[kind], position)
        if position + size > len(data):
            raise ValueError("the field is cut off")
        yield key >> 3, data[position : position + size]
        position += size


def _integer(data: bytes, position: int) -> tuple[int, int]:
    """The integer at ``position``, in groups of seven bits, the lowest first, and the position after it."""
    value, shift = 0, 0
    while data[position] & 128:
        value |= (data[position] & 127) << shift
        position, shift = position + 1, shift + 7
        if shift > 63:
            raise ValueError("more than 64 bits")
    return value | data[position] << shift, position + 1


def merges_of(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that joins to a third, by decreasing score of the third.

    SentencePiece merges the neighbours whose joint piece has the highest score. Ties are ordered as in transformers:
    longer left halves first, then longer right halves, then earlier pieces.
    """
    pieces, merges = list(vocabulary), list[tuple[str, str]]()
    interned = dict(zip(pieces, pieces, strict=True)).get  # one string object for each piece, in however many merges
    by_score = sorted(range(len(pieces)), key=scores.__getitem__, reverse=True)
    for _, token_ids in groupby(by_score, scores.__getitem__):
        tied, start = list(token_ids), len(merges)
        for token_id in tied:
            piece = pieces[token_id]
            for cut in range(len(piece) - 1, 0, -1):
                if (left := interned(piece[:cut])) and (right := interned(piece[cut:])):
                    merges.append((left, right))
        if len(tied) > 1:
            merges[start:] = sorted(merges[start:], key=lambda merge: (len(merge[0]), len(merge[1])), reverse=True)
    return merges
