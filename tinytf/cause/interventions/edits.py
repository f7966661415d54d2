"""Steps of a running model, each made anew by a function of its own value.

The module that makes a step gets a hook. What is edited is recorded, since it does not follow from the steps before it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.short_repr import brief
from tinytf.steps.table import StepTable, table_of
from tinytf.text_model import TextModel
from tinytf.trace.address import Address, parse_tensor
from tinytf.trace.hooks import module_of
from tinytf.trace.lens_names import Lens

Made = Callable[[Tensor], "Tensor | float | None"] | Tensor | float
"""A function of a step's tensor, which it may change in place instead of returning another; or what takes its place."""


def edited(model: TextModel, edits: Mapping[str, Made]) -> AbstractContextManager[None]:
    """Every text that goes through the model in here goes through it with some steps made by functions.

    ``edits`` are functions by address: each is given the tensor as a trace has it, (T, T) of ``L1H2.weights``, and
    returns another of that shape, or a number, or changes the one it is given; a tensor or a number stands for itself.
    An address of several layers is one edit in each. Traces, gradients and scores see the edit. So does generation,
    which computes the whole text for each token, without a cache: a function always sees all tokens so far. All is as
    before at the end, or after an error. Edits may be nested; the inner one is given what the outer one made.

    Raises AddressError for what is no step, or none that can be edited.
    """
    table = table_of(model.config)
    if not isinstance(edits, Mapping):
        raise UsageError(f"edits are functions by address, and this is {brief(edits)}", 'such as {"L1.weights": f}')
    places = [(_place(text, table), made) for text, made in edits.items()]
    return _edited(model.transformer, [(where, _as_there(where.lens, made)) for where, made in places])


def _place(text: str, table: StepTable) -> Address:
    if not isinstance(text, str):
        raise AddressError(f"an address is a text, and this is {brief(text)}", "such as L1.weights")
    where = parse_tensor(text, table)
    if where.step is None:
        raise AddressError(f"{where} names no step", f"for example {where}.weights")
    if where.cell:
        raise AddressError(f"{where} is a cell, and a step is edited whole", "choose the cell inside the function")
    where.plain(table)  # raises for a name of TransformerLens that is no step
    for layer in where.layers or (None,):
        if table.has(where.step.name, layer) and not _can_edit(table.at(where.step.name, layer)):
            raise AddressError(
                f"{where} is no step that can be edited: no module passes it on by itself",
                "such as L1.attn, L1.out, L1.weights, or final.norm",
            )
    return where


def _as_there(lens: Lens | None, made: Made) -> Made:
    """An edit of TransformerLens' tensor as one of ours, whose axes lie otherwise, or whose masked scores do."""
    if lens is None or not lens.part:
        return made

    def turned(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1) if lens.part == "turned" and tensor.dim() > 1 else tensor

    def edit(value: Tensor) -> Tensor | float:
        own = turned(value)
        if lens.part == "least":
            own = own.masked_fill(own == -torch.inf, torch.finfo(own.dtype).min)
        found = made(own) if callable(made) else made
        found = own if found is None else found
        return turned(found) if isinstance(found, Tensor) else found

    return edit


def _can_edit(step: Step) -> bool:
    """Whether it is made for every text by itself, and of all of it; not where only some rows are computed."""
    return step.runs and not step.path.startswith("head.") and bool({"token", "query"} & {*step.axes})


@contextmanager
def _edited(model: Transformer, places: list[tuple[Address, Made]]) -> Iterator[None]:
    table = table_of(model.config)
    with ExitStack() as stack:
        for name in ("exchanged", "edited"):
            stack.callback(setattr, model, name, getattr(model, name))
        for where, made in places:
            assert where.step is not None
            name = where.step.name
            for layer in [one for one in where.layers or (None,) if table.has(name, one)]:
                step = table.at(name, layer)
                config = model.config.at(layer)
                heads = where.heads if step.is_split else None
                edit = partial(_edit, partial(_rows, step, config, heads, str(where), made))
                stack.callback(module_of(model, step, layer).register_forward_hook(edit).remove)
                parts = [f"{step.letter}{number}" for number in heads or ()] if step.core else []
                model.edited += (step.full_name(layer),)
                model.exchanged += tuple(f"L{layer}{one}.{step.name}" for one in parts) or model.edited[-1:]
        yield


def _edit(edit: Callable[[Tensor], Tensor], module: Any, args: Any, result: Tensor) -> Tensor:
    return edit(result)


def _rows(
    step: Step, config: ModelConfig, heads: tuple[int, ...] | None, name: str, made: Made, tensor: Tensor
) -> Tensor:
    """A step (B, …) of the running model with every text of the batch edited by itself; positions have no batch."""
    if tensor.dim() == 2:
        return _one(made, tensor, heads, name)
    side_by_side = step.has_heads and tensor.dim() == 3
    if side_by_side:
        count = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        tensor = tensor.unflatten(-1, (count, -1)).transpose(1, 2)  # (B, T, H·D) -> (B, H, T, D)
    if heads is not None and "kv head" in step.axes:
        heads = tuple(dict.fromkeys(head // config.heads_per_kv for head in heads))
    found = torch.stack([_one(made, row, heads, name) for row in tensor])
    return found.transpose(1, 2).flatten(2) if side_by_side else found


def _one(made: Made, value: Tensor, heads: tuple[int, ...] | None, name: str) -> Tensor:
    """The value of one text with all of it, or some heads or experts, made anew."""
    if heads is None:
        return _made(made, value, name)
    chosen: Any = heads[0] if len(heads) == 1 else list(heads)
    value = value.clone()
    value[chosen] = _made(made, value[chosen], name)
    return value


def _made(made: Made, value: Tensor, name: str) -> Tensor:
    own = value.clone()
    found = made(own) if callable(made) else made
    if found is None:
        return own
    if isinstance(found, int | float):
        return torch.full_like(value, found)
    if not isinstance(found, Tensor) or found.shape != value.shape:
        said = f"the edit of {name} gives {brief(found)}, and the step is {tuple(value.shape)}"
        raise UsageError(said, "return a tensor of that shape, a number, or None after changing it in place")
    return found.to(value)
