"""The view of a backward pass: loss, every step's gradient, one block in full, and whether the formulas agree."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TextIO

import torch

from tinytf.gradients.agreement import Agreement, agreement
from tinytf.gradients.derivation import Derivation, derive, require_gradient
from tinytf.gradients.differences import Differences, check
from tinytf.gradients.faults import first_fault
from tinytf.gradients.flow import Flow, flow
from tinytf.gradients.parameters import Weights, table
from tinytf.gradients.pipeline import GradientRow, backward_rows
from tinytf.gradients.saliency import (
    HeadSaliency,
    Integrated,
    attention_times_gradient,
    gradient_times_input,
    integrated_gradients,
)
from tinytf.gradients.trace import GradientTrace
from tinytf.loading import Model
from tinytf.trace.address import Address
from tinytf.trace.faults import Fault
from tinytf_cli.counted import counted
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.backward import (
    backward_blocks,
    cell_blocks,
    derivation_blocks,
    gradient_blocks,
    vocabulary_blocks,
)
from tinytf_cli.views.banner import banner, model_data, text_data
from tinytf_cli.views.blocks import Block, Heading, Line, Span
from tinytf_cli.views.faults import fault_blocks, fault_data
from tinytf_cli.views.loss import loss_blocks, loss_rows
from tinytf_cli.views.sensitivity import flow_blocks, head_blocks, token_blocks
from tinytf_cli.views.weights import difference_blocks, weight_blocks


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
    fail_on: tuple[str, ...]
    by: str
    lr: float
    integrated: bool
    check: int
    seed: int
    force: bool


class GradView:
    """One backward pass in every form that output takes; each part is computed when it is first asked for."""

    def __init__(
        self, model: Model, trace: GradientTrace, selection: GradSelection, stderr: TextIO | None = None
    ) -> None:
        self.model, self.trace, self.selection, self._stderr = model, trace, selection, stderr
        for where in selection.addresses:  # what is not there is said before anything is shown
            require_gradient(where)
            if where.cell:
                trace.grad[where]
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

    @cached_property
    def weights(self) -> tuple[Weights, ...]:
        chosen = self.selection
        return table(self.trace, chosen.lr, None if chosen.by == "parameter" else chosen.by)

    @cached_property
    def flow(self) -> Flow:
        return flow(self.trace)

    @cached_property
    def first_order(self) -> tuple[float, ...]:
        return gradient_times_input(self.trace)

    @cached_property
    def integrated(self) -> Integrated | None:
        trace = self.trace
        if not self.selection.integrated:
            return None
        with counted(self._stderr, "integrated gradients: point", at_most=True) as on_progress:
            return integrated_gradients(trace.model, trace.encoding, trace.targets, on_progress)

    @cached_property
    def heads(self) -> HeadSaliency:
        return attention_times_gradient(self.trace)

    @cached_property
    def differences(self) -> Differences | None:
        trace, chosen = self.trace, self.selection
        if not chosen.check:
            return None
        with counted(self._stderr, "finite differences: entry") as on_progress:
            return check(
                trace.model, trace.encoding, trace.targets, chosen.check, chosen.seed, on_progress, force=chosen.force
            )

    @cached_property
    def fault(self) -> Fault | None:
        return first_fault(self.trace, self.selection.fail_on) if self.selection.fail_on else None

    @property
    def holds(self) -> bool:
        """Whether every check that was made holds, and nothing was found that was looked for."""
        return (
            self.outcome.holds
            and self.fault is None
            and (self.differences is None or self.differences.holds)
            and (self.integrated is None or self.integrated.holds)
        )

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
            yield from derivation_blocks(trace, found, chosen.dims, self.model.tokenizer)
        if not chosen.addresses and not chosen.derived:
            yield from backward_blocks(trace, self.rows)
            if chosen.detail:
                for layer in reversed(chosen.layers):
                    yield from self._block(layer, rows)
            yield from flow_blocks(self.flow)
            yield from token_blocks(trace, self.first_order, self.integrated, rows)
            yield from head_blocks(self.heads)
            yield from weight_blocks(self.weights, chosen.by, chosen.lr)
        if self.differences is not None:
            yield from difference_blocks(self.differences)
        yield from agreement_blocks(self.outcome)
        yield from fault_blocks(chosen.fail_on, self.fault)

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
            yield from cell_blocks(self.trace, where, chosen.dims, self.model.tokenizer)
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
                    yield from vocabulary_blocks(self.trace, step, self.model.tokenizer, chosen.dims, rows)
                    continue
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
            "flow": self.flow.to_dict(),
            "saliency": {
                "gradient_times_input": list(self.first_order),
                "integrated_gradients": None if self.integrated is None else self.integrated.to_dict(),
                "attention_times_gradient": self.heads.to_dict(),
            },
            "weights": [row.to_dict() for row in self.weights],
            "finite_differences": None if self.differences is None else self.differences.to_dict(),
            "by_hand": self.outcome.to_dict(),
            **fault_data(self.selection.fail_on, self.fault),
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        kinds = (("token", "tokens"), ("target", "targets"), ("gradient", "gradients"), ("derivation", "derivations"),
                 ("weights", "weights"))  # fmt: skip
        lists = {key: data.pop(key) for _, key in kinds}
        values, whole = data.pop("values"), {name: data.pop(name, None) for name in _WHOLE}
        yield {"type": data.pop("kind"), **data}
        for kind, key in kinds:
            for one in lists[key]:
                yield {"type": kind, **one}
        for address, one in values.items():
            yield {"type": "values", "address": address, **one}
        for name, one in whole.items():
            if one is not None:
                yield {"type": name, **one}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The gradients of all steps and parameters, under their names."""
        return {**self.trace.grad.recording.tensors, **self.trace.parameters}


_WHOLE = ("flow", "saliency", "finite_differences", "by_hand", "fault")
"""Parts of the data that are one event each."""


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
    elif not math.isfinite(worst.difference):
        said = f": not all gradients are finite, so by hand and autograd cannot be compared, first at {worst.name}"
        yield Line([Span("check failed", "bad"), Span(said)])
    else:
        said = f": by hand and autograd differ, {figures} (allowed {outcome.tolerance:.0e})"
        yield Line([Span("check failed", "bad"), Span(said)])
