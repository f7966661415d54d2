"""Treat parts of a model differently in training: freeze weights, recompute the activations of blocks."""

from collections.abc import Iterator, Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.address import in_stack, parse_address

_SUBLAYERS = {"attn": "attention", "ffn": "ffn"}
"""Modules of the steps that stand for a whole sublayer."""
_ENDS = ("embed", "head")
"""Names of the modules before and after the layers."""


def freeze(model: Transformer, addresses: Sequence[str]) -> None:
    """Freeze the weights at these addresses: layers, sublayers, the embeddings, or single steps; enc.L0 of an encoder.

    Raises AddressError for an unknown address, UsageError for one without weights.
    """
    for text in addresses:
        at, rest = in_stack(text, model.stacks)
        stack = model.stacks[at]
        parameters = [parameter for path in _paths(rest, stack.config) for parameter in _at(stack, path).parameters()]
        if not parameters:
            raise UsageError(
                f"{text!r} has no weights to freeze",
                "name layers, such as L0-3, or a part of one: L2.attn, L2.ffn, L0.q",
            )
        for parameter in parameters:
            parameter.requires_grad_(False)


def _paths(text: str, config: ModelConfig) -> Iterator[str]:
    """The paths of the modules at an address."""
    if text.strip() in _ENDS:
        yield text.strip()
        return
    address = parse_address(text, table_of(config))
    if address.heads is not None:
        raise UsageError(f"--freeze takes whole matrices, and {text!r} is only a part", "such as L0 or L0.q")
    for layer in address.layers or ():
        submodule = "" if address.step is None else f".{_SUBLAYERS.get(address.step.name, address.step.module)}"
        yield f"blocks.{layer}{submodule}"
    if address.layers is None and address.step is not None:
        yield address.step.module or "-"


def _at(model: Transformer, path: str) -> nn.Module:
    """The module at a path; one without parameters if there is none."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return nn.Identity()


def recompute(model: Transformer) -> None:
    """Keep only the input of each block; the backward pass recomputes the rest (Chen et al. 2016)."""
    for block in (block for stack in model.stacks.values() for block in stack.blocks):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
