"""Taps on every step of a running model: each tensor passes through a function, which may return another."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from tinytf.model.attention import SelfAttention, Tap
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.hooks import module_of


@contextmanager
def stepwise(model: Transformer, tap: Tap) -> Iterator[None]:
    """The model in evaluation, its attention going through ``tap``; behind it every module is as it was before."""
    flags = [(module, module.training) for module in model.modules()]
    cores = [(module, module.core) for module in model.modules() if isinstance(module, SelfAttention)]
    try:
        model.eval().use_attention("steps", tap)
        yield
    finally:
        for attention, core in cores:
            attention.core = core
        for module, training in flags:
            module.training = training


@contextmanager
def tapped(model: Transformer, tap: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Let every step of the forward passes in here go through ``tap``, by its full name, with its batch axis.

    Queries, keys and values come as they are projected, (B, T, H·D): ``as_step`` makes of each tensor what a trace
    holds. What ``tap`` returns goes on in its place where the step is ``replaceable``.
    """
    with ExitStack() as stack:
        stack.enter_context(stepwise(model, lambda _, tensor: tensor))
        for number, block in enumerate(model.blocks):
            block.attention.core.tap = partial(_core_tap, tap, number)  # type: ignore[union-attr]
        for step, layer in table_of(model.config).rows:
            if step.seen is None or step.core:
                continue
            module, argument, name = module_of(model, step, layer), step.seen.argument, step.full_name(layer)
            if argument is None:
                handle = module.register_forward_hook(_output_hook(tap, name))
            else:
                handle = module.register_forward_pre_hook(_input_hook(tap, name, argument))
            stack.callback(handle.remove)
        yield


def _core_tap(tap: Tap, layer: int, name: str, tensor: Tensor) -> Tensor:
    return tap(f"L{layer}.{name}", tensor)


def _output_hook(tap: Tap, name: str) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        return tap(name, result)

    return hook


def _input_hook(tap: Tap, name: str, argument: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        tap(name, args[argument])

    return hook


def leaf(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy that gradients are kept of, where it is a constant of the model."""
    return tensor if tensor.requires_grad else tensor.clone().requires_grad_()
