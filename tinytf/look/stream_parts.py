"""The residual stream at one position as a sum of vectors: embeddings, heads, feed-forwards, experts and biases.

They are sent through every step on the way to the logits, each by itself.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations import (
    Activate,
    Add,
    LayerScale,
    MatchStreams,
    MeanOfTokens,
    MixStreams,
    Multiply,
    Norm,
    PartNorm,
    Same,
    ShortConv,
    StreamLinear,
    SumExperts,
    Switch,
)
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.table import StepKey
from tinytf.trace.site import Site, heads_added
from tinytf.trace.trace import Trace


class Parts:
    """Vectors, (N, C) in float64, that add up to the residual stream of a trace at one position.

    Where there are several streams they add up to all, (N, n·C), and ``passed`` keeps them as they were at the steps
    of the present layer: a later step reads some of these again. Scales and gates are frozen as they are in the trace
    ``frozen``, by default this one.
    """

    def __init__(self, trace: Trace, position: int, frozen: Trace | None = None) -> None:
        self.trace, self.position, self.frozen = trace, position, frozen or trace
        self.passed: dict[StepKey, Tensor] = {}
        self.names: list[tuple[str, str, int | None, int | None]] = []
        """Of each part its name, kind and layer, and the number of its head or of its token of the source."""
        self.rows: list[Tensor] = []

    def add(self, name: str, kind: str, vector: Tensor | None, layer: int | None = None) -> None:
        """Add a part, unless ``vector`` is None: a bias that the model does not have."""
        if vector is not None:
            self.names.append((name if layer is None else f"L{layer}.{name}", kind, layer, None))
            self.rows.append(float64(vector)[None])

    def add_heads(self, layer: int, vectors: Tensor) -> None:
        self.names += [(f"L{layer}H{head}", "head", layer, head) for head in range(len(vectors))]
        self.rows.append(vectors)

    def extend(self, other: "Parts") -> None:
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
        before, after = (float64(tensor[self.position]) for tensor in (site.input(), site.value))
        if isinstance(step.operation, Norm):  # its scale, computed from the whole input, is frozen
            width = site.config.sizes[step.operation.part] if isinstance(step.operation, PartNorm) else len(before)
            before, rows = (x.unflatten(-1, (-1, width)) for x in (before, rows))  # of what is normed together
            if step.operation.centred:
                before, rows = (x - x.mean(dim=-1, keepdim=True) for x in (before, rows))
            sizes = (before.square().mean(dim=-1, keepdim=True) + site.module.eps).sqrt()
            self.rows = [(rows / sizes).flatten(-2) * float64(gain_of(site.module))]
            self.add(f"{step.name} bias", "norm bias", getattr(site.module, "bias", None), layer)
        elif isinstance(step.operation, MixStreams):
            places = [(number, place) for number, place in enumerate(site.sources) if place in self.passed]
            mixed = [_streams_mixed(site, self.position, number, self._at(place)) for number, place in places]
            self.rows = [torch.stack(mixed).sum(dim=0)]
        elif isinstance(step.operation, MatchStreams):  # its ratios are frozen
            main, others = map(self._at, site.sources)
            apart = [step.operation.apart(x) for x in (float64(site.input(1)[self.position]), others)]
            ratio = step.operation.ratio(float64(site.input(0)[self.position]), apart[0])
            self.rows = [torch.cat((main, (apart[1] * ratio).flatten(-2)), dim=-1)]
        elif isinstance(step.operation, Switch):  # its gate is frozen
            gate = step.operation.factor(float64(site.input(1)[self.position]))
            self.rows = [self._at(site.sources[0]) * gate]
        elif isinstance(step.operation, ShortConv):  # of the token itself; what earlier ones give is one more part
            own = float64(site.module.weight)[:, -1]
            self.rows = [rows * own]
            self.add(f"{step.name} of earlier tokens", "convolution", after - before * own, layer)
        elif isinstance(step.operation, StreamLinear):
            self.rows = [step.operation.forward(rows, float64(site.module.weight))]
        elif isinstance(step.operation, Multiply):
            self.rows = [rows * step.operation.factor]
        elif isinstance(step.operation, LayerScale):
            self.rows = [rows * float64(site.module.weight)]
        elif isinstance(step.operation, Activate):  # x·gate(x), and 0 at 0: the gate is frozen
            self.rows = [rows * torch.where(before == 0, 0.0, after / before)]
        else:
            self.rows = [rows @ float64(site.weight).T]
            self.add(f"{step.name} bias", "dense bias", site.module.bias, layer)


def _streams_mixed(site: Site, position: int, number: int, rows: Tensor) -> Tensor:
    """What a sum of streams, with its weights of this position, makes of vectors (N, k·C) in its input ``number``."""
    operation, inputs = site.operation, [float64(x[position]) for x in site.inputs()]
    assert isinstance(operation, MixStreams)
    return operation.of_input(number, rows, inputs)


def float64(tensor: Tensor) -> Tensor:
    """A copy without gradient, on the CPU."""
    return tensor.detach().double().cpu()


def add_embeddings(parts: Parts) -> None:
    """Add a part for each term of the embeddings, and send them through the steps before the first block."""
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


def positions_read(trace: Trace, position: int) -> Sequence[int]:
    """The positions whose streams the head reads for its logits at one: all, if it reads their mean."""
    return [position] if trace.model.averaged is None else range(len(trace.tokens))


def parts_read(trace: Trace, position: int, build: Callable[[Parts], None], frozen: Trace | None = None) -> Parts:
    """The parts of what is unembedded at a position, from those that ``build`` makes of the last block's output."""
    after = _carrying([step for step in trace.steps.after if step.to_loss and not step.is_vocabulary])
    before_mean = next((n for n, step in enumerate(after) if isinstance(step.operation, MeanOfTokens)), len(after))
    found = []
    for at in positions_read(trace, position):
        parts = Parts(trace, at, frozen)
        build(parts)
        _send_after(parts, after[:before_mean])
        found.append(parts)
    if trace.model.averaged is None:
        return found[0]
    mean = _mean(found)
    _send_after(mean, after[before_mean + 1 :])
    return mean


def _carrying(steps: Sequence[Step]) -> list[Step]:
    """The steps that the last of ``steps`` is made of, without those that only weigh streams."""
    needed, found = {step.name for step in steps[-1:]}, list[Step]()
    for step in reversed(steps):
        if step.name in needed:
            weighs = isinstance(step.operation, MixStreams) and step.operation.weighted > 0
            needed.update(step.inputs[: len(step.inputs) - weighs])
            found.insert(0, step)
    return found


def _mean(found: Sequence[Parts]) -> Parts:
    """The mean of the parts of all tokens, by their names: not every token is routed to every expert."""
    first, total = found[0], dict[tuple[str, str, int | None, int | None], Tensor]()
    for parts in found:
        for name, row in zip(parts.names, torch.cat(parts.rows), strict=True):
            total[name] = total.get(name, 0.0) + row / len(found)
    mean = Parts(first.trace, first.position, first.frozen)
    mean.names, mean.rows = list(total), [torch.stack(list(total.values()))]
    return mean


def _send_after(parts: Parts, steps: Sequence[Step]) -> None:
    """Send the parts through the steps; not those from which a frozen gate is computed."""
    needed, way = {step.name for step in steps[-1:]}, list[Step]()
    for step in reversed(steps):
        if step.name in needed:
            way.append(step)
            needed |= {*(step.inputs[:1] if isinstance(step.operation, Switch) else step.inputs)}
    for step in reversed(way):
        parts.send_through(step)
        parts.mark(step.name)


def send_through_block(parts: Parts, layer: int, parts_of: Callable[[Parts, Step, int], Parts]) -> None:
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


def attention_or_feed_forward(stream: Parts, step: Step, layer: int) -> Parts:
    """The parts of attention or the feed-forward: heads and bias, the feed-forward, or experts."""
    trace, position = stream.trace, stream.position
    step = trace.steps.at(step.name, layer)
    if not step.module:
        return _experts_parts(stream, step, layer)
    parts, site = Parts(trace, position, stream.frozen), Site(trace, step, layer)
    weight, of_heads, exchanged = (
        float64(site.weight),
        step.role == "attention",
        trace.is_exchanged(step.name, layer),
    )
    kind = {"attention": "attention", "cross": "cross-attention"}.get(step.role, "feed-forward")
    if of_heads:
        vectors = float64(heads_added(site, [position], torch.float64)[:, 0])  # (H, C)
        parts.add_heads(layer, torch.zeros_like(vectors) if exchanged else vectors)
    elif step.role == "cross" and not any(trace.is_exchanged(name, layer) for name in AFTER_VALUES):
        vectors = _by_source(trace, position, layer) @ weight.T  # (S, H·D) · (H·D, C) -> (S, C)
        parts.names += [(f"L{layer}.{step.name}", kind, layer, number) for number in range(len(vectors))]
        parts.rows.append(vectors)
    elif not exchanged:
        parts.add(step.name, kind, weight @ float64(trace.step(step.inputs[0], layer)[position]), layer)
    if exchanged:
        parts.add(step.name, "exchanged", trace.step(step.name, layer)[position], layer)
    else:
        parts.add(f"{step.name} bias", f"{kind} bias", site.module.bias, layer)
    return parts


AFTER_VALUES = ("cross.head_out", "cross.concat", "cross.attn")
"""The steps after the values of cross-attention; where one was replaced, its output is no sum over the source."""


def _by_source(trace: Trace, position: int, layer: int) -> Tensor:
    """What each token of the source gives the heads of cross-attention at one position: (S, H·D), float64."""
    weights, values = (float64(trace.step(f"cross.{name}", layer)) for name in ("weights", "v"))
    values = values.repeat_interleave(len(weights) // len(values), dim=0)  # (Hkv, S, D) -> (H, S, D)
    return (weights[:, position, :, None] * values).transpose(0, 1).flatten(1)


def _experts_parts(stream: Parts, step: Step, layer: int) -> Parts:
    """The parts of each expert to which the token is routed, and of the shared expert; or n-gram embeddings."""
    trace, position = stream.trace, stream.position
    parts = Parts(trace, position, stream.frozen)
    if trace.is_exchanged(step.name, layer):
        parts.add(step.name, "exchanged", trace.step(step.name, layer)[position], layer)
        return parts
    if step.role == "embed":
        parts.add(step.name, "embedding", trace.step(step.name, layer)[position], layer)
        return parts
    for name, at in trace.steps.sources(step, layer) if isinstance(step.operation, Add) else ((step.name, layer),):
        source = trace.steps.at(name, at)
        if isinstance(source.operation, SumExperts):
            expert_step = source.inputs[0]
            for number in trace.step(trace.steps.choice, layer)[position].nonzero().flatten().tolist():
                parts.names.append((f"L{layer}E{number}", "expert", layer, None))
                parts.rows.append(float64(trace.step(expert_step, layer, (number,))[0, position])[None])
        else:
            parts.add(name, "feed-forward", trace.step(name, layer)[position], layer)
    return parts
