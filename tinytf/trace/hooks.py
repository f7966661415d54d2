"""Hooks on the model's own modules, to record steps or to pass each step through a function."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.counting import tell
from tinytf.model.transformer import Transformer
from tinytf.model.turn import using
from tinytf.parts.row import Step
from tinytf.steps.table import table_of

Tap = Callable[[str, Tensor], Tensor]


@contextmanager
def recording_hooks(
    model: Transformer, keep: dict[str, Tensor], layers: Collection[int], others: Sequence[dict[str, Tensor]] = ()
) -> Iterator[None]:
    """Put every recorded step of ``layers`` into ``keep``, with ``model`` in evaluation mode.

    ``keep`` is for the first text of a batch, ``others`` for the rest; their tensors include the padding. Edited steps
    and exchanged experts are recorded too, since they do not follow from the steps before them. The last block's output
    is always recorded. Logits are not: the caller decides for which positions to compute them.
    """
    table, last = table_of(model.config), model.config.n_layers - 1
    with using(model), ExitStack() as stack:
        for module in model.modules():
            if module.training:  # tested first: setting it on every module takes a twentieth of a short recording
                stack.callback(setattr, module, "training", True)
                module.training = False
        for step, layer in table.rows:
            in_layers = layer is None or layer in layers or (layer, step.name) == (last, table.output)
            recorded = step.recorded or step.full_name(layer) in model.edited
            if recorded and step.is_tensor and in_layers and not step.is_vocabulary:
                layer_config = model.config.at(layer)
                hook = partial(_keep, (keep, *others), step, layer, layer_config)
                stack.callback(module_of(model, step, layer).register_forward_hook(hook).remove)
        for name, layer, number in _exchanged_experts(model):
            if layer in layers:
                hook = partial(_keep_expert, keep, name, number)
                module = module_of(model, table.by_name[table.expert_out], layer)
                stack.callback(module.register_forward_hook(hook).remove)
        for number, block in enumerate(model.blocks):
            count = partial(_count_block, number, len(model.blocks))
            stack.callback(block.register_forward_pre_hook(count).remove)
        yield


def _count_block(number: int, total: int, module: nn.Module, args: Any) -> None:
    tell("layers run:", number, total)


def _exchanged_experts(model: Transformer) -> Iterator[tuple[str, int, int]]:
    """The full name, layer and number of every expert whose output an intervention replaces."""
    table = table_of(model.config)
    for name in model.exchanged if table.expert_out else ():
        block, _, step = name.partition(".")
        layer, _, number = block[1:].partition("E")
        if number and step == table.expert_out:
            yield name, int(layer), int(number)


def _keep_expert(keep: dict[str, Tensor], name: str, number: int, module: nn.Module, args: Any, added: Tensor) -> None:
    keep[name] = added[0, number]


def module_of(model: Transformer, step: Step, layer: int | None) -> nn.Module:
    """The module that computes a step."""
    return (model if layer is None else model.blocks[layer]).get_submodule(step.path)


def _keep(
    keeps: Sequence[dict[str, Tensor]],
    step: Step,
    layer: int | None,
    config: ModelConfig,
    module: nn.Module,
    args: Any,
    result: Tensor,
) -> None:
    for i, keep in enumerate(keeps):
        text_result = result[i : i + 1] if result.dim() > 2 and len(result) > 1 else result
        keep[step.full_name(layer)] = as_step(step, text_result, config)


def as_step(step: Step, tensor: Tensor, config: ModelConfig) -> Tensor:
    """A tensor of the running model in the shape of a trace: without the batch axis. ``config`` is its layer's.

    Queries, keys and values are split into heads: (1, T, H·D) -> (H, T, D). A tensor without a batch axis (positions)
    is a view of the model's own table, and is copied.
    """
    if tensor.dim() == 2:
        return tensor.clone()
    if step.has_heads and tensor.dim() == 3:
        heads = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        return tensor[0].unflatten(-1, (heads, -1)).transpose(0, 1)
    return tensor[0]


@contextmanager
def stepwise(model: Transformer, fused: bool = False) -> Iterator[None]:
    """Put the model in evaluation mode and, unless ``fused``, run every step by itself; restore all afterwards."""
    with using(model):
        flags = [
            (module, name, vars(module)[name]) for module in model.modules() for name in _FLAGS if name in vars(module)
        ]
        try:
            model.eval().fuse(fused)
            yield
        finally:
            for module, name, flag in flags:
                setattr(module, name, flag)


_FLAGS = ("training", "fused")


@contextmanager
def tap_steps(model: Transformer, tap: Tap, names: Collection[str] | None = None) -> Iterator[None]:
    """Pass every step of a forward pass, or only those with some short ``names``, to ``tap`` with its full name.

    Queries, keys and values come as projected, (B, T, H·D); ``as_step`` brings a tensor into the shape of a trace. The
    tensor that ``tap`` returns replaces the step. Meanwhile the model is in evaluation mode.
    """
    with ExitStack() as stack:
        stack.enter_context(stepwise(model, names is not None))  # hooks disable the kernels that would hide a name
        for step, layer in table_of(model.config).rows:
            if step.runs and (names is None or step.name in names):
                hook = partial(_tap, tap, step.full_name(layer))
                stack.callback(module_of(model, step, layer).register_forward_hook(hook).remove)
        yield


def _tap(tap: Tap, name: str, module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return tap(name, result)
