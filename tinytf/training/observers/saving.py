"""Save the checkpoints of a run, as often as its recipe says, and where it stops."""

import time
from collections.abc import Callable, Sequence

import torch

from tinytf.errors import TrainingError
from tinytf.outputs import writing
from tinytf.training.checkpoint import RunState, keep_checkpoints, publish, save_checkpoint
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.tuning.sharding import local_part, reshard_model


class Saving(Observer):
    """Saves what other observers have written; the last step before it is measured, with its line as ``pending``.

    Before that it calls each of ``flush``, which bring lines to the disk. Raises TrainingError if a checkpoint cannot
    be written, or a weight is not finite.
    """

    def __init__(self, flush: Sequence[Callable[[], None]]) -> None:
        self.flush = flush

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        loop.saved, self.saved_at = loop.progress.step, time.monotonic()
        if loop.saved and loop.group.writes:
            self._publish()

    def save_last(self, line: Metrics) -> None:
        """Save the last step, whose line is not written yet."""
        self.loop.progress.pending = line.to_dict()
        self._save()

    def step(self, line: Metrics) -> None:
        loop, recipe = self.loop, self.loop.recipe
        if line.step == recipe.steps and loop.group.writes:  # the last measurement may have found a new best
            with writing(loop.out, "continue with --resume", TrainingError):
                self._prune()
        if line.step % (recipe.save_every or recipe.eval_every) == 0:
            self._save()
        if loop.group.any(loop.stopping or self._is_due()):
            loop.stopping = loop.group.any(loop.stopping)
            self._save()

    def _is_due(self) -> bool:
        """Whether the last checkpoint is older than ``save_minutes``, by the clock of the process that writes."""
        minutes = self.loop.recipe.save_minutes
        return self.loop.group.writes and bool(minutes) and not 0 <= time.monotonic() - self.saved_at <= 60 * minutes

    def _save(self) -> None:
        loop = self.loop
        if loop.saved == loop.progress.step:
            return
        reshard_model(loop.model)
        finite = all(torch.isfinite(local_part(parameter)).all() for parameter in loop.parameters)
        if loop.group.any(not finite):
            raise TrainingError(f"a weight is not finite after step {loop.progress.step}", "try a smaller --lr")
        loop.saved, self.saved_at = loop.progress.step, time.monotonic()
        random = loop.group.gathered(torch.get_rng_state())
        if loop.group.measures:
            state = RunState.of(loop.model, loop.optimiser, random, loop.adapters)
            if loop.group.writes:
                for flush in self.flush:
                    flush()
                save_checkpoint(loop.out, state, loop.setup.tokenizer, loop.progress)
                self._publish()
        loop.group.wait()

    def _publish(self) -> None:
        """Give the run itself its newest model and adapters, and remove old checkpoints."""
        loop = self.loop
        with writing(loop.out, "continue with --resume", TrainingError):
            publish(loop.out, loop.progress.step)
            if loop.adapters is not None:
                loop.adapters.save(loop.out)
            self._prune()

    def _prune(self) -> None:
        keep_checkpoints(self.loop.out, self.loop.progress.step, self.loop.recipe.keep, {self.loop.progress.best_step})
