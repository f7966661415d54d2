"""Pairs of texts that differ in one respect, and the values of a model's steps on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tinytf.errors import UsageError, at_line
from tinytf.pairs.pair import PairSet
from tinytf.report import Progress, ignore_progress
from tinytf.short_repr import brief
from tinytf.text.chat import Written
from tinytf.text.rows import read_table
from tinytf.text_model import TextModel

POSITIONS = ("last", "mean")
_COLUMNS = ("positive", "negative"), ("clean", "corrupt")
_EXAMPLE = '{"positive": "What a lovely day", "negative": "What a dreadful day"}'


@dataclass(frozen=True)
class Contrasts:
    """The texts of each pair, positive and negative, and the name of the set."""

    name: str
    texts: tuple[tuple[Written, Written], ...]

    def read_as(self, read: Callable[[str], Written]) -> "Contrasts":
        """The pairs with every text read by ``read``, such as one that makes it a conversation."""

        def written(text: Written) -> Written:
            return read(text) if isinstance(text, str) else text

        return replace(self, texts=tuple((written(positive), written(negative)) for positive, negative in self.texts))

    @classmethod
    def of(cls, pairs: "Pairs") -> "Contrasts":
        """Read a table (.jsonl, .csv, .tsv, .parquet), or take the pairs.

        Raises UsageError, with the line, for a row without two different texts.
        """
        if isinstance(pairs, Contrasts):
            return pairs
        if isinstance(pairs, PairSet):
            return cls._of_rows(pairs.name, [(pair.clean, pair.corrupt) for pair in pairs.pairs])
        if not isinstance(pairs, str | Path):
            if not isinstance(pairs, Iterable):
                raise UsageError(f"{brief(pairs)} is no list of pairs", 'such as [("I love it", "I hate it")]')
            return cls._of_rows("pairs", pairs)
        name, rows = read_table(pairs, "pairs", f"a row is {_EXAMPLE}")
        return cls._of_rows(name, (row for _, row in rows))

    @classmethod
    def _of_rows(cls, name: str, rows: Iterable[Any]) -> "Contrasts":
        texts = tuple(_texts(row, f"line {number:,} of {name}") for number, row in enumerate(rows, 1))
        if not texts:
            raise UsageError(f"{name} holds no pairs", f"a row is {_EXAMPLE}")
        return cls(name, texts)


Pairs: TypeAlias = str | Path | PairSet | Contrasts | Sequence[Mapping[str, Any] | tuple[str, str]]
"""A table of pairs, or the pairs themselves: (positive, negative), or rows with these columns or clean and corrupt."""


def _texts(row: Any, where: str) -> tuple[str, str]:
    if isinstance(row, Mapping):
        columns = next((names for names in _COLUMNS if set(names) & row.keys()), _COLUMNS[0])
        row = {column: row.get(column) for column in columns}
    elif isinstance(row, tuple | list) and len(row) == 2:
        row = dict(zip(_COLUMNS[0], row, strict=True))
    else:
        raise UsageError(f"{where} is no pair of texts", f"a row is {_EXAMPLE}")
    for column, text in row.items():
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{where} has no {column} text", f"a row is {_EXAMPLE}")
    positive, negative = row.values()
    if positive == negative:
        raise UsageError(f"{where}: both texts are the same", f"a row is {_EXAMPLE}")
    return positive, negative


@dataclass(frozen=True)
class Activations:
    """The values of one step, (N, C) in float64 for each side, and the mean norm of the vectors that they come from."""

    positive: Tensor
    negative: Tensor
    norm: float


def activations_on(
    model: TextModel,
    contrasts: Contrasts,
    steps: Sequence[tuple[str, int | None]],
    position: str,
    on_progress: Progress = ignore_progress,
) -> list[Activations]:
    """The values of ``steps`` (name and layer) at the last token of each text, or their mean over its tokens.

    Special tokens do not count, such as a start token, whose values are often a hundred times as large as the rest.
    Raises UsageError, with the line, for a text that the model does not take.
    """
    layers = {layer for _, layer in steps if layer is not None}
    values = torch.empty(len(steps), len(contrasts.texts), 2, model.config.d_model, dtype=torch.float64)
    norms = torch.empty(values.shape[:-1], dtype=torch.float64)
    for number, pair in enumerate(contrasts.texts):
        for side, text in enumerate(pair):
            with at_line(number + 1, contrasts.name):
                encoding = model.encode(text)
            own = [index for index, token in enumerate(encoding.tokens) if not token.special]
            own = (own or list(range(len(encoding.tokens))))[-1 if position == "last" else 0 :]
            trace = model.trace_of(encoding, layers=layers)
            for row, (name, layer) in enumerate(steps):
                tensor = trace.step(name, layer)[own].double()  # (tokens, C)
                values[row, number, side] = tensor.mean(0)
                norms[row, number, side] = tensor.norm(dim=-1).mean()
        on_progress(number + 1, len(contrasts.texts))
    return [Activations(of[:, 0], of[:, 1], float(norm.mean())) for of, norm in zip(values, norms, strict=True)]
