"""A budget: the type for each tensor, with the predicted and the measured cost."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.cause.budget import Budget
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blame import estimated
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import most_rows, note

_TENSORS = 4


@dataclass(frozen=True)
class BudgetDisplay(Display):
    """``rows`` is the most tensors in the table: 0 for all, None for as many as suit a screen."""

    rows: int | None = None


@draws(Budget, BudgetDisplay)
def budget(report: Budget, terminal: Terminal, display: BudgetDisplay) -> Iterator[Block]:
    """The plan beside plans with one type for all tensors, the costliest tensors, and the options of llama-quantize."""
    yield from banner(model_of(report), report.about.text if report.about else None)
    yield Heading("types within the budget", f"KL in nats a token, mean of {plural(report.texts, 'text')}", "output")
    uniform = [(Span(plan.kind), plan.n_bytes, plan.kl) for plan in report.uniform]
    plans = [(Span("this plan", "strong"), report.n_bytes, report.measured), *uniform]
    yield Table(
        [
            Column("", [name for name, _, _ in plans], said=""),
            Column("MB", [f"{size / 1e6:,.1f}" for _, size, _ in plans], "right"),
            Column("KL, measured", [estimated(kl, name.role) for name, _, kl in plans]),
        ]
    )
    yield note(f"budget {report.limit / 1e6:,.1f} MB of tensors; one by one their types cost {report.predicted:.4f}")
    yield from _costliest(report, display)
    if report.options:
        yield Heading("options of llama-quantize", "with Q8_0 as the type of the file", "output")
        for option in report.options:
            yield Line(f"--tensor-type '{option}'", indent=2, hanging=4)


def _costliest(report: Budget, display: BudgetDisplay) -> Iterator[Block]:
    """The tensors that would cost most in the smallest type."""
    smallest = min(report.uniform, key=lambda uniform: uniform.n_bytes).kind
    order = sorted(report.kept, key=lambda tensor: -tensor.costs[smallest])
    costliest = order[: most_rows(display.rows, _TENSORS)]
    yield Heading("tensors", f"that cost most in {smallest}", "output")
    yield Table(
        [
            Column("", [Span(tensor.name, "strong") for tensor in costliest], said=""),
            Column("type", [tensor.kind for tensor in costliest]),
            *(
                Column(f"KL in {kind}", [Figure(tensor.costs[kind], "%.5f") for tensor in costliest], "right")
                for kind in (uniform.kind for uniform in report.uniform)
            ),
        ]
    )
    if len(costliest) < len(order):
        yield note(f"folded: {len(order) - len(costliest)} tensors", "--rows 0 shows them")
