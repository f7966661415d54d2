"""The front ends of a session: the prompt of a terminal, a plain one for a dumb terminal, and scripts."""

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from tinytf.errors import TinytfError, UsageError
from tinytf.files import open_bytes
from tinytf.text.printable import printable
from tinytf_cli.paint.text import shown
from tinytf_cli.repl.line import PROMPT
from tinytf_cli.repl.session import Outcome, Session

Lines = Iterable[tuple[str, str]]
"""Each line after its place: ``look.session line 3``."""

_USUAL_TERM = "windows" if sys.platform == "win32" else ""  # where TERM is not set
_SLOW = ("torch", "tokenizers", "safetensors.torch")


# At a terminal


def interact(session: Session) -> int:
    """Talk to the user at the terminal until they leave, and return the exit status.

    A thread imports what is slow while the first line is typed. Ctrl-C cannot interrupt it: an extension module whose
    import was interrupted cannot be imported again. Only the main thread gets Ctrl-C, which waits for the thread in the
    end. The thread imports nothing of tinytf, so that neither waits for a module that the other is importing.
    """
    imports = threading.Thread(target=_import_slow, name="imports")

    def begin() -> None:
        if imports.ident is None:
            imports.start()

    try:
        if os.environ.get("TERM", _USUAL_TERM) not in ("", "dumb", "unknown"):
            from tinytf_cli.repl import prompt

            return prompt.interact(session, begin)
        begin()
        return plainly(session)
    finally:
        while imports.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                imports.join()


def _import_slow() -> None:
    for name in _SLOW:
        with contextlib.suppress(Exception):  # the command that needs it will say what is wrong
            importlib.import_module(name)


def plainly(session: Session) -> int:
    """Read lines without prompt_toolkit; Ctrl-C gives up a line or the running command, Ctrl-D leaves. Returns 0."""
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            session.streams.stdout.write("\n")
            return 0
        except KeyboardInterrupt:
            session.interrupt.happened = False
            session.streams.stdout.write("\n")
            continue
        outcome = session.execute(line)
        if outcome.leave:
            return 0
        session.say(outcome)


# From a script


def outcomes(session: Session, lines: Lines, *, echo: bool = False) -> Iterator[tuple[str, Outcome]]:
    """Run lines in turn, without blank ones: the place of each, and its outcome."""
    for where, line in lines:
        if not line.strip():
            continue
        if echo:
            typed = shown(printable(line.rstrip(), spaces=False), session.terminal())
            session.streams.write(f"{PROMPT}{typed}\n")
        yield where, session.execute(line)


def run_lines(session: Session, lines: Lines, *, echo: bool, stop: bool) -> int:
    """Run lines in turn, and return 0, 1 if one failed, or 130; ``stop`` ends at the first that fails."""
    status = 0
    for where, outcome in outcomes(session, lines, echo=echo):
        if outcome.leave:
            break
        if outcome.status == 130:  # the caller says so
            return 130
        if outcome.status == 0:
            continue
        session.say(outcome, f"{where}: ")
        if outcome.failure is None and session.streams.stderr is not None:
            session.streams.stderr.write(f"tinytf: {where}: a check did not hold\n")
        status = 1
        if stop:
            break
    return status


def read_script(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file; UsageError for one that cannot be read."""
    try:
        file = open_bytes(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return read_stream(file, f"{path.name} line")


def read_stream(stream: BinaryIO, name: str = "line") -> Iterator[tuple[str, str]]:
    """The lines of a stream, such as standard input, each as soon as it is there."""
    with stream:
        for number, data in enumerate(iter(stream.readline, b""), start=1):
            where = f"{name} {number}"
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise TinytfError(f"{where} is not UTF-8: byte 0x{data[error.start]:02x}") from None
            yield where, line.rstrip("\r\n")
