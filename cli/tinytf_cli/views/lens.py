"""The logit lens: a grid of the most probable tokens, layers down and positions across, then single positions."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tinytf.loading import Model
from tinytf.look.lens import Lens
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Grid, Heading, Line, Table
from tinytf_cli.views.parts import folded, not_finite, note, share_column, verdict
from tinytf_cli.views.steps import as_array

_STAGES = 11
"""How many stages a table has, unless all are asked for."""
_TRACKED = 24  # columns that a tracked token takes: rank, probability, bar


class LensView:
    """One text through the lens, drawn; ``asked`` says that positions were named, ``top`` that so many tokens were."""

    def __init__(self, model: Model, found: Lens, asked: bool, top: bool = False, whole: bool = False) -> None:
        self.model, self.found, self.asked, self.top, self.whole = model, found, asked, top, whole
        self.tokens, self.shown = found.encoding.tokens, model.shown

    def _in_detail(self) -> list[int]:
        """Which of the positions are shown one by one: the named ones, else those that are predicted."""
        places, masks = range(len(self.found.positions)), self.model.tokenizer.mask_id
        if self.asked or len(places) == 1:
            return list(places)
        if self.model.config.causal:
            return [places[-1]]
        if self.model.config.labels:
            return []
        return [place for place in places if self.tokens[self.found.positions[place]].id == masks]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The grid of all positions, then each stage of those that are predicted or asked for."""
        found, detailed = self.found, self._in_detail()
        yield from banner(self.model, found.encoding)
        yield Heading("logit lens", "the most probable token, if this were the last layer", "output")
        yield note(f"read through {found.through}")
        fills = self.model.config.predicts_tokens and not self.model.config.causal
        if fills and len(detailed) < len(found.positions):
            yield note("the text has no [MASK], so every position is read")
        if len(found.positions) > 1:
            yield from self._grid(
                (slice(None), 0), [self.tokens[position].shown for position in found.positions],
                above=[str(position) for position in found.positions], keep_last=True, many="positions",
                remedy="--position chooses, --width widens", verb="predicts", asked=self.asked or self.whole,
            )  # fmt: skip
        for place in detailed:
            yield from self._position(place, terminal)
        yield Line("")
        if found.holds:
            yield verdict(True, "the last row is the model's own output, to the last bit")
        elif found.first_not_finite:
            yield not_finite(found.first_not_finite)
        else:
            off = Figure(found.difference, "%.1e")
            yield verdict(False, ["the last row and the model's own output differ by ", off, " (allowed 0)"])

    def _grid(self, at: Any, columns: Sequence[str], **settings: Any) -> Iterator[Block]:
        """A word for each stage and column; ``at`` picks the columns from (positions, rank)."""
        stages = self.found.stages
        names = [stage.name for stage in stages]
        grid = Grid(
            [[self.shown(token_id) for token_id in stage.top_ids[at].tolist()] for stage in stages],
            as_array(torch.stack([stage.top_probabilities[at] for stage in stages])),
            names,
            columns,
            **settings,
        )
        yield from folded(grid, names, None if self.whole else _STAGES, "stages")

    def _position(self, place: int, terminal: Terminal) -> Iterator[Block]:
        found, position = self.found, self.found.positions[place]
        said = "entropy here and KL(final ‖ here), in nats"
        yield Heading(f"position {position} {self.tokens[position].shown}", said, "output")
        beside = [
            ("entropy", [Figure(float(stage.entropy[place]), "%.3f") for stage in found.stages]),
            ("KL", [Figure(float(stage.divergence[place]), "%.3f") for stage in found.stages]),
        ]
        ranks = [f"{rank + 1}." for rank in range(found.stages[0].top_ids.shape[1])]
        yield from self._grid(place, ranks, beside=beside, many="tokens", asked=self.top or self.whole)
        room = terminal.width if terminal.cuts else 10**6
        each = max(1, (room - 14) // _TRACKED)
        for first in range(0, len(found.tracked), each):
            yield Line("")
            if not first:
                yield note("rank and probability of the tracked tokens")
            tracked = self._tracked(place, range(first, min(first + each, len(found.tracked))))
            yield from folded(
                tracked, [stage.name for stage in found.stages], None if self.whole else _STAGES, "stages"
            )

    def _tracked(self, place: int, which: Sequence[int]) -> Table:
        """Rank and probability of some tracked tokens, from stage to stage."""
        stages = self.found.stages
        columns = [Column("", [stage.name for stage in stages])]
        for i in which:
            name = self.shown(self.found.tracked[i])
            shares = [float(stage.probabilities[place, i]) for stage in stages]
            ranks = [
                "–" if math.isnan(share) else f"{int(stage.ranks[place, i]):,}"
                for stage, share in zip(stages, shares, strict=True)
            ]
            columns += [
                Column(name, ranks, "right", shrink=8, said=f"rank of {name}"),
                share_column("p", shares, "output", said="probability"),
            ]
        return Table(columns)
