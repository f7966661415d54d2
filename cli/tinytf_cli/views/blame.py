"""The view of blame: what each tensor of another model does, as a map of layers × kinds and a table of the worst."""

import math
from collections.abc import Iterator
from statistics import median

import numpy as np

from tinytf.cause.blame import Blame, Blamed
from tinytf.cause.damage import Estimate
from tinytf.cause.restoring import SHARES
from tinytf.loading import Model
from tinytf.steps.table import table_of
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Heat, Line, Span, Table
from tinytf_cli.views.parts import NO_NUMBER, full_scale, most_rows, note, numbered, signed_bars

_ROWS = 6
"""How many tensors the table has, unless more are asked for."""
_MAPS = {"kl": "KL", "loss": "loss", "margin": "difference of the two logits"}
"""The measures that are drawn as maps."""
_SETS = 3  # sets that are shown beside those that explain enough


class BlameView:
    """What was measured, drawn: the whole damage, the map, and ``rows`` tensors."""

    def __init__(self, model: Model, other: Model, found: Blame, rows: int | None = None, whole: bool = False) -> None:
        self.model, self.other, self.found, self.rows, self.whole = model, other, found, rows, whole

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        yield from banner(self.model, self.found.about.text if self.found.about else None)
        yield from self._whole()
        if not self.found.blamed:
            return
        yield from self._table()
        yield from self._notes()
        yield from self._sets()
        yield from self._map()
        yield from self._steps()

    def _whole(self) -> Iterator[Block]:
        found = self.found
        name = printable(self.other.name, spaces=False)
        yield Heading("damage", f"of {name}, mean per token of {plural(found.texts, 'text')}, in nats", "output")
        if not found.blamed:
            yield Line("no tensor differs: the models predict the same", indent=2)
            return
        whole = found.whole
        words = ["KL ", *estimated(whole.kl, "strong")]
        if whole.loss is not None:
            words += [" · loss ", *estimated(whole.loss, sign=True)]
        a, b = ("top", "second") if found.pair is None else map(self.model.shown, found.pair)
        words += [f" · logit {a} − {b} ", *estimated(whole.margin, sign=True)]
        yield Line(words, indent=2)
        tensors = plural(len(found.blamed), "tensor")
        said = f"{plural(found.positions, 'token')}; {len(found.measured)} of {tensors} measured"
        said += f", {found.same} equal in both" if found.same else ""
        said += f"; stopped after {found.texts} of {found.asked} texts" if found.interrupted else ""
        yield note(said)

    def _map(self) -> Iterator[Block]:
        """Kinds down, since there are fewer of them, and layers across: the KL, with --all the other measures too."""
        inside = [one for one in self.found.measured if one.layer is not None]
        if not inside:
            return
        there = {one.kind for one in inside}
        kinds = [kind for kind in table_of(self.model.config).parameters if kind in there]
        for name, title in _MAPS.items() if self.whole else [("kl", _MAPS["kl"])]:
            values = np.full((len(kinds), self.model.config.n_layers), np.nan, np.float32)
            for one in inside:
                found: Estimate | None = getattr(one.damage, name, None)
                values[kinds.index(one.kind), one.layer] = np.nan if found is None else found.value * 1000
            if np.isnan(values).all():
                continue
            most = float(np.nanmax(np.abs(values))) or 1.0
            yield Heading(f"{title} of each tensor alone", "in thousandths", "output")
            seen = None if np.isfinite(values).all() else np.isfinite(values)
            scale = "unit" if name == "kl" else "signed"
            yield Heat(
                np.nan_to_num(values), kinds, numbered("L", values.shape[1]), scale, seen, most, hidden=NO_NUMBER
            )

    def _table(self) -> Iterator[Block]:
        found, count = self.found, most_rows(self.rows, _ROWS)
        shown = found.measured[:count]
        yield Heading("most damage", "the tensor of the other model alone; what restoring it alone recovers", "output")
        recovered = [one.recovered.kl.value if one.recovered else math.nan for one in shown]
        yield Table(
            [
                Column("", [Span(one.address, "strong") for one in shown], said=""),
                Column("KL", [estimated(one.damage.kl) for one in shown if one.damage], "left"),
                Column("loss", self._losses(shown), "right", drop=2),
                Column("Δ logit", [Figure(one.damage.margin.value, "%+.3f") for one in shown if one.damage], "right",
                       drop=3),
                signed_bars("recovers", recovered, "%+.4f",
                            full_scale(recovered)),
                Column("moved", [f"{one.moved:.1%}" for one in shown], "right", drop=1),
                Column("expected", [Figure(one.expected, "%.4f") for one in shown], "right", drop=4),
            ]
        )  # fmt: skip
        if len(shown) < len(found.measured):
            yield note(f"folded: {len(found.measured) - len(shown)} tensors that do less; --rows 0 shows them")

    def _losses(self, shown: tuple[Blamed, ...]) -> list[Cell]:
        found = [one.damage.loss for one in shown if one.damage]
        return ["–" if one is None else Figure(one.value, "%+.4f") for one in found]

    def _notes(self) -> Iterator[Block]:
        moved, expected = (self.found.correlation(by) for by in ("moved", "expected"))
        if moved is not None and expected is not None:
            yield note(
                f"rank correlation with the damage: {moved:+.2f} how far a tensor moved, {expected:+.2f} expected"
            )

    def _sets(self) -> Iterator[Block]:
        """The first sets, and the first that explain each of SHARES."""
        sets = self.found.sets
        if not sets:
            return
        shown = [one for one in sets if one in sets[:_SETS] or one in map(self.found.explaining, SHARES)]
        on = "" if sets[0].texts == self.found.texts else f", on {plural(sets[0].texts, 'text')}: stopped"
        said = f"the share of the KL that these tensors explain, chosen greedily{on}"
        yield Heading("restored together", said, "output")
        added = [", ".join([*(["…"] if one not in sets[:_SETS] else []), *one.added]) for one in shown]
        yield Table(
            [
                Column("tensors", [str(one.count) for one in shown], "right"),
                Column("explain", [estimated(one.share, "strong", share=True) for one in shown]),
                Column("added", added, shrink=20),
            ]
        )

    def _steps(self) -> Iterator[Block]:
        steps = self.found.steps
        if not steps:
            return
        if not self.whole:
            own, actual = (median(getattr(one, of) for one in steps) for of in ("own", "actual"))
            said = f"a step's error is {own:.1%} by its own tensors and {actual:.1%} with what it inherits"
            yield note(f"{said} (medians); --all shows them")
            return
        yield Heading("error of each step", "‖error‖ ÷ ‖step‖ of a token: by its own tensors, and as it is", "output")
        names = list(dict.fromkeys(one.step for one in steps))
        groups = [[one for one in steps if one.step == name] for name in names]
        most = [(max(group, key=lambda one: one.own), max(group, key=lambda one: one.actual)) for group in groups]
        yield Table(
            [
                Column("step", [Span(name, "strong") for name in names]),
                Column("own, median", [f"{median(one.own for one in group):.1%}" for group in groups], "right"),
                Column("most", [f"{one.own:.1%} {one.name}" for one, _ in most]),
                Column("with inherited, median", [f"{median(one.actual for one in group):.1%}" for group in groups],
                       "right"),
                Column("most", [f"{one.actual:.1%} {one.name}" for _, one in most]),
            ]
        )  # fmt: skip


def estimated(one: Estimate, role: str = "", sign: bool = False, share: bool = False) -> list[str | Figure | Span]:
    """``0.591 [0.533, 0.750]``, or ``59.1% [53.3%, 75.0%]``."""
    if share:
        around = "" if one.low is None or one.high is None else f" [{one.low:.1%}, {one.high:.1%}]"
        return [Span(f"{one.value:.1%}", role), *([Span(around, "dim")] if around else [])]
    form = "%+.4f" if sign else "%.4f"
    ends = [] if one.low is None or one.high is None else [Span(f" [{form % one.low}, {form % one.high}]", "dim")]
    return [Figure(one.value, form, role), *ends]
