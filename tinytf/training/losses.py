"""Cross-entropy of a batch, and of text that is never trained on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.model.transformer import Transformer
from tinytf.report import Progress, unheard
from tinytf.training.data import IGNORED, Batch, Examples
from tinytf.training.recipe import Recipe


class BatchLoss(nn.Module):
    """The summed cross-entropy of a batch over its targets, in nats; only their positions get logits."""

    def __init__(self, model: Transformer, adapters: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.adapters = model, adapters  # which are registered, so that processes share their gradients

    def forward(self, ids: Tensor, targets: Tensor, padding_mask: Tensor | None) -> Tensor:
        hidden = self.model.hidden(ids, padding_mask=padding_mask)  # (B, T, C)
        chosen = targets != IGNORED
        if not torch.compiler.is_compiling() and bool(chosen.all()):  # nothing to select
            hidden, targets = hidden.flatten(0, 1), targets.flatten()
        else:
            hidden, targets = hidden[chosen], targets[chosen]
        return F.cross_entropy(self.model.unembed(hidden), targets, reduction="sum")


def batch_loss(model: Transformer, batch: Batch) -> Tensor:
    """Mean cross-entropy over the targets of a batch, in nats."""
    batch = batch.to(model.embed.tokens.weight.device)
    total: Tensor = BatchLoss(model)(batch.ids, batch.targets, batch.padding_mask)
    return total / (batch.targets != IGNORED).sum()


@torch.no_grad()
def worst_example(model: Transformer, batch: Batch) -> tuple[int, float]:
    """The row of a batch with the largest mean loss over its targets, and that loss in nats."""
    training = model.training
    model.eval()
    rows = [row for row in range(len(batch.ids)) if bool((batch.targets[row] != IGNORED).any())]
    found = {row: float(batch_loss(model, batch[row : row + 1])) for row in rows}
    model.train(training)
    worst = max(found, key=lambda row: found[row])
    return worst, found[worst]


FEW_BATCHES = 8
"""Batches of the held-out text that are measured before the last step, and at the least."""


def held_out_batches(recipe: Recipe) -> int:
    """Batches of the held-out text to measure at the end: a forward pass for every four steps.

    That is a cap by time, a tenth of the training, on every machine; one by the clock would make the bytes of a run
    depend on it.
    """
    return max(FEW_BATCHES, recipe.steps // 4)


@torch.no_grad()
def held_out_loss(
    model: Transformer, examples: Examples, limit: int | None = None, on_progress: Progress = unheard
) -> float | None:
    """Mean loss in nats per token over (at most ``limit`` batches of) the held-out text; None if there is none."""
    training = model.training
    model.eval()
    total, count = 0.0, 0
    batches = examples.held_out_batches if limit is None else min(limit, examples.held_out_batches)
    for done, batch in enumerate(examples.held_out(limit)):
        on_progress(done, batches)
        targets = int((batch.targets != IGNORED).sum())
        total += float(batch_loss(model, batch)) * targets
        count += targets
    model.train(training)
    return total / count if count else None
