"""The change of a logit by an ablation: direct effect, later parts, norms; and the later parts that change most."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.cause.repair import Repair
from tinytf.sentences import first_of
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import SITES, check_line, replacement, where_predicted
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, one_form, signed_bars


@dataclass(frozen=True)
class RepairDisplay(Display):
    """``top`` is how many of the later parts the table lists."""

    top: int = 8


@draws(Repair, RepairDisplay)
def repair(report: Repair, terminal: Terminal, display: RepairDisplay) -> Iterator[Block]:
    """The terms of the change, then the later parts whose own terms change most."""
    model = model_of(report)
    yield from banner(model, report.encoding)
    yield Heading("ablated", f"{first_of(report.sites, SITES)}: {replacement(report)}", "attention")
    yield note(where_predicted(model, report.encoding, report.position))
    versus = "" if report.versus is None else f" − {report.of} of {model.shown(report.versus)}"
    terms = report.by_kind
    names = [*terms, "change"]
    values = [*terms.values(), report.change]
    yield Table(
        [
            Column(f"{report.of} of {model.shown(report.target)}{versus}", [*names[:-1], Span(names[-1], "strong")]),
            signed_bars("", values, one_form(values, sign=True)),
        ],
        rule_after=frozenset({len(terms) - 1}),
    )
    yield note(["before ", Figure(report.before, "%.4f"), ", after ", Figure(report.after, "%.4f")])
    strongest = report.strongest(display.top)
    if strongest:
        count = len(report.strongest())
        first = f"the {len(strongest)} that change most, " if len(strongest) < count else ""
        yield Heading(plural(count, "later part"), f"{first}with the norms' scales of before")
        changes = [part.change for part in strongest]
        form = one_form([number for part in strongest for number in (part.before, part.after)], sign=True)
        yield Table(
            [
                Column("", [Span(part.name, "strong") for part in strongest], said="part"),
                Column("before", [Figure(part.before, form) for part in strongest], "right"),
                Column("after", [Figure(part.after, form) for part in strongest], "right"),
                signed_bars("change", changes, one_form(changes, sign=True)),
            ]
        )
    yield from check_line(report.check)
