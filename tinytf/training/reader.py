"""Reads what a training run has left so far: its recipe, a line a step, heads, milestones, speed, the latest sample.

Nothing here writes, and neither torch nor a weight is loaded, so that a run can be looked at while it goes on.
"""

from pathlib import Path

from tinytf.checkpoints.run_config import read_config
from tinytf.errors import CheckpointError, UsageError
from tinytf.training.history import Checkpoint, HeadScores, History
from tinytf.training.metrics_reader import MetricsReader
from tinytf.training.run_files import (
    METRICS,
    RECIPE,
    checkpoints_in,
    is_run,
    last_sample,
    read_speed,
    recipe_of,
)
from tinytf.training.samples import SAMPLES


def read_history(directory: Path) -> History:
    """All that a run directory says. UsageError when it is none, CheckpointError when it is damaged."""
    return RunReader(directory).read()


class RunReader:
    """Reads a run that may be going on: each ``read`` takes only what was added since the one before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._metrics = MetricsReader()

    def read(self) -> History:
        """The run as it is now. UsageError when it is none, CheckpointError when it is damaged."""
        if not is_run(self.directory):
            why = f"neither {RECIPE} nor {METRICS} is in it" if self.directory.is_dir() else "there is no such folder"
            raise UsageError(f"{self.directory} is no run: {why}", "tinytf runs lists those that are there")
        recipe = recipe_of(self.directory)
        checkpoints = checkpoints_in(self.directory)
        if (self.directory / METRICS).is_file():
            self._metrics.read(self.directory / METRICS)
        elif checkpoints:
            raise CheckpointError(f"there is no {METRICS} in {self.directory}")
        step, (loss, lr, grad_norm), extras = self._metrics.lines()
        if self._metrics.skipped and not step.size:
            raise CheckpointError(f"{self.directory / METRICS} holds no line of metrics")
        if step.size and step[-1] >= recipe["steps"]:  # the model at the top is then that of the last step
            ends = (Checkpoint(recipe["steps"] if c.step is None else c.step, c.path) for c in checkpoints)
            checkpoints = list(ends)
        return History(
            self.directory,
            recipe,
            step,
            loss,
            lr,
            grad_norm,
            held_out=[(at, more["held_out_loss"]) for at, more in extras if "held_out_loss" in more],
            heads=[HeadScores(at, more["heads"]) for at, more in extras if "heads" in more],
            milestones=[(at, text) for at, more in extras for text in more.get("milestones", ())],
            speed=read_speed(self.directory / "speed.jsonl"),
            sample=last_sample(self.directory / SAMPLES, int(step[-1]) if step.size else 0),
            checkpoints=checkpoints,
            config=read_config(checkpoints[-1].path) if checkpoints else None,
            skipped=self._metrics.skipped,
        )
