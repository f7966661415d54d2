"""Direct logit attribution: what each part of a model adds to one logit, or to another metric of one prediction.

The residual stream is a sum of the embeddings, every head, every feed-forward and their biases. A norm whose scale is
frozen is linear, so each part goes through it by itself, and the parts sum to the logit (Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits"). Of any other metric, they sum to its first order: its
gradient with respect to the logits, times the logits.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.encoder_parts import encoder_parts
from tinytf.look.stream_parts import (
    Parts,
    add_embeddings,
    attention_or_feed_forward,
    float64,
    parts_read,
    positions_read,
    send_through_block,
)
from tinytf.metric import Answer, Asked, Metric, MetricFunction
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.report import About, Data, Report
from tinytf.steps.operations import Activate
from tinytf.tables import Array
from tinytf.text.tokenizer import Token
from tinytf.text_model import TextModel
from tinytf.tolerance import PARTS, allowed
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Text, Trace

_ROWS = 4096  # of the unembedding, in float64 at a time
_ROUNDINGS = 4
"""Roundings of the sum of all parts' magnitudes that are allowed: large parts that cancel leave such an error."""

_CROSS = "cross-attention"
KINDS = (
    "embedding",
    "head",
    "attention bias",
    _CROSS,
    "cross-attention bias",
    "feed-forward",
    "expert",
    "feed-forward bias",
    "convolution",
    "norm bias",
    "dense bias",
    "unembedding bias",
    "exchanged",
)


@dataclass(frozen=True)
class Part(Data):
    """One term of the logit; ``layer`` and ``head`` are None for terms without them, ``kind`` is one of KINDS.

    ``source`` is what each token of the source adds to it, of cross-attention or through it.
    """

    LESS: ClassVar = ("name", "source")

    name: str
    kind: str
    layer: int | None
    head: int | None
    value: float
    source: tuple[float, ...] = ()


@dataclass(frozen=True)
class Attribution(Report):
    """The parts of the ``metric`` at ``position``: by default the logit of ``token``, minus that of ``versus`` if
    named.

    ``value`` is the metric; where it is no logit or difference of two, ``logit`` is what the parts sum to, its gradient
    times the logits.

    ``logit`` is the model's own, and ``allowed`` how far the sum may be from it: PARTS or four roundings of the sum of
    the parts' magnitudes, whichever is more. ``of`` names what the parts sum to: if logits are capped or scaled, it is
    ``head.logits``, the logit before that. ``frozen`` says what was held constant. ``source_tokens`` are those that
    cross-attention reads. ``encoder_parts`` split what these add once more, over the stack that is read: they have the
    same sum, within ``encoder_allowed``.
    """

    KIND = "attribute"
    EVENTS: ClassVar = {"tokens": "token", "parts": "part", "check": "check"}

    position: int
    token: int
    versus: int | None
    metric: Metric
    value: float
    parts: tuple[Part, ...]
    logit: float
    allowed: float
    frozen: str
    of: str = "logit"
    source_tokens: tuple[Token, ...] = ()
    encoder_parts: tuple[Part, ...] = ()
    encoder_allowed: float = 0.0

    @property
    def sum(self) -> float:
        return total(self.parts)

    @property
    def difference(self) -> float:
        return abs(self.sum - self.logit)

    @property
    def encoder_difference(self) -> float:
        """How far the encoder's parts are from what the tokens of the source add."""
        return abs(total(self.encoder_parts) - math.fsum(self.of_source())) if self.encoder_parts else 0.0

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed and self.encoder_difference <= self.encoder_allowed

    @property
    def is_linear(self) -> bool:
        """Whether the metric is a logit or a difference of two, of which the parts are no estimate."""
        return self.metric.name in ("logit", "logit_diff")

    @property
    def subject(self) -> str:
        """What is split, in words."""
        is_logit = self.metric.name == "logit"
        return f"{self.of} of {self.shown(self.token)}" if is_logit else self.metric.words.removeprefix("the ")

    def in_a_sentence(self) -> str:
        """The parts that add and take away most."""
        what = self.subject
        most, least = (choose(self.parts, key=lambda part: part.value) for choose in (max, min))
        told = [f"{most.name} adds most to it ({most.value:+.3g})"] * (most.value > 0)
        told += [f"{least.name} takes most away ({least.value:+.3g})"] * (least.value < 0)
        return f"The {what} is {self.value:.4g}{': ' * bool(told)}{', '.join(told)}."

    def fields(self) -> dict[str, Any]:
        """The JSON data; parts are in the order in which the model adds them."""
        return {
            **self.members("position"),
            "target": self.named(self.token),
            "versus": None if self.versus is None else self.named(self.versus),
            "metric": self.metric.to_dict(),
            **self.members("value", "logit", "frozen"),
            "parts": [{"part": part.name, **part.to_dict()} for part in self.parts],
            "by_kind": self.by_kind(),
            "heads": self.heads().tolist(),
            "source": [
                {"token": token.shown, "value": value}
                for token, value in zip(self.source_tokens, self.of_source(), strict=True)
            ],
            "encoder": [{"part": part.name, **part.to_dict()} for part in self.encoder_parts],
            "check": {
                "parts": len(self.parts),
                **self.members("holds", "sum", "difference", "allowed"),
                **(self.members("encoder_difference", "encoder_allowed") if self.encoder_parts else {}),
            },
        }

    def stored(self) -> list[Array]:
        """The map of the heads, every part in the order of the JSON data, and those of an encoder by token."""
        values = torch.tensor([part.value for part in self.parts], dtype=torch.float64)
        arrays = [Array.of("heads", ["layer", "head"], self.heads()), Array.of("parts", ["part"], values)]
        by_token = torch.tensor([part.source for part in self.encoder_parts], dtype=torch.float64)
        return [*arrays, *([Array.of("encoder", ["part", "source"], by_token)] if self.encoder_parts else [])]

    def heads(self) -> Tensor:
        """The heads' parts as a map (layers, heads), float64; NaN where a layer has fewer heads."""
        heads = [part for part in self.parts if part.kind == "head"]
        indices = torch.tensor([(part.layer or 0, part.head or 0) for part in heads])
        layers, most = 1 + max(part.layer or 0 for part in self.parts), 1 + int(indices[:, 1].max())
        values = torch.full((layers, most), torch.nan, dtype=torch.float64)
        values[tuple(indices.T)] = torch.tensor([part.value for part in heads], dtype=torch.float64)
        return values

    def of_source(self) -> tuple[float, ...]:
        """What each token of the source adds through cross-attention in all layers; empty for one stack."""
        return tuple(map(math.fsum, zip(*(part.source for part in self.parts if part.source), strict=True)))

    def by_kind(self) -> dict[str, float]:
        """The sum of each kind of part that is present."""
        kinds = [kind for kind in KINDS if any(part.kind == kind for part in self.parts)]
        return {kind: total(part for part in self.parts if part.kind == kind) for kind in kinds}


def total(parts: Iterable[Part]) -> float:
    """The sum of some parts, rounded once; NaN if any is not finite."""
    values = [part.value for part in parts]
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


def require_logits(model: Transformer) -> None:
    """Raise UsageError for a model without a head, which has no logits."""
    model.require_head("there is no logit to attribute")


@torch.no_grad()
def attribute(
    model: TextModel,
    text: Text,
    *,
    token: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    position: str | None = None,
    truncate: bool = False,
    force: bool = False,
) -> Attribution:
    """Split the logit of ``token`` (default: the predicted one), or its lead over ``versus``, into the model's parts.

    Another ``metric`` of one prediction, as in ``patch``, is split by its gradient: what each part adds to it to first
    order. A function gets the logits (1, V) of the prediction.

    ``text`` may be a trace. ``position`` is an index such as ``-1`` or a token of the text; by default the last token
    of a decoder, the only [MASK] of an encoder. The scale of every norm on the way to the logit is frozen: the final
    norm's, and in a post-norm model all norms'. The activation of a masked-language-model head is x·gate(x); its gate
    is frozen too. So the sum is exact in every model.

    Raises UsageError for a model without a head, for a position or token that does not exist, and for a ``versus`` that
    is the token itself; TinytfError for logits that are not finite.
    """
    require_logits(model.transformer)
    default = "logit" if versus is None else "logit_diff"
    asked = Asked.of(model, metric, token, versus, default=default, names=("--token", "--versus"))
    asked.require_gradient()
    if asked.continues or asked.metric == "loss":
        raise UsageError("parts are of the logits of one position, and this metric reads several", "name one token")
    trace = model.trace(text, truncate=truncate, force=force)
    at, unembedded = _position(trace, position), trace.steps.unembedded
    logits = trace.vocabulary(unembedded.name, [at])[0].double()
    require_finite(trace, logits)
    best = logits.topk(2).indices.tolist()
    followed = asked.bind(trace, at, best[1], shown=model.shown, run="plain")
    if followed.is_lead and followed.answer == followed.versus:
        raise UsageError("a token compared with itself has no lead", "name another token with --versus")
    chosen, versus_id = (followed.answer or (best[0],))[0], next(iter(followed.versus), None)
    gradient, value = _gradient(trace, followed, logits)
    terms, encoder = metric_parts(trace, at, gradient), encoder_terms(trace, at, gradient)
    logit = float(gradient @ logits)
    subject = "logit" if unembedded is trace.steps.over_vocabulary[-1] else unembedded.name
    about, limit = About(model, trace.encoding), _allowed(trace, terms)
    read = trace.tokens_on("source") if any(part.source for part in terms) else ()
    return Attribution(
        at, chosen, versus_id, followed, value, tuple(terms), logit, limit, _frozen(trace), subject, read,
        tuple(encoder), _allowed(trace, encoder), about=about,
    )  # fmt: skip


def logit_parts(
    trace: Trace, position: int, token: int, versus: int | None = None, frozen: Trace | None = None
) -> list[Part]:
    """``metric_parts`` of the logit of ``token``, minus that of ``versus``."""
    return metric_parts(trace, position, _logit(len(trace.model.unembedding), token, versus), frozen)


def _logit(size: int, token: int, versus: int | None) -> Tensor:
    """The gradient of a logit, or of its lead over another: 1, and −1, among ``size`` logits."""
    gradient = torch.zeros(size, dtype=torch.float64)
    gradient[token] = 1.0
    if versus is not None:
        gradient[versus] -= 1.0
    return gradient


def _gradient(trace: Trace, metric: Metric, logits: Tensor) -> tuple[Tensor, float]:
    """The gradient of a metric with respect to the logits (V,) at its position, and its value; both in float64.

    Raises UsageError for a model that scales or caps its logits, of which the parts sum to no other metric.
    """
    if metric.name not in ("logit", "logit_diff") and len(trace.steps.over_vocabulary) > 1:
        raise UsageError(
            f"this model scales or caps its logits, so {metric.name} has no parts", "take logit, or logit_diff"
        )
    with torch.inference_mode(False), torch.enable_grad():
        at = logits.detach().clone().requires_grad_()
        value = metric.of(at[None, None])[0]
        (gradient,) = torch.autograd.grad(value, at)
    return gradient.cpu(), float(value.detach())


@torch.no_grad()
def metric_parts(trace: Trace, position: int, gradient: Tensor, frozen: Trace | None = None) -> list[Part]:
    """The parts of ``gradient`` (V,) times the logits at ``position``, in the order they are added.

    Scales of norms and gates are those of ``frozen``, another trace of as many tokens; by default the trace's own.
    """

    def build(parts: Parts) -> None:
        add_embeddings(parts)
        for layer in range(trace.config.n_layers):
            send_through_block(parts, layer, attention_or_feed_forward)

    parts = parts_read(trace, position, build, frozen)
    values = torch.cat(parts.rows) @ _direction(trace.model.unembedding, gradient)  # (N, C) · (C,) -> (N,)
    sources: dict[str, list[float]] = {}
    terms = []
    for (name, kind, layer, number), value in zip(parts.names, values.tolist(), strict=True):
        if kind != _CROSS or number is None:
            terms.append(Part(name, kind, layer, number, value))
            continue
        if name not in sources:
            terms.append(Part(name, kind, layer, None, 0.0))
        sources.setdefault(name, []).append(value)
    terms = [
        replace(part, value=math.fsum(sources[part.name]), source=tuple(sources[part.name]))
        if part.name in sources
        else part
        for part in terms
    ]
    bias = getattr(getattr(trace.model.head, "decoder", None), "bias", None)
    if bias is not None:
        terms.append(Part("logits bias", "unembedding bias", None, None, float(_direction(bias, gradient))))
    return terms


@torch.no_grad()
def encoder_terms(trace: Trace, position: int, gradient: Tensor, frozen: Trace | None = None) -> list[Part]:
    """What cross-attention adds to ``gradient`` (V,) times the logits, split into the parts of the encoder.

    The weights of cross-attention and the scales of all norms are held. Empty for a model of one stack.
    """
    found = encoder_parts(trace, position, _direction(trace.model.unembedding, gradient), frozen)
    return [Part(*names, math.fsum(values), values) for names, values in found.items()]


def head_contributions(trace: Trace, position: int, token: int, heads: Sequence[Tensor]) -> list[list[float]]:
    """The parts of all heads in the logit of a token at one position, by layer, as in ``attribute``.

    ``heads`` are the vectors that the heads of each layer add before any norm, (H, P, C), at ``positions_read``.
    """
    rows_of = {at: row for row, at in enumerate(positions_read(trace, position))}

    def of_heads(stream: Parts, step: Step, layer: int) -> Parts:
        added = Parts(trace, stream.position)
        if step.role == "attention":
            vectors = float64(heads[layer][:, rows_of[stream.position]])
            added.add_heads(layer, torch.zeros_like(vectors) if trace.is_exchanged(step.name, layer) else vectors)
        return added

    def build(parts: Parts) -> None:
        for layer in range(trace.config.n_layers):
            send_through_block(parts, layer, of_heads)

    parts = parts_read(trace, position, build)
    rows = [row for row, (_, kind, _, _) in zip(torch.cat(parts.rows), parts.names, strict=True) if kind == "head"]
    values = torch.stack(rows) @ float64(trace.model.unembedding[token])  # (L·H, C) · (C,) -> (L·H,)
    return [parts.tolist() for parts in values.split([len(vectors) for vectors in heads])]


def _position(trace: Trace, position: str | None) -> int:
    if position is not None:
        positions = trace.positions(position)
        if len(positions) > 1:
            raise UsageError(
                f"--position {position!r} is {len(positions)} positions",
                "name a single position: one logit is attributed at a time",
            )
        return positions[0]
    rows = trace.recording.logit_rows
    if len(rows) == 1:
        return rows[0]
    if trace.config.labels:
        raise UsageError("every token has logits of its own", "choose a token with --position")
    masks = ", ".join(map(str, rows[:8]))
    if len({trace.tokens[row].id for row in rows}) > 1:
        raise UsageError(
            "the text has no [MASK] whose prediction to attribute",
            "write [MASK] in the text, or name a position, such as --position 2",
        )
    raise UsageError(f"the text has {len(rows)} [MASK], at {masks}", "choose one with --position")


def _direction(table: Tensor, gradient: Tensor) -> Tensor:
    """``gradient`` (V,) times a table (V, C) or a bias (V,): its rows in float64, as many at a time as fit."""
    ids = gradient.nonzero()[:, 0]
    pieces = (gradient[some].to(table.device) @ float64(table[some.to(table.device)]) for some in ids.split(_ROWS))
    return torch.stack([*pieces]).sum(0) if len(ids) else 0.0 * float64(table[0])


def _allowed(trace: Trace, parts: list[Part]) -> float:
    dtype = trace.last_hidden.dtype
    limit = allowed(PARTS, dtype)
    sizes = [abs(part.value) for part in parts if math.isfinite(part.value)]
    if dtype in (torch.float32, torch.float64):
        return max(limit, _ROUNDINGS * torch.finfo(dtype).eps * math.fsum(sizes))
    return limit * max([1.0, *sizes])


def _frozen(trace: Trace) -> str:
    stream_norms = trace.steps.stream_norms
    norms = "the scale of every norm" if stream_norms else "the final norm's scale"
    if not stream_norms and "embed.sum" in trace.steps.by_name:
        norms = "the scales of the embedding norm and the final norm"
    if trace.config.extra_streams:
        norms = f"{norms}, the weights and {'gates' if trace.config.stream_rank else 'sizes'} of the streams"
    gated = any(isinstance(step.operation, Activate) and step.name.startswith("head.") for step in trace.steps.after)
    frozen = f"{norms} and the gate of the head's activation" if gated else norms
    first, *later = trace.steps.over_vocabulary
    return f"{frozen}; the sum is {first.name}, of which the logit is made" if later else frozen
