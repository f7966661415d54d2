"""The view of a backward pass: loss, every step's gradient, one block in full, and whether the formulas agree."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tinytf.gradients.agreement import Agreement, agreement
from tinytf.gradients.derivation import Derivation, derive
from tinytf.gradients.pipeline import GradientRow, backward_rows
from tinytf.gradients.trace import GradientTrace
from tinytf.loading import Model
from tinytf.trace.address import Address
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.backward import backward_blocks, cell_blocks, derivation_blocks, gradient_blocks
from tinytf_cli.views.banner import banner, model_data, text_data
from tinytf_cli.views.blocks import Block, Heading, Line, Span
from tinytf_cli.views.loss import loss_blocks, loss_rows


@dataclass(frozen=True)
class GradSelection:
    """What to show: ``addresses`` and ``derived`` alone, or all with the block of ``layers`` and ``head``."""

    layers: tuple[int, ...]
    head: int
    addresses: tuple[Address, ...]
    derived: tuple[Address, ...]
    dims: int
    rows: int | None
    detail: bool


class GradView:
    """One backward pass in every form that output takes; each part is computed when it is first asked for."""

    def __init__(self, model: Model, trace: GradientTrace, selection: GradSelection) -> None:
        self.model, self.trace, self.selection = model, trace, selection
        for where in selection.addresses:
            if where.cell:
                trace.grad[where]  # a cell that is not there is said before anything is shown
        self.derivations = [derive(trace, trace.targets, where) for where in selection.derived]

    @cached_property
    def outcome(self) -> Agreement:
        return agreement(self.trace)

    @cached_property
    def rows(self) -> list[GradientRow]:
        return list(backward_rows(self.trace, self.outcome))

    @cached_property
    def losses(self) -> list[dict[str, Any]]:
        return loss_rows(self.trace, self.model.tokenizer)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The view, in the order in which the gradient goes back."""
        chosen, trace = self.selection, self.trace
        limit = chosen.rows if chosen.rows is not None else (16 if terminal.cuts else None)
        rows = None if limit == 0 else limit
        yield from banner(self.model, trace.encoding)
        yield from loss_blocks(trace, self.losses, rows)
        for where in chosen.addresses:
            yield from self._address(where, rows)
        for found in self.derivations:
            yield from derivation_blocks(trace, found, chosen.dims)
        if not chosen.addresses and not chosen.derived:
            yield from backward_blocks(trace, self.rows)
            if chosen.detail:
                for layer in reversed(chosen.layers):
                    yield from self._block(layer, rows)
        yield from agreement_blocks(self.outcome)

    def _block(self, layer: int, rows: int | None) -> Iterator[Block]:
        chosen, config = self.selection, self.trace.config
        note = f"of {config.n_layers} layers and {config.n_heads} heads; --layer and --head choose, --full shows all"
        yield Heading(f"block L{layer}, head {chosen.head}", note)
        for step in reversed(self.trace.steps.layer_steps):
            yield from gradient_blocks(self.trace, step, layer, chosen.head, dims=chosen.dims, rows=rows, asked=False)

    def _address(self, where: Address, rows: int | None) -> Iterator[Block]:
        chosen, config = self.selection, self.trace.config
        if where.note:
            yield Line(Span(where.note, "dim"))
        if where.cell:
            yield from cell_blocks(self.trace, where, chosen.dims)
            return
        layers = where.layers if where.layers is not None else (None,)
        steps = [where.step] if where.step is not None else list(reversed(self.trace.steps.layer_steps))
        for layer in layers:
            for step in steps:
                heads: tuple[int | None, ...] = (None,)
                if step.has_heads:
                    every = config.heads_per_kv if "kv head" in step.axes else 1
                    heads = where.heads or tuple(range(0, config.n_heads, every))
                for head in heads:
                    yield from gradient_blocks(self.trace, step, layer, head, dims=chosen.dims, rows=rows, asked=True)

    def _values(self) -> dict[str, Any]:
        chosen, found = self.selection, dict[str, Any]()
        addresses = list(chosen.addresses)
        if not addresses and not chosen.derived and chosen.detail:
            addresses = [Address(None, (layer,), (chosen.head,)) for layer in chosen.layers]
        for where in addresses:
            named = (
                [where]
                if where.step is not None
                else [
                    Address(step, (layer,), where.heads if step.has_heads else None)
                    for layer in where.layers or ()
                    for step in self.trace.steps.layer_steps
                ]
            )
            for one in named:
                found[str(one)] = {"axes": one.axes, "gradient": self.trace.grad[one].tolist()}
        return found

    def data(self) -> dict[str, Any]:
        """The backward pass as one JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "grad",
            "model": model_data(self.model),
            **text_data(self.trace.encoding),
            "loss": self.trace.loss,
            "targets": self.losses,
            "gradients": [row.to_dict() for row in self.rows],
            "values": self._values(),
            "derivations": [_derivation_data(found) for found in self.derivations],
            "by_hand": self.outcome.to_dict(),
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        kinds = (("token", "tokens"), ("target", "targets"), ("gradient", "gradients"), ("derivation", "derivations"))
        lists = {key: data.pop(key) for _, key in kinds}
        values, by_hand = data.pop("values"), data.pop("by_hand")
        yield {"type": data.pop("kind"), **data}
        for kind, key in kinds:
            for one in lists[key]:
                yield {"type": kind, **one}
        for address, one in values.items():
            yield {"type": "values", "address": address, **one}
        yield {"type": "by_hand", **by_hand}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The gradients of all steps and parameters, under their names."""
        return {**self.trace.grad.recording.tensors, **self.trace.parameters}


def _derivation_data(found: Derivation) -> dict[str, Any]:
    return {
        "name": found.name,
        "head": found.head,
        "row": found.row,
        "formula": list(found.formula),
        "inputs": {one.name: one.values.tolist() for one in found.inputs},
        "intermediates": {one.name: one.values.tolist() for one in found.intermediates},
        "result": found.result.tolist(),
    }


def agreement_blocks(outcome: Agreement) -> Iterator[Block]:
    """Whether the written-out formulas give what autograd gave, in one line."""
    worst = outcome.worst
    counted = f"{len(outcome.steps)} steps and {len(outcome.parameters)} parameters"
    figures = f"largest difference {worst.difference:.1e}, {worst.relative:.1e} of its gradient, at {worst.name}"
    yield Line("")
    if outcome.holds:
        yield Line([Span("checked", "good"), Span(f": by hand {counted} have autograd's gradient, {figures}")])
    else:
        said = f": by hand and autograd differ, {figures} (allowed {outcome.tolerance:.0e})"
        yield Line([Span("check failed", "bad"), Span(said)])
