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
from tinytf.steps.operations import (
    Activate,
    Add,
    LayerScale,
    MatchStreams,
    MixStreams,
    Multiply,
    Norm,
    Same,
    StreamLinear,
    SumExperts,
)
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.table import StepKey
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.tolerance import PARTS, allowed
from tinytf.trace.faults import require_finite
from tinytf.trace.site import Site
from tinytf.trace.trace import Text, Trace

_ROUNDINGS = 4
"""Roundings of the sum of all parts' magnitudes that are allowed: large parts that cancel leave such an error."""

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
    """One term of the logit; ``layer`` and ``head`` are None for terms without them, ``kind`` is one of KINDS."""

    LESS: ClassVar = ("name",)

    name: str
    kind: str
    layer: int | None
    head: int | None
    value: float


@dataclass(frozen=True)
class Attribution(Report):
    """The parts of the logit of ``token`` at ``position``, minus the logit of ``versus`` (None: nothing).

    ``logit`` is the model's own, and ``allowed`` how far the sum may be from it: PARTS or four roundings of the sum of
    the parts' magnitudes, whichever is more. ``of`` names what the parts sum to: if logits are capped or scaled, it is
    ``head.logits``, the logit before that. ``frozen`` says what was held constant.
    """

    KIND = "attribute"
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

    def in_a_sentence(self) -> str:
        """The parts that add and take away most."""
        what = f"{self.of} of {self.shown(self.token)}"
        if self.versus is not None:
            what = f"lead of {self.shown(self.token)} over {self.shown(self.versus)}"
        most, least = (choose(self.parts, key=lambda part: part.value) for choose in (max, min))
        told = [f"{most.name} adds most to it ({most.value:+.3g})"] * (most.value > 0)
        told += [f"{least.name} takes most away ({least.value:+.3g})"] * (least.value < 0)
        return f"The {what} is {self.logit:.4g}{': ' * bool(told)}{', '.join(told)}."

    def fields(self) -> dict[str, Any]:
        """The JSON data; parts are in the order in which the model adds them."""
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
        """The map of the heads, and every part in the order of the JSON data."""
        values = torch.tensor([part.value for part in self.parts], dtype=torch.float64)
        return [Array.of("heads", ["layer", "head"], self.heads()), Array.of("parts", ["part"], values)]

    def heads(self) -> Tensor:
        """The heads' parts as a map (layers, heads), float64; NaN where a layer has fewer heads."""
        heads = [part for part in self.parts if part.kind == "head"]
        indices = torch.tensor([(part.layer or 0, part.head or 0) for part in heads])
        layers, most = 1 + max(part.layer or 0 for part in self.parts), 1 + int(indices[:, 1].max())
        values = torch.full((layers, most), torch.nan, dtype=torch.float64)
        values[tuple(indices.T)] = torch.tensor([part.value for part in heads], dtype=torch.float64)
        return values

    def by_kind(self) -> dict[str, float]:
        """The sum of each kind of part that is present."""
        kinds = [kind for kind in KINDS if any(part.kind == kind for part in self.parts)]
        return {kind: total(part for part in self.parts if part.kind == kind) for kind in kinds}


def total(parts: Iterable[Part]) -> float:
    """The sum of some parts, rounded once; NaN if any is not finite."""
    values = [part.value for part in parts]
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


class _Parts:
    """Vectors, (N, C) in float64, that add up to the residual stream of a trace at one position.

    Where there are several streams they add up to all, (N, n·C), and ``passed`` keeps them as they were at the steps
    of the present layer: a later step reads some of these again. Scales and gates are frozen as they are in the trace
    ``frozen``, by default this one.
    """

    def __init__(self, trace: Trace, position: int, frozen: Trace | None = None) -> None:
        self.trace, self.position, self.frozen = trace, position, frozen or trace
        self.passed: dict[StepKey, Tensor] = {}
        self.names: list[tuple[str, str, int | None, int | None]] = []
        self.rows: list[Tensor] = []

    def add(self, name: str, kind: str, vector: Tensor | None, layer: int | None = None) -> None:
        """Add a part, unless ``vector`` is None: a bias that the model does not have."""
        if vector is not None:
            self.names.append((name if layer is None else f"L{layer}.{name}", kind, layer, None))
            self.rows.append(_f64(vector)[None])

    def add_heads(self, layer: int, vectors: Tensor) -> None:
        self.names += [(f"L{layer}H{head}", "head", layer, head) for head in range(len(vectors))]
        self.rows.append(vectors)

    def extend(self, other: "_Parts") -> None:
        """Append the parts of ``other``."""
        self.names += other.names
        self.rows += other.rows

    def replace(self, step: str, layer: int) -> None:
        """If an intervention replaced the stream, make that the only part; earlier ones then add nothing."""
        if self.trace.is_exchanged(step, layer):
            self.rows = [torch.zeros_like(row) for row in self.rows]
            self.add(step, "exchanged", self.trace.step(step, layer)[self.position], layer)

    def mark(self, name: str, layer: int | None = None) -> None:
        """Keep the parts as they are at a step."""
        if self.trace.config.extra_streams and self.rows:
            self.passed[name, layer] = torch.cat(self.rows)

    def _at(self, place: StepKey) -> Tensor:
        """The parts at an earlier step; those added since are 0 there."""
        rows = self.passed.get(place, self.rows[0][:0])
        return torch.cat((rows, rows.new_zeros(len(self.names) - len(rows), rows.shape[1])))

    def enter(self, step: Step, layer: int | None, number: int) -> None:
        """Send every part through one input of a sum of streams, whose weights are frozen."""
        site = Site(self.frozen, step, layer)
        self.rows = [_streams_mixed(site, self.position, number, torch.cat(self.rows))]

    def send_through(self, step: Step | None, layer: int | None = None) -> None:
        """Send every part through a step that is linear, or is linear once its scale or gate here is frozen."""
        if step is None or isinstance(step.operation, Same) or not self.rows:
            return
        site, rows = Site(self.frozen, step, layer), torch.cat(self.rows)
        before, after = (_f64(tensor[self.position]) for tensor in (site.input(), site.value))
        if isinstance(step.operation, Norm):  # its scale, computed from the whole input, is frozen
            weight, centred = _f64(gain_of(site.module)), isinstance(site.module, nn.LayerNorm)
            x = before - before.mean() if centred else before
            scale = weight / (x.square().mean() + site.module.eps).sqrt()
            self.rows = [(rows - rows.mean(dim=-1, keepdim=True) if centred else rows) * scale]
            self.add(f"{step.name} bias", "norm bias", getattr(site.module, "bias", None), layer)
        elif isinstance(step.operation, MixStreams):
            places = [(number, place) for number, place in enumerate(site.sources) if place in self.passed]
            mixed = [_streams_mixed(site, self.position, number, self._at(place)) for number, place in places]
            self.rows = [torch.stack(mixed).sum(dim=0)]
        elif isinstance(step.operation, MatchStreams):  # its ratios are frozen
            main, others = map(self._at, site.sources)
            apart = [step.operation.apart(x) for x in (_f64(site.input(1)[self.position]), others)]
            ratio = step.operation.ratio(_f64(site.input(0)[self.position]), apart[0])
            self.rows = [torch.cat((main, (apart[1] * ratio).flatten(-2)), dim=-1)]
        elif isinstance(step.operation, StreamLinear):
            self.rows = [step.operation.forward(rows, _f64(site.module.weight))]
        elif isinstance(step.operation, Multiply):
            self.rows = [rows * step.operation.factor]
        elif isinstance(step.operation, LayerScale):
            self.rows = [rows * _f64(site.module.weight)]
        elif isinstance(step.operation, Activate):  # x·gate(x), and 0 at 0: the gate is frozen
            self.rows = [rows * torch.where(before == 0, 0.0, after / before)]
        else:
            self.rows = [rows @ _f64(site.weight).T]
            self.add(f"{step.name} bias", "dense bias", site.module.bias, layer)


def _streams_mixed(site: Site, position: int, number: int, rows: Tensor) -> Tensor:
    """What a sum of streams, with its weights of this position, makes of vectors (N, k·C) in its input ``number``."""
    operation, inputs = site.operation, [_f64(x[position]) for x in site.inputs()]
    assert isinstance(operation, MixStreams)
    return operation.of_input(number, rows, inputs)


def _f64(tensor: Tensor) -> Tensor:
    return tensor.detach().double().cpu()


def require_logits(model: Transformer) -> None:
    """Raise UsageError for a model without a head, which has no logits."""
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
    """Split the logit of ``token`` (default: the predicted one), or its lead over ``versus``, into the model's parts.

    ``text`` may be a trace. ``position`` is an index such as ``-1`` or a token of the text; by default the last token
    of a decoder, the only [MASK] of an encoder. The scale of every norm on the way to the logit is frozen: the final
    norm's, and in a post-norm model all norms'. The activation of a masked-language-model head is x·gate(x); its gate
    is frozen too. So the sum is exact in every model.

    Raises UsageError for a model without a head, for a position or token that does not exist, and for a ``versus`` that
    is the token itself; TinytfError for logits that are not finite.
    """
    require_logits(model.transformer)
    requested, versus_id = model.optional_outcome(token, "--token"), model.optional_outcome(versus, "--versus")
    trace = model.trace(text, truncate=truncate, force=force)
    at, unembedded = _position(trace, position), trace.steps.unembedded
    logits = trace.vocabulary(unembedded.name, [at])[0].double()
    require_finite(trace, logits)
    chosen = int(logits.argmax()) if requested is None else requested
    if chosen == versus_id:
        raise UsageError("a token compared with itself has no lead", "name another token with --versus")
    terms = logit_parts(trace, at, chosen, versus_id)
    logit = float(logits[chosen]) - (0.0 if versus_id is None else float(logits[versus_id]))
    subject = "logit" if unembedded is trace.steps.over_vocabulary[-1] else unembedded.name
    about, limit = About(model, trace.encoding), _allowed(trace, terms)
    return Attribution(at, chosen, versus_id, tuple(terms), logit, limit, _frozen(trace), subject, about=about)


@torch.no_grad()
def logit_parts(
    trace: Trace, position: int, token: int, versus: int | None = None, frozen: Trace | None = None
) -> list[Part]:
    """The parts of the logit of ``token`` at ``position``, minus that of ``versus``, in the order they are added.

    Scales of norms and gates are those of ``frozen``, another trace of as many tokens; by default the trace's own.
    """
    parts = _Parts(trace, position, frozen)
    _add_embeddings(parts)
    for layer in range(trace.config.n_layers):
        _send_through_block(parts, layer, _attention_or_feed_forward)
    _after_blocks(parts)
    values = torch.cat(parts.rows) @ _direction(trace.model.unembedding, token, versus)  # (N, C) · (C,) -> (N,)
    terms = [Part(*name, value) for name, value in zip(parts.names, values.tolist(), strict=True)]
    bias = getattr(getattr(trace.model.head, "decoder", None), "bias", None)
    if bias is not None:
        terms.append(Part("logits bias", "unembedding bias", None, None, float(_direction(bias, token, versus))))
    return terms


def head_contributions(trace: Trace, position: int, token: int, heads: Sequence[Tensor]) -> list[list[float]]:
    """The parts of all heads in the logit of a token at one position, by layer, as in ``attribute``.

    ``heads`` are the vectors that the heads of each layer add at that position before any norm, (H, C).
    """
    parts = _Parts(trace, position)

    def of_heads(stream: _Parts, step: Step, layer: int) -> _Parts:
        added = _Parts(trace, position)
        if step.role == "attention":
            vectors = _f64(heads[layer])
            added.add_heads(layer, torch.zeros_like(vectors) if trace.is_exchanged(step.name, layer) else vectors)
        return added

    for layer in range(trace.config.n_layers):
        _send_through_block(parts, layer, of_heads)
    _after_blocks(parts)
    rows = [row for row, (_, kind, _, _) in zip(torch.cat(parts.rows), parts.names, strict=True) if kind == "head"]
    values = torch.stack(rows) @ _direction(trace.model.unembedding, token, None)  # (L·H, C) · (C,) -> (L·H,)
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


def _add_embeddings(parts: _Parts) -> None:
    before = parts.trace.steps.before
    total = next(step for step in before if isinstance(step.operation, Add))
    for name in total.inputs:
        parts.add(name, "embedding", parts.trace.step(name)[parts.position])
    parts.mark(total.name)
    last = total.name
    for step in before:
        if last in step.inputs:
            parts.send_through(step)
            parts.mark(step.name)
            last = step.name


def _after_blocks(parts: _Parts) -> None:
    """Send every part through the steps between the last block and the unembedding."""
    for step in parts.trace.steps.after:
        if step.to_loss and not step.is_vocabulary:
            parts.send_through(step)
            parts.mark(step.name)


def _send_through_block(parts: _Parts, layer: int, parts_of: Callable[[_Parts, Step, int], _Parts]) -> None:
    """Add the parts of a block in the order of its steps, and send all parts through the norms on their way.

    ``parts_of`` gives the parts that attention or the feed-forward adds.
    """
    table = parts.trace.steps
    parts.replace(table.input, layer)
    parts.passed = {}
    parts.mark(table.input, layer)
    paths = [(step, table.to_stream(step, layer)) for step in table.added_in(layer)]
    for stage in reversed(table.stream(layer)[:-1]):
        arriving = [(step, on_way) for step, (*on_way, total) in paths if total.name == stage]
        total = table.at(stage, layer)
        of_streams = isinstance(total.operation, MixStreams)
        if of_streams or not arriving:
            parts.send_through(total, layer)
        for step, on_way in arriving:
            parts_added = parts_of(parts, step, layer)
            for step_on_way in on_way:
                parts_added.send_through(step_on_way, layer)
            if of_streams and parts_added.rows:
                parts_added.enter(total, layer, total.inputs.index((step, *on_way)[-1].name))
            parts.extend(parts_added)
        parts.mark(stage, layer)
    parts.replace(table.output, layer)
    parts.mark(table.output, layer)


def _attention_or_feed_forward(stream: _Parts, step: Step, layer: int) -> _Parts:
    """The parts of attention or the feed-forward: heads and bias, the feed-forward, or experts."""
    trace, position = stream.trace, stream.position
    step = trace.steps.at(step.name, layer)
    if not step.module:
        return _experts_parts(stream, step, layer)
    parts, site = _Parts(trace, position, stream.frozen), Site(trace, step, layer)
    weight, of_heads, exchanged = _f64(site.weight), step.role == "attention", trace.is_exchanged(step.name, layer)
    if of_heads:
        side_by_side = _f64(trace.step(step.inputs[0], layer)[position])  # (H·D,)
        heads = side_by_side.unflatten(0, (trace.config.at(layer).n_heads, -1))  # (H, D)
        vectors = torch.einsum("hd,chd->hc", heads, weight.unflatten(1, heads.shape))  # (C, H·D) -> (C, H, D)
        parts.add_heads(layer, torch.zeros_like(vectors) if exchanged else vectors)
    elif not exchanged:
        parts.add(step.name, "feed-forward", weight @ _f64(trace.step(step.inputs[0], layer)[position]), layer)
    if exchanged:
        parts.add(step.name, "exchanged", trace.step(step.name, layer)[position], layer)
    else:
        parts.add(f"{step.name} bias", "attention bias" if of_heads else "feed-forward bias", site.module.bias, layer)
    return parts


def _experts_parts(stream: _Parts, step: Step, layer: int) -> _Parts:
    """The parts of each expert to which the token is routed, and of the shared expert."""
    trace, position = stream.trace, stream.position
    parts = _Parts(trace, position, stream.frozen)
    if trace.is_exchanged(step.name, layer):
        parts.add(step.name, "exchanged", trace.step(step.name, layer)[position], layer)
        return parts
    for name, at in trace.steps.sources(step, layer) if isinstance(step.operation, Add) else ((step.name, layer),):
        source = trace.steps.at(name, at)
        if isinstance(source.operation, SumExperts):
            expert_step = source.inputs[0]
            for number in trace.step(trace.steps.choice, layer)[position].nonzero().flatten().tolist():
                parts.names.append((f"L{layer}E{number}", "expert", layer, None))
                parts.rows.append(_f64(trace.step(expert_step, layer, (number,))[0, position])[None])
        else:
            parts.add(name, "feed-forward", trace.step(name, layer)[position], layer)
    return parts


def _direction(table: Tensor, token: int, versus: int | None) -> Tensor:
    return _f64(table[token]) if versus is None else _f64(table[token]) - _f64(table[versus])


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
    if not stream_norms and trace.config.embed_norm:
        norms = "the scales of the embedding norm and the final norm"
    if trace.config.extra_streams:
        norms = f"{norms}, the weights and sizes of the streams"
    gated = any(isinstance(step.operation, Activate) for step in trace.steps.after)
    frozen = f"{norms} and the gate of the head's activation" if gated else norms
    first, *later = trace.steps.over_vocabulary
    return f"{frozen}; the sum is {first.name}, of which the logit is made" if later else frozen
