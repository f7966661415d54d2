"""A session without a terminal: lines from options, files and pipes."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from tinytf.errors import TinytfError, UsageError
from tinytf.text.printable import printable
from tinytf_cli.paint.text import shown
from tinytf_cli.repl.outcome import Leave, Outcome
from tinytf_cli.repl.session import Session

Lines = Iterable[tuple[str, str]]
"""Each line behind the place where it stands: ``look.session line 3``."""

PROMPT = "tinytf> "


class Failed(Exception):
    """A line failed, and the script stops there."""

    def __init__(self, where: str, outcome: Outcome) -> None:
        super().__init__(where)
        self.where = where
        self.outcome = outcome


def run_lines(session: Session, lines: Lines, *, echo: bool, stop: bool, inside: bool = False) -> int:
    """Run lines in turn, blank ones left out; the answer is 0, 1 where one failed, or 130.

    ``stop`` ends at the first that fails; ``inside`` another line, by raising Failed, and says nothing.
    """
    status = 0
    for where, line in lines:
        if not line.strip():
            continue
        if echo:
            typed = shown(printable(line.rstrip(), spaces=False), session.terminal())
            session.streams.write(f"{PROMPT}{typed}\n")
        outcome = session.execute(line)
        if outcome.leave:
            if inside:
                raise Leave
            break
        if outcome.status == 0:
            continue
        if inside:
            raise Failed(where, outcome)
        if outcome.status == 130:  # whoever runs the script says so
            return 130
        session.say(outcome, f"{where}: ")
        if outcome.failure is None and outcome.status == 1 and session.streams.stderr is not None:
            session.streams.stderr.write(f"tinytf: {where}: a check did not hold\n")
        status = 1
        if stop:
            break
    return status


def commands(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Lines that were given as options."""
    for number, line in enumerate(lines, start=1):
        yield f"-c {number}", line


def read_script(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file; UsageError for one that cannot be read."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return _lines(file, path.name)


def read_stream(stream: BinaryIO) -> Iterator[tuple[str, str]]:
    """The lines of standard input, each as soon as it is there."""
    return _lines(stream, "line")


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    with stream:
        for number, data in enumerate(iter(lambda: stream.readline(), b""), start=1):
            where = f"line {number}" if name == "line" else f"{name} line {number}"
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise TinytfError(f"{where} is not UTF-8: byte 0x{data[error.start]:02x}") from None
            yield where, line.rstrip("\r\n")
