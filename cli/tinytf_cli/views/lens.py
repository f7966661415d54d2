"""The logit lens: a grid of the most probable tokens, layers down and positions across, then single positions."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinytf.look.lens import Lens
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Grid, Heading, Line, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, not_finite, note, share_column, verdict
from tinytf_cli.views.steps import as_array

_STAGES = 11
"""The most stages of a table, unless all are asked for."""
_TRACKED = 24  # columns that a tracked token takes: rank, probability, bar


@dataclass(frozen=True)
class LensDisplay(Display):
    """``named`` says that positions were named, ``top`` that a number of tokens was; ``all`` shows every stage."""

    named: bool = False
    top: bool = False
    all: bool = False

    @property
    def stages(self) -> int | None:
        """The most stages of a table; None for all."""
        return None if self.all else _STAGES


@draws(Lens, LensDisplay)
def lens(report: Lens, terminal: Terminal, display: LensDisplay) -> Iterator[Block]:
    """The grid of all positions, then the stages of the predicted or named ones."""
    model, tokens, detailed = model_of(report), report.encoding.tokens, _in_detail(report, display.named)
    yield from banner(model, report.encoding)
    title = "tuned lens" if report.tuned else "logit lens"
    shows = "the most probable token, if this were the last layer"
    if report.borrowed:
        title, shows = "lens on the encoder", "the token that each state is nearest to: the largest logit, by softmax"
    yield Heading(title, shows, "output")
    yield note(f"read through {report.through}")
    fills = model.config.predicts_tokens and not model.config.causal
    if fills and len(detailed) < len(report.positions):
        yield note("the text has no [MASK], so every position is read")
    if len(report.positions) > 1:
        yield from _grid(
            report, display, (slice(None), 0), [tokens[position].shown for position in report.positions],
            above=[str(position) for position in report.positions], keep_last=True, many="positions",
            remedy="--position chooses, --width widens", verb="is nearest to" if report.borrowed else "predicts",
            asked=display.named or display.all,
        )  # fmt: skip
    for index in detailed:
        yield from _position(report, index, terminal, display)
    yield Line("")
    own = "what the decoder reads" if report.borrowed else "the model's own output"
    if report.holds:
        yield verdict(True, f"the last row is {own}, to the last bit")
    elif report.first_not_finite:
        yield not_finite(report.first_not_finite)
    else:
        off = Figure(report.difference, "%.1e")
        yield verdict(False, [f"the last row and {own} differ by ", off, " (allowed 0)"])


def _in_detail(report: Lens, named: bool) -> list[int]:
    """The indices of the positions shown one by one: the named ones, else the predicted ones."""
    model, indices = model_of(report), range(len(report.positions))
    if named or len(indices) == 1:
        return list(indices)
    if model.config.causal:
        return [indices[-1]]
    if model.config.labels:
        return []
    tokens, mask = report.encoding.tokens, model.tokenizer.mask_id
    return [index for index in indices if tokens[report.positions[index]].id == mask]


def _grid(
    report: Lens, display: LensDisplay, selection: Any, columns: Sequence[str], **settings: Any
) -> Iterator[Block]:
    """A word for each stage and column; ``selection`` indexes the columns in (positions, rank)."""
    model, stages = model_of(report), report.stages
    names = [stage.name for stage in stages]
    words = [[model.shown(token_id) for token_id in stage.top_ids[selection].tolist()] for stage in stages]
    shares = as_array(torch.stack([stage.top_probabilities[selection] for stage in stages]))
    yield from folded(Grid(words, shares, names, columns, **settings), names, display.stages, "stages")


def _position(report: Lens, index: int, terminal: Terminal, display: LensDisplay) -> Iterator[Block]:
    position, stages = report.positions[index], report.stages
    subtitle = "entropy here and KL(final ‖ here), in nats"
    yield Heading(f"position {position} {report.encoding.tokens[position].shown}", subtitle, "output")
    beside = [
        ("entropy", [Figure(float(stage.entropy[index]), "%.3f") for stage in stages]),
        ("KL", [Figure(float(stage.divergence[index]), "%.3f") for stage in stages]),
    ]
    ranks = [f"{rank + 1}." for rank in range(stages[0].top_ids.shape[1])]
    yield from _grid(report, display, index, ranks, beside=beside, many="ranks", asked=display.top or display.all)
    room = terminal.width if terminal.cuts else 10**6
    per_table = max(1, (room - 14) // _TRACKED)
    for first in range(0, len(report.tracked), per_table):
        yield Line("")
        if not first:
            yield note("rank and probability of the tracked tokens")
        table = _tracked(report, index, range(first, min(first + per_table, len(report.tracked))))
        yield from folded(table, [stage.name for stage in stages], display.stages, "stages")


def _tracked(report: Lens, index: int, tokens: Sequence[int]) -> Table:
    """Rank and probability of some tracked tokens, from stage to stage."""
    stages = report.stages
    columns = [Column("", [stage.name for stage in stages])]
    for i in tokens:
        name = model_of(report).shown(report.tracked[i])
        shares = [float(stage.probabilities[index, i]) for stage in stages]
        ranks = [
            "–" if math.isnan(share) else f"{int(stage.ranks[index, i]):,}"
            for stage, share in zip(stages, shares, strict=True)
        ]
        columns += [
            Column(name, ranks, "right", shrink=8, said=f"rank of {name}"),
            share_column("p", shares, "output", said="probability"),
        ]
    return Table(columns)
