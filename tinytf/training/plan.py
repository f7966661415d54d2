"""Plan a training run: its schedule, its sizes, the first gradient, and what it would write."""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer
from tinytf.report import Report
from tinytf.runs.run_files import TOKENS
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.claim import require_free
from tinytf.training.data.chats import ChatTurns
from tinytf.training.data.tokens import Stage
from tinytf.training.loop import Loop
from tinytf.training.metrics import Metrics
from tinytf.training.pace import Pace
from tinytf.training.recipe import Recipe
from tinytf.training.start import started
from tinytf.training.tuning.peak import matrix_peak, training_flops

_TIMED_STEPS, _PADDING_STEPS = 5, 100
"""The number of steps that are timed, and of those whose padding is counted."""
_NUMBERS_IN_MEMORY, _NUMBERS_SAVED = 4, 3
"""Numbers per trained parameter: weight, gradient and two moments in memory; all but the gradient in a checkpoint."""


@dataclass(frozen=True)
class TrainingPlan(Report):
    """A planned run.

    ``trained`` counts the parameters that are trained; the other ``parameters`` are frozen, by ``freeze`` or LoRA.
    ``tokens`` and ``held_out_tokens`` count the text, ``step_tokens`` a batch; ``padding`` is the share of padding in
    batches of conversations. Of these, ``long_conversations`` exceed ``block``; ``cut_tokens`` of them come after the
    first block, and are learned in parts that do not see what was before. ``loss`` (nats per token) and
    ``gradient_norm`` are of the first batch before training. ``step_seconds`` is the median of five steps, and
    ``peak_flops`` the speed of a matrix product here; both are None in half precision or with compiled steps.
    """

    KIND = "train_plan"
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
    loss: float
    gradient_norm: float
    padding: float | None = None
    conversations: int | None = None
    long_conversations: int | None = None
    cut_tokens: int | None = None
    step_seconds: float | None = None
    flops_per_token: int = 0
    peak_flops: float | None = None

    @property
    def mfu(self) -> float | None:
        """The model's own operations per second as a share of the peak: a matrix product, or the steps if faster."""
        if self.step_seconds is None or self.peak_flops is None:
            return None
        speed = self.flops_per_token * self.step_tokens / self.step_seconds
        return speed / max(self.peak_flops, speed)

    @property
    def seconds(self) -> float | None:
        """The time of all steps, without the measurements between them; None if unknown."""
        return None if self.step_seconds is None else self.recipe.steps * self.step_seconds

    @property
    def seen_tokens(self) -> int:
        """The tokens of all steps together."""
        return self.recipe.steps * self.step_tokens

    @property
    def passes(self) -> float:
        """How often the run would pass over the text."""
        return self.seen_tokens / self.tokens

    @property
    def uniform_loss(self) -> float:
        """The loss of a model that finds all tokens equally probable: ln V."""
        return math.log(self.config.vocab_size)

    @property
    def pace(self) -> Pace:
        """The learning rate of every step, and the clipping of the first gradient."""
        return Pace(self.recipe, self.gradient_norm)

    @property
    def memory_bytes(self) -> int:
        """The memory of weights, gradients and Adam's two moments, without the activations of a batch."""
        return self.weight_bytes + (_NUMBERS_IN_MEMORY - 1) * self.trained_bytes + self._adapter_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint: the whole model, the moments, and with LoRA the adapter."""
        return self.weight_bytes + (_NUMBERS_SAVED - 1) * self.trained_bytes + self._adapter_bytes

    @property
    def _adapter_bytes(self) -> int:
        """The size of a LoRA adapter, whose weights are not part of the model."""
        return self.trained_bytes if self.recipe.lora else 0

    @property
    def checkpoints(self) -> int:
        """How many checkpoints would be written; old ones are removed along the way."""
        return -(-self.recipe.steps // (self.recipe.save_every or self.recipe.eval_every))

    def fields(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "recipe": self.recipe.to_dict(),
            "config": self.config.to_dict(),
            **self.members(
                "tokenizer", "parameters", "trained", "tokens", "held_out_tokens", "step_tokens", "padding",
                "conversations", "long_conversations", "cut_tokens", "seen_tokens", "passes",
            ),
            "first_batch": {
                **self.members("loss", "uniform_loss", "gradient_norm"), "clipped_by": self.pace.clipped_by
            },
            **self.members("memory_bytes", "token_bytes", "checkpoints", "checkpoint_bytes", "step_seconds", "seconds"),
            **self.members("flops_per_token", "peak_flops", "mfu"),
            "schedule": [{"step": step, "lr": lr} for step, lr in self.pace.schedule],
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
    """Plan what ``train`` would do with the same arguments; writes nothing to ``out``, but trains ``model`` if given.

    The tokenizer is made and the text is tokenised, in a temporary folder. Raises what ``train`` raises before its
    first step.
    """
    require_free(out, resume=False, overwrite=overwrite)
    with TemporaryDirectory(prefix="tinytf-plan-") as folder:
        begin = {"tokenizer": tokenizer, "model": model, "on_progress": on_progress}
        loop = started(corpus, recipe, Path(folder), torch.device(device), **begin)  # type: ignore[arg-type]
        setup, trained = loop.setup, [parameter for parameter in loop.parameters if parameter.requires_grad]
        token_bytes = sum(path.stat().st_size for path in (loop.out / TOKENS).glob("*.bin"))
        batch = setup.examples.batch(0)
        parameters = list(setup.model.parameters())
        loop.gradient(first := Metrics(1))
        seconds = _time_step(loop)
        chats = _of_conversations(setup.examples) if isinstance(setup.examples, ChatTurns) else {}
    tokens, held_out = setup.counts
    return TrainingPlan(
        run=out, recipe=recipe, config=setup.model.config, tokenizer=setup.tokenizer.kind,
        parameters=sum(p.numel() for p in parameters), weight_bytes=sum(p.nbytes for p in parameters),
        trained=sum(p.numel() for p in trained), trained_bytes=sum(p.nbytes for p in trained),
        tokens=tokens, held_out_tokens=held_out, token_bytes=token_bytes, step_tokens=batch.ids.numel(),
        loss=first.loss, gradient_norm=first.grad_norm, step_seconds=seconds,
        flops_per_token=training_flops(setup.model.config, recipe.block),
        peak_flops=None if seconds is None else matrix_peak(parameters[0].device),
        **chats,
    )  # fmt: skip


def _of_conversations(examples: ChatTurns) -> dict[str, Any]:
    """What a plan says of conversations alone, to train on and held out."""
    parts = (examples.train, examples.held_out_set)
    long, cut = (sum(numbers) for numbers in zip(*(part.long for part in parts), strict=True))
    count = sum(len(part.lengths) for part in parts)
    return {
        "padding": examples.padding(_PADDING_STEPS), "conversations": count, "long_conversations": long,
        "cut_tokens": cut,
    }  # fmt: skip


def _time_step(loop: Loop) -> float | None:
    """The median time of some steps, after an uncounted one; None if the training would run them differently."""
    if loop.recipe.dtype != "float32" or loop.recipe.compile:
        return None
    seconds = []
    for _ in range(_TIMED_STEPS + 1):
        loop.step()
        seconds.append(loop.line.seconds)
    return median(seconds[1:])
