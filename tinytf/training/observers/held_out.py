"""Measure the held-out text: the same few batches as the run goes on, and many after its last step."""

import math
from collections.abc import Callable

from tinytf.report import Progress, ignore_progress
from tinytf.runs.history import Thorough
from tinytf.sentences import sign_of
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.recipe import FEW_BATCHES
from tinytf.training.tuning.losses import exact_share, held_out_loss, measured_loss, seen_batches, thorough_batches


class HeldOut(Observer):
    """Adds held-out losses every ``eval_every`` steps, and says that the run stops if they have not fallen for long.

    The last step is given to ``save`` before its long measurement.
    """

    def __init__(self, on_progress: Callable[[str, int, int], None], save: Callable[[Metrics], None]) -> None:
        self.on_progress, self.save = on_progress, save
        self.before: tuple[float | None, Thorough | None] = None, None

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        loop.line.stopped = self._stop_reason()
        loop.stopping = loop.line.stopped is not None
        if not loop.progress.step and loop.recipe.begun_from:
            few = self._loss(FEW_BATCHES)
            self.before = few, self._thorough(few)

    def gradients(self, line: Metrics) -> None:
        if line.step == 1:
            line.held_out_before, line.thorough_before = self.before

    def step(self, line: Metrics) -> None:
        loop, last = self.loop, line.step == self.loop.recipe.steps
        if not last and line.step % loop.recipe.eval_every:
            return
        if last:
            self.save(line)
        line.held_out_loss = self._loss(FEW_BATCHES, self._measuring if last else ignore_progress)
        if line.held_out_loss is not None and not math.isfinite(line.held_out_loss):
            loop.fail(f"the held-out loss is {sign_of(line.held_out_loss)}", line.step)
        loop.progress.note_best(line.held_out_loss, line.step)
        seen = map(loop.setup.examples.seen, range(seen_batches(loop.recipe)))
        line.seen_loss = measured_loss(loop.model, seen, loop.recipe.accumulate, loop.group)
        line.held_out_exact = self._exact(FEW_BATCHES)
        line.thorough = self._thorough(line.held_out_loss) if last else None
        line.stopped = None if last else self._stop_reason()
        loop.stopping = loop.stopping or line.stopped is not None
        loop.group.wait()

    def _loss(self, limit: int, on_progress: Progress = ignore_progress) -> float | None:
        loop = self.loop
        parts = loop.recipe.accumulate
        return held_out_loss(loop.model, loop.setup.examples, limit, on_progress, accumulate=parts, group=loop.group)

    def _exact(self, limit: int) -> float | None:
        """The share of targets that are translated exactly; None for other objectives."""
        loop = self.loop
        if loop.recipe.objective != "translate":
            return None
        return exact_share(loop.model, loop.setup.examples.held_out(limit), loop.recipe.accumulate, loop.group)

    def _measuring(self, done: int, total: int) -> None:
        self.on_progress("measuring the held-out text", done, total)

    def _thorough(self, few: float | None) -> Thorough | None:
        """Measure many held-out batches; ``few`` is the loss of FEW_BATCHES, None without held-out text."""
        if few is None:
            return None
        limit = min(thorough_batches(self.loop.recipe), self.loop.setup.examples.held_out_batches)
        loss = few if limit <= FEW_BATCHES else self._loss(limit, self._measuring)
        assert loss is not None  # there is held-out text
        return Thorough(loss, limit, self._exact(limit))

    def _stop_reason(self) -> str | None:
        """Why the run ends before its last step: its held-out loss has not fallen for ``patience`` measurements."""
        recipe, progress = self.loop.recipe, self.loop.progress
        waited = (progress.step - progress.best_step) // recipe.eval_every
        if not recipe.patience or progress.best is None or waited < recipe.patience:
            return None
        return f"held-out has been above {progress.best:.4f}, at step {progress.best_step:,}, {waited:,} times in a row"
