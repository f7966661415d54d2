"""Cross-entropy of a batch, and of text that is never trained on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.model.transformer import Transformer
from tinytf.training.data import IGNORED, Batch, Examples
from tinytf.training.recipe import Recipe


class BatchLoss(nn.Module):
    """The summed cross-entropy of a batch over the positions that ask for a token, in nats; only those get logits."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor, padding_mask: Tensor | None) -> Tensor:
        hidden = self.model.hidden(ids, padding_mask=padding_mask)  # (B, T, C)
        asked = targets != IGNORED
        if not torch.compiler.is_compiling() and bool(asked.all()):  # nothing to pick out, and to put back
            hidden, targets = hidden.flatten(0, 1), targets.flatten()
        else:
            hidden, targets = hidden[asked], targets[asked]
        return F.cross_entropy(self.model.unembed(hidden), targets, reduction="sum")


def batch_loss(model: Transformer, batch: Batch) -> Tensor:
    """Mean cross-entropy over the positions that ask for a token, in nats."""
    batch = batch.to(model.embed.tokens.weight.device)
    asked = (batch.targets != IGNORED).sum()
    total: Tensor = BatchLoss(model)(batch.ids, batch.targets, batch.padding_mask)
    return total / asked


def held_out_batches(recipe: Recipe) -> int:
    """How many batches of the held-out text are measured in the end, so that it takes a tenth of the training or so.

    A step goes forward, and back for twice the work; text enough for a hundred batches is a matter of seconds.
    """
    return max(100, recipe.steps // 4)


@torch.no_grad()
def held_out_loss(model: Transformer, examples: Examples, limit: int | None = None) -> float | None:
    """Mean loss in nats a token over (at most ``limit`` batches of) the held-out text; None when there is none."""
    training = model.training
    model.eval()
    total, count = 0.0, 0
    for batch in examples.held_out(limit):
        asked = int((batch.targets != IGNORED).sum())
        total += float(batch_loss(model, batch)) * asked
        count += asked
    model.train(training)
    return total / count if count else None
