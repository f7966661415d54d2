"""Replace the values of steps of a running model, by hooks on its own modules; attention stays fused."""

import copy
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from tinytf.config import ENC
from tinytf.errors import AddressError, UsageError
from tinytf.look.neurons import parse_unit, require_units
from tinytf.model.batches import typed
from tinytf.model.transformer import Transformer, evaluating
from tinytf.model.turn import using
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import into_heads, side_by_side
from tinytf.steps.table import StepTable, table_of
from tinytf.text.words import AxisNames, find_index
from tinytf.trace.address import Address, in_stack, parse_address, span
from tinytf.trace.hooks import module_of
from tinytf.trace.trace import Trace

_EXAMPLES = "such as a head L3H5, its queries L3H5.q, a unit L3.17, L3.attn, L3.ffn, or the stream L3.in"
_UNIT = re.compile(r"L-?[0-9]+\.-?[0-9]+")

Change = Callable[[Tensor], Tensor]
"""A function of a step's tensor: (B, T, C), (B, H, T, D) for heads, (B, E, T, C) for experts."""


@dataclass(frozen=True)
class HookPoint:
    """A step of one layer that ``can_intervene``, by its short name, or a part of it.

    ``head`` is a head, or with letter E an expert; a key or value head that ``shared`` query heads have in common goes
    by the first of them. The ``stack`` is empty, or ``enc.`` for a step of the stack that the model reads. ``columns``
    are indices on the last axis, such as units of a feed-forward or keys of a map, and ``rows`` are tokens; empty or
    None for all. ``short``: the address leaves the step out, as in L3H5 and L3.17.
    """

    step: str
    layer: int
    head: int | None = None
    letter: str = "H"
    columns: tuple[int, ...] = ()
    rows: tuple[int, ...] | None = None
    shared: int = 1
    short: bool = True
    stack: str = ""

    def __str__(self) -> str:
        layer, name = f"{self.stack}L{self.layer}", f".{self.step}"
        if self.columns and self.short:
            return f"{layer}.{span(self.columns)}"
        if self.head is not None:
            layer += f"{self.letter}{span(range(self.head, self.last_head + 1))}"
            name = "" if self.short else name
        words = [":" if self.rows is None else span(self.rows), *([span(self.columns)] if self.columns else [])]
        return f"{layer}{name}" + (f"[{','.join(words)}]" if self.columns or self.rows else "")

    @property
    def is_expert(self) -> bool:
        return self.head is not None and self.letter == "E"

    @property
    def last_head(self) -> int:
        """The last query head that it belongs to; 0 for a step without heads."""
        return 0 if self.head is None else self.head + self.shared - 1

    @property
    def full_name(self) -> str:
        """The address of the step that it belongs to: ``L3.attn``, ``L3H5.head_out``."""
        whole_head = self.head is not None and self.shared == 1 and not self.columns and self.rows is None
        return f"L{self.layer}{f'{self.letter}{self.head}' if whole_head else ''}.{self.step}"

    def value(self, trace: Trace) -> Tensor:
        """The value in a trace, of all rows and columns: (T, D) for a head, else (T, C), or (H, T, K) for all heads."""
        trace = self.own(trace)
        if self.head is None:
            return trace.step(self.step, self.layer)
        return trace.step(self.step, self.layer, (self.head,))[0]

    def own(self, trace: Trace) -> Trace:
        """The trace of the stack that it belongs to."""
        return trace.stacks.get(self.stack, trace)

    def own_stack(self, model: Transformer) -> Transformer:
        """The stack that it belongs to. Raises AddressError for the encoder of a model of one stack."""
        if self.stack not in model.stacks:
            raise AddressError(f"{self} is a step of an encoder, and this model has one stack", _EXAMPLES)
        return model.stacks[self.stack]


def point_names(points: Sequence[HookPoint]) -> list[str]:
    """The addresses of points; one cell in several layers is one address, such as ``L5-12.weights[7,3]``."""
    layers: dict[str, list[int]] = {}
    for point in points:
        rest = str(point).removeprefix(f"{point.stack}L{point.layer}")
        several = point.rows and not point.stack
        layers.setdefault(rest if several else f"{point}", []).append(point.layer)
    return [rest if rest.startswith(("L", ENC)) else f"L{span(numbers)}{rest}" for rest, numbers in layers.items()]


def hook_points(
    addresses: str | Sequence[str],
    table: StepTable,
    tokens: Sequence[str] | None = None,
    read: Sequence[str] | None = None,
) -> tuple[HookPoint, ...]:
    """The hook points of one or more addresses, each once, in the order of the forward pass.

    An address may be a set: ``L3`` is all that a layer adds to the residual stream. A cell, such as
    ``L3.weights[-1,cat]``, takes the printable ``tokens`` of the text, and one of the encoder those ``read``. Raises
    AddressError for an address that the model lacks, for a step that cannot be replaced, and for a cell without a text.
    """
    texts = [addresses] if isinstance(addresses, str) else addresses
    points = dict.fromkeys(point for address in texts for point in _of_stack(address, table, tokens, read))
    order = {
        (at, step.name): number
        for at, config in table.config.stacks.items()
        for number, step in enumerate(table_of(config).layer_steps)
    }
    return tuple(
        sorted(
            points,
            key=lambda point: (
                not point.stack,
                point.layer,
                order[point.stack, point.step],
                point.head or 0,
                point.columns,
                point.rows or (),
            ),
        )
    )


def points_of(addresses: str | Sequence[str], trace: Trace) -> tuple[HookPoint, ...]:
    """``hook_points`` of addresses that may name tokens of the trace's text."""
    tokens, read = ([token.shown for token in trace.tokens_on(axis)] for axis in ("token", "source"))
    return hook_points(addresses, trace.steps, tokens, read)


def not_yet_added(points: Iterable[HookPoint], table: StepTable) -> str:
    """Which of the points a layer norms or scales before it adds them, and what it adds; empty where there is none."""
    for point in points:
        parts = [step for step in table.added if step.name == point.step and not point.stack]
        if parts and (added := table.summand(parts[0], point.layer)).name != point.step:
            return f"{point} is not yet what the layer adds: that is L{point.layer}.{added.name} = {added.formula}"
    return ""


def _of_stack(text: str, table: StepTable, tokens: Sequence[str] | None, read: Sequence[str] | None) -> list[HookPoint]:
    """The points of an address, which may begin with enc. or dec. in a model of two stacks."""
    at, address = in_stack(text, table.config.stacks)
    points = _parsed(address, table_of(table.config.stacks[at]), {"": tokens, ENC: read}[at])
    return [replace(point, stack=at) for point in points]


def _parsed(text: str, table: StepTable, tokens: Sequence[str] | None) -> list[HookPoint]:
    if _UNIT.fullmatch(text.strip()):
        return [_unit(text, table)]
    address, points = parse_address(text, table), list[HookPoint]()
    if address.step is not None and not address.step.can_intervene:
        raise AddressError(f"{text!r} cannot be replaced: it is no step of a layer with a row a token", _EXAMPLES)
    for layer in address.layers or ():
        for step in _steps_of(address, table, layer):
            rows, columns = _cell(address, step, table.config.at(layer).sizes, tokens) if address.cell else (None, ())
            shared = table.config.at(layer).heads_per_kv if "kv head" in step.axes else 1
            heads: Iterable[int | None] = (None,)
            if step.is_split and not (address.cell and step.is_map and address.heads is None):
                chosen = address.heads or range(step.parts(table.config.at(layer)))
                heads = dict.fromkeys(head - head % shared for head in chosen)  # the first of those that share
            output = table.head_output(layer)
            outputs = (table.expert_out, "" if output is None else output.name)
            for head in heads:
                short = not address.cell and (head is None or step.name in outputs)
                of_head = 1 if head is None else shared
                points.append(HookPoint(step.name, layer, head, step.letter, columns, rows, of_head, short))
    if not points:
        raise AddressError(f"{text!r} names no expert: that layer has none", "tinytf info shows the layers of a model")
    return points


def _steps_of(address: Address, table: StepTable, layer: int) -> Sequence[Step]:
    """The steps that an address names in a layer: one, what a head or an expert gives, or all that the layer adds."""
    steps: Sequence[Step | None] = (address.step,)
    if address.step is None and address.heads is None:
        steps = [table.summand(step, layer) for step in table.added]
    elif address.step is None:
        steps = (table.by_name[table.expert_out] if address.letter == "E" else table.head_output(layer),)
    return [step for step in steps if step is not None and table.has(step.name, layer)]


def _unit(text: str, table: StepTable) -> HookPoint:
    """The feed-forward unit that ``L3.17`` names."""
    require_units(table.config)
    unit = parse_unit(text, table.config)
    if not table.has(table.ffn_activation, unit.layer):
        raise AddressError(f"{text!r} names no unit: layer {unit.layer} has no feed-forward")
    return HookPoint(table.ffn_activation, unit.layer, columns=(unit.index,))


def _cell(
    address: Address, step: Step, sizes: Mapping[str, int], tokens: Sequence[str] | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """The rows and columns of an address with a cell, such as ``L3.weights[-1,cat]``; None and empty for all."""
    picked: list[tuple[int, ...]] = []
    for (_, word), axis in zip(address.words(2), step.axes[-2:], strict=False):
        if word in (":", "*"):
            picked.append(())
        elif axis in sizes:
            picked.append(_indices(word, axis, sizes[axis], ()))
        elif tokens is None:
            raise AddressError(f"{address} is a cell of one text, and no text is given", "name the step alone")
        else:
            picked.append(_indices(word, axis, len(tokens), tokens))
    rows, columns = (*picked, ())[:2]
    return rows or None, columns


def _indices(word: str, axis: str, size: int, tokens: Sequence[str]) -> tuple[int, ...]:
    index = find_index(word, axis, size, AxisNames(tokens))
    return (index,) if isinstance(index, int) else tuple(index)


@dataclass(frozen=True, eq=False)
class Intervention:
    """A ``value`` that replaces a hook point's, at ``positions`` of the text or (None) at the rows of the point.

    The value is a number, (D,) for a head, or (C,), the same at every position; or (T, D), (T, C), (H, T, K) for all
    heads. Where the point has columns, only these are replaced.
    """

    point: HookPoint
    value: Tensor
    positions: tuple[int, ...] | None = None

    @property
    def rows(self) -> tuple[int, ...] | None:
        """The changed positions; None for all."""
        return self.point.rows if self.positions is None else self.positions

    @property
    def first(self) -> int:
        """The first changed position."""
        return 0 if self.rows is None else min(self.rows)

    def write(self, tensor: Tensor, start: int = 0) -> None:
        """Write the value into a step (…, T, width) of all heads or experts, whose first token is at ``start``."""
        head = self.point.head
        self._put(tensor if head is None else tensor[..., head // self.point.shared, :, :], start)

    def replaced(self, tensor: Tensor) -> Tensor:
        """A copy of the step (B, …, T, width) with the value in it."""
        self._require_length(tensor.shape[-2])
        tensor = tensor.clone()
        self.write(tensor)
        return tensor

    def _put(self, view: Tensor, start: int) -> None:
        value, rows = self.value.to(view), self.rows
        places = slice(None) if rows is None else [row - start for row in rows]
        if value.dim() > 1:
            value = value[..., start:, :] if rows is None else value[..., list(rows), :]
        if not self.point.columns:
            view[..., places, :] = value
        for column in self.point.columns:
            view[..., places, column] = value[..., column] if value.dim() else value

    def _require_length(self, length: int) -> None:
        if self.value.dim() > 1 and self.value.shape[-2] != length:
            raise UsageError(
                f"the value for {self.point} has {self.value.shape[-2]} tokens, and the text {length}",
                "a value that is the same at every position fits any text",
            )
        beyond = [position for position in self.rows or () if position >= length]
        if beyond:
            raise UsageError(f"{self.point} is to be changed at position {beyond[0]}, and the text has {length} tokens")


@contextmanager
def changed(model: Transformer, changes: Sequence[tuple[HookPoint, Change]]) -> Iterator[None]:
    """Apply a change to each step inside the ``with`` block."""
    with hooked(model, (_hooked(model, point, change) for point, change in changes)):
        yield


def _hooked(model: Transformer, point: HookPoint, change: Change) -> RemovableHandle:
    """Hook a change of the step (B, …, T, width) on the module that computes it."""
    model = point.own_stack(model)
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
    with hooked(model, intervene(model, interventions)):
        yield


@contextmanager
def hooked(model: Transformer, handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Keep hooks, and the names of the steps that they replace, in the ``with`` block only, for this thread alone."""
    with using(model), _put_on(model, handles):
        yield


@contextmanager
def hooked_by_user(model: Transformer, handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """``hooked`` in a block of a user, which may last: other threads do not wait for its end, they are refused."""
    with using(model):
        stack = _put_on(model, handles)
        stack.callback(setattr, model.turn, "editor", model.turn.editor)
        model.turn.editor = threading.get_ident()
    try:
        yield
    finally:
        with model.turn.lock, stack:  # whichever thread ends the block
            pass


def _put_on(model: Transformer, handles: Iterable[RemovableHandle]) -> ExitStack:
    """What takes the hooks off again."""
    with ExitStack() as stack:
        for one in model.stacks.values():
            for name in ("exchanged", "edited", "by_position", "remembered"):
                stack.callback(setattr, one, name, getattr(one, name))
        for handle in handles:
            stack.callback(handle.remove)
        return stack.pop_all()


def intervened(model: Transformer, interventions: Sequence[Intervention]) -> Transformer:
    """Another model that shares the weights, and always runs with the interventions.

    It is in evaluation mode, on the current device of the weights. Its forward passes raise the errors of
    ``intervening``.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    clone = copy.deepcopy(model, shared).eval()
    list(intervene(clone, interventions))  # the hooks stay
    return clone


def intervene(model: Transformer, interventions: Sequence[Intervention]) -> Iterator[RemovableHandle]:
    """Hook each intervention on the module of its step, and have traces record steps that they would else derive."""
    for intervention in interventions:
        point = intervention.point
        stack = point.own_stack(model)
        stack.exchanged = (*stack.exchanged, point.full_name)
        if not (table_of(stack.config).at(point.step, point.layer).recorded or point.is_expert):
            stack.edited = (*stack.edited, f"L{point.layer}.{point.step}")
        yield _hooked(model, intervention.point, intervention.replaced)


def logits_with(trace: Trace, interventions: Sequence[Intervention], positions: Sequence[int]) -> Tensor:
    """Logits (P, V) at positions of the trace's text, from a forward pass with the interventions.

    The pass is otherwise that of ``record``: an intervention that changes nothing gives the recorded logits exactly.
    """
    return unembedded(trace, hidden_with(trace, interventions), positions)


def hidden_with(trace: Trace, interventions: Sequence[Intervention]) -> Tensor:
    """The last hidden states (T, C) of a forward pass with the interventions."""
    ids = torch.tensor([trace.encoding.ids], device=trace.last_hidden.device)
    with torch.no_grad(), evaluating(trace.model), intervening(trace.model, interventions):
        return trace.model.hidden(ids, token_types=typed([trace.encoding.types], ids.device))[0]


def unembedded(trace: Trace, hidden: Tensor, positions: Sequence[int]) -> Tensor:
    """Logits (P, V) of positions, computed together with the others whose logits ``trace`` has if these are there."""
    rows = trace.recording.logit_rows
    rows = rows if set(positions) <= set(rows) else tuple(positions)
    chosen = hidden if len(rows) == len(hidden) else hidden[list(rows)]
    with torch.no_grad():
        return trace.model.unembed(chosen)[[rows.index(position) for position in positions]]
