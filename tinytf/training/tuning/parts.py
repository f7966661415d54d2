"""Parts of a model in training: weights that are frozen, and blocks whose activations are computed again."""

from collections.abc import Iterator, Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.address import parse_address

_SUBLAYERS = {"attn": "attention", "ffn": "ffn"}
"""What the steps mean that stand for a whole sublayer."""
_ENDS = ("embed", "head")
"""Modules before and after the layers, by their own names."""


def freeze(model: Transformer, addresses: Sequence[str]) -> None:
    """Take no gradient of the weights at these addresses: of layers, sublayers, the embeddings, or a step's own.

    Raises AddressError for an unknown address, UsageError for one without weights.
    """
    for text in addresses:
        found = [parameter for path in _paths(text, model.config) for parameter in _at(model, path).parameters()]
        if not found:
            raise UsageError(f"{text!r} has no weights to freeze", "L0-3 are layers, L2.attn, L2.ffn or L0.q in one")
        for parameter in found:
            parameter.requires_grad_(False)


def _paths(text: str, config: ModelConfig) -> Iterator[str]:
    """The modules at an address."""
    if text.strip() in _ENDS:
        yield text.strip()
        return
    where = parse_address(text, table_of(config))
    if where.heads is not None:
        raise UsageError(f"--freeze takes whole matrices, and {text!r} is a part of them", "such as L0 or L0.q")
    for layer in where.layers or ():
        below = "" if where.step is None else f".{_SUBLAYERS.get(where.step.name, where.step.module)}"
        yield f"blocks.{layer}{below}"
    if where.layers is None and where.step is not None:
        yield where.step.module or "-"


def _at(model: Transformer, path: str) -> nn.Module:
    """The module of a path; an empty one where there is none."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return nn.Identity()


def recompute(model: Transformer) -> None:
    """Keep only what goes into each block; the backward pass computes the rest again (Chen et al. 2016)."""
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
