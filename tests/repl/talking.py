"""A session that a test talks to."""

from dataclasses import dataclass

from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.streams import Capture

SENTENCE = "The cat sat on the"


@dataclass
class Talk:
    """A session and what it says."""

    session: Session
    out: Capture
    err: Capture

    def __call__(self, *lines: str) -> str:
        """What the last line writes; every line has to be done."""
        text = ""
        for line in lines:
            outcome = self.session.execute(line)
            assert outcome.status == 0, (line, outcome)
            text = outcome.text
        return text

    def fails(self, line: str, status: int = 2) -> Outcome:
        """What comes of a line that fails, and leaves no traceback."""
        outcome = self.session.execute(line)
        assert outcome.status == status, outcome
        assert outcome.failure is not None
        assert "fault of tinytf" not in outcome.failure.hint, outcome
        return outcome
