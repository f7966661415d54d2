"""What a lesson consists of: words, addresses and numbers, all of them JSON."""

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

Figure: TypeAlias = "str | int | float"


@dataclass(frozen=True)
class Figures:
    """A small table of live numbers; the column ``share``, where there is one, holds shares of 1.

    Where there is no room for all rows, the first are shown, or of ``layers`` some from all depths.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[Figure, ...], ...]
    share: int | None = None
    layers: bool = False


@dataclass(frozen=True)
class Question:
    """To be answered before it is looked up. ``choices[answer]`` is right, and ``reveal`` says why.

    ``value`` is the right answer as numbers, where it is one.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    reveal: str
    value: tuple[float, ...] = ()


@dataclass(frozen=True)
class Lesson:
    """One step of the pipeline on a user's own text and model.

    ``why`` says what the step is for, ``pytorch`` is the line that does it. ``shown`` are addresses of the trace and
    ``figures`` a table, to look at before the question is answered; ``revealed`` and ``revealed_figures`` hold its
    answer. ``cell`` is a number of this step to explain, ``focus`` the place of the token that is asked about.
    """

    number: int
    name: str
    title: str
    why: str
    formula: str
    pytorch: str
    cell: str
    question: Question
    role: str = "residual"
    focus: int = 0
    shown: tuple[str, ...] = ()
    figures: Figures | None = None
    revealed: tuple[str, ...] = ()
    revealed_figures: Figures | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
