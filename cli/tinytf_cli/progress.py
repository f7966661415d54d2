"""Progress of a training run on stderr: a moving line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from pathlib import Path
from typing import TextIO

from tinytf.text.printable import printable
from tinytf.training.loop import Metrics
from tinytf.training.setup import Setup

_SECONDS_BETWEEN_LINES = 10.0


class TrainingProgress:
    """Says how far a run is; never more than a line every few seconds off a terminal."""

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self.steps, self.stream = steps, stream or sys.stderr
        self.started = self.said = time.monotonic()
        self.first = True

    def update(self, metrics: Metrics, setup: Setup) -> None:
        now = time.monotonic()
        if self.first:
            count = sum(p.numel() for p in setup.model.parameters())
            self._line(f"{setup.model.config.kind}, {count:,} parameters, {setup.tokenizer.vocab_size:,} tokens")
            self.first, self.started = False, now
        due = now - self.said >= (0.2 if self.stream.isatty() else _SECONDS_BETWEEN_LINES)
        if metrics.held_out_loss is None and not due:
            return
        self.said = now
        left = (now - self.started) / metrics.step * (self.steps - metrics.step)
        text = f"step {metrics.step}/{self.steps}  loss {metrics.loss:.4f}  lr {metrics.lr:.2e}"
        if metrics.held_out_loss is not None:
            self._line(f"{text}  held-out {metrics.held_out_loss:.4f}  {left / 60:.1f} min left")
        elif self.stream.isatty():
            self.stream.write(f"\r{text}  {left / 60:.1f} min left\x1b[K")
            self.stream.flush()
        else:
            self._line(f"{text}  {left / 60:.1f} min left")

    def _line(self, text: str) -> None:
        lead, tail = ("\r", "\x1b[K") if self.stream.isatty() else ("", "")
        print(f"{lead}{text}{tail}", file=self.stream, flush=True)

    def finish(self, out: Path, step: int, steps: int) -> None:
        minutes = (time.monotonic() - self.started) / 60
        where = printable(str(out), spaces=False)
        if step < steps:
            self._line(f"tinytf: stopped {where} at step {step:,} of {steps:,}; --resume goes on")
        else:
            self._line(f"tinytf: wrote {where} after {minutes:.1f} minutes")
