"""Taps on every step of a running model: each tensor passes through a function, which may return another."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from tinytf.model.attention import SelfAttention, Tap
from tinytf.model.transformer import Transformer
from tinytf.trace.steps import Step, StepTable

SEEN_ONLY = frozenset({"in", "embed.sum", "concat", "mid", "sum", "ffn.act", "head.act", "q_rot", "k_rot"})
"""Steps that are caught where they go into the next: what a tap returns for them is not taken."""


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
    holds. What ``tap`` returns goes on in its place, but for the steps of SEEN_ONLY.
    """
    steps = frozenset(step.full_name(layer) for step, layer in StepTable(model.config).rows)
    passed = dict[str, int]()

    def of_step(name: str, tensor: Tensor) -> Tensor:
        return tap(name, tensor) if name in steps else tensor

    def core_tap(name: str, tensor: Tensor) -> Tensor:
        layer = passed[name] = passed.get(name, -1) + 1
        return of_step(f"L{layer % model.config.n_layers}.{name}", tensor)

    with ExitStack() as stack:
        stack.enter_context(stepwise(model, core_tap))
        for module, names, after in _places(model):
            hook = _output_hook(of_step, names[0]) if after else _input_hook(of_step, names)
            add: Any = module.register_forward_hook if after else module.register_forward_pre_hook
            stack.callback(add(hook).remove)
        yield


def _output_hook(tap: Tap, name: str) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        return tap(name, result)

    return hook


def _input_hook(tap: Tap, names: tuple[str, ...]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        for name, tensor in zip(names, args, strict=False):
            tap(name, tensor)

    return hook


def _places(model: Transformer) -> Iterator[tuple[nn.Module, tuple[str, ...], bool]]:
    """Every module that is watched, the steps that pass there, and whether they are what it gives or what it takes."""
    config, embed = model.config, model.embed
    yield embed.tokens, ("embed.tokens",), True
    for part, name in ((embed.positions, "embed.positions"), (embed.types, "embed.types")):
        if part is not None:
            yield part, (name,), True
    if config.embed_norm:
        yield embed.norm, ("embed.sum",), False
    yield embed, ("embed.norm" if config.embed_norm else "embed.out",), True
    for layer, block in enumerate(model.blocks):
        for module, names, after in _block_places(block, pre=config.norm_order == "pre"):
            yield module, tuple(f"L{layer}.{name}" for name in names), after
    if config.final_norm:
        yield model.final_norm, ("final.norm",), True
    if config.head == "mlm":
        head: Any = model.head
        yield head.dense, ("head.dense",), True
        yield head.norm, ("head.act",), False
        yield head.norm, ("head.norm",), True
    if model.head is not None:
        yield model.head, ("logits",), True


def _block_places(block: Any, *, pre: bool) -> Iterator[tuple[nn.Module, tuple[str, ...], bool]]:
    attention, ffn = block.attention, block.ffn
    yield block, ("in",), False
    for name in ("q", "k", "v"):
        yield getattr(attention, name), (name,), True
    if not isinstance(attention.q_norm, nn.Identity):
        yield attention.q_norm, ("q_norm",), True
        yield attention.k_norm, ("k_norm",), True
    yield attention.core, ("q_rot", "k_rot"), False
    yield attention.o, ("concat",), False
    yield attention, ("attn",), True
    yield block.norm2 if pre else block.norm1, ("mid",), False
    yield block.norm1, ("norm1",), True
    if not pre:
        yield block.norm2, ("sum",), False
    yield block.norm2, ("norm2",), True
    yield ffn.up, ("ffn.hidden",), True
    if hasattr(ffn, "gate"):
        yield ffn.gate, ("ffn.gate",), True
    yield ffn.down, ("ffn.act",), False
    yield ffn, ("ffn",), True
    if pre:
        yield block, ("out",), True


def as_step(step: Step, tensor: Tensor, d_head: int) -> Tensor:
    """A tapped tensor of one text as a trace holds it: without the batch axis, q, k and v with a head axis."""
    if step.name == "embed.positions":
        return tensor
    if step.name in ("q", "k", "v"):
        return tensor[0].unflatten(-1, (-1, d_head)).transpose(0, 1)  # (1, T, H·D) -> (H, T, D)
    return tensor[0]


def leaf(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy that gradients are kept of, where it is a constant of the model."""
    return tensor if tensor.requires_grad else tensor.clone().requires_grad_()
