"""Other values for some steps of a running model, by hooks on its own modules.

Attention stays fused: a head's output is exchanged where the heads go into the output projection.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tinytf.analysis.interventions.sites import Site
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.hooks import module_of
from tinytf.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Intervention:
    """``value`` in the place of what a site has: at ``positions`` of the text, or at all of them.

    The value is of the site's width, (D,) of a head, else (C,), the same at every position; or (T, width).
    """

    site: Site
    value: Tensor
    positions: tuple[int, ...] | None = None

    @property
    def first(self) -> int:
        """The first position that it changes."""
        return 0 if self.positions is None else min(self.positions)


Change = Callable[[Tensor], Tensor]
"""What is done to the tensor of a step, (B, T, width)."""


def exchanged(tensor: Tensor, row: int | slice, one: Intervention, d_head: int, start: int = 0) -> None:
    """Put the value of ``one`` into a row of ``tensor`` (B, T, width), whose first token is at ``start``."""
    head = one.site.head
    view = tensor[row] if head is None else tensor[row][..., head * d_head : (head + 1) * d_head]  # (…, T, width)
    value = one.value.to(tensor)
    if one.positions is None:
        view.copy_(value if value.dim() == 1 else value[start:])
        return
    places = list(one.positions)
    view[..., [place - start for place in places], :] = value if value.dim() == 1 else value[places]


@contextmanager
def changed(model: Transformer, changes: Sequence[tuple[Site, Change]]) -> Iterator[None]:
    """The model with a change on each step; a head's is on all heads side by side, (B, T, H·D)."""
    with ExitStack() as stack:
        for handle in _hooks(model, changes):
            stack.callback(handle.remove)
        yield


def _hooks(model: Transformer, changes: Sequence[tuple[Site, Change]]) -> Iterator[RemovableHandle]:
    """Hook each change on its module."""
    table = table_of(model.config)
    output = table.by_name[table.output]
    for site, change in changes:
        block: Any = model.blocks[site.layer]
        module, after = {
            "head_out": (block.attention.o, False),
            "attn": (block.attention, True),
            "ffn": (block.ffn, True),
            "in": (block, False),
            "out": (module_of(model, output, site.layer), True),  # where it is recorded
        }[site.step]
        if after:
            yield module.register_forward_hook(_given(change))
        else:
            yield module.register_forward_pre_hook(_taken(change))


def _given(change: Change) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        return change(result)

    return hook


def _taken(change: Change) -> Callable[..., tuple[Any, ...]]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (change(args[0]), *args[1:])

    return hook


@contextmanager
def ablated(model: Transformer, interventions: Sequence[Intervention]) -> Iterator[None]:
    """Every forward pass in here, of any text, runs with the interventions; a trace too, which shows their values.

    A forward pass raises UsageError for a text of another length than a value that is one of positions. The steps that
    a trace computes again, from what they came from, then differ at the sites: its check names them.
    """
    before = model.exchanged
    with ExitStack() as stack:
        for handle in _ablating(model, interventions):
            stack.callback(handle.remove)
        try:
            model.exchanged = _exchanged_in(model, interventions)
            yield
        finally:
            model.exchanged = before


def without(model: Transformer, interventions: Sequence[Intervention]) -> Transformer:
    """Another model of the same weights, no copies, that always runs with the interventions; errors as of ``ablated``.

    It is in evaluation, on the device where the weights are now.
    """
    kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, kept).eval()
    list(_ablating(other, interventions))  # the hooks stay
    other.exchanged = _exchanged_in(model, interventions)
    return other


def _exchanged_in(model: Transformer, interventions: Sequence[Intervention]) -> tuple[str, ...]:
    return (*model.exchanged, *(_step_name(model, one.site) for one in interventions))


def _step_name(model: Transformer, site: Site) -> str:
    """The step that a site is in the table: ``L3H5.head_out``; what comes out of a post-norm block is ``L3.norm2``."""
    if site.head is not None:
        return f"{site}.head_out"
    return f"L{site.layer}.{table_of(model.config).synonym(site.step) or site.step}"


def _ablating(model: Transformer, interventions: Sequence[Intervention]) -> Iterator[RemovableHandle]:
    """Hook each intervention on its module."""
    d_head = model.config.d_head

    def change(one: Intervention) -> Change:
        def of(tensor: Tensor) -> Tensor:
            _require_length(one, tensor.shape[-2])  # of a batch, or as a trace holds it
            tensor = tensor.clone()
            exchanged(tensor, slice(None), one, d_head)
            return tensor

        return of

    def seen(one: Intervention) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
            side_by_side = change(one)(result.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, H·D)
            return side_by_side.unflatten(-1, (-1, d_head)).transpose(1, 2)

        return hook

    yield from _hooks(model, [(one.site, change(one)) for one in interventions])
    for one in interventions:
        if one.site.step == "head_out":  # where a recording takes the heads; the projection behind it has its own hook
            block: Any = model.blocks[one.site.layer]
            yield block.attention.core.register_forward_hook(seen(one))


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
    with torch.no_grad(), evaluated(trace.model), ablated(trace.model, interventions):
        return trace.model.hidden(ids)[0]


def unembedded(trace: Trace, hidden: Tensor, position: int) -> Tensor:
    """Logits (V,) of a position, computed beside those of the other positions that ``trace`` has logits of."""
    rows = trace.recording.logit_rows
    chosen = hidden if len(rows) == len(hidden) else hidden[list(rows)]
    with torch.no_grad():
        return trace.model.unembed(chosen)[rows.index(position)]


def _require_length(one: Intervention, length: int) -> None:
    if one.value.dim() > 1 and len(one.value) != length:
        raise UsageError(
            f"the value for {one.site} is of {len(one.value)} tokens, and {length} come through",
            "a value that is the same at every position goes with any text",
        )
    beyond = [place for place in one.positions or () if place >= length]
    if beyond:
        raise UsageError(f"{one.site} is to be changed at position {beyond[0]}, and {length} tokens come through")
