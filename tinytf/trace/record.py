"""Recording: forward hooks on the model's own modules, taken off again whatever happens."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding
from tinytf.trace.memory import recording_bytes, require_room
from tinytf.trace.trace import Recording, Trace


def _unbatched(tensor: Tensor) -> Tensor:
    return tensor[0] if tensor.dim() == 3 else tensor


def _hooks(
    model: Transformer, keep: dict[str, Tensor], layers: Collection[int]
) -> Iterator[tuple[nn.Module, Callable[..., None]]]:
    """Every module that is watched, with the hook that keeps its output under the step's name.

    Of the blocks those in ``layers``, and the last one's output whichever they are.
    """
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


@torch.no_grad()
def record(
    model: Transformer,
    encoding: Encoding,
    mask_id: int | None = None,
    *,
    layers: Collection[int] | None = None,
    force: bool = False,
) -> Trace:
    """Run ``encoding`` through ``model`` once and keep what cannot be had again cheaply.

    Attention stays fused. Logits are computed for the last position of a decoder, for the ``mask_id`` positions of
    an encoder (every position when it has none); elsewhere they are derived when asked for. Every hook is off
    again when this returns or raises. ``layers`` records those alone (None: all of them).

    Raises UsageError for an empty or too long sequence, MemoryShortage where the recording would not fit into the
    free memory, unless ``force`` is true.
    """
    ids = encoding.ids
    if not ids:
        raise UsageError("the text is empty", "give at least one token")
    masks = tuple(place for place, token in enumerate(ids) if token == mask_id)
    rows = (len(ids) - 1,) if model.config.causal else masks or tuple(range(len(ids)))
    if model.head is None:
        rows = ()
    chosen_layers = tuple(range(model.config.n_layers)) if layers is None else tuple(sorted(set(layers)))
    if not force:
        _require_room(model, len(ids), len(rows), chosen_layers)
    keep: dict[str, Tensor] = {}
    training = model.training
    device = next(model.parameters()).device
    with ExitStack() as stack:
        stack.callback(model.train, training)
        model.eval()
        for module, hook in _hooks(model, keep, chosen_layers):
            stack.callback(module.register_forward_hook(hook).remove)
        hidden = model.hidden(torch.tensor([ids], device=device))  # (1, T, C)
        if rows:
            chosen = hidden[0] if len(rows) == len(ids) else hidden[0, list(rows)]
            keep["logits"] = model.unembed(chosen)  # (rows, V)
    return Trace(model, encoding, Recording(keep, rows, chosen_layers, model.exchanged))


def _require_room(model: Transformer, tokens: int, rows: int, layers: Collection[int]) -> None:
    weight = next(model.parameters())
    needed, one = (recording_bytes(model.config, tokens, rows, weight.itemsize, some) for some in (layers, (0,)))
    require_room(needed, one, weight.device, tokens, len(layers))
