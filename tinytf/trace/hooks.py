"""The forward hooks of a recording, on the model's own modules, taken off again whatever happens."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer
from tinytf.steps.table import Step, table_of


@contextmanager
def watched(model: Transformer, keep: dict[str, Tensor], layers: Collection[int]) -> Iterator[None]:
    """Meanwhile ``model`` is in evaluation, without gradients, and every step that is recorded is put into ``keep``.

    Of the blocks those in ``layers`` are watched, and the last one's output whichever they are. Logits are left to
    whoever unembeds: of which positions is his choice.
    """
    training = model.training
    table, last = table_of(model.config), model.config.n_layers - 1
    with ExitStack() as stack, torch.no_grad():
        stack.callback(model.train, training)
        model.eval()
        for step, layer in table.rows:
            wanted = layer is None or layer in layers or (layer, step.name) == (last, table.output)
            if step.recorded and step.seen is not None and wanted and not step.is_vocabulary:
                module = module_of(model, step, layer)
                hook = _keeping(keep, step, layer, model.config.d_head)
                stack.callback(module.register_forward_hook(hook).remove)
        yield


def module_of(model: Transformer, step: Step, layer: int | None) -> nn.Module:
    """The module where a step passes."""
    assert step.seen is not None, f"{step.name} passes no module"
    inside = model if layer is None else model.blocks[layer]
    return inside.get_submodule(step.seen.path)


def _keeping(keep: dict[str, Tensor], step: Step, layer: int | None, d_head: int) -> Any:
    assert step.seen is not None
    argument = step.seen.argument

    def hook(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
        keep[step.full_name(layer)] = as_step(step, result if argument is None else args[argument], d_head)

    return hook


def as_step(step: Step, tensor: Tensor, d_head: int) -> Tensor:
    """A tensor on its way through the model as a trace of one text holds it: without the batch axis.

    Queries, keys and values are split into heads: (1, T, H·D) -> (H, T, D). What has no batch axis is a part of a table
    of the model's, and copied.
    """
    if tensor.dim() == 2:
        return tensor.detach().clone()
    if step.has_heads and tensor.dim() == 3:
        return tensor[0].unflatten(-1, (-1, d_head)).transpose(0, 1)
    return tensor[0]
