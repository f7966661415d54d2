"""The view of a budget: which type each tensor should have, what was predicted of them, and what was measured."""

from collections.abc import Iterator

from tinytf.cause.budget import Budget
from tinytf.loading import Model
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blame import estimated
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Span, Table
from tinytf_cli.views.parts import most_rows, note

_ROWS = 4


class BudgetView:
    """A plan, drawn: beside all tensors in one type, its costliest tensors, and the options that make it."""

    def __init__(self, model: Model, found: Budget, rows: int | None = None) -> None:
        self.model, self.found, self.rows = model, found, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found = self.found
        yield from banner(self.model, found.about.text if found.about else None)
        texts = plural(found.texts, "text")
        yield Heading("types within the budget", f"KL in nats a token, mean of {texts}", "output")
        uniform = [(Span(one.type), one.n_bytes, one.kl) for one in found.uniform]
        plans = [(Span("this plan", "strong"), found.n_bytes, found.measured), *uniform]
        yield Table(
            [
                Column("", [name for name, _, _ in plans], said=""),
                Column("MB", [f"{size / 1e6:,.1f}" for _, size, _ in plans], "right"),
                Column("KL, measured", [estimated(kl, name.role) for name, _, kl in plans]),
            ]
        )
        yield note(f"budget {found.limit / 1e6:,.1f} MB of tensors; one by one their types cost {found.predicted:.4f}")
        yield from self._raised()
        if found.options:
            yield Heading("options of llama-quantize", "", "output")
            for one in found.options:
                yield Line(f"--tensor-type '{one}'", indent=2, hanging=4)

    def _raised(self) -> Iterator[Block]:
        """The tensors that would cost most in the smallest type."""
        found = self.found
        least = min(found.uniform, key=lambda one: one.n_bytes).type
        order = sorted(found.kept, key=lambda one: -one.costs[least])
        shown = order[: most_rows(self.rows, _ROWS)]
        yield Heading("tensors", f"that cost most in {least}", "output")
        yield Table(
            [
                Column("", [Span(one.name, "strong") for one in shown], said=""),
                Column("type", [one.type for one in shown]),
                *(
                    Column(f"KL in {kind}", [Figure(one.costs[kind], "%.5f") for one in shown], "right")
                    for kind in (one.type for one in found.uniform)
                ),
            ]
        )
        if len(shown) < len(order):
            yield note(f"folded: {len(order) - len(shown)} tensors; --rows 0 shows them")
