"""What ``tinytf learn`` remembers between sittings: the last lesson, and which questions were answered right."""

from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError
from tinytf.files import read_json, to_json
from tinytf.learn import NAMES
from tinytf.outputs import make_folder, write_state


class Bookmark:
    """A small file with the number of the last lesson, and for each answered one whether its last answer was right.

    ``unread`` is why the file could not be read and ``trouble`` why it could not be written, or empty.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            from platformdirs import user_state_path

            path = user_state_path("tinytf", appauthor=False) / "learn.json"
        self.path, self.unread, self.trouble = path, "", ""
        self.lesson: int | None = None
        """The lesson to continue with; None if there is none."""
        self.answers: dict[str, bool] = {}
        self._read()

    def _read(self) -> None:
        """Read the file; what it should not hold is ignored, with one line in ``unread``."""
        try:
            data: dict[str, Any] = read_json(self.path) if self.path.exists() else {"lesson": None}
        except (CheckpointError, OSError):
            self.unread = f"cannot read the place and the score in {self.path}, so they start anew"
            return
        number, answers = data.get("lesson"), data.get("answers", {})
        if type(number) is int and 1 <= number <= len(NAMES):
            self.lesson = number
        if isinstance(answers, dict):
            self.answers = {name: right for name, right in answers.items() if name in NAMES and type(right) is bool}
        if self.lesson != number or self.answers != answers:
            self.unread = f"part of {self.path} is no place or score of tinytf learn, and is ignored"

    def forget(self) -> None:
        """Forget the lesson and the answers."""
        self.answers = {}
        self.write(None)

    def write(self, number: int | None) -> None:
        """Save the number of a lesson, with the answers. After a first failure, do nothing."""
        if self.trouble:
            return
        try:
            make_folder(self.path.parent)
            write_state(self.path, to_json({"lesson": number, "answers": self.answers}))
        except OSError as error:
            self.trouble = f"cannot remember the place in {self.path}: {error.strerror}"
