"""One head by its weights alone: what attending to a token promotes, which tokens it looks for, its directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.estimate import Estimate, mean_of
from tinytf.look.weights.copying import (
    COPIES,
    eigenvalue_score,
    left_out,
    own_map,
    sampled_tokens,
)
from tinytf.look.weights.factors import (
    HeadKey,
    Spectrum,
    Vocabulary,
    circuits,
    find_head,
    queries_and_keys,
)
from tinytf.memory import require_free
from tinytf.report import About, Report
from tinytf.sentences import percent
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel

TOP = 10
"""A token is copied into the first so many where its own logit is among that many largest of its row."""
_RANKED = 512
"""Tokens whose own logit is ranked among all logits of its row, V × that many numbers."""
_AT_ONCE = 64
_NOISE = 1e-12
"""Singular values below this share of the largest are rounding errors of 0, and have no direction."""

Scored = tuple[tuple[int, float], ...]
"""Token ids, each with a number."""


@dataclass(frozen=True)
class TokenRow:
    """A token of a circuit, and the tokens at both ends of its row of V numbers; ``size`` is the norm of that row,
    centred.
    """

    token: int
    size: float
    most: Scored
    least: Scored


@dataclass(frozen=True)
class Direction:
    """A singular direction of W_V·W_O: its singular ``value``, its ``share`` of the sum of all squares, and the tokens
    at both ends of the direction that is read and of the one that is written, both through the unembedding (Millidge
    and Black 2022). Where the stream points to ``reads``, the head writes ``writes``.
    """

    value: float
    share: float
    reads: Scored
    reads_less: Scored
    writes: Scored
    writes_less: Scored


@dataclass(frozen=True, eq=False)
class HeadWeights(Report):
    """The circuits of one head on the tokens of the vocabulary, each alone in the stream.

    ``copying`` is Σλ / Σ|λ| of the full OV circuit; ``own`` the share of all tokens whose own logit rises above the
    mean of all logits where they are attended to; ``own_first`` the share for which it is among the TOP largest, of
    ``ranked`` tokens drawn with ``seed``. ``sources`` say what attending to a token adds to the logits, ``queries``
    which keys a token scores most, after the scale of the scores. ``ov`` and ``qk`` are the spectra of W_V·W_O and
    W_Q·W_Kᵀ.
    """

    KIND = "head_weights"
    EVENTS: ClassVar = {"sources": "source", "queries": "query", "directions": "direction"}

    key: HeadKey
    copying: float
    own: float
    own_first: Estimate
    ranked: int
    seed: int
    sources: tuple[TokenRow, ...]
    queries: tuple[TokenRow, ...]
    directions: tuple[Direction, ...]
    ov: Spectrum
    qk: Spectrum
    left_out: tuple[str, ...]

    def in_a_sentence(self) -> str:
        """Whether the head copies or suppresses, and what the token does that moves the logits most."""
        if not self.ov.norm:
            return f"{self.key} moves nothing: its W_V·W_O is 0."
        score = self.copying
        does = (
            "copies what it attends to" if score >= COPIES
            else "suppresses what it attends to" if score <= -COPIES
            else "neither copies nor suppresses what it attends to"
        )  # fmt: skip
        words = (
            f"{self.key} {does}: attending to a token raises its own logit for {percent(self.own)} of the vocabulary"
        )
        first = self.sources[0]
        top = ", ".join(str(self.word(token)) for token, _ in first.most[:3])
        return f"{words}; attending to {self.word(first.token)} promotes {top}."

    def fields(self) -> dict[str, Any]:
        return {
            "head": str(self.key),
            **self.members("copying", "own", "own_first", "ranked", "seed", "left_out", "ov", "qk"),
            "sources": [self._row(row, "logit") for row in self.sources],
            "queries": [self._row(row, "score") for row in self.queries],
            "directions": [
                {
                    **{name: getattr(direction, name) for name in ("value", "share")},
                    **{
                        name: self._named(getattr(direction, name), "logit")
                        for name in ("reads", "reads_less", "writes", "writes_less")
                    },
                }
                for direction in self.directions
            ],
        }

    def _named(self, scored: Scored, value: str) -> list[dict[str, Any]]:
        return [{"id": token, "token": self.word(token), value: number} for token, number in scored]

    def _row(self, row: TokenRow, value: str) -> dict[str, Any]:
        ends = {"most": self._named(row.most, value), "least": self._named(row.least, value)}
        return {"id": row.token, "token": self.word(row.token), "size": row.size, **ends}

    def stored(self) -> list[Array]:
        spectra = (("ov", self.ov), ("qk", self.qk))
        return [Array.of(name, ["singular value"], spectrum.singular_values) for name, spectrum in spectra]


@torch.no_grad()
def head_weights(
    model: TextModel, head: str, *, tokens: Sequence[str | int] = (), top: int = 5, rows: int = 6, seed: int = 0
) -> HeadWeights:
    """The OV and QK circuits of one head, such as ``L1H2``, on the tokens of the vocabulary, without a text.

    ``tokens`` are the sources and queries that are read; by default the ``rows`` whose rows of the circuit are largest.
    ``top`` is the number of tokens at each end. ``seed`` draws the tokens that are ranked. Raises AddressError for
    anything but one head, UsageError for one without circuits and for a word that is not one token, and MemoryShortage
    where two vectors of every token do not fit.
    """
    transformer, vocabulary = model.transformer, Vocabulary(model.transformer)
    key = find_head(head, table_of(model.config))
    chosen = [model.find_token(token, "--token") for token in tokens]
    width, device = model.config.at(key.layer).d_head, vocabulary.matrix.device
    require_free(f"the circuits of {key} take", 4 * 4 * vocabulary.size * width, device, "take a smaller model")
    weights = circuits(transformer, key)
    written = vocabulary.to_head(weights.ov.right)
    read_side, write_side = weights.ov.left.float(), written.T
    sources = torch.cat([vocabulary.embedded(ids).float() @ read_side for ids in vocabulary.chunks()])  # (V, D)
    promoted = torch.cat([(vocabulary.unembedded(ids) @ write_side).float() for ids in vocabulary.chunks()])  # (V, D)
    own = (sources * promoted).sum(dim=-1)
    ranked = sampled_tokens(vocabulary.size, _RANKED, seed, device)
    ranks = torch.cat([_own_rank(sources[ids] @ promoted.T, ids) for ids in ranked.split(_AT_ONCE)])
    first = mean_of((ranks <= TOP).double().cpu(), seed)
    queries, keys = (
        torch.cat([queries_and_keys(transformer, key, ids, vocabulary, which) for ids in vocabulary.chunks()]).float()
        for which in (0, 1)
    )
    divisor = model.config.at(key.layer).score_divisor
    read, ov, wrote = weights.ov.singular()
    return HeadWeights(
        key,
        eigenvalue_score(weights.ov, own_map(vocabulary)),
        float((own > 0).double().mean()),
        first,
        len(ranked),
        seed,
        _rows(sources, promoted, chosen, top, rows),
        _rows(queries / divisor, keys, chosen, top, rows),
        _directions(vocabulary, read, ov, wrote, top),
        Spectrum(ov.cpu()),
        weights.qk.spectrum,
        left_out(table_of(model.config)),
        about=About(model),
    )


def _own_rank(logits: Tensor, ids: Tensor) -> Tensor:
    """The rank from 1 of each row's own token among its logits (N, V), the last of equals: (N,)."""
    return (logits >= logits.gather(1, ids[:, None])).sum(dim=-1)


def _rows(left: Tensor, right: Tensor, chosen: Sequence[int], top: int, rows: int) -> tuple[TokenRow, ...]:
    """The ``chosen`` rows of left·rightᵀ, (V, V), or the largest, without those of zeros; only these rows are made."""
    centred = (right - right.mean(dim=0)).double()
    gram = centred.T @ centred  # (D, D)
    sizes = ((left.double() @ gram) * left.double()).sum(dim=-1).clamp_min(0).sqrt()
    ids = list(dict.fromkeys(chosen)) or sizes.topk(min(rows, len(sizes))).indices.tolist()
    ids = [token for token in ids if sizes[token] > 0]
    return tuple(
        TokenRow(token, float(sizes[token]), *ends)
        for token, ends in zip(ids, _ends(left[ids] @ right.T, top), strict=True)
    )


def _ends(values: Tensor, top: int) -> list[tuple[Scored, Scored]]:
    """The ``top`` tokens at both ends of each row of V numbers."""
    count = min(top, values.shape[-1])
    both = [values.topk(count, largest=largest) for largest in (True, False)]
    ends = [
        [tuple(zip(*pair, strict=True)) for pair in zip(end.indices.tolist(), end.values.tolist(), strict=True)]
        for end in both
    ]
    return list(zip(*ends, strict=True))


def _directions(vocabulary: Vocabulary, read: Tensor, sizes: Tensor, wrote: Tensor, top: int) -> tuple[Direction, ...]:
    """The first singular directions, without values of 0; the sign makes the largest logit of each positive."""
    count, energy = min(top, int((sizes > _NOISE * sizes[0]).sum())), sizes.square()
    both = vocabulary.to_head(torch.cat((read.T[:count], wrote[:count])))  # (2·count, C)
    logits = torch.cat([vocabulary.unembedded(ids) @ both.T for ids in vocabulary.chunks()]).T  # (2·count, V)
    of_read, of_written = logits[:count], logits[count:]
    signs = torch.where(of_written.amax(dim=-1) >= -of_written.amin(dim=-1), 1.0, -1.0)[:, None]
    ends = zip(_ends(of_read * signs, top), _ends(of_written * signs, top), strict=True)
    shares = (energy / energy.sum().clamp_min(1e-300)).tolist()
    return tuple(
        Direction(float(size), share, *reading, *writing)
        for size, share, (reading, writing) in zip(sizes, shares, ends, strict=False)
    )
