"""Where somebody left the lessons, kept where this system keeps the state of programs."""

from pathlib import Path

from tinytf.errors import CheckpointError
from tinytf.files import read_json, to_json, write_whole


class Place:
    """The number of a lesson in a small file. ``trouble`` is why it could not be written, or empty."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            from platformdirs import user_state_path

            path = user_state_path("tinytf", appauthor=False) / "learn.json"
        self.path, self.trouble = path, ""

    def read(self, most: int) -> int | None:
        """The lesson to go on with; None where there is no such file, or nothing sensible in it."""
        try:
            number = read_json(self.path).get("lesson")
        except (CheckpointError, OSError):
            return None
        return number if type(number) is int and 1 <= number <= most else None

    def write(self, number: int) -> None:
        """Remember a lesson; after a first failure nothing more is tried."""
        if self.trouble:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, to_json({"lesson": number}))
        except OSError as error:
            self.trouble = f"cannot remember the place in {self.path}: {error.strerror}"
