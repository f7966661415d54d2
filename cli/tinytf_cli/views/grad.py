"""The view of a backward pass: loss, every step's gradient, one block in full, and whether the formulas agree."""

import math
from collections.abc import Iterator

from tinytf.gradients.by_hand import Agreement
from tinytf.gradients.report import Backward
from tinytf.loading import Model
from tinytf.trace.address import Address
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.backward import (
    backward_blocks,
    cell_blocks,
    derivation_blocks,
    gradient_blocks,
    vocabulary_blocks,
)
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Heading, Line, Span
from tinytf_cli.views.faults import fault_blocks
from tinytf_cli.views.loss import loss_blocks
from tinytf_cli.views.sensitivity import flow_blocks, head_blocks, token_blocks
from tinytf_cli.views.weights import difference_blocks, weight_blocks


class GradView:
    """One backward pass, drawn: ``dims`` numbers of a row, ``rows`` tokens of a table."""

    def __init__(self, model: Model, found: Backward, dims: int, rows: int | None) -> None:
        self.model, self.found, self.trace, self.dims, self.rows = model, found, found.trace, dims, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The view, in the order in which the gradient goes back."""
        chosen, trace = self.found, self.trace
        limit = self.rows if self.rows is not None else (16 if terminal.cuts else None)
        rows = None if limit == 0 else limit
        yield from banner(self.model, trace.encoding)
        yield from loss_blocks(chosen, self.model.tokenizer, rows)
        for where in chosen.addresses:
            yield from self._address(where, rows)
        for found in chosen.derivations:
            yield from derivation_blocks(trace, found, self.dims, self.model.tokenizer)
        if not chosen.addresses and not chosen.derivations:
            yield from backward_blocks(trace, chosen.rows)
            for layer in reversed(chosen.layers):
                yield from self._block(layer, rows)
            yield from flow_blocks(chosen.flow)
            yield from token_blocks(trace, chosen.first_order, chosen.integrated, rows)
            yield from head_blocks(chosen.heads)
            yield from weight_blocks(chosen.weights, chosen.by, chosen.lr)
        if chosen.differences is not None:
            yield from difference_blocks(chosen.differences)
        yield from agreement_blocks(chosen.agreement)
        yield from fault_blocks(chosen.fail_on, chosen.fault)

    def _block(self, layer: int, rows: int | None) -> Iterator[Block]:
        chosen, config = self.found, self.trace.config
        note = f"of {config.n_layers} layers and {config.n_heads} heads; --layer and --head choose, --full shows all"
        yield Heading(f"block L{layer}, head {chosen.head}", note)
        for step in reversed(self.trace.steps.layer_steps):
            yield from gradient_blocks(self.trace, step, layer, chosen.head, dims=self.dims, rows=rows, asked=False)

    def _address(self, where: Address, rows: int | None) -> Iterator[Block]:
        config = self.trace.config
        if where.note:
            yield Line(Span(where.note, "dim"))
        if where.cell:
            yield from cell_blocks(self.trace, where, self.dims, self.model.tokenizer)
            return
        layers = where.layers if where.layers is not None else (None,)
        steps = [where.step] if where.step is not None else list(reversed(self.trace.steps.layer_steps))
        for layer in layers:
            for step in steps:
                heads: tuple[int | None, ...] = (None,)
                if step.has_heads:
                    every = config.heads_per_kv if "kv head" in step.axes else 1
                    heads = where.heads or tuple(range(0, config.n_heads, every))
                if step.is_vocabulary:
                    yield from vocabulary_blocks(self.trace, step, self.model.tokenizer, self.dims, rows)
                    continue
                for head in heads:
                    yield from gradient_blocks(self.trace, step, layer, head, dims=self.dims, rows=rows, asked=True)


def agreement_blocks(outcome: Agreement) -> Iterator[Block]:
    """Whether the written-out formulas give what autograd gave, in one line."""
    worst = outcome.worst
    counted = f"{len(outcome.steps)} steps and {len(outcome.parameters)} parameters"
    figures = f"largest difference {worst.difference:.1e}, {worst.relative:.1e} of its gradient, at {worst.name}"
    yield Line("")
    if outcome.holds:
        yield Line([Span("checked", "good"), Span(f": by hand {counted} have autograd's gradient, {figures}")])
    elif not math.isfinite(worst.difference):
        said = f": not all gradients are finite, so by hand and autograd cannot be compared, first at {worst.name}"
        yield Line([Span("check failed", "bad"), Span(said)])
    else:
        said = f": by hand and autograd differ, {figures} (allowed {outcome.tolerance:.0e})"
        yield Line([Span("check failed", "bad"), Span(said)])
