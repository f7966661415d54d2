"""What of a model a process holds, while several train it: all of it, here; a part of it in ``sharding``."""

import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer


class Whole:
    """Every process holds the whole model."""

    parts = False

    def place(self, model: Transformer, device: torch.device) -> Transformer:
        """The model, or this process's part of it, on its device."""
        return model.to(device)

    def apart(self, model: nn.Module) -> None:
        """Leave the model as an optimiser steps it and a checkpoint is made of it, after somebody looked at it."""

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor, in every process; where they hold parts, each has to ask for it."""
        return tensor

    def own(self, tensor: Tensor) -> Tensor:
        """What this process holds of a tensor."""
        return tensor

    def divided(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Of a tensor that is whole, and the same in every process, what is held of ``like``."""
        return tensor.to(like.device)
