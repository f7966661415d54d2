"""The tree of runs that branched off from others, and their losses in one chart."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.runs.branches import Node, tree_of
from tinytf.runs.history import MEANS_LABEL
from tinytf.runs.runs import RunReport
from tinytf.text.printable import printable
from tinytf_cli.numbers import loss_in_words
from tinytf_cli.views.blocks import Block, Column, Curve, Curves, Heading, Span, Table

_ROLES = ("q", "k", "v", "attention", "embed", "output", "ffn", "residual")
_BEFORE = 0.25
"""The share of a chart for the steps before the first branch."""


def branch_blocks(runs: Sequence[RunReport]) -> Iterator[Block]:
    """The table of the branches and the chart of their losses; nothing if no run is a branch."""
    nodes = tree_of(runs)
    if not nodes:
        return
    roles = [_ROLES[index % len(_ROLES)] for index in range(len(nodes))]
    names = [Span(printable(node.run.name, spaces=False), role) for node, role in zip(nodes, roles, strict=True)]
    yield Heading("branches", "runs that went on with other settings")
    yield Table(
        [
            Column("run", [[Span("  " * node.depth), name] for node, name in zip(nodes, names, strict=True)], shrink=8),
            Column("from", [_branch_point(node) for node in nodes], "right"),
            Column("best held-out", [_best_loss(node) for node in nodes], "right"),
            Column("otherwise", [_changed_settings(node) for node in nodes], shrink=12),
        ]
    )
    first = min((node.parent.step for node in nodes if node.parent is not None), default=0)
    last = max(node.history.last for node in nodes)
    begin = max(0, first - int(_BEFORE * (last - first)))
    curves = []
    for node, name in zip(nodes, names, strict=True):
        step, loss = node.history.averaged
        if (later := step >= begin).sum() > 1:
            curves.append(Curve(name.text, np.asarray(step[later]), np.asarray(loss[later]), name.role))
    if len(curves) > 1:
        yield Heading("both futures", f"training loss, {MEANS_LABEL}, from step {begin:,}")
        yield Curves(curves, "step", "loss", 8)


def _branch_point(node: Node) -> str:
    return "" if node.parent is None else f"step {node.parent.step:,}"


def _best_loss(node: Node) -> str:
    best = node.history.best
    return "" if best is None else loss_in_words(best[1])


def _changed_settings(node: Node) -> str:
    if node.parent is None:
        return ""
    settings = [f"{name.replace('_', ' ')} {_value(value)}" for name, value in node.parent.differ.items()]
    return printable(", ".join(settings) or "nothing", spaces=False)


def _value(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
