"""Files for another program that write down its steps, for ``tinytf diff --versus``; none of them needs tinytf."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import Data, Report
from tinytf.sources import ASSETS
from tinytf.tables import ColumnStyle

RECORDERS = {
    "torch": "a PyTorch model, by forward hooks",
    "numpy": "arrays of numpy, one after the other",
    "jax": "arrays of JAX, also under jit",
    "mlx": "an MLX model, module by module",
    "vllm": "a model in vLLM, by forward hooks",
    "llama.cpp": "every tensor that llama.cpp computes, by its eval callback",
    "c": "arrays of C or C++, as lines of JSON",
}
"""What each records, by the program that it is for."""


@dataclass(frozen=True)
class Recorder(Report):
    """The ``text`` of a file to copy into a ``program``, which it needs and nothing of tinytf."""

    KIND = "recorder"

    program: str
    words: str
    text: str

    def fields(self) -> dict[str, Any]:
        return self.members("program", "words", "text")


@dataclass(frozen=True)
class Program(Data):
    """A ``program`` with a recorder, and what that ``records``."""

    COLUMNS: ClassVar = {"program": ColumnStyle("program", role="strong"), "records": ColumnStyle("records")}

    program: str
    records: str


@dataclass(frozen=True)
class Recorders(Report):
    """What there are recorders for."""

    KIND = "recorders"
    ROWS = "programs"
    EVENTS: ClassVar = {"programs": "program"}

    programs: tuple[Program, ...] = tuple(Program(*pair) for pair in RECORDERS.items())

    def fields(self) -> dict[str, Any]:
        return self.members("programs")


def recorder(program: str) -> Recorder:
    """The recorder for a program. Raises UsageError, with the nearest name, where there is none."""
    if program not in RECORDERS:
        known = ", ".join(RECORDERS)
        raise UsageError(f"there is no recorder for {program!r}", did_you_mean(program, RECORDERS, otherwise=known))
    text = (ASSETS / "recorders" / f"{program}.txt").read_text("utf-8")
    return Recorder(program=program, words=RECORDERS[program], text=text)
