"""A steering vector: how well it tells apart the two kinds of texts, and the tokens that it promotes and demotes."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.cause.steer.vector import SteeringVector
from tinytf.estimate import Estimate
from tinytf.loading import Model
from tinytf.look.readout import Ends
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import control_line
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import (
    end_bars,
    figures,
    fold_note,
    interval,
    most_rows,
    next_lines,
    note,
    opening_of,
    share_column,
)

_STEPS = 12
"""The most steps of the table, those that tell most texts apart, unless all are asked for."""
_FEW = 3  # tokens from each end of a vector in a row of the table
_SHORT = 4  # tokens from each end of the best vector, below the table of several
_METHODS = {
    "mean": "difference of means", "pca": "first component of the differences",
    "probe": "logistic regression, L2 of strength 1",
}  # fmt: skip
_POSITIONS = {"last": ", at the last token", "mean": ", mean over the tokens"}


@dataclass(frozen=True)
class SteeringVectorDisplay(Display):
    """``file`` is where the vector is stored, if it is; ``all`` shows every step of a long table.

    ``opening`` are the options by which a command opens the model; by default those that the report tells.
    """

    file: str = ""
    all: bool = False
    opening: tuple[str, ...] | None = None


@draws(SteeringVector, SteeringVectorDisplay)
def steering_vector(report: SteeringVector, terminal: Terminal, display: SteeringVectorDisplay) -> Iterator[Block]:
    """A row for each step, and the vocabulary of the best; then how to use it."""
    model, best = model_of(report), report.best
    yield from banner(model)
    yield Heading("steering", _origin(report), "residual")
    names = [printable(vector.at) for vector in report.vectors]
    ranked = sorted(range(len(names)), key=lambda row: report.rank(report.vectors[row]), reverse=True)
    keep = sorted(ranked[: most_rows(0 if display.all else None, _STEPS)])
    yield Table(list(_columns(report, model))).only(keep)
    yield from fold_note(names, keep, "steps", "--all")
    if any(vector.accuracy is not None for vector in report.vectors):
        yield note(
            "told apart: texts left out that fall on their own side of the middle; d′: how far apart the sides are, in "
            "standard deviations; size: the vector's norm by that of the step's values"
        )
    yield from control_line(best.control, "shares told apart")
    if best.promoted:
        words = best.reading or "logits for strength 1, before the norm's scale"
        yield Heading(f"{best.at} in the vocabulary", words, "output")
        most = None if display.all or len(names) == 1 else _SHORT
        ends = (("promotes", best.promoted[:most]), ("demotes", best.demoted[:most]))
        yield end_bars(ends, model.shown)
    file = display.file or "FILE.safetensors"
    yield Line("")
    opening = shlex.join(opening_of(model) if display.opening is None else display.opening)
    lines = [(f"tinytf generate TEXT --add '{best.at}:{file}*2'", "generate with it"),
             (f"tinytf steer {file} TEXT --curve=-2:2:0.5", "see what each strength does")]  # fmt: skip
    if not display.file:
        lines.insert(0, ("tinytf steer PAIRS -o FILE.safetensors", "keep it; .gguf is for llama.cpp"))
    lines = [(f"{line} {opening}".rstrip(), purpose) for line, purpose in lines]
    yield from next_lines(terminal, *lines)


def _origin(report: SteeringVector) -> str:
    """How the vector was made."""
    source = printable(report.source, spaces=False)
    if report.pairs is None:
        return f"{plural(len(report.vectors), 'vector')} of {source}"
    method = _METHODS.get(report.method, report.method)
    return f"{method} of {plural(report.pairs, 'pair')} of {source}{_POSITIONS.get(report.position, '')}"


def _columns(report: SteeringVector, model: Model) -> Iterator[Column]:
    vectors = report.vectors
    yield Column("", [printable(vector.at) for vector in vectors], said="")
    if any(vector.accuracy is not None for vector in vectors):
        shares = [0.0 if vector.accuracy is None else vector.accuracy.value for vector in vectors]
        yield share_column("told apart", shares, "attention")
        yield Column("from … to", [short_interval(vector.accuracy) for vector in vectors], "right", drop=2)
        yield Column("d′", figures([vector.separation for vector in vectors]), "right")
    if any(vector.relative is not None for vector in vectors):
        yield Column("size", figures([vector.relative for vector in vectors]), "right")
    else:
        yield Column("norm", figures([vector.norm for vector in vectors]), "right")
    if any(vector.promoted for vector in vectors):
        yield Column("promotes", [_tokens(model, vector.promoted) for vector in vectors], shrink=10)
        yield Column("demotes", [_tokens(model, vector.demoted) for vector in vectors], shrink=10, drop=1)


def short_interval(mean: Estimate | None) -> Cell:
    """Like ``interval``, with two digits after the point, or three near 0."""
    return interval(mean, "%.2f" if mean and ((mean.low or 0.0) >= 0.1 or not mean.high) else "%.3f")


def _tokens(model: Model, end: Ends) -> str:
    return "  ".join(model.shown(token) for token, _ in end[:_FEW])
