"""One step of a trace in full: a table of values, or a map of weights."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.steps.table import Step
from tinytf.trace.address import Address
from tinytf.trace.summary import visible
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import number
from tinytf_cli.views.blocks import Array, Block, Heading, Heat, Line, RowBars, Span, Values, Visible


def as_array(tensor: object) -> Array:
    """A tensor as float32 numbers for drawing."""
    return tensor.detach().float().cpu().numpy()  # type: ignore[attr-defined]


def signed_role(value: float, most: float) -> str:
    """The role of a number between −most and most, on the diverging scale."""
    share = value / most if most and math.isfinite(value) else 0.0
    return f"signed:{round((min(1.0, max(-1.0, share)) + 1) / 2 * 255)}"


def labels(trace: Trace) -> list[str]:
    return [token.shown for token in trace.tokens]


def visible_array(trace: Trace, step: Step, layer: int | None = None) -> Visible:
    allowed = visible(trace, step, layer)
    return None if allowed is None else allowed.cpu().numpy()


def largest(values: Array, seen: Visible = None) -> float:
    """The largest finite magnitude, of the visible cells: where a signed scale ends."""
    if seen is not None:
        values = values[..., seen] if values.ndim > 2 else values[seen]
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def row_bars(weights: Array, names: Sequence[str], keep: Sequence[int], seen: Visible) -> RowBars:
    """For each kept query its largest weights."""
    rows = []
    for query in keep:
        order = np.argsort(-weights[query], kind="stable")
        entries = [(names[k], float(weights[query, k])) for k in order if seen is None or seen[query, k]]
        rows.append((names[query], entries))
    return RowBars(rows)


def shown_rows(count: int, limit: int | None) -> list[int]:
    """Which of ``count`` rows to show under a limit: the first ones and up to four of the last."""
    if limit is None or count <= limit:
        return list(range(count))
    tail = min(4, limit // 2)
    return [*range(limit - tail), *range(count - tail, count)]


def left_out(count: int, keep: Sequence[int]) -> Iterator[Block]:
    missing = count - len(keep)
    if missing:
        first = next((i for i, place in enumerate(keep) if place != i), len(keep))
        said = f"  tokens {first} to {first + missing - 1} are left out ({missing}); --rows 0 shows all"
        yield Line(Span(said, "dim"))


def step_heading(trace: Trace, step: Step, layer: int | None, head: int | None, address: str = "") -> Heading:
    name = address or (f"L{layer}H{head}.{step.name}" if head is not None and step.has_heads else step.full_name(layer))
    return Heading(name, f"{step.title} = {step.formula}" if step.formula else step.title, step.role)


def step_blocks(
    trace: Trace, step: Step, layer: int | None, head: int | None, *, dims: int, rows: int | None, asked: bool
) -> Iterator[Block]:
    """A step of one layer (and head, where it has heads) as a titled table or map; ``rows`` limits the tokens shown."""
    yield step_heading(trace, step, layer, head)
    yield from value_blocks(
        trace, step, layer, head, dims=dims, rows=rows, asked=asked, signed=not step.is_distribution
    )


def value_blocks(
    trace: Trace,
    step: Step,
    layer: int | None,
    head: int | None,
    *,
    dims: int,
    rows: int | None,
    asked: bool,
    signed: bool,
) -> Iterator[Block]:
    """The numbers of a step; a map that is not ``signed`` holds shares of 1."""
    heads = (head,) if head is not None and step.has_heads else None
    names = labels(trace)
    if not step.is_tensor:
        yield Line("  " + " ".join(names if step.name == "tokens" else [str(t.id) for t in trace.tokens]))
        return
    if step.is_vocabulary:
        yield from _vocabulary(trace, step, dims)
        return
    values = as_array(trace.step(step.name, layer, heads))
    if heads is not None:
        values = values[0]
    if step.is_map:
        seen = visible_array(trace, step, layer)
        if not signed:
            yield Heat(values, names, names, "unit", seen, asked=asked)
            keep = shown_rows(len(names), rows)
            yield row_bars(values, names, keep, seen)
            yield from left_out(len(names), keep)
        else:
            limit = largest(values, seen)
            yield Heat(values, names, names, "signed", seen, limit, asked=asked)
        return
    if values.ndim == 1:
        yield Values(["[0]"], values[None], dims, step.role)
        return
    keep = shown_rows(len(names), rows)
    yield Values([names[i] for i in keep], values[keep], dims, step.role)
    yield from left_out(len(names), keep)


def _vocabulary(trace: Trace, step: Step, dims: int) -> Iterator[Block]:
    rows = trace.recording.logit_rows
    names = [trace.tokens[row].shown for row in rows]
    yield Values(names, as_array(trace.at_logit_rows(step)), dims, step.role)


def address_blocks(trace: Trace, where: Address, head: int, *, dims: int, rows: int | None) -> Iterator[Block]:
    """What an address names: a cell with its number, a step in each of its layers and heads, or a whole block."""
    if where.note:
        yield Line(Span(where.note, "dim"))
    if where.cell:
        yield from _cell(trace, where, dims)
        return
    layers: Sequence[int | None] = where.layers if where.layers is not None else (None,)
    for layer in layers:
        if where.step is None:
            for one in where.heads or (head,):
                for step in trace.steps.layer_steps:
                    yield from step_blocks(trace, step, layer, one, dims=dims, rows=rows, asked=True)
        else:
            n_heads = trace.config.n_kv_heads if "kv head" in where.step.axes else trace.config.n_heads
            heads = where.heads if where.heads is not None else range(n_heads)
            if where.heads is None and "kv head" in where.step.axes:
                heads = range(0, trace.config.n_heads, trace.config.heads_per_kv)
            shown_heads: Sequence[int | None] = tuple(heads) if where.step.has_heads else (None,)
            for head_or_none in shown_heads:
                yield from step_blocks(trace, where.step, layer, head_or_none, dims=dims, rows=rows, asked=True)


def _cell(trace: Trace, where: Address, dims: int) -> Iterator[Block]:
    assert where.step is not None
    tensor = trace[where]
    yield Heading(str(where), f"{where.step.title} = {where.step.formula}", where.step.role)
    if tensor.dim() == 0:
        yield Line([Span("  "), Span(number(float(tensor), "%.9g"), "strong")])
    else:
        values = as_array(tensor)
        flat = values.reshape(-1, values.shape[-1])
        yield Values([str(i) if len(flat) > 1 else "" for i in range(len(flat))], flat, dims, where.step.role)
