"""Many texts, and many processes: texts in chunks, shared out among what torchrun started, answered in order."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.training.tuning.processes import Processes

_PATIENCE = 86_400.0
"""Seconds that a process waits for the others: each works by itself for as long as its texts take."""


@contextmanager
def processes_of(output: Output) -> Iterator["Processes"]:
    """The processes that torchrun started, or this one alone. Each takes the GPU of its number, if there are any.

    Raises TrainingError if the others do not start, or end early.
    """
    import torch

    from tinytf.training.tuning.processes import ALONE, processes, rank_and_count

    if rank_and_count()[1] == 1:
        yield ALONE
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    with processes(torch.device("cpu"), timeout=_PATIENCE, on_note=output.note) as group:
        yield group
