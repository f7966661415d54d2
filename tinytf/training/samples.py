"""What a model in training makes of the beginning of a text, a line each time in samples.jsonl; free of torch."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinytf.errors import TrainingError
from tinytf.files import write_whole

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
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            row = json.loads(line)
            step, prompt, text = row["step"], row["prompt"], row["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if type(step) is int and isinstance(prompt, str) and isinstance(text, str):
            yield Sample(step, prompt, text)


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
