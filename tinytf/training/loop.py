"""The training loop: batch → loss → backward → clip → step. Whatever watches it is an observer in its list."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip

from tinytf.errors import TrainingError
from tinytf.sentences import sign_of
from tinytf.training.checkpoint import Progress
from tinytf.training.data.examples import Batch
from tinytf.training.data.setup import Setup
from tinytf.training.metrics import Metrics
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.faults import where_not_finite
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.losses import BatchLoss, Objective, backward
from tinytf.training.tuning.optimiser import learning_rate, make_optimiser
from tinytf.training.tuning.processes import ALONE, Processes
from tinytf.training.tuning.sharding import gather, reshard_model
from tinytf.training.tuning.speed import Speed

Schedule = Callable[[int], float]
"""The learning rate of each step, counted from 0."""


class Observer:
    """What watches a loop. A subclass overrides what it needs; ``line`` becomes a line of metrics.jsonl.

    Numbers that it puts into ``line.own`` are written with the others. All processes of a run have the same observers.
    """

    loop: "Loop"
    reads_files: ClassVar[bool] = False
    """Whether its steps come after those that write, so that the line is in the files; it can add nothing then."""

    def begin(self, loop: "Loop") -> None:
        """Called before the first step of this process."""
        self.loop = loop

    def gradients(self, line: Metrics) -> None:
        """Called when the gradients are known, before clipping."""

    def step(self, line: Metrics) -> None:
        """Called after the weights have changed."""

    def end(self) -> None:
        """Called after the last step, also if the run fails; the last observer first."""


class Loop:
    """Trains ``setup.model``; ``progress`` says how far. ``stopping``, asked after each step, ends ``run``.

    ``batch`` and ``line`` are those of the latest step, and ``saved`` is the step of the newest checkpoint. ``pending``
    is a line that was saved, but neither measured nor written before the process ended.
    """

    batch: Batch

    def __init__(
        self,
        setup: Setup,
        recipe: Recipe,
        out: Path,
        device: torch.device,
        group: Processes = ALONE,
        *,
        adapters: Adapters | None = None,
        objective: Objective | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.setup, self.model, self.recipe, self.out, self.device, self.group = (
            setup, setup.model.train(), recipe, out, device, group,
        )  # fmt: skip
        self.adapters, others = adapters, () if adapters is None else (adapters,)
        self.optimiser = make_optimiser(self.model, recipe, *others)
        self.parameters = [parameter for module in (self.model, *others) for parameter in module.parameters()]
        self.batch_loss = BatchLoss(self.model, adapters, recipe.label_smoothing, objective, recipe.balance)
        self.loss: nn.Module = group.averaging(self.batch_loss)
        self.schedule = schedule or (lambda step: learning_rate(step, recipe))
        self.progress = Progress(corpus=setup.fingerprint, processes=group.count)
        self.observers: Sequence[Observer] = ()
        self.interrupted: Callable[[], bool] = lambda: False
        self.saved, self.stopping = 0, False
        self.line = Metrics(0)
        self.pending: Metrics | None = None

    def run(self) -> Metrics:
        """Take all steps that are left. Returns the metrics of the last one."""
        self.line.step = self.progress.step
        with Speed(self.recipe.threads, self.recipe.kernel).used(), ExitStack() as ends:
            for observer in self.observers:
                observer.begin(self)
                ends.callback(observer.end)
            reshard_model(self.model)
            if self.pending is not None:
                self.batch = self.setup.examples.batch(self.pending.step - 1)
                self.tell(self.pending)
            while self.progress.step < self.recipe.steps and not self.stopping:
                self.step()
        return self.line

    def step(self) -> None:
        """Take one step: batch → loss → backward → clip → step."""
        begun, line = time.monotonic(), Metrics(self.progress.step + 1, lr=self.schedule(self.progress.step))
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = line.lr
        self.gradient(line)
        self.optimiser.step()
        line.seconds, line.tokens = max(0.0, time.monotonic() - begun), self.batch.ids.numel()
        self.progress.step, self.progress.pending = line.step, {}
        self.tell(line)

    def gradient(self, line: Metrics) -> None:
        """Compute the clipped gradient of a step. Raises TrainingError if loss or gradient is not finite."""
        self.batch = self.setup.examples.batch(line.step - 1)
        self.optimiser.zero_grad(set_to_none=True)
        line.loss = backward(self.loss, self.batch, self.recipe, self.group)
        if not math.isfinite(line.loss):
            self.fail(f"the loss is {sign_of(line.loss)}", line.step)
        for observer in self.observers:
            observer.gradients(line)
        line.grad_norm = gather(clip(self.parameters, self.recipe.clip)).item()
        if not math.isfinite(line.grad_norm):
            self.fail(f"the gradient norm is {sign_of(line.grad_norm)}", line.step)

    def tell(self, line: Metrics) -> None:
        """Let the observers measure, write and save what is due after a step."""
        self.line, self.stopping = line, self.interrupted()
        for observer in self.observers:
            observer.step(line)
        reshard_model(self.model)

    def fail(self, fault: str, step: int) -> None:
        """Raise TrainingError with the step, the example and the first forward step whose numbers are not finite.

        Where those of the forward pass are, it names the first of the gradients, from the loss backwards.
        """
        saved = f"; the checkpoint of step {self.saved:,} stays" if self.saved else ""
        where = where_not_finite(self.model, self.loss, self.batch, self.recipe, self.group)
        raise TrainingError(f"{fault} at step {step:,}{where}{saved}", "try a smaller --lr")
