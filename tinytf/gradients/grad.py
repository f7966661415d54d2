"""A backward pass as a report: the loss, statistics of every gradient, what the loss depends on, and the checks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.gradients.by_hand import Agreement, agreement
from tinytf.gradients.derivation import Derivation, derive, require_gradient
from tinytf.gradients.differences import Differences
from tinytf.gradients.differences import check as check_gradients
from tinytf.gradients.faults import first_fault
from tinytf.gradients.flow import Flow, flow
from tinytf.gradients.parameters import ParameterRow, table
from tinytf.gradients.saliency import (
    HeadSaliency,
    Integrated,
    attention_times_gradient,
    gradient_times_input,
    integrated_gradients,
)
from tinytf.gradients.trace import GradientTrace, grad
from tinytf.report import About, Progress, Report, derived, ignore_progress, plain
from tinytf.sentences import percent
from tinytf.steps.operations.softmax import probabilities
from tinytf.tables import Array
from tinytf.text.chat import Written
from tinytf.text_model import TextModel
from tinytf.tolerance import Comparison
from tinytf.trace.address import Address
from tinytf.trace.faults import Fault
from tinytf.trace.summary import Statistics, StepSummary, norm
from tinytf.trace.trace import pipeline, visible

_NAMED_LOGITS = 4
"""The number of logits that are listed for each target: those with the largest gradients."""


@dataclass(frozen=True)
class Target:
    """A token to predict from ``position``: its probability and loss, and the logits with the largest gradients."""

    position: int
    id: int
    probability: float
    loss: float
    pushed: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GradientRow:
    """The gradient at one step; ``row`` has its shape and the statistics of its finite, unmasked entries.

    ``norm`` is ‖∂loss/∂step‖ (L2), ``ratio`` that norm divided by the step's own norm (None for a step of zeros),
    ``by_hand`` the comparison of its formula with autograd (None if no path leads to the loss).
    """

    row: StepSummary
    norm: float
    ratio: float | None
    by_hand: Comparison | None

    @property
    def statistics(self) -> Statistics:
        assert self.row.statistics is not None
        return self.row.statistics

    def to_dict(self) -> dict[str, Any]:
        figures, row = plain(self.statistics), self.row.to_dict()
        del figures["count"]
        return {
            **{name: row[name] for name in ("name", "title", "axes", "shape")},
            "norm": self.norm,
            "ratio": self.ratio,
            **figures,
            "largest": max(abs(figures["min"]), abs(figures["max"])),
            "by_hand": None if self.by_hand is None else self.by_hand.relative,
        }


@torch.no_grad()
def backward_rows(trace: GradientTrace, compared: Agreement) -> Iterator[GradientRow]:
    """Every step of the recorded layers, last step first."""
    for row in reversed(pipeline(trace.grad)):
        if row.statistics is not None:
            step, layer = row.step, row.layer
            allowed = visible(trace, step, layer)
            gradient_norm, step_norm = (_norm(t.step(step.name, layer), allowed) for t in (trace.grad, trace))
            yield GradientRow(
                row, gradient_norm, gradient_norm / step_norm if step_norm else None, compared.steps.get(row.name)
            )


def _norm(tensor: Tensor, allowed: Tensor | None) -> float:
    """The L2 norm of the unmasked entries, in float64; NaN if one of them is."""
    if allowed is not None:
        tensor = tensor.masked_fill(~allowed, 0.0)
    return norm(tensor)


def _targets(trace: GradientTrace) -> tuple[Target, ...]:
    """The predicted tokens, each with its loss and the largest gradients of its logits."""
    targets = []
    for position, token_id, loss in zip(trace.targets.positions, trace.targets.ids, trace.losses, strict=True):
        gradient = trace.grad.step("logits")[position]
        largest = gradient.abs().topk(min(_NAMED_LOGITS, len(gradient))).indices.tolist()
        probability = float(probabilities(trace.step("logits")[position])[token_id])
        targets.append(Target(position, token_id, probability, loss, tuple((i, float(gradient[i])) for i in largest)))
    return tuple(targets)


AXES = {"token": "token", "source token": "source"}
"""The axes of the tokens of each text that a model reads."""


@dataclass(frozen=True, eq=False)
class Backward(Report):
    """A backward pass; ``addresses`` and ``derivations``, or else the blocks of ``layers``, are listed in full.

    Weights are grouped ``by`` parameter, layer, kind or head; updates are those of plain gradient descent with ``lr``.
    ``integrated``, ``differences`` and ``fault`` are None unless requested.
    """

    KIND = "grad"
    TABLE = ("gradients",)
    EVENTS: ClassVar = {
        "tokens": "token",
        "targets": "target",
        "gradients": "gradient",
        "derivations": "derivation",
        "weights": "weights",
        "values": "values",
        "flow": "flow",
        "saliency": "saliency",
        "finite_differences": "finite_differences",
        "by_hand": "by_hand",
        "fault": "fault",
    }

    trace: GradientTrace
    agreement: Agreement
    targets: tuple[Target, ...]
    layers: tuple[int, ...]
    head: int
    addresses: tuple[Address, ...] = ()
    derivations: tuple[Derivation, ...] = ()
    by: str = "kind"
    lr: float = 1e-3
    integrated: Integrated | None = None
    differences: Differences | None = None
    fail_on: tuple[str, ...] = ()
    fault: Fault | None = None

    def in_a_sentence(self) -> str:
        """The target with the largest loss, and the token with the largest contribution."""
        tokens, worst = self.encoding.tokens, self.worst
        after = "after" if self.trace.config.causal else "at"
        hardest = f"{self.shown(worst.id)} {after} {tokens[worst.position].shown} ({percent(worst.probability)})"
        of, position, _ = self.strongest
        depends = f"the loss depends most on {of} {position}, {self.trace.tokens_on(AXES[of])[position].shown}"
        return f"Hardest to predict is {hardest}; {depends}." if len(self.targets) > 1 else f"For {hardest}, {depends}."

    def formula(self, address: Address) -> str:
        """The formula of the gradient at one step of a layer (and head)."""
        return derive(self.trace, address).formula[0]

    @derived
    def rows(self) -> tuple[GradientRow, ...]:
        return tuple(backward_rows(self.trace, self.agreement))

    @property
    def worst(self) -> Target:
        """The target with the largest loss."""
        return max(self.targets, key=lambda target: target.loss)

    @derived
    def added(self) -> dict[str, tuple[float, ...]]:
        """What each token adds, by integrated gradients if they were computed; of both texts that two stacks read."""
        own = self.integrated.attributions if self.integrated else self.first_order
        read = self.integrated.source if self.integrated else self.first_order_of_source
        return {"token": own, "source token": read} if read else {"token": own}

    @property
    def strongest(self) -> tuple[str, int, float]:
        """The text and position of the token that adds most, and what it adds."""
        each = ((text, place, value) for text, values in self.added.items() for place, value in enumerate(values))
        return max(each, key=lambda item: abs(item[2]))

    @derived
    def weights(self) -> tuple[ParameterRow, ...]:
        return table(self.trace, self.lr, self.by)

    @derived
    def flow(self) -> Flow:
        return flow(self.trace)

    @derived
    def first_order(self) -> tuple[float, ...]:
        return gradient_times_input(self.trace)

    @derived
    def first_order_of_source(self) -> tuple[float, ...]:
        """What each token of the text adds that a model of two stacks reads, to first order; empty for one stack."""
        read = self.trace.source
        return gradient_times_input(read) if isinstance(read, GradientTrace) else ()

    @derived
    def heads(self) -> HeadSaliency:
        return attention_times_gradient(self.trace)

    @property
    def interrupted(self) -> bool:
        return self.integrated is not None and self.integrated.interrupted

    @property
    def holds(self) -> bool:
        """Whether every check holds and no fault was found."""
        checks = (self.differences, self.integrated)
        return self.agreement.holds and self.fault is None and all(check is None or check.holds for check in checks)

    def fields(self) -> dict[str, Any]:
        return {
            "loss": self.trace.loss,
            "targets": [
                {
                    "position": target.position,
                    "at": self.trace.tokens[target.position].shown,
                    "target": self.shown(target.id),
                    "id": target.id,
                    "probability": target.probability,
                    "loss": target.loss,
                    "logit_gradients": [
                        {self.outcome: self.shown(i), "id": i, "gradient": gradient} for i, gradient in target.pushed
                    ],
                }
                for target in self.targets
            ],
            "gradients": [row.to_dict() for row in self.rows],
            "values": {
                array.name: {"axes": list(array.axes), "places": array.partial, "gradient": plain(array.read())}
                for array in self.arrays()
            },
            "derivations": [derivation.to_dict() for derivation in self.derivations],
            "flow": self.flow.to_dict(),
            "saliency": {
                "gradient_times_input": list(self.first_order),
                "source_gradient_times_input": list(self.first_order_of_source),
                "integrated_gradients": self.integrated and self.integrated.to_dict(),
                "attention_times_gradient": self.heads.to_dict(),
            },
            "weights": [row.to_dict() for row in self.weights],
            "finite_differences": self.differences and self.differences.to_dict(),
            "by_hand": self.agreement.to_dict(),
            **({"fault": self.fault and self.fault.to_dict()} if self.fail_on else {}),
        }

    def _in_full(self) -> list[Address]:
        """The addresses of the steps whose gradients are listed in full."""
        chosen = self.addresses
        if not chosen and not self.derivations:
            chosen = tuple(Address(None, (layer,), (self.head,)) for layer in self.layers)
        addresses: list[Address] = []
        for address in chosen:
            if address.step is not None:
                addresses.append(address)
                continue
            for layer in address.layers or ():
                for step in address.among([step for step, step_layer in self.trace.steps.rows if step_layer == layer]):
                    addresses.append(Address(step, (layer,), address.parts_of(step)))
        return addresses

    def itemised(self) -> dict[str, Any]:
        data = self.to_dict()
        return {**data, "values": [{"address": address, **values} for address, values in data["values"].items()]}

    def stored(self) -> list[Array]:
        """The gradients of the requested steps, or of all; also of every parameter if weights are grouped by it."""
        grad = self.trace.grad
        axes = {step.full_name(layer): step.axes for step, layer in self.trace.steps.rows}
        steps = [Array.of(name, axes[name], tensor) for name, tensor in grad.recording.tensors.items()]
        weights = self.trace.parameters.items() if self.by == "parameter" else ()
        return (self.arrays() if self.addresses else steps) + [Array.of(name, (), tensor) for name, tensor in weights]

    def arrays(self) -> list[Array]:
        """The gradients of the chosen steps, one tensor per layer; none if only derivations were chosen."""
        grad = self.trace.grad
        return [
            Array(str(address), address.axes, partial(grad.__getitem__, address), grad.places(address))
            for address in self._in_full()
        ]


def backward(
    model: TextModel,
    text: Written | GradientTrace,
    *,
    target: str | None = None,
    positions: str | None = None,
    layers: Sequence[int] = (0,),
    head: int = 0,
    at: Sequence[str | Address] = (),
    derived: Sequence[str | Address] = (),
    by: str = "kind",
    lr: float = 1e-3,
    integrated: bool = False,
    check: int = 0,
    seed: int = 0,
    fail_on: Sequence[str] = (),
    resume: Path | None = None,
    on_point: Progress = ignore_progress,
    on_entry: Progress = ignore_progress,
    truncate: bool = False,
    force: bool = False,
) -> Backward:
    """The backward pass of a text, or of its trace, as a report.

    It lists the gradients of ``at`` and the derivations of ``derived``, or else the blocks of ``layers`` and ``head``.
    On request it adds ``integrated`` gradients (``on_point`` counts their points) and ``check`` finite differences,
    drawn by ``seed`` (``on_entry`` counts them). ``resume`` is as in ``integrated_gradients``. Raises like ``grad``,
    ``derive`` and ``first_fault``.
    """
    trace = text
    if not isinstance(trace, GradientTrace):
        trace = grad(model, trace, target=target, positions=positions, truncate=truncate, force=force)
    if trace.recording.edited:
        raise UsageError(
            f"{trace.recording.edited[0]} is edited, and there is no formula for the gradient of a function",
            "Model.grad gives the gradients, by autograd",
        )
    addresses = trace.addresses(at)
    for address in addresses:  # an unknown cell is refused before anything is computed
        require_gradient(address)
        if address.cell:
            trace.grad[address]
    run = trace.model, trace.encoding, trace.targets
    path = integrated_gradients(*run, on_point, resume) if integrated else None
    check = 0 if path is not None and path.interrupted else check
    return Backward(
        trace,
        agreement(trace),
        _targets(trace),
        tuple(layers),
        head,
        addresses,
        tuple(derive(trace, address) for address in trace.addresses(derived)),
        by,
        lr,
        path,
        check_gradients(*run, check, seed, on_entry, force=force) if check else None,
        tuple(fail_on),
        first_fault(trace, fail_on) if fail_on else None,
        about=About(model, trace.encoding),
    )
