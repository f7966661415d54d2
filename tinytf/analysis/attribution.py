"""Direct logit attribution: what each part of a model adds to one logit.

The residual stream is a sum of the embeddings, every head, every feed-forward and their biases. A norm whose scale is
held at what it was is linear, so each part goes through it by itself, and the parts sum to the logit (Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits").
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.report import Report
from tinytf.steps.table import Step
from tinytf.tolerance import PARTS, allowed
from tinytf.trace.trace import Trace

_ROUNDINGS = 4
"""Of the sum of all parts without their signs: what large parts that cancel leave in a logit of the model's own."""

KINDS = (
    "embedding",
    "head",
    "attention bias",
    "feed-forward",
    "feed-forward bias",
    "norm bias",
    "dense bias",
    "unembedding bias",
    "exchanged",
)


@dataclass(frozen=True)
class Part:
    """One term of the logit; ``layer`` and ``head`` are None where it has none, ``kind`` is one of KINDS."""

    name: str
    kind: str
    layer: int | None
    head: int | None
    value: float


@dataclass(frozen=True)
class Attribution(Report):
    """The parts of the logit of ``token`` at ``position``, less that of ``versus`` where there is one.

    ``logit`` is the model's own, and ``allowed`` how far the sum may be from it: PARTS, or four roundings of what
    the parts come to without their signs, where that is more. ``of`` is what the parts sum to: where logits are capped
    it is ``head.logits``, the logit before the cap. ``frozen`` says what was held at the value that it had.
    """

    KIND = "attribution"
    EVENTS: ClassVar = {"tokens": "token", "parts": "part", "check": "check"}

    position: int
    token: int
    versus: int | None
    parts: tuple[Part, ...]
    logit: float
    allowed: float
    frozen: str
    of: str = "logit"

    @property
    def sum(self) -> float:
        return total(self.parts)

    @property
    def difference(self) -> float:
        return abs(self.sum - self.logit)

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed

    def fields(self) -> dict[str, Any]:
        """The parts in the order in which the model adds them."""
        return {
            "position": self.position,
            "target": self.named(self.token),
            "versus": None if self.versus is None else self.named(self.versus),
            "logit": self.logit,
            "frozen": self.frozen,
            "parts": [
                {"part": part.name, "kind": part.kind, "layer": part.layer, "head": part.head, "value": part.value}
                for part in self.parts
            ],
            "by_kind": self.by_kind(),
            "heads": self.heads().tolist(),
            "check": {
                "holds": self.holds,
                "parts": len(self.parts),
                "sum": self.sum,
                "difference": self.difference,
                "allowed": self.allowed,
            },
        }

    def tensors(self) -> dict[str, Tensor]:
        """The map of the heads, and every part in the order of the data."""
        values = torch.tensor([part.value for part in self.parts], dtype=torch.float64)
        return {"heads": self.heads(), "parts": values}

    def heads(self) -> Tensor:
        """The heads' parts as a map (layers, heads), float64."""
        found = [part for part in self.parts if part.kind == "head"]
        n_heads = 1 + max(part.head or 0 for part in found)
        return torch.tensor([part.value for part in found], dtype=torch.float64).view(-1, n_heads)

    def by_kind(self) -> dict[str, float]:
        """The sum of each kind of part that there is."""
        kinds = [kind for kind in KINDS if any(part.kind == kind for part in self.parts)]
        return {kind: total(part for part in self.parts if part.kind == kind) for kind in kinds}


def total(parts: Iterable[Part]) -> float:
    """What some parts sum to, rounded once; NaN where they hold infinities."""
    values = [part.value for part in parts]
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


@dataclass
class _Parts:
    """Vectors in the residual stream at one position, (N, C) in float64, that add up to it."""

    width: int
    names: list[tuple[str, str, int | None, int | None]] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    def add(self, name: str, kind: str, vector: Tensor | None, layer: int | None = None) -> None:
        """One more part; a bias that the model does not have is None, and none is added."""
        if vector is not None:
            self.names.append((name if layer is None else f"L{layer}.{name}", kind, layer, None))
            self.rows.append(vector.detach().double().cpu()[None])

    def add_heads(self, layer: int, vectors: Tensor) -> None:
        self.names += [(f"L{layer}H{head}", "head", layer, head) for head in range(len(vectors))]
        self.rows.append(vectors)

    def take(self, others: "_Parts") -> None:
        """Add the parts of others."""
        self.names += others.names
        self.rows += others.rows

    def replace(self, name: str, vector: Tensor, layer: int) -> None:
        """One part that was put in the place of all before, which add nothing any more."""
        self.rows = [torch.zeros_like(row) for row in self.rows]
        self.add(name, "exchanged", vector, layer)

    def through(self, how: Any) -> None:
        """Send every part through a linear map of (N, C)."""
        self.rows = [how(torch.cat(self.rows))]

    def norm(self, norm: Any, taken: Tensor, name: str, layer: int | None = None) -> None:
        """Send every part through a norm with the scale that it had for the whole of what it took, ``taken`` (C,)."""
        x = taken.double().cpu()
        centred = isinstance(norm, nn.LayerNorm)
        x = x - x.mean() if centred else x
        scale = norm.weight.detach().double().cpu() / (x.square().mean() + norm.eps).sqrt()
        self.through(lambda rows: (rows - rows.mean(dim=-1, keepdim=True) if centred else rows) * scale)
        self.add(name, "norm bias", getattr(norm, "bias", None), layer)


def require_logits(model: Transformer) -> None:
    """Raise UsageError where a model has no head, and so no logit."""
    if model.head is None:
        raise UsageError(
            "this model has no language-model head, so there is no logit to attribute",
            "take a model that predicts tokens, such as tiny or tiny-encoder",
        )


@torch.no_grad()
def attribute(
    trace: Trace, position: int | None = None, token: int | None = None, versus: int | None = None
) -> Attribution:
    """Take the logit of ``token`` at ``position`` apart, or its lead over that of ``versus``.

    Without a position the last one of a decoder, the one [MASK] of an encoder; without a token the predicted one.
    Frozen is the scale of every norm on the way to the logit: of the final one, in a post-norm model of all. A masked-
    language-model head's activation is x·gate(x), and its gate is frozen too; so the sum is exact in every model.

    Raises UsageError for a model without a head, for a position or token that is not there, and for a ``versus`` that
    is the token itself.
    """
    model, config = trace.model, trace.config
    require_logits(model)
    place = _place(trace, position)
    unembedded = trace.steps.unembedded
    logits = trace.vocabulary(unembedded.name, [place])[0].double()
    chosen = int(logits.argmax()) if token is None else token
    for one in (chosen, versus):
        if one is not None and not 0 <= one < config.vocab_size:
            raise UsageError(
                f"there is no token {one:,}: the model has {config.vocab_size:,}, 0 to {config.vocab_size - 1:,}"
            )
    if chosen == versus:
        raise UsageError("a token compared with itself has no lead", "name another by --versus")
    parts = _Parts(config.d_model)
    _embeddings(trace, place, parts)
    for layer in range(config.n_layers):
        _block(trace, layer, place, parts)
    if config.final_norm:
        parts.norm(model.final_norm, trace.last_output[place], "final.norm bias")
    if config.head == "mlm":
        _masked_head(trace, place, parts)
    values = torch.cat(parts.rows) @ _direction(model.unembedding, chosen, versus)  # (N, C) · (C,) -> (N,)
    found = [Part(*name, value) for name, value in zip(parts.names, values.tolist(), strict=True)]
    bias = getattr(getattr(model.head, "decoder", None), "bias", None)
    if bias is not None:
        found.append(Part("logits bias", "unembedding bias", None, None, float(_direction(bias, chosen, versus))))
    logit = float(logits[chosen]) - (0.0 if versus is None else float(logits[versus]))
    of = "logit" if unembedded.name == "logits" else unembedded.name
    return Attribution(place, chosen, versus, tuple(found), logit, _allowed(trace, found), _frozen(trace), of)


def _place(trace: Trace, position: int | None) -> int:
    length = len(trace.tokens)
    if position is not None:
        if not 0 <= position < length:
            raise UsageError(
                f"there is no position {position}: the text has {length} tokens, 0 to {length - 1}",
                "tinytf tokens numbers them",
            )
        return position
    rows = trace.recording.logit_rows
    if trace.config.causal or len(rows) == 1:
        return rows[0]
    masks = ", ".join(map(str, rows[:8]))
    if len({trace.tokens[row].id for row in rows}) > 1:
        raise UsageError("the text has no [MASK] whose prediction to attribute", "write one, or say --position 2")
    raise UsageError(f"the text has {len(rows)} [MASK], at {masks}", "say which by --position")


def _embeddings(trace: Trace, place: int, parts: _Parts) -> None:
    for name in ("embed.tokens", "embed.positions", "embed.types"):
        if name in trace.steps.by_name:
            parts.add(name, "embedding", trace.step(name)[place])
    if trace.config.embed_norm:
        parts.norm(trace.model.embed.norm, trace.step("embed.sum")[place], "embed.norm bias")


def _block(trace: Trace, layer: int, place: int, parts: _Parts) -> None:
    """What a block adds, in the order of its steps, each part through the norms that the stream or it goes through."""
    block: Any = trace.model.blocks[layer]
    if trace.is_exchanged("in", layer):
        parts.replace("in", trace.step("in", layer)[place], layer)
    norms = {step.inputs[0]: step for step in trace.steps.stream_norms}
    for name, add in (("attn", _attention), ("ffn", _feed_forward)):
        added = _Parts(parts.width)
        add(trace, block, layer, place, added, exchanged=trace.is_exchanged(name, layer))
        _through(trace, norms.get(name), layer, place, added)
        parts.take(added)
        _through(trace, norms.get("mid" if name == "attn" else "sum"), layer, place, parts)
    out = trace.steps.output
    if trace.is_exchanged(out, layer):
        parts.replace(out, trace.step(out, layer)[place], layer)


def _attention(trace: Trace, block: Any, layer: int, place: int, parts: _Parts, *, exchanged: bool) -> None:
    config = trace.config
    heads = trace.step("head_out", layer)[:, place].double().cpu()  # (H, D)
    output = block.attention.o.weight.double().cpu().unflatten(1, (config.n_heads, config.d_head))  # (C, H, D)
    each = torch.einsum("hd,chd->hc", heads, output)
    if exchanged:
        parts.add_heads(layer, torch.zeros_like(each))
        parts.add("attn", "exchanged", trace.step("attn", layer)[place], layer)
    else:
        parts.add_heads(layer, each)
        parts.add("attn bias", "attention bias", block.attention.o.bias, layer)


def _feed_forward(trace: Trace, block: Any, layer: int, place: int, parts: _Parts, *, exchanged: bool) -> None:
    if exchanged:
        parts.add("ffn", "exchanged", trace.step("ffn", layer)[place], layer)
        return
    activated = trace.step("ffn.act", layer)[place].double().cpu()
    parts.add("ffn", "feed-forward", block.ffn.down.weight.double().cpu() @ activated, layer)
    parts.add("ffn bias", "feed-forward bias", block.ffn.down.bias, layer)


def _through(trace: Trace, step: Step | None, layer: int, place: int, parts: _Parts) -> None:
    """Send parts through a norm, where there is one."""
    if step is not None:
        module = trace.model.blocks[layer].get_submodule(step.module)
        parts.norm(module, trace.step(step.inputs[0], layer)[place], f"{step.name} bias", layer)


def _masked_head(trace: Trace, place: int, parts: _Parts) -> None:
    """Through dense, activation and norm; each activation is x·gate(x), 0 at 0, so that a frozen gate is exact."""
    head: Any = trace.model.head
    weight = head.dense.weight.double().cpu()
    parts.through(lambda rows: rows @ weight.T)
    parts.add("head.dense bias", "dense bias", head.dense.bias)
    taken, given = (trace.step(name)[place].double().cpu() for name in ("head.dense", "head.act"))
    gate = torch.where(taken == 0, 0.0, given / taken)
    parts.through(lambda rows: rows * gate)
    parts.norm(head.norm, given, "head.norm bias")


def _direction(table: Tensor, token: int, versus: int | None) -> Tensor:
    row = table[token].detach().double().cpu()
    return row if versus is None else row - table[versus].detach().double().cpu()


def _allowed(trace: Trace, parts: list[Part]) -> float:
    dtype = trace.last_hidden.dtype
    limit = allowed(PARTS, dtype)
    sizes = [abs(part.value) for part in parts if math.isfinite(part.value)]
    if dtype in (torch.float32, torch.float64):
        return max(limit, _ROUNDINGS * torch.finfo(dtype).eps * math.fsum(sizes))
    return limit * max([1.0, *sizes])


def _frozen(trace: Trace) -> str:
    inside = trace.steps.stream_norms
    norms = "the scale of every norm" if inside else "the final norm's scale"
    if not inside and trace.config.embed_norm:
        norms = "the scales of the embedding norm and the final norm"
    frozen = f"{norms} and the gate of the head's activation" if trace.config.head == "mlm" else norms
    name = trace.steps.unembedded.name
    return frozen if name == "logits" else f"{frozen}; the sum is {name}, of which the logit is made"
