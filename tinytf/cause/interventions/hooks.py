"""Other values for some steps of a running model, by hooks on its own modules; attention stays fused."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps.table import StepTable, table_of
from tinytf.trace.address import parse_address
from tinytf.trace.hooks import module_of
from tinytf.trace.trace import Trace

_EXAMPLES = (
    "a head is L3H5, an expert L3E5, a part of a layer L3.attn or L3.ffn, both of them L3, "
    "the residual stream L3.in or L3.out"
)

Change = Callable[[Tensor], Tensor]
"""What is done to the tensor of a step: (B, T, C), of heads (B, H, T, D), of experts (B, E, T, C)."""


@dataclass(frozen=True)
class HookPoint:
    """A step of one layer that ``can_intervene``, by its short name; of heads one ``head``, or with E one expert."""

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
        """What a trace has there: (T, D) of a head, else (T, C)."""
        if self.head is None:
            return trace.step(self.step, self.layer)
        return trace.step(self.step, self.layer, (self.head,))[0]


def hook_points(addresses: str | Sequence[str], table: StepTable) -> tuple[HookPoint, ...]:
    """The hook points of an address or some, each once, in the order of the forward pass.

    An address may be a set: ``L3`` is all that a layer adds to the residual stream. Raises AddressError for what is
    no address of this model, and for a step that cannot be replaced.
    """
    several = [addresses] if isinstance(addresses, str) else addresses
    found = dict.fromkeys(point for address in several for point in _parsed(address, table))
    order = {step.name: number for number, step in enumerate(table.layer_steps)}
    return tuple(sorted(found, key=lambda point: (point.layer, order[point.step], point.head or 0)))


def _parsed(text: str, table: StepTable) -> list[HookPoint]:
    where = parse_address(text, table)
    if where.cell:
        raise AddressError(f"{text!r} is a cell, and a step is replaced whole", "name the step alone, such as L0.attn")
    if where.step is not None:
        given = {table.head_given(layer).name for layer in where.layers or ()}
        if not (where.step.can_intervene or where.step.name in (table.expert_out, *given)):
            raise AddressError(f"{text!r} is no step that can be replaced", _EXAMPLES)

    def steps(layer: int) -> tuple[Step, ...]:
        if where.step is not None or where.heads is None:
            return table.added if where.step is None else (where.step,)
        return (table.by_name[table.expert_out] if where.letter == "E" else table.head_given(layer),)

    found = [
        HookPoint(step.name, layer, head, step.letter)
        for layer in where.layers or ()
        for step in steps(layer)
        for head in ((where.heads or range(step.parts(table.config.at(layer)))) if step.is_split else (None,))
        if table.has(step.name, layer)
    ]
    if not found:
        raise AddressError(f"{text!r} names no expert: that layer has none", "tinytf info shows what a model has")
    return found


@dataclass(frozen=True, eq=False)
class Intervention:
    """``value`` in the place of what a hook point has: at ``positions`` of the text, or at all of them.

    The value is (D,) of a head, else (C,), the same at every position; or (T, D), (T, C).
    """

    point: HookPoint
    value: Tensor
    positions: tuple[int, ...] | None = None

    @property
    def first(self) -> int:
        """The first position that it changes."""
        return 0 if self.positions is None else min(self.positions)

    def write(self, tensor: Tensor, start: int = 0) -> None:
        """Put the value into the step (…, T, width), of all heads or experts, whose first token is at ``start``."""
        self._put(tensor if self.point.head is None else tensor[..., self.point.head, :, :], start)

    def replaced(self, tensor: Tensor) -> Tensor:
        """The step (B, …, T, width) with the value in it."""
        self._require_length(tensor.shape[-2])
        tensor = tensor.clone()
        self.write(tensor)
        return tensor

    def _put(self, view: Tensor, start: int) -> None:
        value = self.value.to(view)
        if self.positions is None:
            view.copy_(value if value.dim() == 1 else value[start:])
        else:
            places = list(self.positions)
            view[..., [place - start for place in places], :] = value if value.dim() == 1 else value[places]

    def _require_length(self, length: int) -> None:
        if self.value.dim() > 1 and len(self.value) != length:
            raise UsageError(
                f"the value for {self.point} has {len(self.value)} tokens, and the text {length}",
                "a value that is the same at every position fits any text",
            )
        beyond = [place for place in self.positions or () if place >= length]
        if beyond:
            raise UsageError(f"{self.point} is to be changed at position {beyond[0]}, and the text has {length} tokens")


@contextmanager
def changed(model: Transformer, changes: Sequence[tuple[HookPoint, Change]]) -> Iterator[None]:
    """The model with a change on each step."""
    with ExitStack() as stack:
        for point, change in changes:
            stack.callback(_hooked(model, point, change).remove)
        yield


def _hooked(model: Transformer, point: HookPoint, change: Change) -> RemovableHandle:
    """Hook a change on the module that makes the step."""
    module = module_of(model, table_of(model.config).at(point.step, point.layer), point.layer)
    return module.register_forward_hook(lambda module, args, result: change(result))


@contextmanager
def intervening(model: Transformer, interventions: Sequence[Intervention]) -> Iterator[None]:
    """Every forward pass in here, of any text, runs with the interventions; a trace too, which shows their values.

    A forward pass raises UsageError for a text of another length than a value that is one of positions. A trace's
    check leaves the replaced steps out, and names them.
    """
    with ExitStack() as stack:
        stack.callback(setattr, model, "exchanged", model.exchanged)
        for handle in _intervene(model, interventions):
            stack.callback(handle.remove)
        yield


def intervened(model: Transformer, interventions: Sequence[Intervention]) -> Transformer:
    """Another model of the same weights, no copies, that always runs with the interventions.

    It is in evaluation, on the device where the weights are now. Its forward passes
    raise as those in ``intervening`` do.
    """
    kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, kept).eval()
    list(_intervene(other, interventions))  # the hooks stay
    return other


def _intervene(model: Transformer, interventions: Sequence[Intervention]) -> Iterator[RemovableHandle]:
    """Hook each intervention on the module of its step."""
    for one in interventions:
        model.exchanged = (*model.exchanged, one.point.full_name)
        yield _hooked(model, one.point, one.replaced)


@contextmanager
def evaluated(model: Transformer) -> Iterator[None]:
    """The model without dropout."""
    training = model.training
    try:
        model.eval()
        yield
    finally:
        model.train(training)


def logits_with(trace: Trace, interventions: Sequence[Intervention], position: int) -> Tensor:
    """Logits (V,) at a position of the trace's text in a forward pass with the interventions.

    All else is as ``record`` does it, so that what changes nothing gives the recorded logits to the last bit.
    """
    return unembedded(trace, hidden_with(trace, interventions), position)


def hidden_with(trace: Trace, interventions: Sequence[Intervention]) -> Tensor:
    """The last hidden states (T, C) of the same pass."""
    ids = torch.tensor([trace.encoding.ids], device=trace.last_hidden.device)
    with torch.no_grad(), evaluated(trace.model), intervening(trace.model, interventions):
        return trace.model.hidden(ids)[0]


def unembedded(trace: Trace, hidden: Tensor, position: int) -> Tensor:
    """Logits (V,) of a position, computed beside those of the other positions that ``trace`` has logits of."""
    rows = trace.recording.logit_rows
    chosen = hidden if len(rows) == len(hidden) else hidden[list(rows)]
    with torch.no_grad():
        return trace.model.unembed(chosen)[rows.index(position)]
