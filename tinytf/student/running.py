"""Running a student's module on ids, with what its forward takes beside them."""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.student.opened import Student, running

STARTS = ("start_pos", "input_pos", "position", "pos", "offset", "start")
"""What a forward calls the position of its first token."""
_TARGETS = ("targets", "target", "labels", "y")


class Runner:
    """Calls the module, each time with another random seed.

    ``given`` says what its forward was handed beside the ids, because it has no default.
    """

    def __init__(self, student: Student) -> None:
        self.student, self.module = student, student.module
        self.calls = 0
        self.given: tuple[str, ...] = ()
        self.takes = inspect.signature(student.module.forward).parameters
        named = [one for one in self.takes.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        self.required = [one.name for one in named if one.default is one.empty][1:]

    def __call__(self, ids: Tensor, **more: Any) -> Any:
        filled = {name: self._fill(name, ids) for name in self.required if name not in more}
        self.calls += 1
        with running(self.student.file, seed=self.calls):
            return self.module(ids, **filled, **more)

    def with_dropout(self, rate: float) -> "Runner | None":
        """This runner in evaluation mode with dropout, which should make no difference; None where there is none."""
        made = self.student.with_dropout(rate)
        return None if made is None else Runner(replace(self.student, module=made))

    def at_all_positions(self, ids: Tensor) -> Any:
        """What forward gives with targets, where it takes them: without, many files give the last position alone."""
        name = next((one for one in _TARGETS if one in self.takes), None)
        return self(ids) if name is None else self(ids, **{name: ids})

    def _fill(self, name: str, ids: Tensor) -> Any:
        length = ids.shape[1]
        if "mask" in name:
            value: Any = torch.ones(length, length).tril()[None, None]  # (1, 1, Q, K)
            said = f"{name}: 1 where a token may look, 0 after it"
        elif name in STARTS:
            value, said = 0, f"{name}: 0"
        elif name in _TARGETS:
            value, said = ids, f"{name}: the ids"
        else:
            raise UsageError(f"forward takes {name}, and tinytf cannot know what that is", "give it a default")
        self.given = tuple(dict.fromkeys((*self.given, said)))
        return value
