"""Hooks on the model's own modules: to keep what passes, or to let each step go through a function."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.model.attention import SelfAttention, Tap
from tinytf.model.experts import Experts
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps.table import table_of


@contextmanager
def watched(
    model: Transformer, keep: dict[str, Tensor], layers: Collection[int], others: Sequence[dict[str, Tensor]] = ()
) -> Iterator[None]:
    """Put every recorded step of ``layers`` into ``keep``, with ``model`` in evaluation mode and without gradients.

    Those of the ``others`` of a batch go into dictionaries of their own, with what fills up a shorter text.
    The last block's output is always kept. Logits are not: the caller decides for which positions to compute them.
    """
    table, last = table_of(model.config), model.config.n_layers - 1
    with ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            if module.training:  # asked first: to set it on every module takes a twentieth of a short recording
                stack.callback(setattr, module, "training", True)
                module.training = False
        for step, layer in table.rows:
            wanted = layer is None or layer in layers or (layer, step.name) == (last, table.output)
            kept = step.recorded or (step.full_name(layer) in model.edited and not step.core)
            if kept and step.seen is not None and wanted and not step.is_vocabulary:
                hook = partial(_keep, (keep, *others), step, layer, model.config)
                stack.callback(module_of(model, step, layer).register_forward_hook(hook).remove)
        for layer in layers:
            block: Any = model.blocks[layer]
            experts = block.ffn
            for part in (block.attention, experts):
                if edits := getattr(part, "edits", None):
                    stack.callback(setattr, part.core, "tap", part.core.tap)
                    part.core.tap = partial(_keep_edited, keep, layer, edits, part.core.tap)
            if isinstance(experts, Experts):
                experts.on_change = partial(_keep_expert, keep, f"L{layer}E%d.{table.expert_out}")
                stack.callback(setattr, experts, "on_change", None)
        yield


def _keep_edited(
    keep: dict[str, Tensor], layer: int, edits: Collection[str], tap: Tap, name: str, tensor: Tensor
) -> Tensor:
    """Keep what was made of a step of a core: it does not follow from those before it."""
    made = tap(name, tensor)
    if name in edits:
        keep[f"L{layer}.{name}"] = made[0]
    return made


def _keep_expert(keep: dict[str, Tensor], name: str, number: int, added: Tensor) -> None:
    keep[name % number] = added[0]


def module_of(model: Transformer, step: Step, layer: int | None) -> nn.Module:
    """The module that a step passes through."""
    assert step.seen is not None, f"{step.name} passes no module"
    inside = model if layer is None else model.blocks[layer]
    return inside.get_submodule(step.seen.path)


def _keep(
    keeps: Sequence[dict[str, Tensor]],
    step: Step,
    layer: int | None,
    config: ModelConfig,
    module: nn.Module,
    args: Any,
    result: Tensor,
) -> None:
    assert step.seen is not None
    argument = step.seen.argument
    tensor = result if argument is None else args[argument]
    for row, keep in enumerate(keeps):
        own = tensor[row : row + 1] if tensor.dim() > 2 and len(tensor) > 1 else tensor
        keep[step.full_name(layer)] = as_step(step, own, config)


def as_step(step: Step, tensor: Tensor, config: ModelConfig) -> Tensor:
    """A tensor of the running model as a trace holds it: without the batch axis.

    Queries, keys and values are split into heads: (1, T, H·D) -> (H, T, D). A tensor without a batch axis (positions)
    is a view of the model's own table, and is copied.
    """
    if tensor.dim() == 2:
        return tensor.detach().clone()
    if step.has_heads and tensor.dim() == 3:
        heads = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        return tensor[0].unflatten(-1, (heads, -1)).transpose(0, 1)
    return tensor[0]


@contextmanager
def stepwise(model: Transformer, tap: Tap) -> Iterator[None]:
    """Run attention and experts step by step through ``tap``, in evaluation mode; all is restored afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    cores = [(part, part.core) for part in model.modules() if isinstance(part, (SelfAttention, Experts))]
    try:
        model.eval().use_attention("steps", tap)
        model.use_experts("steps", tap)
        yield
    finally:
        for part, core in cores:
            part.core = core
        for module, training in flags:
            module.training = training


@contextmanager
def tapped(model: Transformer, tap: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Pass every step of a forward pass to ``tap``, with its full name and its batch axis.

    Queries, keys and values come as projected, (B, T, H·D); ``as_step`` brings a tensor into the shape of a trace.
    What ``tap`` returns replaces the step where the step is ``replaceable``.
    """
    with ExitStack() as stack:
        stack.enter_context(stepwise(model, lambda _, tensor: tensor))
        for number, block in enumerate(model.blocks):
            for part in (block.attention, block.ffn):
                if isinstance(part, (SelfAttention, Experts)):
                    part.core.tap = partial(_tap_core, tap, number)  # type: ignore[assignment]
        for step, layer in table_of(model.config).rows:
            if step.seen is None or step.core or step.in_experts:
                continue
            module, argument, name = module_of(model, step, layer), step.seen.argument, step.full_name(layer)
            if argument is None:
                handle = module.register_forward_hook(partial(_tap_output, tap, name))
            else:
                handle = module.register_forward_pre_hook(partial(_tap_input, tap, name, argument))
            stack.callback(handle.remove)
        yield


def _tap_core(tap: Tap, layer: int, name: str, tensor: Tensor) -> Tensor:
    return tap(f"L{layer}.{name}", tensor)


def _tap_output(tap: Tap, name: str, module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return tap(name, result)


def _tap_input(tap: Tap, name: str, argument: int, module: nn.Module, args: tuple[Any, ...]) -> None:
    tap(name, args[argument])
