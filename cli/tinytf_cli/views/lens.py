"""The logit lens: a grid of the most probable tokens, layers down and positions across, then single positions."""

import math
from collections.abc import Iterator, Sequence

import torch

from tinytf.analysis.lens import Lens
from tinytf.loading import Model
from tinytf_cli.numbers import number, probability
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Grid, Heading, Line, Meter, Span, Table
from tinytf_cli.views.steps import as_array

_TRACKED = 24  # columns that a tracked token takes: rank, probability, bar


class LensView:
    """One text through the lens, drawn; ``asked`` are positions that were named."""

    def __init__(self, model: Model, found: Lens, asked: bool) -> None:
        self.model, self.found, self.asked = model, found, asked
        self.tokens = found.encoding.tokens

    def _in_detail(self) -> list[int]:
        """Which of the positions are shown one by one: those that were asked for, what is predicted otherwise."""
        places, masks = range(len(self.found.positions)), self.model.tokenizer.mask_id
        if self.asked or len(places) == 1:
            return list(places)
        if self.model.config.causal:
            return [places[-1]]
        return [place for place in places if self.tokens[self.found.positions[place]].id == masks]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The grid of all positions, then each stage of those that are predicted or asked for."""
        found = self.found
        yield from banner(self.model, self.found.encoding)
        yield Heading("logit lens", "the most probable token, if this were the last layer", "output")
        yield Line(Span(f"read through {found.through}", "dim"), indent=2)
        if not self.model.config.causal and len(self._in_detail()) < len(found.positions):
            yield Line(Span("the text has no [MASK], so every position is read", "dim"), indent=2)
        if len(found.positions) > 1:
            yield self._grid()
        for place in self._in_detail():
            yield from self._position(place, terminal)
        yield Line("")
        yield self._check()

    def _token(self, token_id: int) -> str:
        return self.model.tokenizer.shown(token_id)

    def _grid(self) -> Grid:
        found = self.found
        return Grid(
            [[self._token(int(i)) for i in stage.top_ids[:, 0]] for stage in found.stages],
            as_array(torch.stack([stage.top_probabilities[:, 0] for stage in found.stages])),
            [stage.name for stage in found.stages],
            [self.tokens[position].shown for position in found.positions],
            [str(position) for position in found.positions],
            keep_last=True,
            many="positions",
            remedy="--position chooses, --width widens",
            verb="says",
        )

    def _position(self, place: int, terminal: Terminal) -> Iterator[Block]:
        found, position = self.found, self.found.positions[place]
        note = "entropy here and KL(final ‖ here), in nats"
        yield Heading(f"position {position} {self.tokens[position].shown}", note, "output")
        yield Grid(
            [[self._token(int(i)) for i in stage.top_ids[place]] for stage in found.stages],
            as_array(torch.stack([stage.top_probabilities[place] for stage in found.stages])),
            [stage.name for stage in found.stages],
            [f"{rank + 1}." for rank in range(found.stages[0].top_ids.shape[1])],
            beside=[
                ("entropy", [number(float(stage.entropy[place]), "%.3f") for stage in found.stages]),
                ("KL", [number(float(stage.divergence[place]), "%.3f") for stage in found.stages]),
            ],
            many="tokens",
        )
        room = terminal.width if terminal.cuts else 10**6
        each = max(1, (room - 14) // _TRACKED)
        for first in range(0, len(found.tracked), each):
            yield Line("")
            if not first:
                yield Line(Span("rank and probability of the tokens that are tracked", "dim"), indent=2)
            yield self._tracked(place, range(first, min(first + each, len(found.tracked))))

    def _tracked(self, place: int, which: Sequence[int]) -> Table:
        """Rank and probability of some tracked tokens, from stage to stage."""
        stages = self.found.stages
        columns = [Column("", [stage.name for stage in stages])]
        for i in which:
            name = self._token(self.found.tracked[i])
            shares = [float(stage.probabilities[place, i]) for stage in stages]
            shown = [probability(share) for share in shares]
            width = max(map(len, shown))
            ranks = [
                "–" if math.isnan(share) else f"{int(stage.ranks[place, i]):,}"
                for stage, share in zip(stages, shares, strict=True)
            ]
            bars = [Meter(share, text.rjust(width), "output") for share, text in zip(shares, shown, strict=True)]
            columns += [
                Column(name, ranks, "right", shrink=8, said=f"rank of {name}"),
                Column("p", bars, narrow=shown, said="probability"),
            ]
        return Table(columns)

    def _check(self) -> Line:
        difference = self.found.difference
        if self.found.holds:
            return Line([Span("checked", "good"), Span(": the last row is the model's own output, to the last bit")])
        said = f": the last row and the model's own output differ by {number(difference, '%.1e')} (allowed 0)"
        return Line([Span("check failed", "bad"), Span(said)])
