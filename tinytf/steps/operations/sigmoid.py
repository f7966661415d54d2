"""The sigmoid, σ(x) = 1 / (1 + e^−x): the probability of each class by itself, where a text may have several."""

import math

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Operation
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


class Sigmoid(Operation):
    """Of each logit, given in float32 at least."""

    words = "a sigmoid"

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].double().sigmoid().to(torch.promote_types(inputs[0].dtype, torch.float32))

    def code(self, site: Site) -> str:
        return f"{site.variable} = torch.sigmoid({site.names[0]}.double())"

    def arithmetic(self, cell: Cell) -> Working:
        own = cell.source(0, *cell.index)
        power = math.exp(-own.value)
        before = (Value("x", own.value, own.step.name), Value("e^−x", power))
        return Working(((own, 2),), before=before, after=(Value("σ", 1 / (1 + power), "1 / (1 + e^−x)"),), leads=(own,))
