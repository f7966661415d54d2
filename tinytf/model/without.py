"""A model with parts of its attention left out: the same weights under a configuration whose table lacks the steps."""

from collections.abc import Sequence

import torch

from tinytf.config import LEFT_OUT, ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of


def lacking(config: ModelConfig, part: str) -> ModelConfig:
    """The configuration without one of ``LEFT_OUT``."""
    changes = LEFT_OUT[part]
    kept = tuple((name, values) for name, values in config.by_layer if name not in changes)
    return config.but(by_layer=kept, **changes)


def removable(config: ModelConfig) -> tuple[str, ...]:
    """The parts of ``LEFT_OUT`` that a model has: those without which its table has fewer steps."""
    return tuple(part for part in LEFT_OUT if table_of(lacking(config, part)).rows != table_of(config).rows)


def left_out(model: Transformer, parts: Sequence[str]) -> Transformer:
    """Another model of the same weights, no copies, without ``parts``; in evaluation.

    Raises UsageError for a part that the model does not have, and for a model with steps ablated, whose hooks would
    be lost.
    """
    config, has = model.config, removable(model.config)
    for part in parts:
        if part not in has:
            raise UsageError(f"this model has no {part} to leave out", f"it has {' and '.join(has)}" if has else "")
        config = lacking(config, part)
    if model.exchanged:
        raise UsageError("the model has steps ablated already", "name all that it should go without at once")
    with torch.device("meta"):
        other = Transformer(config)
    for name in list(other.state_dict()):
        path, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(path), leaf, getattr(model.get_submodule(path), leaf))
    other.rooms = model.rooms
    return other.eval()
