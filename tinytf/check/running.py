"""Run a student's module on ids, and fill in the other arguments of its forward."""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tinytf.check.opened import Student, running
from tinytf.errors import UsageError

STARTS = ("start_pos", "input_pos", "position", "pos", "offset", "start")
"""Names that files give to the position of the first token."""
_TARGETS = ("targets", "target", "labels", "y")
_SOURCES = ("source", "src", "memory", "enc", "encoder", "cross")
"""Words in names that files give to the states of an encoder, and to the mask of its tokens."""


class Runner:
    """Calls the module, each time with another random seed, and gives it the ``source`` that it reads, (S, C).

    ``filled_arguments`` describes the arguments besides the ids that forward was given because they have no default.
    """

    def __init__(self, student: Student, source: Tensor | None = None) -> None:
        self.student, self.module, self.source = student, student.module, source
        self.names_of_source = set() if source is None else {*_SOURCES}
        self.calls = 0
        self.filled_arguments: tuple[str, ...] = ()
        self.takes = inspect.signature(student.module.forward).parameters
        named = [p for p in self.takes.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.required = [p.name for p in named if p.default is p.empty or self._is_source(p.name)][1:]

    def __call__(self, ids: Tensor, **arguments: Any) -> Any:
        filled = {name: self._fill(name, ids) for name in self.required if name not in arguments}
        self.calls += 1
        with running(self.student.file, seed=self.calls):
            return self.module(ids, **filled, **arguments)

    def with_dropout(self, rate: float) -> "Runner | None":
        """This runner with dropout, in evaluation mode, where it should change nothing; None if it takes none."""
        module = self.student.with_dropout(rate)
        return None if module is None else Runner(replace(self.student, module=module), self.source)

    @property
    def takes_targets(self) -> str:
        """The name of the targets that forward takes; empty if it takes none."""
        return next((target for target in _TARGETS if target in self.takes), "")

    def at_all_positions(self, ids: Tensor, **arguments: Any) -> Any:
        """Run forward with targets where it takes them: without targets, many files return only the last position."""
        return self(ids, **{self.takes_targets: ids} if self.takes_targets else {}, **arguments)

    def _is_source(self, name: str) -> bool:
        return "mask" not in name and bool(set(name.split("_")) & self.names_of_source)

    def _fill(self, name: str, ids: Tensor) -> Any:
        length = ids.shape[1]
        if set(name.split("_")) & self.names_of_source:
            assert self.source is not None
            value: Any = torch.ones(1, 1, 1, len(self.source))
            description = f"{name}: 1 for every token of the source"
            if self._is_source(name):
                value, description = self.source.expand(len(ids), -1, -1), f"{name}: the states of the encoder"
        elif "mask" in name:
            value = torch.ones(length, length).tril()[None, None]  # (1, 1, Q, K)
            description = f"{name}: 1 where a token may look, 0 after it"
        elif name in STARTS:
            value, description = 0, f"{name}: 0"
        elif name in _TARGETS:
            value, description = ids, f"{name}: the ids"
        else:
            apart = "a model of two stacks is checked as two modules: --stack encoder, and --stack decoder"
            raise UsageError(
                f"forward takes {name}, which tinytf cannot fill in",
                "give it a default" if self.source is None else apart,
            )
        self.filled_arguments = tuple(dict.fromkeys((*self.filled_arguments, description)))
        return value
