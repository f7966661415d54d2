"""A recording that is looked at while the model runs: one layer is held at a time, whatever the depth."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.model.parts import rotary_table
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding
from tinytf.trace.memory import recording_bytes, require_room
from tinytf.trace.record import _hooks
from tinytf.trace.trace import Recording, Trace


def walk(model: Transformer, encoding: Encoding, *, force: bool = False) -> Iterator[Trace]:
    """The steps of one text in parts: the embeddings, then every layer, then what comes behind the last one.

    Each part is a Trace that holds its own steps alone; no logits are among them. The model is as it was whenever
    this waits. Errors as of ``record``.
    """
    ids = encoding.ids
    if not ids:
        raise UsageError("the text is empty", "give at least one token")
    if len(ids) > model.config.context:
        raise UsageError(f"{len(ids)} tokens are more than the model's context of {model.config.context}")
    weight = next(model.parameters())
    if not force:
        needed = recording_bytes(model.config, len(ids), 0, weight.itemsize, (0,))
        require_room(needed, needed, weight.device, len(ids), 1)
    config, last = model.config, model.config.n_layers - 1
    keep: dict[str, Tensor] = {}
    with _watched(model, keep, ()):
        x = model.embed(torch.tensor([ids], device=weight.device))  # (1, T, C)
    yield Trace(model, encoding, Recording(keep, (), ()))
    rotation = None
    if config.positions == "rotary":
        rotation = rotary_table(len(ids), config.rope, x.device, x.dtype)
    for layer, block in enumerate(model.blocks):
        keep = {}
        with _watched(model, keep, (layer,)):
            x = block(x, rotation, None)
        yield Trace(model, encoding, Recording(keep, (), (layer,)))
    keep = {f"L{last}.{'out' if config.norm_order == 'pre' else 'norm2'}": x[0]}
    with _watched(model, keep, ()):
        model.final_norm(x)
    yield Trace(model, encoding, Recording(keep, (), ()))


@contextmanager
def _watched(model: Transformer, keep: dict[str, Tensor], layers: Collection[int]) -> Iterator[None]:
    """The hooks of a recording, in evaluation and without gradients."""
    training = model.training
    with ExitStack() as stack, torch.no_grad():
        stack.callback(model.train, training)
        model.eval()
        for module, hook in _hooks(model, keep, layers):
            stack.callback(_on(module, hook))
        yield


def _on(module: nn.Module, hook: Callable[..., None]) -> Any:
    return module.register_forward_hook(hook).remove
