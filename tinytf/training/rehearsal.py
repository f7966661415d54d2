"""Some steps of a run without its folder, to plan it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip

from tinytf.model.transformer import Transformer
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.setup import Setup, prepare
from tinytf.training.data.tokens import Stage
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.losses import BatchLoss, backward
from tinytf.training.tuning.optimiser import make_optimiser
from tinytf.training.tuning.parts import freeze


@dataclass(frozen=True)
class Rehearsal:
    """A run that writes nothing; ``trained`` are the parameters that it trains, and its tokens are in ``folder``."""

    recipe: Recipe
    setup: Setup
    folder: Path
    loss: BatchLoss
    optimiser: torch.optim.Optimizer
    trained: list[nn.Parameter]

    def gradient(self, step: int) -> tuple[float, float]:
        """Compute the clipped gradient of a step (from 0). Returns its loss, and the norm before clipping."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = backward(self.loss, self.setup.examples.batch(step), self.recipe)
        return loss, float(clip(self.trained, self.recipe.clip))


@contextmanager
def rehearse(
    corpus: Corpus,
    recipe: Recipe,
    device: torch.device | str,
    tokenizer: Tokenizer | None,
    model: Transformer | None,
    on_progress: Stage,
) -> Iterator[Rehearsal]:
    """Prepare what ``train`` would with the same arguments, in a temporary folder; trains ``model`` if given.

    Raises what ``train`` raises before its first step.
    """
    with TemporaryDirectory(prefix="tinytf-plan-") as folder:
        torch.manual_seed(recipe.seed)
        setup = prepare(corpus, recipe, Path(folder), tokenizer, model, on_progress)
        setup.model.to(device).train()
        freeze(setup.model, recipe.freeze)
        adapters = [Adapters(setup.model, recipe).to(device)] if recipe.lora else []
        trained = [
            parameter
            for module in (setup.model, *adapters)
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        optimiser = make_optimiser(setup.model, recipe, *adapters)
        loss = BatchLoss(setup.model, next(iter(adapters), None), recipe.label_smoothing)
        yield Rehearsal(recipe, setup, Path(folder), loss, optimiser, trained)
