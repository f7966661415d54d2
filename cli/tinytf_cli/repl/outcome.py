"""What comes of a line."""

from dataclasses import dataclass

from tinytf_cli.failing import Failure


@dataclass(frozen=True)
class Outcome:
    """What came of a line."""

    status: int
    text: str = ""
    failure: Failure | None = None
    seconds: float = 0.0
    leave: bool = False


class Leave(Exception):
    """The session is over."""
