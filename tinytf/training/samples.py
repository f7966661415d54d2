"""What a model in training makes of the beginning of a text, a line each time in samples.jsonl; free of torch."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinytf.errors import TrainingError
from tinytf.files import write_whole
from tinytf.training.lines import rows_in

SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class Sample:
    """How the model after ``step`` steps went on from ``prompt``: with ``text``."""

    step: int
    prompt: str
    text: str


def read_samples(path: Path) -> Iterator[Sample]:
    """Every sample of a file in its order; lines that are none are passed over, and a file that is not there has none.

    Raises OSError for one that cannot be read.
    """
    for row in rows_in(path) if path.exists() else ():
        if isinstance(row.get("prompt"), str) and isinstance(row.get("text"), str):
            yield Sample(row["step"], row["prompt"], row["text"])


def keep_samples(path: Path, step: int) -> None:
    """Take away the samples of later steps: they are of work that was lost, and will come again. Raises OSError."""
    if path.exists():
        kept = (_line(sample) for sample in read_samples(path) if sample.step <= step)
        write_whole(path, "".join(kept).encode("ascii"))


def append_sample(path: Path, sample: Sample) -> None:
    """Add a sample, which is on the disk before a checkpoint of its step is. TrainingError when it cannot be."""
    try:
        with path.open("a", encoding="ascii", newline="\n") as lines:
            lines.write(_line(sample))
            lines.flush()
            os.fsync(lines.fileno())
    except OSError as error:
        raise TrainingError(
            f"cannot write to {path}: {error.strerror}", "make room, then go on with --resume"
        ) from None


def _line(sample: Sample) -> str:
    return json.dumps(vars(sample)) + "\n"
