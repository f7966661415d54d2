"""Cross-entropy of a batch, and of the held-out text."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.look.experts import expert_layers, routers
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import Progress, ignore_progress
from tinytf.training.data.examples import IGNORED, Batch, Examples
from tinytf.training.recipe import FEW_BATCHES, Recipe
from tinytf.training.tuning.experts import imbalance
from tinytf.training.tuning.processes import ALONE, Processes

Objective = Callable[[Transformer, Batch], Tensor]
"""The loss to minimise, summed over the targets of a batch; its gradient is divided by their number."""


class BatchLoss(nn.Module):
    """The summed cross-entropy of a batch over its targets, in nats; only their positions get logits.

    With ``label_smoothing`` a target is that share spread evenly over the vocabulary, and the rest its token. An
    ``objective`` replaces all of this. ``balance`` times the ``imbalance`` of experts, for each target, is added to the
    gradient, and not to the loss.
    """

    def __init__(
        self,
        model: Transformer,
        adapters: nn.Module | None = None,
        label_smoothing: float = 0.0,
        objective: Objective | None = None,
        balance: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.adapters = model, adapters  # registers them, so that processes share their gradients
        self.label_smoothing, self.objective, self.balance = label_smoothing, objective, balance
        self.layers = expert_layers(model.config) if balance else ()

    def forward(
        self,
        ids: Tensor,
        targets: Tensor,
        padding_mask: Tensor | None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        if self.objective is not None:
            return self.objective(self.model, Batch(ids, targets, padding_mask, source, source_mask))
        read = self.model.read(source, source_mask)
        with routers(self.model, self.layers) if self.layers else nullcontext() as routed:
            hidden = self.model.hidden(ids, padding_mask=padding_mask, source=read)  # (B, T, C)
        is_target = targets != IGNORED
        if not torch.compiler.is_compiling() and bool(is_target.all()):  # nothing to select
            hidden, targets = hidden.flatten(0, 1), targets.flatten()
        else:
            hidden, targets = hidden[is_target], targets[is_target]
        logits = self.model.unembed(hidden)
        loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.label_smoothing)
        if routed:
            added = self.balance * len(targets) * imbalance(self.model, routed, padding_mask)
            loss = loss + added - added.detach()
        return loss


def backward(loss: nn.Module, batch: Batch, recipe: Recipe, group: Processes = ALONE) -> float:
    """Run a batch forward and backward, in parts; returns its mean loss over all processes and adds to the gradients.

    ``loss`` is a BatchLoss, possibly wrapped by a process group or a compiler.
    """
    device = next(loss.parameters()).device
    targets = (batch.targets != IGNORED).sum().to(device)
    precision = torch.autocast(device.type, torch.bfloat16) if recipe.dtype == "bfloat16" else nullcontext()
    parts, total = group.parts(batch, recipe.accumulate), 0.0
    for number, part in enumerate(part.to(device) for part in parts):
        with nullcontext() if number + 1 == len(parts) else group.accumulating(loss):
            with precision:
                mean = loss(*part.tensors) / targets
            # The processes' gradients are averaged, but must be summed.
            (mean * group.count if group.count > 1 else mean).backward()
        total += mean.item()
    return group.total(total)


@torch.no_grad()
def measured_loss(
    model: Transformer, batches: Iterable[Batch], accumulate: int = 1, group: Processes = ALONE
) -> float | None:
    """Mean loss of batches in nats per token, in parts and by all processes as in training; None without batches."""
    total, count = 0.0, 0
    with evaluating(model):
        for batch in batches:
            for part in group.parts(batch, accumulate):
                part = part.to(model.embed.tokens.weight.device)
                total += float(BatchLoss(model)(*part.tensors))
            count += int((batch.targets != IGNORED).sum())
    return group.total(total) / count if count else None


@torch.no_grad()
def exact_share(
    model: Transformer, batches: Iterable[Batch], accumulate: int = 1, group: Processes = ALONE
) -> float | None:
    """The share of targets whose every token is the most probable one after those before it; None without batches.

    These are the targets that greedy decoding writes.
    """
    exact = count = 0
    with evaluating(model):
        for batch in batches:
            for part in group.parts(batch, accumulate):
                part = part.to(model.embed.tokens.weight.device)
                read = model.read(part.source, part.source_mask)
                logits = model.unembed(model.hidden(part.ids, padding_mask=part.padding_mask, source=read))  # (B, T, V)
                asked = part.targets != IGNORED
                right = ((logits.argmax(-1) == part.targets) | ~asked).all(1) & asked.any(1)
                exact += int(right.sum())
            count += len(batch.ids)
    return group.total(exact) / count if count else None


SHIFTED = 4
"""Examples of a batch on which shifts of its labels are compared."""


@torch.no_grad()
def shift_losses(model: Transformer, batch: Batch) -> tuple[float, ...] | None:
    """Losses of the predictions if they are meant for the token itself, for the next one, and for that after it.

    Means in nats over the same positions of a few examples: the lowest says what the labels were in training. None for
    an encoder, and where no position has two tokens after it.
    """
    batch = batch[:SHIFTED].to(model.embed.tokens.weight.device)
    asked = batch.targets[:, :-2] != IGNORED
    if not model.config.causal or not bool(asked.any()):
        return None
    with evaluating(model):
        read = model.read(batch.source, batch.source_mask)
        hidden = model.hidden(batch.ids, padding_mask=batch.padding_mask, source=read)[:, :-2]  # (B, T − 2, C)
        return losses_by_shift(model.unembed(hidden[asked]), batch.ids, asked)


def losses_by_shift(logits: Tensor, ids: Tensor, asked: Tensor) -> tuple[float, ...]:
    """The losses of logits (N, V) at the positions ``asked`` (B, T − 2) of ids (B, T), as in ``shift_losses``."""
    width = asked.shape[1]
    return tuple(float(F.cross_entropy(logits.float(), ids[:, s : s + width][asked])) for s in range(3))


def batch_loss(model: Transformer, batch: Batch) -> Tensor:
    """Mean cross-entropy over the targets of a batch, in nats."""
    batch = batch.to(model.embed.tokens.weight.device)
    total: Tensor = BatchLoss(model)(*batch.tensors)
    return total / (batch.targets != IGNORED).sum()


@torch.no_grad()
def worst_example(model: Transformer, batch: Batch) -> tuple[int, float]:
    """The row of a batch with the largest mean loss over its targets, and that loss in nats."""
    rows = [row for row in range(len(batch.ids)) if bool((batch.targets[row] != IGNORED).any())]
    with evaluating(model):
        losses = {row: float(batch_loss(model, batch[row : row + 1])) for row in rows}
    worst = max(losses, key=lambda row: losses[row])
    return worst, losses[worst]


def thorough_batches(recipe: Recipe) -> int:
    """Batches of the held-out text for its thorough measurement: a forward pass for every four steps.

    A step has a forward pass and a backward pass of twice the work, so this is about a twelfth of the training; a cap
    by the clock would make the bytes of a run depend on it.
    """
    return max(FEW_BATCHES, recipe.steps // 4)


def seen_batches(recipe: Recipe) -> int:
    """Batches of the training text to measure beside the held-out text: at most a fiftieth of the steps' work.

    A step costs three forward passes, and these come every ``eval_every`` steps.
    """
    return max(1, min(FEW_BATCHES, 3 * recipe.eval_every // 50))


def held_out_loss(
    model: Transformer,
    examples: Examples,
    limit: int | None = None,
    on_progress: Progress = ignore_progress,
    *,
    accumulate: int = 1,
    group: Processes = ALONE,
) -> float | None:
    """Mean loss in nats per token over (at most ``limit`` batches of) the held-out text; None if there is none."""
    count = examples.held_out_batches if limit is None else min(limit, examples.held_out_batches)

    def batches() -> Iterator[Batch]:
        for done, batch in enumerate(examples.held_out(limit)):
            on_progress(done, count)
            yield batch

    return measured_loss(model, batches(), accumulate, group)
