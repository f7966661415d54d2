"""The view of a pass through transformers: a line a group of modules, the prediction, and what was computed again."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tinytf.sentences import first_of
from tinytf.text.tokenizer import Encoding
from tinytf.through.traced import ModuleProof, ThroughTrace
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Block, Figure, Heading, Heat, Line, Piece, Values
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import Extent, folded, note, numbered, verdict
from tinytf_cli.views.predictions import likely_blocks
from tinytf_cli.views.records import record_table
from tinytf_cli.views.steps import ALL

_GROUPS = 20
"""The most groups of modules on a screen."""
_NAMED = 3


@dataclass(frozen=True)
class ThroughDisplay(Display):
    """``all`` shows every group, ``top`` predictions, and ``dims`` numbers of a row for ``rows`` tokens."""

    all: bool = False
    top: int = 5
    dims: int | None = None
    rows: int | None = None


@draws(ThroughTrace, ThroughDisplay)
def through(report: ThroughTrace, terminal: Terminal, display: ThroughDisplay) -> Iterator[Block]:
    """The modules in groups and the prediction, or the outputs asked for; then the check."""
    yield from banner(model_of(report), report.encoding)
    yield from output_blocks(report, terminal, display)
    if not report.at:
        stacks = ", ".join(f"{path} ({plural(count, 'layer')})" for path, count in report.stacks)
        yield Heading("modules", stacks or "no list of layers", "output")
        groups = [group for group in report.groups if display.all or group.made or group.role]
        names = [group.modules for group in groups]
        yield from folded(record_table(groups), names, None if display.all else _GROUPS, "groups")
        yield from through_prediction(report, display)
    yield Line("")
    yield from proof_lines(report.check)


def through_prediction(report: ThroughTrace, display: ThroughDisplay) -> Iterator[Block]:
    """The most probable tokens or classes, or why there are none."""
    seen = report.prediction
    if seen is None:
        fills = model_of(report).config.predicts_tokens
        reason = (
            "it reads later tokens too, and the text has no [MASK] to fill" if fills else "it has no head of tokens"
        )
        yield note(f"no prediction: {reason}")
        return
    title = {"next": f"after {seen.shown}", "begins": "the first token of its answer"}.get(seen.what, seen.title)
    yield Heading("prediction", title, "output")
    yield from likely_blocks([(likely.shown, likely) for likely in seen.top[: display.top]], digits=True)


def proof_lines(check: ModuleProof) -> Iterator[Line]:
    """How many outputs were computed again; each failure in a line of its own."""
    rest = f"; {check.passed:,} more only pass on a result" if check.passed else ""
    proved = f"proved {check.proved:,} of {check.made:,} module outputs"
    if check.holds:
        of = f" (of values up to {check.scale:.3g})" if check.scale > 10 else ""
        off: list[Piece] = (
            [", largest difference ", Figure(check.difference, "%.1e"), f"{of} at {check.module}"]
            if check.proved
            else []
        )
        yield verdict(True, [proved, *off, rest])
        if check.unseen or check.maps:
            unseen = f"{plural(check.unseen, 'input')} and {plural(check.maps, 'attention map')}"
            yield note(f"not checked: {unseen}, made between modules by code that hooks do not see")
        return
    for failure in check.failures[:_NAMED]:
        difference, limit = Figure(failure.difference, "%.1e"), Figure(failure.allowed, "%.1e")
        words = f"{failure.module} is not {failure.formula}: off by "
        yield verdict(False, [words, difference, " where ", limit, " is allowed"])
    more = [failure.module for failure in check.failures[_NAMED:]]
    yield note(f"{proved}" + (f"; also wrong: {first_of(more, _NAMED)}" if more else ""))


def output_blocks(report: ThroughTrace, terminal: Terminal, display: ThroughDisplay) -> Iterator[Block]:
    """The outputs asked for."""
    for name, tensor in report.at:
        yield from _output_blocks(name, tensor, report.encoding, terminal, display)


def _output_blocks(
    name: str, tensor: Tensor, encoding: Encoding, terminal: Terminal, display: ThroughDisplay
) -> Iterator[Block]:
    """Attention weights as a map of each head; another output as rows of numbers."""
    shape = " × ".join(f"{size:,}" for size in tensor.shape)
    shown = [token.shown for token in encoding.tokens]
    values: Array = tensor.float().cpu().numpy()
    if name.endswith(".weights") and values.ndim == 3:
        for head, weights in enumerate(values):
            yield Heading(f"{name}, head {head}", shape, "weights")
            rows, columns = _names(shown, len(weights)), _names(shown, weights.shape[1])
            seen = weights != 0 if (weights == 0).any() else None
            yield Heat(weights, rows, columns, "unit", seen, hidden="exactly 0", axes="query, key")
        return
    yield Heading(name, shape, "output")
    table: Array = values.reshape(-1, values.shape[-1]) if values.ndim else np.reshape(values, (1, 1))
    labels = _names(shown, len(table))
    extent = Extent(0, 0) if display.all else Extent(display.dims, display.rows, terminal.cuts)
    columns = numbered("d", table.shape[1])
    block = Values(labels, table, extent.first(table), "residual", columns, remedy=ALL)
    yield from folded(block, labels, extent.most(table), "rows", "--rows 0")


def _names(shown: list[str], count: int) -> list[str]:
    """The tokens, where there are as many rows; else numbers."""
    return shown if len(shown) == count else [str(number) for number in range(count)]
