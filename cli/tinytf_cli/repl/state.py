"""What a session is at one moment, whole and unchangeable, so that a change can be taken back."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tinytf.trace.address import Address
from tinytf_cli.repl.settings import Settings

if TYPE_CHECKING:
    from tinytf.trace.conditions import Condition


@dataclass(frozen=True)
class Without:
    """Steps that a model runs without, by their addresses, and what is in their place."""

    at: tuple[str, ...]
    how: str = "zero"
    reference: str | None = None

    @property
    def words(self) -> str:
        source = f" over {self.reference}" if self.reference else ""
        return f"{', '.join(self.at)} ({self.how}{source})"


@dataclass(frozen=True)
class Spec:
    """How a model is opened, and what it runs without."""

    name: str = "tiny"
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0
    without: Without | None = None


@dataclass(frozen=True)
class Run:
    """One text through one model."""

    spec: Spec
    text: str
    truncate: bool = False
    force: bool = False


@dataclass(frozen=True)
class Stop:
    """Where ``continue`` stops: at the steps of ``where`` (None: at every step), if ``condition`` holds there."""

    number: int
    word: str
    where: Address | None
    condition: "Condition | None"

    @property
    def words(self) -> str:
        parts = [str(self.where)] if self.where else ["every step"]
        return " if ".join([*parts, self.condition.text] if self.condition else parts)


@dataclass(frozen=True)
class State:
    """Everything that ``undo`` brings back; ``runs`` are the last two, the present one last."""

    spec: Spec = field(default_factory=Spec)
    runs: tuple[Run, ...] = ()
    settings: Settings = field(default_factory=Settings)
    stops: tuple[Stop, ...] = ()
    displays: tuple[str, ...] = ()
    number: int = 0
    """How many stops there have been: the last one's number."""
