"""The tokens whose vectors point most like a word's, or like the residual stream at a place in a text.

Trained vectors of words with similar uses point in similar directions (Mikolov et al. 2013); random vectors do not.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.report import About, Report, plain
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.trace import Text, Trace

_CHUNK_BYTES = 16 * 2**20
"""Bytes of the float64 rows of a table that are compared at a time."""


@dataclass(frozen=True, eq=False)
class Space:
    """The neighbours among the rows of one table: ``E``, the embeddings, or ``W_U``, the unembeddings.

    ``vectors`` (N, C) are the queried vectors, ``similarity`` (N, N) the cosine of each pair. ``ids`` and ``cosines``
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

    @property
    def plane(self) -> tuple[Tensor, Tensor]:
        """Where the vectors lie on the plane along which they differ most (PCA), (N, 2), and each axis' share of that.

        Pearson 1901: the first two singular directions of the centred vectors.
        """
        u, sizes, _ = torch.linalg.svd((centred := self.vectors.double() - self.vectors.double().mean(0)), False)
        return u[:, :2] * sizes[:2], sizes[:2] ** 2 / centred.square().sum().clamp_min(1e-300)


TITLES = {"E": "embeddings", "W_U": "unembeddings", "E0": "untrained embeddings"}


@dataclass(frozen=True, eq=False)
class Neighbours(Report):
    """The nearest tokens of some words, or of the vectors at the address ``at`` of a text, in each table.

    ``toward`` has the cosine of every vector with the embedding of each of some words.

    ``tokens`` are the ids of the words, None for a place in a text; ``names`` are words or addresses. The cosine of two
    random directions is 0 ± ``chance`` (1/√C, one standard deviation). ``notes`` are for the reader.
    """

    KIND = "neighbours"
    TABLE = ("nearest", "neighbours")
    EVENTS: ClassVar = {"tokens": "token", "nearest": "nearest"}

    names: tuple[str, ...]
    tokens: tuple[int | None, ...]
    at: str
    spaces: tuple[Space, ...]
    notes: tuple[str, ...]
    toward: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def chance(self) -> float:
        return float(self.spaces[0].vectors.shape[1] ** -0.5)

    def in_a_sentence(self) -> str:
        """The nearest token of the first vector, and of several the two that are most alike."""
        space, names = self.spaces[0], self.names
        nearest, cosine = self.word(int(space.ids[0, 0])), float(space.cosines[0, 0])
        words = f"The nearest of all {space.title} to {names[0]} is {nearest} (cosine {cosine:.2f}, of at most 1)"
        if len(names) > 2:
            size = len(names)
            pairs = space.similarity.masked_fill(torch.ones(size, size).tril().bool(), -torch.inf)
            a, b = divmod(int(pairs.argmax()), size)
            words += f"; of your {size} tokens, {names[a]} and {names[b]} are most alike ({float(pairs[a, b]):.2f})"
        return f"{words}."

    def fields(self) -> dict[str, Any]:
        return {
            "at": self.at or None,
            **self.members("chance", "notes"),
            **({"toward": plain(self.toward)} if self.toward else {}),
            "vectors": [{"name": name, "id": token} for name, token in zip(self.names, self.tokens, strict=True)],
            "similarity": {space.table: space.similarity.tolist() for space in self.spaces},
            "nearest": [
                {"of": name, "table": space.table, "neighbours": self._near(space, index)}
                for index, name in enumerate(self.names)
                for space in self.spaces
            ],
        }

    def _near(self, space: Space, index: int) -> list[dict[str, Any]]:
        neighbours = zip(space.ids[index].tolist(), space.cosines[index].tolist(), strict=True)
        return [{"id": token, "token": self.word(token), "cosine": cosine} for token, cosine in neighbours]

    def stored(self) -> list[Array]:
        """Every tensor under its table's name, such as ``E.similarity``."""
        last_axes = {"vectors": "d_model", "similarity": "word", "ids": "rank", "cosines": "rank"}
        pairs = itertools.product(self.spaces, last_axes.items())
        return [
            Array.of(f"{space.table}.{name}", ["word", axis], getattr(space, name)) for space, (name, axis) in pairs
        ]


def _tables(model: Transformer) -> dict[str, Tensor]:
    """The vectors of the vocabulary, (V, C) each: embeddings, and unembeddings if the head is not tied."""
    tables: dict[str, Tensor] = {"E": model.embed.tokens.weight}
    return tables if model.unembedding is tables["E"] else {**tables, "W_U": model.unembedding}


@torch.no_grad()
def neighbours(
    model: TextModel,
    words: Sequence[str] = (),
    *,
    text: Text | None = None,
    at: str | None = None,
    top: int | None = None,
    toward: Sequence[str] = (),
    untrained: bool = False,
) -> Neighbours:
    """The tokens whose embeddings, and unembeddings, point most like those of ``words``, by cosine.

    Each word is one token and has ``top`` neighbours, by default 10, or 4 if there are several words. With ``at``, such
    as ``L2.out[sat]``, the neighbours of the residual stream of a text, or of its trace: at one token, at all, or in
    several layers. The stream is compared before the final norm; the lens reads it after that norm. Each vector
    there is compared with the words ``toward`` too. With ``untrained``, words are compared in random numbers too.

    Raises UsageError for both words and an address, or neither, for a word that is not one token, for a repeated word,
    and for a ``top`` below 1; AddressError for a step that is not as wide as an embedding.
    """
    if bool(words) == (at is not None) or (at is None) != (text is None):
        raise UsageError("neighbours are of words, or of an address in a text", "name words, or a text with --at")
    if bool(toward) > (at is not None) or untrained > bool(words):
        raise UsageError("--toward is for vectors at an address, --untrained for words", "leave it out")
    if at is not None and text is not None:
        return _at(model, model.trace(text), at, top, [model.find_token(word, "word") for word in toward])
    ids = [model.find_token(word, "word") for word in words]
    names = [model.tokenizer.shown(i) for i in ids]
    repeated = next((name for index, name in enumerate(names) if ids[index] in ids[:index]), None)
    if repeated is not None:
        raise UsageError(f"the word {repeated} comes twice", "name each once")
    tables, notes = _tables(model.transformer), _about_tables(model.transformer)
    if untrained:
        tables["E0"] = torch.randn(tables["E"].shape, generator=torch.Generator().manual_seed(0))
        notes = (*notes, "untrained: random numbers in place of the embeddings, as before training, seed 0")
    spaces = tuple(_space(table, rows, rows[ids], top, ids) for table, rows in tables.items())
    return Neighbours(tuple(names), tuple(ids), "", spaces, notes, about=About(model))


def _at(model: TextModel, trace: Trace, at: str, top: int | None, toward: Sequence[int]) -> Neighbours:
    address = trace.address(at)
    width = trace.steps.by_name["embed.tokens"].axes[-1]
    if address.step is None or address.axes[-1:] != [width]:
        hint = "the residual stream, such as L0.out[0]" if width == "d_model" else "that width, such as embed.tokens[0]"
        raise AddressError(f"{address} is not a vector as wide as an embedding", f"name a step of {hint}")
    vectors, names = trace[address], _names(trace, address)  # (L, T, C), (T, C) or (C,)
    flat = vectors.reshape(-1, vectors.shape[-1])
    spaces = tuple(_space(table, rows, flat, top) for table, rows in _tables(trace.model).items())
    raw = "the stream is compared directly, without the final norm through which the lens reads it"
    notes = (raw, *_about_tables(trace.model), *filter(None, [address.note]))
    none = (None,) * len(names)
    cosines = _directions(flat) @ _directions(trace.model.embed.tokens.weight[list(toward)]).T  # (N, words)
    to_words = {model.tokenizer.shown(i): tuple(cosines[:, k].tolist()) for k, i in enumerate(toward)}
    return Neighbours(names, none, str(address), spaces, notes, to_words, about=About(model, trace.encoding))


def _names(trace: Trace, address: Address) -> tuple[str, ...]:
    """The name of every vector at an address: its step, with the token's number and text."""
    assert address.step is not None
    layers = address.layers or (None,)
    picked = trace.pick_indices(address.cell[0] if address.cell else ":", "token", len(trace.tokens))
    tokens = [picked] if isinstance(picked, int) else picked
    if "token" not in address.step.axes:
        return (str(address),)
    return tuple(f"{address.step.full_name(layer)}[{i}] {trace.tokens[i].shown}" for layer in layers for i in tokens)


def _about_tables(model: Transformer) -> tuple[str, ...]:
    """A note on why there are no unembeddings of their own; empty if there are."""
    if model.head is None:
        return ("this model has no head, so it has no unembeddings",)
    tied = model.unembedding is model.embed.tokens.weight
    return ("the head is tied, W_U = Eᵀ: the unembeddings are the embeddings",) if tied else ()


def _space(table: str, rows: Tensor, vectors: Tensor, top: int | None, own_ids: Sequence[int] = ()) -> Space:
    """Compare ``vectors`` (N, C) with the ``rows`` (V, C) of a table, except vector i with row ``own_ids[i]``."""
    top = (10 if len(vectors) == 1 else 4) if top is None else top
    if top < 1:
        raise UsageError(f"top {top} is below 1")
    directions = _directions(vectors)
    length = max(1, _CHUNK_BYTES // (8 * rows.shape[1]))
    cosines = torch.cat([directions @ _directions(part).T for part in rows.split(length)], dim=1)  # (N, V)
    if own_ids:
        cosines[range(len(own_ids)), list(own_ids)] = -torch.inf
    best = cosines.topk(min(top, cosines.shape[1] - bool(own_ids)))
    return Space(table, vectors.detach().clone(), (directions @ directions.T).clamp(-1, 1), best.indices, best.values)


def _directions(vectors: Tensor) -> Tensor:
    """Vectors of length 1, in float64; a zero vector stays zero, so its cosine with anything is 0."""
    return torch.nn.functional.normalize(vectors.double(), dim=-1, eps=1e-300)
