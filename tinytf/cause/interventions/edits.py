"""Replace steps of a running model by functions of their own values.

The module of each step gets a hook. Edited steps are recorded, since they do not follow from the steps before them.
In a generation with a cache, the cache holds an edited step of all tokens so far too, before and after the edit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.hooks import RemovableHandle

from tinytf.cause.interventions.hooks import hooked_by_user
from tinytf.config import ModelConfig
from tinytf.errors import AddressError, CacheError, UsageError
from tinytf.model.cache import KVCache
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.short_repr import brief
from tinytf.steps.operations import Mask
from tinytf.steps.program import Fused
from tinytf.steps.table import StepTable, table_of
from tinytf.text_model import AnyModel
from tinytf.tolerance import STEP, allowed
from tinytf.trace.address import Address, parse_tensor
from tinytf.trace.hooks import module_of
from tinytf.trace.lens_names import Lens

Edit = Callable[[Tensor], "Tensor | float | None"] | Tensor | float
"""A function that returns another tensor for a step's, or changes it in place; or the replacement itself."""


def edited(model: AnyModel, edits: Mapping[str, Edit]) -> AbstractContextManager[AnyModel]:
    """Edit steps of the model by functions, for every text that runs inside the ``with`` block, which gets the model.

    ``edits`` maps addresses to functions. Each takes the tensor as a trace has it, such as (T, T) for ``L1H2.weights``,
    and returns a tensor of that shape or a number, or changes its argument in place. A tensor or a number replaces the
    step directly. An address of several layers edits each of them. Traces, gradients and scores see the edit. So does
    generation: a function always sees all tokens so far, and may be called more than once for a new one. The cache is
    used while the function leaves the earlier tokens as they were. Once it changes them, and for scores before the mask
    and steps inside a recurrence, each new token takes the whole text. The block restores the model at its end, and
    after an error; other threads are refused meanwhile. Edits nest: the inner takes the outer's result.

    Raises AddressError for an address that is not a step, or not one that can be edited.
    """
    table = table_of(model.config)
    if not isinstance(edits, Mapping):
        raise UsageError(
            f"edits are functions by address, and this is {brief(edits)}", 'pass a dict, such as {"L1.weights": f}'
        )
    edits_at = [(_parse_target(text, table), edit) for text, edit in edits.items()]
    return _edited(model, [(address, _in_our_axes(address.lens, edit)) for address, edit in edits_at])


def _parse_target(text: str, table: StepTable) -> Address:
    if not isinstance(text, str):
        raise AddressError(f"an address is a text, and this is {brief(text)}", "such as L1.weights")
    address = parse_tensor(text, table)
    if address.cell:
        raise AddressError(f"{address} is a cell, and a step is edited whole", "choose the cell inside the function")
    address.plain(table)  # raises for a name of TransformerLens that is no step
    require_edit(address, table)
    return address


def require_edit(address: Address, table: StepTable) -> None:
    """Raise AddressError for an address that names no step, or one that cannot be edited."""
    if address.step is None:
        raise AddressError(f"{address} names no step", f"for example {address}.weights")
    for layer in address.layers or (None,):
        if table.has(address.step.name, layer) and not _can_edit(table.at(address.step.name, layer)):
            raise AddressError(
                f"{address} is not a step that can be edited: no module returns it by itself",
                "such as L1.attn, L1.out, L1.weights, or final.norm",
            )


def _in_our_axes(lens: Lens | None, edit: Edit) -> Edit:
    """Turn an edit of TransformerLens' tensor into one of ours, whose axes or masked scores differ."""
    if lens is None or not lens.part:
        return edit

    def turned(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1) if lens.part == "turned" and tensor.dim() > 1 else tensor

    def edit_ours(value: Tensor) -> Tensor | float:
        theirs = turned(value)
        if lens.part == "least":
            theirs = theirs.masked_fill(theirs == -torch.inf, torch.finfo(theirs.dtype).min)
        result = edit(theirs) if callable(edit) else edit
        result = theirs if result is None else result
        return turned(result) if isinstance(result, Tensor) else result

    return edit_ours


def _can_edit(step: Step) -> bool:
    """Whether a step is computed for each text by itself and for all its tokens; not if only some rows are computed."""
    return step.runs and not step.path.startswith("head.") and bool({"token", "query"} & {*step.axes})


@contextmanager
def _edited(model: AnyModel, edits_at: list[tuple[Address, Edit]]) -> Iterator[AnyModel]:
    with hooked_by_user(model.transformer, hook_edits(model.transformer, edits_at)):
        yield model


def hook_edits(
    model: Transformer, edits_at: Iterable[tuple[Address, Edit]], *, by_position: bool = False
) -> Iterator[RemovableHandle]:
    """Hook each edit on the modules of its step, and list the step as edited.

    Edits ``by_position`` change each token by itself, so that a cache needs nothing but the new ones.
    """
    table = table_of(model.config)
    for address, edit in edits_at:
        assert address.step is not None
        name = address.step.name
        for layer in [n for n in address.layers or (None,) if table.has(name, n)]:
            step = table.at(name, layer)
            config = model.config.at(layer)
            heads = address.heads if step.is_split else None
            edit_batch = partial(_edit_batch, step, config, heads, str(address), edit)
            hook: Any = partial(_edit_output, edit_batch)
            if by_position:
                model.by_position += (step.full_name(layer),)
            elif _can_continue(model, step, layer):
                model.remembered += (step.full_name(layer),)
                hook = partial(_edit_output_so_far, edit_batch, model, object(), _hidden_value(step))
            parts = [f"{step.letter}{number}" for number in heads or ()] if step.core else []
            names = [f"L{layer}{n}.{step.name}" for n in parts] or [step.full_name(layer)]
            model.edited += (step.full_name(layer),)
            model.exchanged += tuple(names)
            yield module_of(model, step, layer).register_forward_hook(hook)


def _edit_output(edit: Callable[[Tensor], Tensor], module: Any, args: Any, result: Tensor) -> Tensor:
    return edit(result)


def _edit_output_so_far(
    edit: Callable[[Tensor], Tensor], model: Transformer, key: object, hidden: float | None, module: Any, args: Any,
    result: Tensor,
) -> Tensor:  # fmt: skip
    if model.continued is None:
        return edit(result)
    return _edit_new_rows(edit, result, *model.continued, key, hidden)


def _edit_new_rows(
    edit: Callable[[Tensor], Tensor], new: Tensor, cache: KVCache, tokens: int, key: object, hidden: float | None
) -> Tensor:
    """Edit a step of all tokens so far, of which ``new`` (B, …, tokens, D) are computed, and return it for these.

    ``key`` is under what the ``cache`` holds the earlier rows; maps (B, H, tokens, K) have ``hidden`` at later keys.
    Raises CacheError where the edit changes what later steps took of the earlier tokens, by more than rounding.
    """
    start = cache.position
    earlier = cache.edits.get(key) if start else (new[..., :0, :], new[..., :0, :])
    keys = new.shape[-1] if hidden is None else start + tokens
    has_rows = new.dim() > 2 and new.shape[-2:] == (tokens, keys)
    if earlier is None or not has_rows:
        raise CacheError("the cache does not hold the edited step of the earlier tokens", "use an empty cache, or none")
    if hidden is None:
        computed, taken = (rows[..., :start, :] for rows in earlier)
    else:
        computed, taken = (pad(rows[..., :start, :start], (0, tokens), value=hidden) for rows in earlier)
    whole = torch.cat((computed, new), dim=-2)
    result = edit(whole)
    if not _is_near(result[..., :start, :], taken):
        raise CacheError("an edit changes tokens that are cached already", "leave out the cache")
    result = result[..., start:, :]
    cache.edits[key] = whole, torch.cat((taken, result), dim=-2)
    return result


def _is_near(found: Tensor, expected: Tensor) -> bool:
    """Whether each row (…, D) is the expected one, up to the rounding of its largest number."""
    if torch.equal(found, expected):
        return True
    sizes = expected.where(expected.isfinite(), 0).abs().amax(-1, keepdim=True)
    is_near = (found - expected).abs() <= allowed(STEP, found.dtype) * sizes
    return bool((is_near | (found == expected)).all())  # -inf is -inf


def _hidden_value(step: Step) -> float | None:
    """What a map has where a query does not see a key, a later one for example; None for other steps."""
    if not step.is_map:
        return None
    return 0.0 if step.holds_shares else -torch.inf


def _can_continue(model: Transformer, step: Step, layer: int | None) -> bool:
    """Whether a step of all tokens can be put together from passes over some: a row for each, or a map after the mask.

    Not so inside a recurrence, which a kernel runs as a whole to continue from a cache.
    """
    is_seen_map = step.axes[-2:] == ("query", "key") and (step.holds_shares or isinstance(step.operation, Mask))
    if model.config.looks_ahead or step.of_source or not (step.axes[-2:-1] == ("token",) or is_seen_map):
        return False
    program: Any = [] if layer is None else model.blocks[layer].program
    recurrences = [part for part in program if isinstance(part, Fused) and part.has_state]
    return not any(row.name == step.name for part in recurrences for row in part.rows[:-1])


def _edit_batch(
    step: Step, config: ModelConfig, heads: tuple[int, ...] | None, name: str, edit: Edit, tensor: Tensor
) -> Tensor:
    """Edit a step (B, …) of the running model, each text of the batch by itself; positions have no batch."""
    if tensor.dim() == 2:
        return _edit_text(edit, tensor, heads, name)
    side_by_side = step.has_heads and tensor.dim() == 3
    if side_by_side:
        count = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        tensor = tensor.unflatten(-1, (count, -1)).transpose(1, 2)  # (B, T, H·D) -> (B, H, T, D)
    if heads is not None and "kv head" in step.axes:
        heads = tuple(dict.fromkeys(head // config.heads_per_kv for head in heads))
    result = torch.stack([_edit_text(edit, row, heads, name) for row in tensor])
    return result.transpose(1, 2).flatten(2) if side_by_side else result


def _edit_text(edit: Edit, value: Tensor, heads: tuple[int, ...] | None, name: str) -> Tensor:
    """Edit the value of one text, all of it or some heads or experts."""
    if heads is None:
        return _apply(edit, value, name)
    chosen: Any = heads[0] if len(heads) == 1 else list(heads)
    value = value.clone()
    value[chosen] = _apply(edit, value[chosen], name)
    return value


def _apply(edit: Edit, value: Tensor, name: str) -> Tensor:
    copy = value.clone()
    result = edit(copy) if callable(edit) else edit
    if result is None:
        return copy
    if isinstance(result, int | float):
        return torch.full_like(value, result)
    if not isinstance(result, Tensor) or result.shape != value.shape:
        message = f"the edit of {name} gives {brief(result)}, and the step is {tuple(value.shape)}"
        raise UsageError(message, "return a tensor of that shape, a number, or None after changing it in place")
    return result.to(value)
