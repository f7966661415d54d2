"""The forward hooks of a recording, on the model's own modules, taken off again whatever happens."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer


@contextmanager
def watched(model: Transformer, keep: dict[str, Tensor], layers: Collection[int]) -> Iterator[None]:
    """Meanwhile ``model`` is in evaluation, without gradients, and what its modules give is put into ``keep``.

    Of the blocks those in ``layers`` are watched, and the last one's output whichever they are.
    """
    training = model.training
    with ExitStack() as stack, torch.no_grad():
        stack.callback(model.train, training)
        model.eval()
        for module, hook in _hooks(model, keep, layers):
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def _unbatched(tensor: Tensor) -> Tensor:
    return tensor[0] if tensor.dim() == 3 else tensor


def _hooks(
    model: Transformer, keep: dict[str, Tensor], layers: Collection[int]
) -> Iterator[tuple[nn.Module, Callable[..., None]]]:
    """Every module that is watched, with the hook that keeps its output under the step's name."""
    config, embed = model.config, model.embed
    blocks: list[Any] = list(model.blocks)

    def output(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, result: Tensor) -> None:
            keep[name] = _unbatched(result)

        return hook

    def heads(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, result: Tensor) -> None:
            keep[name] = result[0].unflatten(-1, (-1, config.d_head)).transpose(0, 1)  # (1, T, H·D) -> (H, T, D)

        return hook

    def core(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, result: Tensor) -> None:
            keep[name] = result[0]  # (1, H, T, D) -> (H, T, D)

        return hook

    def block_ends(layer: int, out: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
            keep[f"L{layer}.in"], keep[f"L{layer}.{out}"] = args[0][0], result[0]

        return hook

    def last_out(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, result: Tensor) -> None:
            keep[name] = result[0]

        return hook

    def copy(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, result: Tensor) -> None:
            keep[name] = result.detach().clone()  # a slice of a table that is not the trace's

        return hook

    yield embed.tokens, output("embed.tokens")
    if embed.positions is not None:
        yield embed.positions, copy("embed.positions")
    if embed.types is not None:
        yield embed.types, output("embed.types")
    yield embed, output("embed.norm" if config.embed_norm else "embed.out")
    out = "out" if config.norm_order == "pre" else "norm2"
    for layer, block in enumerate(blocks):
        if layer not in layers:
            if layer == config.n_layers - 1:
                yield block, last_out(f"L{layer}.{out}")
            continue
        attention, ffn, at = block.attention, block.ffn, f"L{layer}."
        for name in ("q", "k", "v"):
            yield getattr(attention, name), heads(at + name)
        yield attention.core, core(at + "heads")
        yield attention, output(at + "attn")
        yield ffn.up, output(at + "ffn.hidden")
        if config.gated:
            yield ffn.gate, output(at + "ffn.gate")
        yield ffn, output(at + "ffn")
        yield block, block_ends(layer, out)
    if config.final_norm:
        yield model.final_norm, output("final.norm")
