"""Replace the values of steps of a running model, by hooks on its own modules; attention stays fused."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from tinytf.errors import AddressError, UsageError
from tinytf.model.batches import typed
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import into_heads, side_by_side
from tinytf.steps.table import StepTable, table_of
from tinytf.trace.address import parse_address
from tinytf.trace.hooks import module_of
from tinytf.trace.trace import Trace

_EXAMPLES = (
    "a head is L3H5, an expert L3E5, a part of a layer L3.attn or L3.ffn, both of them L3, "
    "the residual stream L3.in or L3.out"
)

Change = Callable[[Tensor], Tensor]
"""A function of a step's tensor: (B, T, C), (B, H, T, D) for heads, (B, E, T, C) for experts."""


@dataclass(frozen=True)
class HookPoint:
    """A step of one layer that ``can_intervene``, by its short name; ``head`` is a head, or with letter E an expert."""

    step: str
    layer: int
    head: int | None = None
    letter: str = "H"

    def __str__(self) -> str:
        return f"L{self.layer}.{self.step}" if self.head is None else f"L{self.layer}{self.letter}{self.head}"

    @property
    def is_expert(self) -> bool:
        return self.head is not None and self.letter == "E"

    @property
    def full_name(self) -> str:
        """The address of the step: ``L3.attn``, ``L3H5.head_out``."""
        return str(self) if self.head is None else f"{self}.{self.step}"

    def value(self, trace: Trace) -> Tensor:
        """The value in a trace: (T, D) for a head, else (T, C)."""
        if self.head is None:
            return trace.step(self.step, self.layer)
        return trace.step(self.step, self.layer, (self.head,))[0]


def hook_points(addresses: str | Sequence[str], table: StepTable) -> tuple[HookPoint, ...]:
    """The hook points of one or more addresses, each once, in the order of the forward pass.

    An address may be a set: ``L3`` is all that a layer adds to the residual stream. Raises AddressError for an address
    that the model lacks, and for a step that cannot be replaced.
    """
    texts = [addresses] if isinstance(addresses, str) else addresses
    points = dict.fromkeys(point for address in texts for point in _parsed(address, table))
    order = {step.name: number for number, step in enumerate(table.layer_steps)}
    return tuple(sorted(points, key=lambda point: (point.layer, order[point.step], point.head or 0)))


def _parsed(text: str, table: StepTable) -> list[HookPoint]:
    address = parse_address(text, table)
    if address.cell:
        raise AddressError(f"{text!r} is a cell, and a step is replaced whole", "name the step alone, such as L0.attn")
    if address.step is not None:
        outputs = [table.head_output(layer) for layer in address.layers or ()]
        names = {output.name for output in outputs if output is not None}
        if not (address.step.can_intervene or address.step.name in (table.expert_out, *names)):
            raise AddressError(f"{text!r} is not a step that can be replaced", _EXAMPLES)

    def steps(layer: int) -> tuple[Step, ...]:
        if address.step is not None or address.heads is None:
            return table.added if address.step is None else (address.step,)
        output = table.by_name[table.expert_out] if address.letter == "E" else table.head_output(layer)
        return () if output is None else (output,)

    points = [
        HookPoint(step.name, layer, head, step.letter)
        for layer in address.layers or ()
        for step in steps(layer)
        for head in ((address.heads or range(step.parts(table.config.at(layer)))) if step.is_split else (None,))
        if table.has(step.name, layer)
    ]
    if not points:
        raise AddressError(f"{text!r} names no expert: that layer has none", "tinytf info shows the layers of a model")
    return points


@dataclass(frozen=True, eq=False)
class Intervention:
    """A ``value`` that replaces a hook point's, at ``positions`` of the text or (None) at all of them.

    The value is (D,) for a head, else (C,), the same at every position; or (T, D), (T, C).
    """

    point: HookPoint
    value: Tensor
    positions: tuple[int, ...] | None = None

    @property
    def first(self) -> int:
        """The first changed position."""
        return 0 if self.positions is None else min(self.positions)

    def write(self, tensor: Tensor, start: int = 0) -> None:
        """Write the value into a step (…, T, width) of all heads or experts, whose first token is at ``start``."""
        self._put(tensor if self.point.head is None else tensor[..., self.point.head, :, :], start)

    def replaced(self, tensor: Tensor) -> Tensor:
        """A copy of the step (B, …, T, width) with the value in it."""
        self._require_length(tensor.shape[-2])
        tensor = tensor.clone()
        self.write(tensor)
        return tensor

    def _put(self, view: Tensor, start: int) -> None:
        value = self.value.to(view)
        if self.positions is None:
            view.copy_(value if value.dim() == 1 else value[start:])
        else:
            positions = list(self.positions)
            view[..., [position - start for position in positions], :] = value if value.dim() == 1 else value[positions]

    def _require_length(self, length: int) -> None:
        if self.value.dim() > 1 and len(self.value) != length:
            raise UsageError(
                f"the value for {self.point} has {len(self.value)} tokens, and the text {length}",
                "a value that is the same at every position fits any text",
            )
        beyond = [position for position in self.positions or () if position >= length]
        if beyond:
            raise UsageError(f"{self.point} is to be changed at position {beyond[0]}, and the text has {length} tokens")


@contextmanager
def changed(model: Transformer, changes: Sequence[tuple[HookPoint, Change]]) -> Iterator[None]:
    """Apply a change to each step inside the ``with`` block."""
    with ExitStack() as stack:
        for point, change in changes:
            stack.callback(_hooked(model, point, change).remove)
        yield


def _hooked(model: Transformer, point: HookPoint, change: Change) -> RemovableHandle:
    """Hook a change of the step (B, …, T, width) on the module that computes it."""
    step = table_of(model.config).at(point.step, point.layer)
    module = module_of(model, step, point.layer)
    if step.has_heads and step.operation.side_by_side:
        width = model.config.at(point.layer).sizes[step.axes[-1]]
        return module.register_forward_hook(
            lambda module, args, result: side_by_side(change(into_heads(result, width)))
        )
    return module.register_forward_hook(lambda module, args, result: change(result))


@contextmanager
def intervening(model: Transformer, interventions: Sequence[Intervention]) -> Iterator[None]:
    """Run every forward pass inside the ``with`` block with the interventions; traces show their values.

    A forward pass raises UsageError if a value has positions and the text has another length. A trace's check leaves
    the replaced steps out, and names them.
    """
    with ExitStack() as stack:
        stack.callback(setattr, model, "exchanged", model.exchanged)
        for handle in _intervene(model, interventions):
            stack.callback(handle.remove)
        yield


def intervened(model: Transformer, interventions: Sequence[Intervention]) -> Transformer:
    """Another model that shares the weights, and always runs with the interventions.

    It is in evaluation mode, on the current device of the weights. Its forward passes raise the errors of
    ``intervening``.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    clone = copy.deepcopy(model, shared).eval()
    list(_intervene(clone, interventions))  # the hooks stay
    return clone


def _intervene(model: Transformer, interventions: Sequence[Intervention]) -> Iterator[RemovableHandle]:
    """Hook each intervention on the module of its step."""
    for intervention in interventions:
        model.exchanged = (*model.exchanged, intervention.point.full_name)
        yield _hooked(model, intervention.point, intervention.replaced)


@contextmanager
def evaluated(model: Transformer) -> Iterator[None]:
    """Put the model in evaluation mode, without dropout, inside the ``with`` block."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def logits_with(trace: Trace, interventions: Sequence[Intervention], position: int) -> Tensor:
    """Logits (V,) at a position of the trace's text, from a forward pass with the interventions.

    The pass is otherwise that of ``record``: an intervention that changes nothing gives the recorded logits exactly.
    """
    return unembedded(trace, hidden_with(trace, interventions), position)


def hidden_with(trace: Trace, interventions: Sequence[Intervention]) -> Tensor:
    """The last hidden states (T, C) of a forward pass with the interventions."""
    ids = torch.tensor([trace.encoding.ids], device=trace.last_hidden.device)
    with torch.no_grad(), evaluated(trace.model), intervening(trace.model, interventions):
        return trace.model.hidden(ids, token_types=typed([trace.encoding.types], ids.device))[0]


def unembedded(trace: Trace, hidden: Tensor, position: int) -> Tensor:
    """Logits (V,) of a position, computed together with the other positions whose logits ``trace`` has."""
    rows = trace.recording.logit_rows
    chosen = hidden if len(rows) == len(hidden) else hidden[list(rows)]
    with torch.no_grad():
        return trace.model.unembed(chosen)[rows.index(position)]
