"""Linear probes: the accuracy at each step beside the baselines."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.estimate import Estimate
from tinytf.look.probe import Probe
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import bar_column, folded, note, stopped

_STEPS = 30
"""The most steps of the table, unless all are asked for."""


@dataclass(frozen=True)
class ProbeDisplay(Display):
    """``all`` shows every step."""

    all: bool = False


@draws(Probe, ProbeDisplay)
def probe(report: Probe, terminal: Terminal, display: ProbeDisplay) -> Iterator[Block]:
    """The baselines, then a row for each step."""
    yield from banner(model_of(report))
    steps, position = report.steps, "mean of all tokens" if report.position == "mean" else f"token {report.position}"
    labels = (printable(label, spaces=False) for label in report.labels)
    counted = ", ".join(f"{label} ({count:,})" for label, count in zip(labels, report.counts, strict=True))
    yield Heading(
        f"probes at {printable(position, spaces=False)}", "share of the texts left out that is right", "residual"
    )
    repeats = f"; {plural(report.repeats, 'repeat')} left out" if report.repeats else ""
    yield note(f"{plural(report.texts, 'text')} of {printable(report.source, spaces=False)}: {counted}{repeats}")
    baselines = [("bag of words", report.words), ("most frequent label", report.majority)]
    names = [Span(step.at, "residual") for step in steps]
    yield Table([Column("baseline", [name for name, _ in baselines]), _accuracy([share for _, share in baselines])])
    yield Line("")
    table = Table(
        [
            Column("step", names),
            _accuracy([step.accuracy for step in steps], "output"),
            Column("over words", [_more(step.over_words) for step in steps], "right", drop=1),
            Column(
                "shuffled", [f"{step.shuffled.value:.2f}" for step in steps], "right", drop=2, said="shuffled labels"
            ),
            Column("", [Span("readable", "good") if step.readable else Span("not beyond", "dim") for step in steps]),
        ]
    )
    yield from folded(table, [step.at for step in steps], None if display.all else _STEPS, "steps")
    yield Line("")
    yield from stopped(report.interrupted, len(steps), report.of_steps, "steps", "")
    yield note(
        f"{report.folds}-fold cross-validation, seed {report.seed}; 95 % intervals over texts; readable: more is right "
        "than of each baseline and of shuffled labels, by intervals that are above 0"
    )


def _accuracy(shares: list[Estimate], role: str = "dim") -> Column:
    ends = ["" if one.low is None or one.high is None else f"  {one.low:.2f} … {one.high:.2f}" for one in shares]
    shown = [f"{one.value:.2f}{end}" for one, end in zip(shares, ends, strict=True)]
    return bar_column("right", [one.value for one in shares], shown, role)


def _more(estimate: Estimate) -> str:
    low = estimate.value if estimate.low is None else estimate.low
    return f"{estimate.value:+.2f}  from {low:+.2f}"
