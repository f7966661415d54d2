"""What a training run would do: its schedule, its sizes, the first gradient, and what it would write."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer
from tinytf.report import Report
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.chats import ChatTurns
from tinytf.training.data.setup import Setup, prepare
from tinytf.training.data.tokens import Stage
from tinytf.training.loop import require_free
from tinytf.training.recipe import Recipe
from tinytf.training.run.peak import matrix_peak, training_flops
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.losses import BatchLoss, backward
from tinytf.training.tuning.optimiser import clip_factor, learning_rate, make_optimiser
from tinytf.training.tuning.parts import freeze

_POINTS = 512
"""The most steps whose learning rate is listed."""
_NORMS = 200
"""The gradient norms whose clipping is shown."""
_MEASURED, _LOOKED_AT = 5, 100
"""The steps whose time is measured, and those whose padding is."""
_STATE, _SAVED = 4, 3
"""Numbers for each trained parameter: in memory weight, gradient, two moments; all but the gradient in a checkpoint."""


@dataclass(frozen=True)
class TrainingPlan(Report):
    """A planned run.

    Of the ``parameters`` so many are ``trained``; the others are frozen, or those that LoRA goes beside.
    ``tokens`` and ``held_out_tokens`` are those of the text, ``step_tokens`` those of one batch, and ``padding`` the
    share of them that stands for nothing, since conversations differ in length. ``schedule`` is the
    learning rate of steps (from 1), ``loss`` (nats per token) and ``gradient_norm`` those of the first batch before
    training. ``step_seconds`` is the median of five steps, None in half precision and where they are compiled, and so
    is ``peak_flops``, what a matrix product reached here per second.
    """

    KIND = "training_plan"
    TABLE = ("schedule",)

    run: Path
    recipe: Recipe
    config: ModelConfig
    tokenizer: str
    parameters: int
    trained: int
    weight_bytes: int
    trained_bytes: int
    tokens: int
    held_out_tokens: int
    token_bytes: int
    step_tokens: int
    schedule: Sequence[tuple[int, float]]
    loss: float
    gradient_norm: float
    padding: float | None = None
    step_seconds: float | None = None
    flops_per_token: int = 0
    peak_flops: float | None = None

    @property
    def mfu(self) -> float | None:
        """The model's own operations as a share of the most that was reached: by a matrix product, or by its steps."""
        if self.step_seconds is None or self.peak_flops is None:
            return None
        reached = self.flops_per_token * self.step_tokens / self.step_seconds
        return reached / max(self.peak_flops, reached)

    @property
    def seconds(self) -> float | None:
        """How long all steps would take, without what is measured between them; None where that is not known."""
        return None if self.step_seconds is None else self.recipe.steps * self.step_seconds

    @property
    def seen_tokens(self) -> int:
        """The tokens of all steps together."""
        return self.recipe.steps * self.step_tokens

    @property
    def passes(self) -> float:
        """How often the text would be seen."""
        return self.seen_tokens / self.tokens

    @property
    def uniform_loss(self) -> float:
        """The loss of a model that finds all tokens equally probable: ln V."""
        return math.log(self.config.vocab_size)

    @property
    def clipped_by(self) -> float:
        """The factor that clips the first gradient."""
        return clip_factor(self.gradient_norm, self.recipe.clip)

    @property
    def clipping(self) -> list[tuple[float, float]]:
        """Norms of gradients, to beyond the first one and twice the most, each with the factor that clips it."""
        most = self.recipe.clip
        norms = np.linspace(0, 1.25 * max(self.gradient_norm, 2 * most), _NORMS).tolist()
        return [(norm, clip_factor(norm, most)) for norm in norms]

    @property
    def memory_bytes(self) -> int:
        """What weights, gradients and Adam's two moments take, without the activations of a batch."""
        return self.weight_bytes + (_STATE - 1) * self.trained_bytes + self._beside

    @property
    def checkpoint_bytes(self) -> int:
        """The whole model, the moments, and with LoRA the adapter."""
        return self.weight_bytes + (_SAVED - 1) * self.trained_bytes + self._beside

    @property
    def _beside(self) -> int:
        """The weights of an adapter, which are none of the model's."""
        return self.trained_bytes if self.recipe.lora else 0

    @property
    def checkpoints(self) -> int:
        """How many would be written; the oldest are removed again."""
        return -(-self.recipe.steps // (self.recipe.save_every or self.recipe.eval_every))

    def fields(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "recipe": self.recipe.to_dict(),
            "config": self.config.to_dict(),
            **self.members(
                "tokenizer", "parameters", "trained", "tokens", "held_out_tokens", "step_tokens", "padding",
                "seen_tokens", "passes",
            ),
            "first_batch": self.members("loss", "uniform_loss", "gradient_norm", "clipped_by"),
            **self.members("memory_bytes", "token_bytes", "checkpoints", "checkpoint_bytes", "step_seconds", "seconds"),
            **self.members("flops_per_token", "peak_flops", "mfu"),
            "schedule": [{"step": step, "lr": lr} for step, lr in self.schedule],
        }  # fmt: skip


def plan(
    corpus: Corpus,
    recipe: Recipe,
    out: Path,
    device: torch.device | str = "cpu",
    *,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    overwrite: bool = False,
    on_progress: Stage = lambda *_: None,
) -> TrainingPlan:
    """What ``train`` would do with the same arguments; nothing is written to ``out``. A given ``model`` is trained on.

    The tokenizer is made and the text is cut into tokens, in a temporary folder. Raises what ``train`` raises before
    its first step.
    """
    require_free(out, resume=False, overwrite=overwrite)
    with TemporaryDirectory(prefix="tinytf-plan-") as folder:
        torch.manual_seed(recipe.seed)
        setup = prepare(corpus, recipe, Path(folder), tokenizer, model, on_progress)
        token_bytes = sum(path.stat().st_size for path in Path(folder).glob("*.bin"))
        batch = setup.examples.batch(0)
        parameters = list(setup.model.to(device).train().parameters())
        freeze(setup.model, recipe.freeze)
        adapters = [Adapters(setup.model, recipe).to(device)] if recipe.lora else []
        trained = [one for module in (setup.model, *adapters) for one in module.parameters() if one.requires_grad]
        optimiser = make_optimiser(setup.model, recipe, *adapters)
        losses = BatchLoss(setup.model, *adapters)
        loss = backward(losses, batch, recipe)
        norm = float(clip(trained, recipe.clip))
        seconds = _seconds_of_a_step(setup, losses, recipe, optimiser, trained)
        padding = setup.examples.padding(_LOOKED_AT) if isinstance(setup.examples, ChatTurns) else None
    steps = np.unique(np.linspace(0, recipe.steps - 1, min(recipe.steps, _POINTS)).round().astype(int)).tolist()
    tokens, held_out = setup.counts
    return TrainingPlan(
        run=out, recipe=recipe, config=setup.model.config, tokenizer=setup.tokenizer.kind,
        parameters=sum(one.numel() for one in parameters), weight_bytes=sum(one.nbytes for one in parameters),
        trained=sum(one.numel() for one in trained), trained_bytes=sum(one.nbytes for one in trained), padding=padding,
        tokens=tokens, held_out_tokens=held_out, token_bytes=token_bytes, step_tokens=batch.ids.numel(),
        schedule=[(step + 1, learning_rate(step, recipe)) for step in steps], loss=loss,
        gradient_norm=norm, step_seconds=seconds, flops_per_token=training_flops(setup.model.config, recipe.block),
        peak_flops=None if seconds is None else matrix_peak(parameters[0].device),
    )  # fmt: skip


def _seconds_of_a_step(
    setup: Setup, loss: BatchLoss, recipe: Recipe, optimiser: torch.optim.Optimizer, trained: Sequence[nn.Parameter]
) -> float | None:
    """The median of some steps, after one that is not counted; None where they would not be those of the training."""
    if recipe.dtype != "float32" or recipe.compile:
        return None
    found = []
    for step in range(_MEASURED + 1):
        began = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        backward(loss, setup.examples.batch(step), recipe)
        clip(trained, recipe.clip)
        optimiser.step()
        found.append(time.perf_counter() - began)
    return median(found[1:])
