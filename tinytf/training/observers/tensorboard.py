"""Event files of a run for TensorBoard, written by torch with the tensorboard package."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf.errors import TrainingError
from tinytf.text.printable import printable
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


def summary_writer() -> "type[SummaryWriter]":
    """torch's writer of event files. Raises TrainingError, with the way to install it, if tensorboard is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainingError(
            "event files are written with the tensorboard package, which is not installed",
            'pip install "tinytf[tensorboard]"',
        ) from None
    return SummaryWriter


class EventFiles(Observer):
    """Writes event files for TensorBoard; those of steps that are repeated are discarded.

    Raises TrainingError if tensorboard is missing or the files cannot be written.
    """

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        self.open(loop.out / FOLDER, loop.progress.step - (loop.pending is not None))

    def open(self, folder: Path, step: int) -> None:
        """Begin with the events after ``step``."""
        self.folder = folder
        with self._writing():
            self._writer = summary_writer()(str(folder), purge_step=step + 1)
        self._hook = threading.excepthook
        threading.excepthook = self._in_thread

    def step(self, line: Metrics) -> None:
        """Add a step: numbers as scalars, by head or group of weights where they have one, and sentences as text."""
        numbers = {
            "loss": line.loss,
            "held_out_loss": line.held_out_loss,
            "held_out_exact": line.held_out_exact,
            "thorough_loss": None if line.thorough is None else line.thorough.loss,
            "seen_loss": line.seen_loss,
            "copying": line.copying,
            "lr": line.lr,
            "grad_norm": line.grad_norm,
            "tokens_per_second": line.tokens_per_second,
            **line.own,
        }
        if line.noise is not None:
            numbers |= {f"gradient_noise/{name}": value for name, value in line.noise.to_dict().items()}
        for kind, scores in vars(line.heads).items() if line.heads else ():
            for layer, row in enumerate(scores or ()):
                numbers |= {f"{kind}/L{layer}H{head}": score for head, score in enumerate(row)}
        if line.health is not None:
            for kind, values in line.health.to_dict().items():
                layers = [f"L{layer}" for layer in range(len(values))]
                names = line.health.groups if kind in ("gradient_norm", "update_ratio") else layers
                numbers |= {f"{kind}/{name}": value for name, value in zip(names, values, strict=True)}
        with self._writing():
            for name, number in numbers.items():
                if number is not None and math.isfinite(number):
                    self._writer.add_scalar(name, number, line.step)
            if line.milestones:
                self._writer.add_text("milestones", "\n\n".join(line.milestones), line.step)
            if sample := line.sample:  # indented, so that Markdown leaves it alone
                words = f"{printable(sample.prompt, spaces=False)}│{printable(sample.text, spaces=False)}"
                self._writer.add_text("sample", f"    {words}", line.step)

    def flush(self) -> None:
        """Write everything to the disk, before a checkpoint of the same step."""
        with self._writing():
            self._writer.flush()

    def end(self) -> None:
        try:
            with self._writing():
                self._writer.close()
        finally:
            threading.excepthook = self._hook

    def _in_thread(self, failure: threading.ExceptHookArgs) -> None:
        """Ignore an OSError of the writer's own thread: the writer's next call raises it again."""
        if not isinstance(failure.exc_value, OSError):
            self._hook(failure)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"cannot write to {self.folder}: {error.strerror or error}", "make room, then continue with --resume"
            ) from None
