"""The texts of one dump: the rows of a batch without their padding, and the documents that are packed into a row.

Shapes: B rows, T tokens of each.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinytf.compare.dumps.read import IDS, Dump
from tinytf.report import Data

_NUMBERS = ("sequence_ids", "seq_idx", "segment_ids", "document_ids", "doc_ids")
_STARTS = ("cu_seqlens", "cu_seq_lens", "cu_seq_lens_q", "cu_seqlens_q")
CONTEXT = ("attention_mask", "position_ids", *_NUMBERS, *_STARTS)
"""The names of tensors that say which tokens belong together, and where they stand."""


@dataclass(frozen=True)
class Passage(Data):
    """A text of a dump: the tokens from ``start`` up to ``end`` of a ``row``, of which it is the document ``number``.

    ``documents`` are those of its row, ``rows`` those of the dump; its first token is at ``position``.
    """

    row: int
    start: int
    end: int
    number: int
    documents: int
    rows: int
    position: int

    @property
    def in_words(self) -> str:
        document = f"document {self.number + 1} of {self.documents}" if self.documents > 1 else ""
        row = f"row {self.row + 1} of {self.rows}" if self.rows > 1 else ""
        where = f"tokens {self.start:,} to {self.end - 1:,}"
        return ", ".join(word for word in (row, document, where) if word)


def passages_of(dump: Dump) -> list[Passage]:
    """The texts of a dump, where it has several or one with padding; else none."""
    name = next((name for name in IDS if name in dump.shapes), None)
    if name is None or dump.passes or dump.shards or "ids" in dump.metadata:
        return []
    shape = dump.shapes[name]
    if len(shape) not in (1, 2) or not all(shape):
        return []
    rows, count = (1, *shape)[-2:]
    found = list[Passage]()
    for row in range(rows):
        numbers = _documents(dump, row, rows, count)
        cuts = [0, *((numbers[1:] != numbers[:-1]).nonzero().flatten() + 1).tolist(), count]
        pieces = [(a, b) for a, b in itertools.pairwise(cuts) if int(numbers[a]) > 0]
        places = _row(dump, "position_ids", row, rows, count)
        for number, (start, end) in enumerate(pieces):
            position = start if places is None else int(places[start])
            found.append(Passage(row, start, end, number, len(pieces), rows, position))
    return [] if len(found) == 1 and found[0].end - found[0].start == count else found


def _row(dump: Dump, name: str, row: int, rows: int, count: int) -> Tensor | None:
    """One row of a tensor (B, T), or of one row for all; None if the dump has no such tensor."""
    if name not in dump.shapes:
        return None
    x = dump.read(name)
    x = x[None] if x.dim() == 1 else x
    return (
        x[row if len(x) == rows else 0].long() if x.dim() == 2 and x.shape[1] == count and len(x) in (1, rows) else None
    )


def _documents(dump: Dump, row: int, rows: int, count: int) -> Tensor:
    """The number of the document of each token of a row, from 1; 0 for padding."""
    numbers = torch.ones(count, dtype=torch.long)
    for known in (_row(dump, name, row, rows, count) for name in _NUMBERS):
        if known is not None:
            numbers = known - known.min() + 1
    for name in _STARTS if rows == 1 else ():
        if name in dump.shapes:
            starts = dump.read(name).flatten().long()
            numbers = torch.bucketize(torch.arange(count), starts[1:], right=True) + 1
    places = _row(dump, "position_ids", row, rows, count)
    if places is not None:
        restarts = torch.zeros(count, dtype=torch.long)
        restarts[1:] = ((places[1:] == 0) & (places[:-1] > 0)).long()
        numbers = numbers * count + restarts.cumsum(0)
    mask = _row(dump, "attention_mask", row, rows, count)
    if mask is not None:
        return torch.where(mask > 0, numbers * count + mask, 0)
    if (
        "attention_mask" in dump.shapes
        and (square := _square(dump.read("attention_mask"), row, rows, count)) is not None
    ):
        first = square.long().argmax(dim=-1)  # the first key that a query sees begins its document
        alone = square.sum(dim=-1) == 0
        return torch.where(alone, 0, numbers * (count + 1) + first + 1)
    return numbers


def _square(mask: Tensor, row: int, rows: int, count: int) -> Tensor | None:
    """Which keys a query of a row sees, by a mask (B, H, T, T) of ones or of what is added to scores."""
    if mask.dim() < 2 or tuple(mask.shape[-2:]) != (count, count):
        return None
    mask = mask.reshape(-1, count, count) if mask.dim() < 4 else mask[:, 0]
    mask = mask[row if len(mask) == rows else 0]
    return mask > -1 if bool((mask < 0).any()) else mask > 0


def cut(dump: Dump, passage: Passage) -> Dump:
    """The tensors of one text: of its row, along each axis that is as long as a row."""
    name = next(name for name in IDS if name in dump.shapes)
    rows, count = (1, *dump.shapes[name])[-2:]
    ids = dump.read(name).reshape(rows, count)[passage.row, passage.start : passage.end].tolist()

    def of(x: Tensor) -> Tensor:
        if rows > 1 and x.dim() and x.shape[0] == rows * count:
            x = x.unflatten(0, (rows, count))
        if rows > 1 and x.dim() and x.shape[0] == rows:
            x = x[passage.row]
        for axis in range(x.dim()):
            if x.shape[axis] == count:
                x = x.narrow(axis, passage.start, passage.end - passage.start)
        return x

    of_all = passage.rows > 1 or passage.documents > 1  # a loss is one of all texts
    kept = {
        name: shape
        for name, shape in dump.shapes.items()
        if name not in (*IDS, *CONTEXT) and not (of_all and math.prod(shape) == 1)
    }
    shapes = {name: tuple(of(torch.empty(shape, device="meta")).shape) for name, shape in kept.items()}
    return replace(dump, shapes=shapes, read=lambda name: of(dump.read(name)), metadata={**dump.metadata, "ids": ids})


def texts_of(dump: Dump) -> Iterator[tuple[Passage, Dump]]:
    """Each text of a dump and its tensors; nothing where the dump is of one text without padding."""
    for passage in passages_of(dump):
        yield passage, cut(dump, passage)


def row_of(dump: Dump, name: str, passage: Passage) -> Tensor | None:
    """The row of a text in a tensor (B, T); None if the dump has no such tensor."""
    ids = next(name for name in IDS if name in dump.shapes)
    return _row(dump, name, passage.row, *(1, *dump.shapes[ids])[-2:])
