"""Output on its way to another program or to a file."""

import contextlib
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from tinytf.errors import TinytfError, UsageError
from tinytf_cli.joining import show_all
from tinytf_cli.output import EXTENSIONS, Output, require_place, write_file
from tinytf_cli.repl.heard import Ear, Heard
from tinytf_cli.repl.settings import Settings

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain_text(heard: Heard, settings: Settings) -> str:
    """What a line wrote, as it would have written it to a pipe."""
    if not heard.ear.isatty() or not heard.results or any(result.live for result, _ in heard.results):
        return _CODES.sub("", heard.ear.text) if heard.ear.isatty() else heard.ear.text
    paper = Ear(encoding="utf-8")
    terminal = settings.terminal(paper.stream, "never")
    for place, (result, form) in enumerate(heard.results):
        if place and form == "text":
            paper.write("\n")
        Output(terminal, form, stdout=paper.stream, stderr=None).show(result)
    return paper.text


def to_command(heard: Heard, command: str, stdout: TextIO, stderr: TextIO | None, settings: Settings) -> None:
    """Give what a line wrote to a command of the shell; TinytfError where it says that it failed."""
    data = plain_text(heard, settings).encode("utf-8", "backslashreplace")
    stdout.flush()
    on_screen = stdout.isatty()
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, stdout=None if on_screen else subprocess.PIPE
    )
    try:
        found, _ = process.communicate(data)
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
        process.wait()
        raise
    if found:
        stdout.write(found.decode("utf-8", "backslashreplace"))
        stdout.flush()
    if process.returncode:
        raise TinytfError(f"{command!r} ended with status {process.returncode}")


def to_file(heard: Heard, name: str, stderr: TextIO | None, settings: Settings, words: Iterable[str] = ()) -> None:
    """Write what a line of these words wrote, whole, in the form that the extension says: as -o does, or as text."""
    path = Path(name).expanduser()
    require_place(path, words)
    output = Output(settings.terminal(Ear().stream), "text", path, stderr=stderr)
    extension = path.suffix.lower()
    if extension in EXTENSIONS and extension != ".txt":
        if not heard.results:
            raise UsageError(f"there are no data to write to {path.name}", "a text file takes any output")
        show_all(output, [result for result, _ in heard.results], "outputs", len(heard.results) > 1)
        return
    data = plain_text(heard, settings).encode("utf-8", "backslashreplace")
    write_file(path, data)
    output.note(f"wrote {path} ({len(data):,} bytes)")
