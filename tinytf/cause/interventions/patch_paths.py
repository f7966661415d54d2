"""Path patching: the effect of one part of a model on another along the residual stream alone.

The sender takes its clean value in the corrupt run, while every other attention and feed-forward output keeps its value
of the corrupt run, so that nothing but the residual stream, with its norms, carries the change (Goldowsky-Dill et al.
2023, arXiv:2304.05969). What the receiver then computes is put into the corrupt run, where all above it recomputes.
Shapes: B rows of a batch, T tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.controls import Control
from tinytf.cause.interventions.hooks import (
    Change,
    HookPoint,
    Intervention,
    changed,
    hook_points,
    logits_with,
    points_of,
)
from tinytf.cause.interventions.patch import (
    NOTHING,
    OnePatch,
    PatchedRun,
    brings_back,
    clean_values,
    is_nothing,
    positions_in,
    runs_of,
)
from tinytf.cause.interventions.prediction import compared, logits_at
from tinytf.cause.interventions.sweep import Interventions, sweep, verify_logits, written
from tinytf.errors import UsageError
from tinytf.metric import Answer, Asked, MetricFunction
from tinytf.model.batches import most_tokens, typed
from tinytf.model.transformer import evaluating
from tinytf.report import About, Data, Progress, Verified, ignore_progress
from tinytf.sentences import listed
from tinytf.steps.table import StepTable
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text, Trace

EMBEDDINGS, LOGITS = "embeddings", "logits"
"""The sender that is the stream into the first layer, and the receiver that is the head of the model."""
Sites = tuple[HookPoint, ...]
"""Senders or receivers that act together; no receivers are the logits."""


@dataclass(frozen=True)
class PathPatched(OnePatch):
    """The corrupt run with what ``senders`` of the clean run write for ``receivers`` (none: the logits).

    With ``recomputes_ffn``, feed-forwards between them compute from what reaches them.
    """

    KIND = "patch_path"

    senders: Sites
    receivers: Sites
    recomputes_ffn: bool

    def claim(self) -> str:
        path = f"By the direct path to {site_names(self.receivers)}, {site_names(self.senders)}"
        return f"{path} {self.moved(len(self.senders) > 1)}."

    def fields(self) -> dict[str, Any]:
        ends = {"from": [str(site) for site in self.senders], "to": [str(site) for site in self.receivers] or [LOGITS]}
        return self.measured({**ends, **self.members("recomputes_ffn")})


@dataclass(frozen=True)
class PathEnd(Data):
    """One end of a path (None: the logits), and what the path brings back; ``recovered`` is None if it was not run."""

    LESS: ClassVar = ("site",)

    site: HookPoint | None
    name: str
    value: float | None
    recovered: float | None


@dataclass(frozen=True)
class PathSweep(PatchedRun):
    """All paths from ``fixed`` senders (``over`` is "to") or to ``fixed`` receivers ("from"), each alone."""

    KIND = "patch_paths"
    EVENTS: ClassVar = {"ends": "end", "checks": "check"}

    over: str
    fixed: Sites
    positions: tuple[int, ...] | None
    recomputes_ffn: bool
    ends: tuple[PathEnd, ...]

    @property
    def control(self) -> Control | None:
        """The share of the strongest path beside those of the others."""
        return Control.of_sweep("paths", [end.recovered for end in self.ends if end.recovered is not None])

    @property
    def interrupted(self) -> bool:
        return any(end.recovered is None for end in self.ends)

    def strongest(self, count: int) -> list[PathEnd]:
        """The paths that move the metric most, in either direction."""
        measured = [end for end in self.ends if end.recovered is not None]
        return sorted(measured, key=lambda end: -abs(end.recovered or 0.0))[:count]

    def head_map(self, step: str) -> Tensor:
        """What the paths that end at a step of the heads bring back, (layers, heads); NaN where there is none."""
        sites = [(end.site, end.recovered) for end in self.ends if end.site is not None and end.site.step == step]
        layers, heads = (
            1 + max(numbers) for numbers in zip(*((at.layer, at.last_head) for at, _ in sites), strict=True)
        )
        values = torch.full((layers, heads), torch.nan, dtype=torch.float64)
        for site, recovered in sites:
            if site.head is not None and recovered is not None:
                values[site.layer, site.head : site.last_head + 1] = recovered
        return values

    def claim(self) -> str:
        """The path that moves the lead most."""
        (end,) = self.strongest(1)
        share, fixed = end.recovered or 0.0, site_names(self.fixed)
        if is_nothing(share):
            return f"No direct path {'from' if self.over == 'to' else 'to'} {fixed} {NOTHING} {self.lead}."
        name = site_names(()) if end.site is None else end.name
        sender, receiver = (fixed, name) if self.over == "to" else (name, fixed)
        path, moved = f"from {sender} to {receiver}", f"{brings_back(share)} of {self.lead}."
        if len(self.ends) == 1:
            return f"The only direct path, {path}, {moved}"
        return f"Of {len(self.ends):,} direct paths, that {path} matters most: it {moved}"

    def stored(self) -> list[Array]:
        """``recovered`` of every path, and the metric under its name, in the order of the ends."""
        numbers = [("recovered", [end.recovered for end in self.ends])]
        numbers.append((self.contrast.metric.name, [end.value for end in self.ends]))
        return [
            Array.of(name, ["path"], torch.tensor([torch.nan if number is None else number for number in values]))
            for name, values in numbers
        ]

    def fields(self) -> dict[str, Any]:
        fixed = [str(site) for site in self.fixed] or [LOGITS]
        return {
            **self.compared(),
            "sweep": self.over,
            "fixed": fixed,
            **self.members("positions", "recomputes_ffn", "interrupted", "ends", "control", "checks"),
        }


def site_names(sites: Sites) -> str:
    """The ends of a path in words."""
    if not sites:
        return "the logits"
    return listed([str(site) for site in sites]) if len(sites) <= 3 else f"these {len(sites)}"


def patch_path(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    senders: str | Sequence[str],
    receivers: str | Sequence[str] = LOGITS,
    *,
    answer: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    positions: Sequence[int] | None = None,
    recompute_ffn: bool = False,
    top: int = 5,
) -> PathPatched:
    """Patch the direct paths from ``senders`` to ``receivers``, all together.

    A sender is a head, attention, a feed-forward, or ``embeddings``; a receiver is ``L3H0.q`` (or k, v), ``L3H0`` for
    all three, ``L3.ffn``, or ``logits``. Other attention and feed-forward outputs keep their values of the corrupt run;
    ``recompute_ffn`` lets feed-forwards recompute instead (Wang et al. 2023, arXiv:2211.00593). ``positions`` limits
    what is sent. Raises the errors of ``patch``, and UsageError where no path leads from a sender to a receiver.
    """
    runs = runs_of(model, clean, corrupt, Asked.of(model, metric, answer, versus))
    target, read, chosen = runs.corrupt, runs.contrast.read, positions_in(runs.corrupt, positions)
    sending, receiving = _senders(senders, target), _receivers(receivers, target)
    for receiver in receiving:
        if not any(_reaches(target.steps, sender, receiver) for sender in sending):
            raise UsageError(
                f"no path leads from {site_names(sending)} to {receiver}", "a sender writes before its receiver reads"
            )
    row = clean_values(runs, sending, chosen)
    ((received, path_logits),) = _along(target, [row], receiving, read, recompute_ffn)
    logits = path_logits[0]
    if receiving:
        put = [Intervention(receiver, values[0]) for receiver, values in received.items()]
        logits = logits_with(target, put, read)
    return PathPatched.of(
        model,
        runs,
        logits,
        top,
        checks=(_verify_nothing(target, row, read, recompute_ffn),),
        senders=sending,
        receivers=receiving,
        positions=chosen,
        recomputes_ffn=recompute_ffn,
    )


def patch_paths(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    *,
    senders: str | Sequence[str] = (),
    receivers: str | Sequence[str] = (),
    answer: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    positions: Sequence[int] | None = None,
    recompute_ffn: bool = False,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> PathSweep:
    """``patch_path`` from ``senders`` to every receiver, or to ``receivers`` from every sender, each alone.

    The senders of a sweep are all heads, feed-forwards and the embeddings below the receivers; its receivers the
    queries, keys and values of heads, feed-forwards and the logits. Raises the errors of ``patch_path``, and UsageError
    unless one of the two is named.
    """
    if bool(senders) == bool(receivers):
        raise UsageError("a sweep of paths has one end fixed", "name senders or receivers, and not both")
    runs = runs_of(model, clean, corrupt, Asked.of(model, metric, answer, versus))
    _, target, followed = runs
    table, chosen = target.steps, positions_in(target, positions)
    fixed = _senders(senders, target) if senders else _receivers(receivers, target)
    if senders:
        others = [site for site in _every_receiver(table) if any(_reaches(table, sender, site) for sender in fixed)]
        rows, receiving = [clean_values(runs, fixed, chosen)], tuple(others)
    else:
        if len({site.layer for site in fixed}) > 1:
            raise UsageError("the receivers of a sweep are in one layer", f"name those of L{fixed[0].layer} alone")
        others = [site for site in _every_sender(table) if not fixed or any(_reaches(table, site, to) for to in fixed)]
        rows, receiving = [clean_values(runs, [site], chosen) for site in others], fixed
        if not others:
            raise UsageError(f"no path leads to {site_names(fixed)}", "a sender writes before its receiver reads")
    put: dict[str, tuple[Intervention, ...]] = {}
    direct: dict[str, float] = {}
    done = 0
    for received, logits in _along(target, rows, receiving, followed.read, recompute_ffn):
        for row, value in enumerate(followed.of(logits)):
            if senders:
                put |= {str(site): (Intervention(site, values[row]),) for site, values in received.items()}
                direct[LOGITS] = value
            elif fixed:
                put[str(others[done + row])] = tuple(Intervention(site, received[site][row]) for site in fixed)
            else:
                direct[str(others[done + row])] = value
        done += len(logits)
    checks = [_verify_nothing(target, rows[0], followed.read, recompute_ffn)]
    measured: dict[str, float | None] = dict(direct)
    if put:
        if resume is not None:
            followed.metric.require_name()
        moved, check = sweep(
            target, put, followed.read, followed.of, lambda value: abs(value - followed.corrupt),
            on_progress, resume=resume, subject=["path", *followed.metric.key], from_data=float,
        )  # fmt: skip
        checks.append(check)
        measured |= dict(zip(put, moved, strict=True))
    sites = {**{str(site): site for site in others}, **({LOGITS: None} if senders else {})}
    ends = [
        PathEnd(site, name, value, None if value is None else followed.normalised(value))
        for name, site in sites.items()
        for value in [measured[name]]
    ]
    return PathSweep(
        contrast=followed,
        checks=tuple(checks),
        texts=(runs.clean.encoding, target.encoding),
        differing=compared(runs.clean, target),
        over="to" if senders else "from",
        fixed=fixed,
        positions=chosen,
        recomputes_ffn=recompute_ffn,
        ends=tuple(ends),
        about=About(model),
    )


def _require_one_stream(table: StepTable) -> None:
    """Raise UsageError for a model whose layers pass more to each other than one residual stream."""
    if table.config.extra_streams or table.carried or table.reads_text:
        raise UsageError(
            "layers of this model take more from each other than the residual stream, so that is not the only path",
            "patch a part as a whole: --at",
        )


def _senders(addresses: str | Sequence[str], corrupt: Trace) -> Sites:
    """The senders that addresses name. Raises UsageError for none, and for a model of several streams."""
    _require_one_stream(corrupt.steps)
    names = [addresses] if isinstance(addresses, str) else list(addresses)
    if not names:
        raise UsageError("no sender is named", f"such as L1H2, L0.ffn or {EMBEDDINGS}")
    names = [f"L0.{corrupt.steps.input}" if name == EMBEDDINGS else name for name in names]
    return points_of(names, corrupt)


def _receivers(addresses: str | Sequence[str], corrupt: Trace) -> Sites:
    """The receivers that addresses name; empty for the logits. Raises UsageError like ``_senders``."""
    _require_one_stream(corrupt.steps)
    names = [addresses] if isinstance(addresses, str) else list(addresses)
    if LOGITS in names:
        if len(names) > 1:
            raise UsageError("the logits receive what any other receiver would add", f"name {LOGITS} alone")
        return ()
    if not names:
        raise UsageError("no receiver is named", f"such as L3H0.q, L3.ffn or {LOGITS}")
    return points_of(names, corrupt)


def _every_sender(table: StepTable) -> Iterator[HookPoint]:
    """Yield the embeddings, then every head and feed-forward."""
    yield HookPoint(table.input, 0)
    for layer in range(table.config.n_layers):
        output = table.head_output(layer)
        heads = range(table.config.at(layer).n_heads if output is not None else 0)
        yield from (HookPoint(output.name, layer, head) for head in heads if output is not None)
        yield from (HookPoint(step.name, layer) for step in table.added_in(layer) if step.role == "ffn")


def _every_receiver(table: StepTable) -> Iterator[HookPoint]:
    """Yield the queries, keys and values of every head, and every feed-forward."""
    for layer in range(table.config.n_layers):
        steps = table.in_layer(layer)
        core = next((number for number, step in enumerate(steps) if step.core), 0)
        read = [step.name for step in steps[:core] if step.role in ("q", "k", "v") and step.recorded and step.has_heads]
        yield from hook_points([f"L{layer}.{name}" for name in read], table)
        yield from (HookPoint(step.name, layer) for step in table.added_in(layer) if step.role == "ffn")


def _branch(table: StepTable, layer: int, end: str) -> set[str]:
    """The steps of a layer from which ``end`` is computed, up to those of the residual stream."""
    stream, branch, reached = table.stream(layer), set[str](), [end]
    while reached:
        name = reached.pop()
        if name not in branch and name not in stream and table.has(name, layer):
            branch.add(name)
            reached += [source for source, at in table.sources(table.at(name, layer), layer) if at == layer]
    return branch


def _reaches(table: StepTable, sender: HookPoint, receiver: HookPoint) -> bool:
    """Whether what a sender writes to the stream is there when the receiver reads."""
    if sender.layer != receiver.layer:
        return sender.layer < receiver.layer
    order = [step.name for step in table.in_layer(sender.layer)]
    written = sender.step
    if sender.step not in table.stream(sender.layer):  # what the sender's branch adds, which only ``mid`` makes visible
        ends = (step.name for step in table.added_in(sender.layer))
        written = next((end for end in ends if sender.step in _branch(table, sender.layer, end)), order[-1])
        written = written if table.mid_stream else order[-1]
    return order.index(written) < order.index(receiver.step)


@torch.no_grad()
def _along(
    corrupt: Trace, rows: Sequence[Interventions], receivers: Sites, read: Sequence[int], recompute_ffn: bool
) -> Iterator[tuple[dict[HookPoint, Tensor], Tensor]]:
    """Yield, batch by batch, what the receivers compute in each row of senders (B, …), and the logits (B, P, V) there.

    Every attention and feed-forward output but the senders' keeps its value of the corrupt run. A receiver computes
    its value before that.
    """
    model, table, length = corrupt.model, corrupt.steps, len(corrupt.tokens)
    at_once = max(1, most_tokens(corrupt.last_hidden.device) // length)
    for first in range(0, len(rows), at_once):
        batch = rows[first : first + at_once]
        received: dict[HookPoint, Tensor] = {}
        ids = torch.tensor([corrupt.encoding.ids], device=corrupt.last_hidden.device).expand(len(batch), -1)
        types = typed([corrupt.encoding.types] * len(batch), ids.device)
        changes: list[tuple[HookPoint, Change]] = [(receiver, _keep(received, receiver)) for receiver in receivers]
        for layer in range(table.config.n_layers):
            for step in table.added_in(layer):
                if not (recompute_ffn and step.role == "ffn"):
                    branch = _branch(table, layer, step.name)
                    changes.append((HookPoint(step.name, layer), _freeze(corrupt, batch, layer, step.name, branch)))
        with evaluating(model), changed(model, [*changes, *written(batch)]):
            hidden = model.hidden(ids, token_types=types)  # (B, T, C)
        yield received, model.unembed(hidden[:, list(read)])


def _keep(received: dict[HookPoint, Tensor], receiver: HookPoint) -> Change:
    def keep(tensor: Tensor) -> Tensor:
        head = receiver.head
        received[receiver] = (tensor if head is None else tensor[:, head // receiver.shared]).clone()
        return tensor

    return keep


def _freeze(corrupt: Trace, rows: Sequence[Interventions], layer: int, step: str, branch: set[str]) -> Change:
    """Put the corrupt run's value into a step, but for rows of which a sender is on the way to it."""
    frozen = [not any(sent.point.layer == layer and sent.point.step in branch for sent in row) for row in rows]

    def freeze(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[frozen] = corrupt.step(step, layer)
        return tensor

    return freeze


def _verify_nothing(corrupt: Trace, row: Interventions, read: Sequence[int], recompute_ffn: bool) -> Verified:
    """Verify that senders with their own values leave the corrupt run as it is, within rounding."""
    own = tuple(Intervention(sent.point, sent.point.value(corrupt), sent.positions) for sent in row)

    def run() -> Tensor:
        ((_, logits),) = _along(corrupt, [own], (), read, recompute_ffn)
        return logits[0]

    return verify_logits("nothing sent is the corrupt run", corrupt.model, logits_at(corrupt, read), run)
