"""Where the first number of a step is that is not finite."""

import torch
from torch import nn

from tinytf.model.transformer import Transformer
from tinytf.trace.faults import where_not_finite as first_step
from tinytf.training.data.examples import Batch
from tinytf.training.data.translation import facing_row
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.losses import backward
from tinytf.training.tuning.processes import Processes
from tinytf.training.tuning.sharding import local_part


def where_not_finite(model: Transformer, loss: nn.Module, batch: Batch, recipe: Recipe, group: Processes) -> str:
    """The example and the step of the forward pass, or else the first gradient from the loss backwards.

    For example ``, in example 3, first at L2.ffn`` or ``, first in the gradient of blocks.2.ffn.down.weight``; empty if
    all numbers are finite.
    """
    if where := first_fault(model, batch):
        return where
    loss.zero_grad(set_to_none=True)
    backward(loss, batch, recipe, group)  # again, since clipping has made all gradients alike
    gradients = [(name, x.grad) for name, x in model.named_parameters() if x.grad is not None]
    lost = [name for name, gradient in gradients if not bool(local_part(gradient).isfinite().all())]
    return f", first in the gradient of {lost[-1]}" if lost else ""


@torch.no_grad()
def first_fault(model: Transformer, batch: Batch) -> str:
    """The example of a batch whose numbers are not finite, and the step where they appear; empty if there is none."""
    training = model.training
    try:
        for row, ids in enumerate(batch.ids.tolist()):
            real = ids if batch.padding_mask is None else ids[: int(batch.padding_mask[row].bool().sum())]
            with facing_row(model, batch, row):
                where = first_step(model, [real])
            if where:
                return f", in example {row}, {where}"
    finally:
        model.train(training)
    return ""
