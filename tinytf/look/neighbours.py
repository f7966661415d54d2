"""The tokens whose vectors point most like a word's, or like the residual stream at a place of a text.

Trained vectors of words that are used alike point alike (Mikolov et al. 2013); those of a random start do not.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.report import About, Report
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.trace import Text, Trace

_CHUNK_BYTES = 16 * 2**20
"""Size of the float64 rows of a table that are compared at a time."""


@dataclass(frozen=True, eq=False)
class Space:
    """The neighbours among the rows of one table: ``E``, the embeddings, or ``W_U``, the unembeddings.

    ``vectors`` (N, C) are what was asked for, ``similarity`` (N, N) the cosine of each pair. ``ids`` and ``cosines``
    (N, k) are the nearest tokens of each, the nearest first; a word is not its own neighbour.
    """

    table: str
    vectors: Tensor
    similarity: Tensor
    ids: Tensor
    cosines: Tensor

    @property
    def title(self) -> str:
        return TITLES[self.table]


TITLES = {"E": "embeddings", "W_U": "unembeddings"}


@dataclass(frozen=True, eq=False)
class Neighbours(Report):
    """The nearest tokens of some words, or of the vectors at the address ``at`` of a text, in each table.

    ``tokens`` are the ids of the words, None for a place of a text; ``names`` are words or addresses. The cosine of
    two random directions is 0 ± ``chance`` (1/√C), one standard deviation. ``notes`` are for the reader.
    """

    KIND = "neighbours"
    TABLE = ("nearest", "neighbours")
    EVENTS: ClassVar = {"tokens": "token", "nearest": "nearest"}

    names: tuple[str, ...]
    tokens: tuple[int | None, ...]
    at: str
    spaces: tuple[Space, ...]
    notes: tuple[str, ...]

    @property
    def chance(self) -> float:
        return float(self.spaces[0].vectors.shape[1] ** -0.5)

    def fields(self) -> dict[str, Any]:
        return {
            "at": self.at or None,
            **self.members("chance", "notes"),
            "vectors": [{"name": name, "id": token} for name, token in zip(self.names, self.tokens, strict=True)],
            "similarity": {space.table: space.similarity.tolist() for space in self.spaces},
            "nearest": [
                {"of": name, "table": space.table, "neighbours": self._near(space, place)}
                for place, name in enumerate(self.names)
                for space in self.spaces
            ],
        }

    def _near(self, space: Space, place: int) -> list[dict[str, Any]]:
        found = zip(space.ids[place].tolist(), space.cosines[place].tolist(), strict=True)
        return [{"id": token, "token": self.word(token), "cosine": cosine} for token, cosine in found]

    def stored(self) -> list[Array]:
        """Everything by the name of its table, such as ``E.similarity``."""
        second = {"vectors": "d_model", "similarity": "word", "ids": "rank", "cosines": "rank"}
        pairs = itertools.product(self.spaces, second.items())
        return [Array.of(f"{of.table}.{name}", ["word", axis], getattr(of, name)) for of, (name, axis) in pairs]


def _tables(model: Transformer) -> dict[str, Tensor]:
    """The vectors of the vocabulary, (V, C) each: embeddings, and unembeddings where the head has its own."""
    found: dict[str, Tensor] = {"E": model.embed.tokens.weight}
    return found if model.unembedding is found["E"] else {**found, "W_U": model.unembedding}


@torch.no_grad()
def neighbours(
    model: TextModel,
    words: Sequence[str] = (),
    *,
    text: Text | None = None,
    at: str | None = None,
    top: int | None = None,
) -> Neighbours:
    """The tokens whose embeddings, and unembeddings, point most like those of ``words``, by cosine.

    ``top`` of each: 10, or 4 of several. Each word is one token. With ``at``, such as ``L2.out[sat]``: those nearest to
    the residual stream of a text, or of its trace, there: at one token, at all, or in several layers. The stream is
    compared as it is, before the final norm; the lens reads it after that norm.

    Raises UsageError for words and an address, or neither, for what is not one token of the vocabulary, for a word that
    comes twice, and for a ``top`` below 1; AddressError for what is not as wide as an embedding.
    """
    if bool(words) == (at is not None) or (at is None) != (text is None):
        raise UsageError("neighbours are of words, or of an address in a text", "name words, or a text with --at")
    if at is not None and text is not None:
        return _at(model, model.trace(text), at, top)
    ids = [model.find_token(word, "word") for word in words]
    names = [model.tokenizer.shown(i) for i in ids]
    twice = next((name for place, name in enumerate(names) if ids[place] in ids[:place]), None)
    if twice is not None:
        raise UsageError(f"the word {twice} comes twice", "name each once")
    spaces = tuple(_space(table, rows, rows[ids], top, ids) for table, rows in _tables(model.transformer).items())
    notes = _about_tables(model.transformer)
    return Neighbours(tuple(names), tuple(ids), "", spaces, notes, about=About(model))


def _at(model: TextModel, trace: Trace, at: str, top: int | None) -> Neighbours:
    where = trace.address(at)
    width = trace.steps.by_name["embed.tokens"].axes[-1]
    if where.step is None or where.axes[-1:] != [width]:
        named = (
            "the residual stream, such as L0.out[0]" if width == "d_model" else "that width, such as embed.tokens[0]"
        )
        raise AddressError(f"{where} is no vector as wide as an embedding", f"name a step of {named}")
    vectors, names = trace[where], _names(trace, where)  # (L, T, C), (T, C) or (C,)
    flat = vectors.reshape(-1, vectors.shape[-1])
    spaces = tuple(_space(table, rows, flat, top) for table, rows in _tables(trace.model).items())
    raw = "the stream is compared as it is, without the final norm through which the lens reads it"
    notes = (raw, *_about_tables(trace.model), *filter(None, [where.note]))
    none = (None,) * len(names)
    return Neighbours(names, none, str(where), spaces, notes, about=About(model, trace.encoding))


def _names(trace: Trace, where: Address) -> tuple[str, ...]:
    """An address for every vector at an address, by the token's number and its text."""
    assert where.step is not None
    layers = where.layers or (None,)
    found = trace.picked(where.cell[0] if where.cell else ":", "token", len(trace.tokens))
    tokens = [found] if isinstance(found, int) else found
    if "token" not in where.step.axes:
        return (str(where),)
    return tuple(f"{where.step.full_name(layer)}[{i}] {trace.tokens[i].shown}" for layer in layers for i in tokens)


def _about_tables(model: Transformer) -> tuple[str, ...]:
    """Why there are no unembeddings, where there are none."""
    if model.head is None:
        return ("this model has no head, so it has no unembeddings",)
    tied = model.unembedding is model.embed.tokens.weight
    return ("the head is tied, W_U = Eᵀ: the unembeddings are the embeddings",) if tied else ()


def _space(table: str, rows: Tensor, vectors: Tensor, top: int | None, own: Sequence[int] = ()) -> Space:
    """Compare ``vectors`` (N, C) with the ``rows`` (V, C) of a table; row ``own[i]`` is no neighbour of vector i."""
    top = (10 if len(vectors) == 1 else 4) if top is None else top
    if top < 1:
        raise UsageError(f"top {top} is below 1")
    asked = _directions(vectors)
    length = max(1, _CHUNK_BYTES // (8 * rows.shape[1]))
    cosines = torch.cat([asked @ _directions(part).T for part in rows.split(length)], dim=1)  # (N, V)
    if own:
        cosines[range(len(own)), list(own)] = -torch.inf
    best = cosines.topk(min(top, cosines.shape[1] - bool(own)))
    return Space(table, vectors.detach().clone(), (asked @ asked.T).clamp(-1, 1), best.indices, best.values)


def _directions(vectors: Tensor) -> Tensor:
    """Each vector at length 1, in float64; one of zeros stays so, and its cosine with anything is 0."""
    return torch.nn.functional.normalize(vectors.double(), dim=-1, eps=1e-300)
