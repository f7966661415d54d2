"""Models with parts of attention left out: the same weights under a configuration whose table lacks those steps."""

from collections.abc import Sequence

import torch

from tinytf.config import LEFT_OUT, ModelConfig
from tinytf.errors import ConfigError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.model.turn import Turn
from tinytf.steps.table import table_of


def without_part(config: ModelConfig, part: str) -> ModelConfig:
    """The configuration without one part of ``LEFT_OUT``."""
    changes = LEFT_OUT[part]
    by_layer = tuple((name, values) for name, values in config.by_layer if name not in changes)
    return config.but(by_layer=by_layer, **changes)


def removable(config: ModelConfig) -> tuple[str, ...]:
    """The parts of ``LEFT_OUT`` that a model has: leaving one out changes its table."""

    def changes(part: str) -> bool:
        try:
            table = table_of(without_part(config, part))
            return table.rows != table_of(config).rows and table.carried is not None
        except ConfigError:  # without windows, layers of other sizes would share their keys; blocks need a mask
            return False

    return tuple(filter(changes, LEFT_OUT))


def left_out(model: Transformer, parts: Sequence[str]) -> Transformer:
    """A model without ``parts`` that shares the weights of ``model``, in evaluation mode.

    Raises UsageError for a part that the model does not have, and the error of ``with_config``.
    """
    config, has = model.config, removable(model.config)
    for part in parts:
        if part not in has:
            raise UsageError(f"this model has no {part} to leave out", f"it has {' and '.join(has)}" if has else "")
        config = without_part(config, part)
    return with_config(model, config)


def with_config(model: Transformer, config: ModelConfig) -> Transformer:
    """The weights of ``model`` under a configuration with the same parameters, in evaluation mode; they are shared.

    Raises UsageError for a model with replaced steps, whose hooks would be lost.
    """
    if model.exchanged:
        raise UsageError("the model has ablated steps already", "change the computation first, then ablate its steps")
    with torch.device("meta"):
        result = Transformer(config)
    for name in list(result.state_dict()):
        path, _, leaf = name.rpartition(".")
        setattr(result.get_submodule(path), leaf, getattr(model.get_submodule(path), leaf))
    result.rooms, result.reads, result.turn = model.rooms, model.reads, Turn(model.turn.lock)
    return result.eval()
