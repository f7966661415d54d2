"""A pair of prompts, clean and corrupt, with the answer of each; and a set of them, read from a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tinytf.errors import UsageError
from tinytf.files import reading
from tinytf.report import Data
from tinytf.text.rows import TABLES
from tinytf.text.stream import ByteSource
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel

REQUIRED = ("clean", "corrupt", "answer", "versus")
"""The columns of a table of pairs; any others are kept, to choose rows by."""
_EXAMPLE = '{"clean": "The dogs", "corrupt": "The dog", "answer": " are", "versus": " is"}'


@dataclass(frozen=True)
class Pair(Data):
    """Two prompts: ``answer`` continues the clean one, ``versus`` the corrupt one, each a single token.

    ``number`` is the line of the file that it comes from, from 1; ``labels`` are the further columns of its row.
    """

    clean: str
    corrupt: str
    answer: str
    versus: str
    number: int = 0
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedPair:
    """A pair as the tokens of a model; ``answer`` and ``versus`` are ids."""

    pair: Pair
    clean: Encoding
    corrupt: Encoding
    answer: int
    versus: int


@dataclass(frozen=True)
class PairSet:
    """Pairs of one task, and the name that reports give them."""

    name: str
    pairs: tuple[Pair, ...]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The pairs of a .jsonl, .csv, .tsv or .parquet file.

        Raises UsageError, with the line, for a row that lacks a column or holds no text there.
        """
        source = ByteSource.of(reading(Path(path)))
        read_rows = TABLES.get(Path(source.name).suffix.lower())
        if read_rows is None:
            raise UsageError(f"{source.name} is not a table of pairs", f"it ends in one of {', '.join(TABLES)}")
        return cls.of(read_rows(source), source.name)

    @classmethod
    def of(cls, rows: Any, name: str = "pairs") -> Self:
        """The pairs of ``rows``, mappings with the columns REQUIRED. Raises UsageError like ``read``."""
        pairs = tuple(_pair(row, number, name) for number, row in enumerate(rows, 1))
        if not pairs:
            raise UsageError(f"{name} holds no pairs", f"a row is {_EXAMPLE}")
        return cls(name, pairs)

    def where(self, conditions: Sequence[str]) -> Self:
        """The pairs whose labels have the values of all ``conditions``, each ``column=value``.

        Raises UsageError for a column that no pair has, and if none is left.
        """
        chosen = self.pairs
        for condition in conditions:
            column, separator, value = condition.partition("=")
            columns = sorted({name for pair in self.pairs for name in pair.labels})
            if not separator or column not in columns:
                known = f"its columns are {', '.join(columns)}" if columns else "its rows have no further columns"
                raise UsageError(f"{condition!r} is not a column of {self.name} with a value", known)
            chosen = tuple(pair for pair in chosen if str(pair.labels.get(column)) == value)
        if not chosen:
            raise UsageError(f"no pair of {self.name} has {' and '.join(conditions)}")
        return replace(self, pairs=chosen)

    def encoded(self, model: TextModel, *, even: bool = True) -> tuple[EncodedPair, ...]:
        """The pairs as tokens of the model; with ``even``, both texts of each have as many tokens.

        Raises UsageError, with the line, for an answer that is not one token, and for uneven or equal texts.
        """
        return tuple(self._encoded(model, pair, even) for pair in self.pairs)

    def _encoded(self, model: TextModel, pair: Pair, even: bool) -> EncodedPair:
        try:
            clean, corrupt = model.encode(pair.clean), model.encode(pair.corrupt)
            answer, versus = model.find_outcome(pair.answer, "answer"), model.find_outcome(pair.versus, "versus")
        except UsageError as error:
            raise UsageError(f"line {pair.number:,} of {self.name}: {error.message}", error.hint) from None
        if answer == versus:
            raise UsageError(f"line {pair.number:,} of {self.name}: answer and versus are one token")
        if even and len(clean.tokens) != len(corrupt.tokens):
            raise UsageError(
                f"line {pair.number:,} of {self.name}: the texts have {len(clean.tokens):,} and "
                f"{len(corrupt.tokens):,} tokens, clean and corrupt",
                "change words so that both have the same number of tokens",
            )
        if even and clean.ids == corrupt.ids:
            raise UsageError(f"line {pair.number:,} of {self.name}: both texts have the same tokens")
        return EncodedPair(pair, clean, corrupt, answer, versus)


def _pair(row: Any, number: int, name: str) -> Pair:
    for column in REQUIRED:
        value = row.get(column)
        if not isinstance(value, str) or not value:
            raise UsageError(f"line {number:,} of {name} has no {column}", f"a row is {_EXAMPLE}")
    labels = {str(column): value for column, value in row.items() if column not in REQUIRED}
    return Pair(**{column: row[column] for column in REQUIRED}, number=number, labels=labels)
