"""How far heads copy the token that they attend to, by their weights alone, and how wide their matrices are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.look.weights.factors import (
    HeadKey,
    Product,
    Spectrum,
    Vocabulary,
    circuit_heads,
    circuits,
)
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import listed, several
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.parameters import addresses_of

COPIES = 0.5
"""The copying score from which on a head copies, or below its negative suppresses: three times as much one way."""
SAMPLED = 1024
"""Tokens whose own logit the table of heads asks for; all, where the vocabulary has no more."""


@dataclass(frozen=True)
class HeadRow(Data):
    """One head. ``copying`` is Σλ / Σ|λ| over the eigenvalues of its full OV circuit E·W_V·W_O·(W_U − mean), from −1 to
    1 (Elhage et al. 2021): E has the norm that the head reads through, and W_U is taken less the mean of its tokens,
    since what raises every logit alike changes no prediction. ``own`` the share of tokens whose own logit rises above
    the mean of all logits where they are attended to.

    Norms are Frobenius norms; ranks are effective ranks (Roy and Vetterli 2007), of at most the width of a head.
    """

    head: str
    copying: float
    own: float
    ov_norm: float
    ov_rank: float
    qk_norm: float
    qk_rank: float


@dataclass(frozen=True)
class MatrixRow(Data):
    """The spectrum of one matrix of a feed-forward, as stored: ``first`` is the share of the largest singular value in
    the sum of all squares.
    """

    matrix: str
    norm: float
    rank: float
    full: int
    first: float


@dataclass(frozen=True)
class Weights(Report):
    """Every head with its copying score, norms and ranks; the feed-forwards too if asked for. ``sampled`` tokens were
    asked for their own logit.
    """

    KIND = "weights"
    EVENTS: ClassVar = {"heads": "head", "feed_forwards": "feed_forward"}

    keys: tuple[HeadKey, ...]
    heads: tuple[HeadRow, ...]
    feed_forwards: tuple[MatrixRow, ...]
    sampled: int
    seed: int
    left_out: tuple[str, ...]

    @property
    def scores(self) -> Tensor:
        """The copying scores as a map (layers, heads), float64; NaN where there is no such head."""
        assert self.about is not None
        shape = self.about.model.config.n_layers, 1 + max(key.head for key in self.keys)
        scores = torch.full(shape, torch.nan, dtype=torch.float64)
        for key, row in zip(self.keys, self.heads, strict=True):
            scores[key.layer, key.head] = row.copying
        return scores

    @property
    def ordered(self) -> list[HeadRow]:
        """The heads, the strongest copying or suppressing first."""
        return sorted(self.heads, key=lambda row: -abs(row.copying))

    def in_a_sentence(self) -> str:
        """How many heads copy or suppress, and which does so most."""
        copying = sum(row.copying >= COPIES for row in self.heads)
        suppressing = sum(row.copying <= -COPIES for row in self.heads)
        counted = [(copying, "copy what they attend to"), (suppressing, "suppress it")]
        told = [several(count, does) for count, does in counted if count] or [
            "none copies or suppresses what it attends to"
        ]
        most = self.ordered[0]
        words = f"By their weights alone, of {len(self.heads):,} heads {listed(told)}"
        return f"{words}; the clearest is {most.head} (score {most.copying:+.2f} of ±1)."

    def fields(self) -> dict[str, Any]:
        return self.members("sampled", "seed", "left_out", "heads", "feed_forwards")

    def stored(self) -> list[Array]:
        return [Array.of("copying", ["layer", "head"], self.scores)]


def own_map(vocabulary: Vocabulary) -> Tensor:
    """Σ over tokens of unembedding ⊗ embedding, (C, C) in float64: all that eigenvalues of V × V circuits need."""
    total: Tensor | None = None
    for ids in vocabulary.chunks():
        part = (vocabulary.unembedded(ids).float().T @ vocabulary.embedded(ids).float()).double()
        total = part if total is None else total + part
    assert total is not None
    head = vocabulary.to_head(torch.eye(vocabulary.model.config.d_model, device=total.device, dtype=torch.float64))
    return head @ total


def eigenvalue_score(ov: Product, own: Tensor) -> float:
    """Σλ / Σ|λ| of the V × V circuit: its eigenvalues but for zeros are those of a matrix as narrow as the head."""
    values = torch.linalg.eigvals(ov.right @ own @ ov.left)  # (D, D)
    return float(values.sum().real / values.abs().sum().clamp_min(1e-300))


def sampled_tokens(size: int, count: int, seed: int, device: torch.device) -> Tensor:
    """Up to ``count`` different token ids, in order, drawn with ``seed``."""
    drawn = torch.randperm(size, generator=torch.Generator().manual_seed(seed))[:count]
    return drawn.sort().values.to(device)


@torch.no_grad()
def weights(
    model: TextModel, *, feed_forwards: bool = False, seed: int = 0, on_progress: Progress = ignore_progress
) -> Weights:
    """Score every head by its weights alone, without a text: what it copies, how large and how wide its circuits are.

    With ``feed_forwards`` also the spectrum of each of their matrices. ``seed`` draws the tokens of ``own``. Raises
    UsageError for a model whose heads have no circuits, or whose logits are no linear reading of the stream.
    """
    transformer, table = model.transformer, table_of(model.config)
    keys, vocabulary = circuit_heads(table), Vocabulary(model.transformer)
    own = own_map(vocabulary)
    ids = sampled_tokens(vocabulary.size, SAMPLED, seed, vocabulary.matrix.device)
    embedded = vocabulary.embedded(ids).double()  # (S, C)
    unembedding = vocabulary.unembedded(ids)
    rows = []
    for number, key in enumerate(keys):
        head = circuits(transformer, key)
        written = vocabulary.to_head(head.ov.right)  # (D, C)
        raised = ((embedded @ head.ov.left) * (unembedding @ written.T)).sum(dim=-1) > 0
        ov, qk = head.ov.spectrum, head.qk.spectrum
        measures = (eigenvalue_score(head.ov, own), float(raised.double().mean()), ov.norm, ov.rank, qk.norm, qk.rank)
        rows.append(HeadRow(str(key), *measures))
        on_progress(number + 1, len(keys))
    matrices = tuple(_spectra(model)) if feed_forwards else ()
    about = About(model)
    return Weights(tuple(keys), tuple(rows), matrices, len(ids), seed, left_out(table), about=about)


def _spectra(model: TextModel) -> Sequence[MatrixRow]:
    rows = []
    for address, _ in addresses_of(table_of(model.config)):
        if address.step.role != "ffn" or address.step.of_experts:
            continue
        matrix = address.tensor(model.transformer)
        if matrix.dim() == 2:
            of = Spectrum(torch.linalg.svdvals(matrix.float()).double())
            rows.append(MatrixRow(str(address), of.norm, of.rank, len(of.singular_values), of.first))
    return rows


def left_out(table: StepTable, *, tokens: bool = True) -> tuple[str, ...]:
    """What a reading of weights without a text leaves out in this model, in words; ``tokens`` are read on both ends."""
    config = table.config
    of_tokens: Mapping[str, Any] = {
        "added positions": config.positions.startswith(("learned", "sinusoidal")),
        "the scale of the final norm": config.final_norm,
        "the soft cap of the logits": config.logit_cap,
    }
    of_heads: Mapping[str, Any] = {
        "cross-attention, which reads the encoder": config.d_source,
        "biases": config.qkv_bias or config.o_bias,
        "the scales of the norms of queries and keys": config.qk_norm,
        "the norm of the values": config.v_norm,
        "the bounds of queries, keys and values": config.clip_qkv,
        "the scales of the norms after attention": config.norm_order in ("both", "output"),
        "the norms of the stream after each sum": config.norm_order == "post",
        "the soft cap of the scores": config.attention_cap,
        "the growth of queries with their position": config.query_scale,
        "distances, as if all tokens stood at one position": config.positions in ("rotary", "alibi")
        or config.relative_buckets,
    }
    parts = {**(of_tokens if tokens else {}), **of_heads}
    return tuple(words for words, is_left_out in parts.items() if is_left_out)
