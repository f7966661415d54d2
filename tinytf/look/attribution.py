"""Direct logit attribution: what each part of a model adds to one logit.

The residual stream is a sum of the embeddings, every head, every feed-forward and their biases. A norm whose scale is
frozen is linear, so each part goes through it by itself, and the parts sum to the logit (Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits").
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.report import About, Data, Report
from tinytf.steps.operations import Activate, Add, Multiply, Norm, SumExperts
from tinytf.steps.operations.norm import gain_of
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.tolerance import PARTS, allowed
from tinytf.trace.faults import require_finite
from tinytf.trace.site import Site
from tinytf.trace.trace import Text, Trace

_ROUNDINGS = 4
"""Of the sum of all parts without their signs: what large parts that cancel leave in a logit of the model's own."""

KINDS = (
    "embedding",
    "head",
    "attention bias",
    "feed-forward",
    "expert",
    "feed-forward bias",
    "norm bias",
    "dense bias",
    "unembedding bias",
    "exchanged",
)


@dataclass(frozen=True)
class Part(Data):
    """One term of the logit; ``layer`` and ``head`` are None where it has none, ``kind`` is one of KINDS."""

    LESS: ClassVar = ("name",)

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
    it is ``head.logits``, the logit before the cap or the scale. ``frozen`` says what was held constant.
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
            **self.members("position"),
            "target": self.named(self.token),
            "versus": None if self.versus is None else self.named(self.versus),
            **self.members("logit", "frozen"),
            "parts": [{"part": part.name, **part.to_dict()} for part in self.parts],
            "by_kind": self.by_kind(),
            "heads": self.heads().tolist(),
            "check": {"parts": len(self.parts), **self.members("holds", "sum", "difference", "allowed")},
        }

    def stored(self) -> list[Array]:
        """The map of the heads, and every part in the order of the data."""
        values = torch.tensor([part.value for part in self.parts], dtype=torch.float64)
        return [Array.of("heads", ["layer", "head"], self.heads()), Array.of("parts", ["part"], values)]

    def heads(self) -> Tensor:
        """The heads' parts as a map (layers, heads), float64; NaN where a layer has fewer."""
        found = [part for part in self.parts if part.kind == "head"]
        places = torch.tensor([(part.layer or 0, part.head or 0) for part in found])
        values = torch.full((*(places.amax(dim=0) + 1),), torch.nan, dtype=torch.float64)
        values[tuple(places.T)] = torch.tensor([part.value for part in found], dtype=torch.float64)
        return values

    def by_kind(self) -> dict[str, float]:
        """The sum of each kind of part that there is."""
        kinds = [kind for kind in KINDS if any(part.kind == kind for part in self.parts)]
        return {kind: total(part for part in self.parts if part.kind == kind) for kind in kinds}


def total(parts: Iterable[Part]) -> float:
    """What some parts sum to, rounded once; NaN where they hold infinities."""
    values = [part.value for part in parts]
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


class _Parts:
    """Vectors in the residual stream of a trace at one place, (N, C) in float64, that add up to it."""

    def __init__(self, trace: Trace, place: int) -> None:
        self.trace, self.place = trace, place
        self.names: list[tuple[str, str, int | None, int | None]] = []
        self.rows: list[Tensor] = []

    def add(self, name: str, kind: str, vector: Tensor | None, layer: int | None = None) -> None:
        """One more part; a bias that the model does not have is None, and none is added."""
        if vector is not None:
            self.names.append((name if layer is None else f"L{layer}.{name}", kind, layer, None))
            self.rows.append(_wide(vector)[None])

    def add_heads(self, layer: int, vectors: Tensor) -> None:
        self.names += [(f"L{layer}H{head}", "head", layer, head) for head in range(len(vectors))]
        self.rows.append(vectors)

    def take(self, others: "_Parts") -> None:
        """Add the parts of others."""
        self.names += others.names
        self.rows += others.rows

    def replace(self, step: str, layer: int) -> None:
        """Where an intervention replaced the stream, it is the one part; all before add nothing any more."""
        if self.trace.is_exchanged(step, layer):
            self.rows = [torch.zeros_like(row) for row in self.rows]
            self.add(step, "exchanged", self.trace.step(step, layer)[self.place], layer)

    def through(self, step: Step | None, layer: int | None = None) -> None:
        """Send every part through a step that is linear, or that is linear with what it was at this place held."""
        if step is None or not self.rows:
            return
        site, rows = Site(self.trace, step, layer), torch.cat(self.rows)
        taken, given = (_wide(one[self.place]) for one in (site.input(), site.value))
        if isinstance(step.operation, Norm):  # the scale that it had for the whole of what it took is held
            weight, centred = _wide(gain_of(site.module)), isinstance(site.module, nn.LayerNorm)
            x = taken - taken.mean() if centred else taken
            scale = weight / (x.square().mean() + site.module.eps).sqrt()
            self.rows = [(rows - rows.mean(dim=-1, keepdim=True) if centred else rows) * scale]
            self.add(f"{step.name} bias", "norm bias", getattr(site.module, "bias", None), layer)
        elif isinstance(step.operation, Multiply):
            self.rows = [rows * step.operation.factor]
        elif isinstance(step.operation, Activate):  # x·gate(x), and 0 at 0: the gate is held
            self.rows = [rows * torch.where(taken == 0, 0.0, given / taken)]
        else:
            self.rows = [rows @ _wide(site.weight).T]
            self.add(f"{step.name} bias", "dense bias", site.module.bias, layer)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().double().cpu()


def require_logits(model: Transformer) -> None:
    """Raise UsageError where a model has no head, and so no logit."""
    model.require_head("there is no logit to attribute")


@torch.no_grad()
def attribute(
    model: TextModel,
    text: Text,
    *,
    token: str | int | None = None,
    versus: str | int | None = None,
    position: str | None = None,
    truncate: bool = False,
    force: bool = False,
) -> Attribution:
    """What each part of the model adds to the logit of ``token`` (the predicted one), or to its lead over ``versus``.

    ``text`` may be a trace. ``position`` is as ``-1`` or a token of the text; without it the last one of a decoder, the
    one [MASK] of an encoder. Frozen is the scale of every norm on the way to the logit: of the final one, in a
    post-norm model of all. A masked-language-model head's activation is x·gate(x), and its gate is frozen too; so the
    sum is exact in every model.

    Raises UsageError for a model without a head, for a position or token that is not there, and for a ``versus`` that
    is the token itself; TinytfError for logits that are not finite.
    """
    require_logits(model.transformer)
    named, other = model.optional_outcome(token, "--token"), model.optional_outcome(versus, "--versus")
    trace = model.trace(text, truncate=truncate, force=force)
    place, unembedded = _place(trace, position), trace.steps.unembedded
    logits = trace.vocabulary(unembedded.name, [place])[0].double()
    require_finite(trace, logits)
    chosen = int(logits.argmax()) if named is None else named
    if chosen == other:
        raise UsageError("a token compared with itself has no lead", "name another by --versus")
    parts = _Parts(trace, place)
    _embeddings(parts)
    for layer in range(trace.config.n_layers):
        _block(parts, layer, _added)
    _last(parts)
    values = torch.cat(parts.rows) @ _direction(trace.model.unembedding, chosen, other)  # (N, C) · (C,) -> (N,)
    found = [Part(*name, value) for name, value in zip(parts.names, values.tolist(), strict=True)]
    bias = getattr(getattr(trace.model.head, "decoder", None), "bias", None)
    if bias is not None:
        found.append(Part("logits bias", "unembedding bias", None, None, float(_direction(bias, chosen, other))))
    logit = float(logits[chosen]) - (0.0 if other is None else float(logits[other]))
    of = "logit" if unembedded is trace.steps.over_vocabulary[-1] else unembedded.name
    about, limit = About(model, trace.encoding), _allowed(trace, found)
    return Attribution(place, chosen, other, tuple(found), logit, limit, _frozen(trace), of, about=about)


def directly(trace: Trace, place: int, token: int, heads: Sequence[Tensor]) -> list[list[float]]:
    """What every head adds to the logit of a token at one place, by layers, as ``attribute`` has it.

    ``heads`` are what the heads of each layer add at that place before any norm, (H, C).
    """
    parts = _Parts(trace, place)

    def of_heads(stream: _Parts, step: Step, layer: int) -> _Parts:
        found = _Parts(trace, place)
        if step.role == "attention":
            each = _wide(heads[layer])
            found.add_heads(layer, torch.zeros_like(each) if trace.is_exchanged(step.name, layer) else each)
        return found

    for layer in range(trace.config.n_layers):
        _block(parts, layer, of_heads)
    _last(parts)
    rows = [row for row, (_, kind, _, _) in zip(torch.cat(parts.rows), parts.names, strict=True) if kind == "head"]
    values = torch.stack(rows) @ _direction(trace.model.unembedding, token, None)  # (L·H, C) · (C,) -> (L·H,)
    return [one.tolist() for one in values.split([len(one) for one in heads])]


def _place(trace: Trace, position: str | None) -> int:
    if position is not None:
        places = trace.positions(position)
        if len(places) > 1:
            raise UsageError(f"--position {position!r} is {len(places)} positions", "one logit is attributed at a time")
        return places[0]
    rows = trace.recording.logit_rows
    if len(rows) == 1:
        return rows[0]
    if trace.config.labels:
        raise UsageError("every token has logits of its own", "choose one by --position")
    masks = ", ".join(map(str, rows[:8]))
    if len({trace.tokens[row].id for row in rows}) > 1:
        raise UsageError("the text has no [MASK] whose prediction to attribute", "write one, or add --position 2")
    raise UsageError(f"the text has {len(rows)} [MASK], at {masks}", "choose one by --position")


def _embeddings(parts: _Parts) -> None:
    before = parts.trace.steps.before
    total = next(step for step in before if isinstance(step.operation, Add))
    for name in total.inputs:
        parts.add(name, "embedding", parts.trace.step(name)[parts.place])
    last = total.name
    for step in before:
        if last in step.inputs:
            parts.through(step)
            last = step.name


def _last(parts: _Parts) -> None:
    """Send every part through the steps between the last block and the unembedding."""
    for step in parts.trace.steps.after:
        if step.to_loss and not step.is_vocabulary:
            parts.through(step)


def _block(parts: _Parts, layer: int, parts_of: Callable[[_Parts, Step, int], _Parts]) -> None:
    """What a block adds, in the order of its steps, each part through the norms that the stream or it goes through.

    ``parts_of`` gives what attention or the feed-forward adds.
    """
    table = parts.trace.steps
    parts.replace(table.input, layer)
    norms = {step.inputs[0]: step for step in table.stream_norms}
    for step in table.added:
        added = parts_of(parts, step, layer)
        *way, total = table.to_stream(step)
        for one in way:
            added.through(one, layer)
        parts.take(added)
        parts.through(norms.get(total.name), layer)
    parts.replace(table.output, layer)


def _added(stream: _Parts, step: Step, layer: int) -> _Parts:
    """What attention or the feed-forward gives, by heads and bias, or by experts."""
    trace, place = stream.trace, stream.place
    step = trace.steps.at(step.name, layer)
    if not step.module:
        return _mixture(trace, place, step, layer)
    parts, linear = _Parts(trace, place), Site(trace, step, layer).module
    weight, of_heads, exchanged = _wide(linear.weight), step.role == "attention", trace.is_exchanged(step.name, layer)
    if of_heads:
        side_by_side = _wide(trace.step(step.inputs[0], layer)[place])  # (H·D,)
        heads = side_by_side.unflatten(0, (trace.config.at(layer).n_heads, -1))  # (H, D)
        each = torch.einsum("hd,chd->hc", heads, weight.unflatten(1, heads.shape))  # (C, H·D) -> (C, H, D)
        parts.add_heads(layer, torch.zeros_like(each) if exchanged else each)
    elif not exchanged:
        parts.add(step.name, "feed-forward", weight @ _wide(trace.step(step.inputs[0], layer)[place]), layer)
    if exchanged:
        parts.add(step.name, "exchanged", trace.step(step.name, layer)[place], layer)
    else:
        parts.add(f"{step.name} bias", "attention bias" if of_heads else "feed-forward bias", linear.bias, layer)
    return parts


def _mixture(trace: Trace, place: int, step: Step, layer: int) -> _Parts:
    """What each expert that the token is sent to adds, and a shared one."""
    parts = _Parts(trace, place)
    if trace.is_exchanged(step.name, layer):
        parts.add(step.name, "exchanged", trace.step(step.name, layer)[place], layer)
        return parts
    for name, within in trace.steps.sources(step, layer) if isinstance(step.operation, Add) else ((step.name, layer),):
        source = trace.steps.at(name, within)
        if isinstance(source.operation, SumExperts):
            added = source.inputs[0]
            for number in trace.step(trace.steps.choice, layer)[place].nonzero().flatten().tolist():
                parts.names.append((f"L{layer}E{number}", "expert", layer, None))
                parts.rows.append(_wide(trace.step(added, layer, (number,))[0, place])[None])
        else:
            parts.add(name, "feed-forward", trace.step(name, layer)[place], layer)
    return parts


def _direction(table: Tensor, token: int, versus: int | None) -> Tensor:
    return _wide(table[token]) if versus is None else _wide(table[token]) - _wide(table[versus])


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
    gated = any(isinstance(step.operation, Activate) for step in trace.steps.after)
    frozen = f"{norms} and the gate of the head's activation" if gated else norms
    first, *later = trace.steps.over_vocabulary
    return f"{frozen}; the sum is {first.name}, of which the logit is made" if later else frozen
