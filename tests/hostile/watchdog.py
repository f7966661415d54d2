"""Run a case in this process, and say what breaks the promise: a result, or one line and a hint."""

import io
import json
import os
import re
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from hostile.bases import read
from hostile.case import Case
from tinytf.training.data import cache

SECONDS, PATIENCE = 20, 120
"""Seconds of work that a case may take, and by the clock for one that waits: others may use the machine too."""
MOST = 2**30
"""Bytes that a case may need above what this process has."""
_FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OTHERS = re.compile(r"Warning:|^Traceback|panicked at|^  File ")
"""What Python and libraries say by themselves."""
_DRAWN = {
    ".html": "html head meta title style body pre code span div p table tr td th h1 h2 a br svg b i figure main",
    ".svg": "svg style defs clipPath rect g text path title desc circle line tspan animate set polyline",
}
_ACTING = re.compile(r"^on|^(xlink:)?href$")


class Hang(BaseException):
    """A case that took too long; no handler of errors may keep it."""


@dataclass(frozen=True)
class Tried:
    """What became of a case: a fault or nothing, whether it hung, its seconds of work, bytes above those before.

    ``status`` is the exit status.
    """

    fault: str
    hung: bool = False
    seconds: float = 0
    peak: int = 0
    status: int | None = None


class _Stream(io.TextIOWrapper):
    def __init__(self, data: bytes = b"") -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8", errors="strict", newline="")

    def got(self) -> bytes:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


def tried(case: Case) -> Tried:
    """Run one case in a folder of its own, in this process."""
    with _folder() as folder:
        _make(folder, case)
        unchanged = [(folder / name, state_of(folder / name)) for name in case.unchanged]
        out, err, before = _Stream(), _Stream(), _reset_peak()
        began, status, escaped = time.process_time(), -1, ""
        around = _streams(out, err, _Stream(case.stdin)), _environment(case.environment)
        with _outside() as written, around[0], around[1], _alarm() as rang:
            try:
                status = _run(list(case.words))
            except Hang:
                pass
            except BaseException as error:
                escaped = f"{type(error).__name__} left the command: {error}"
        seconds, peak = time.process_time() - began, _peak() - before
        try:
            fault = escaped or "".join(written) or fault_in(status, out.got(), err.got(), folder, case.lines)
        except ValueError as error:  # a stream that was closed
            fault = f"{error}"
        if changed := [path for path, state in unchanged if not state.items() <= state_of(path).items()]:
            fault = f"changed {changed}"
        for name, data in case.leaves.items():
            if not status and (folder / name).read_bytes() != data:
                fault = f"{name} is not what it should be"
        if rang:
            fault = "still at work, or waiting"
        elif peak > MOST:
            fault = f"{peak >> 20:,} MB of memory"
        return Tried(fault, bool(rang), seconds, peak, status)


def left(case: Case) -> dict[str, bytes]:
    """The files of a sound case after it has run."""
    out, err = _Stream(), _Stream()
    with _folder() as folder:
        _make(folder, case)
        with _streams(out, err, _Stream()), _environment(case.environment):
            assert _run(list(case.words)) == 0, err.got().decode()
        return dict(read(folder))


def fault_in(status: int, data: bytes, said: bytes, folder: Path, lines: int = 1) -> str:
    """What is wrong with what a command left, which had so many lines to run; empty where all is as it should be."""
    try:
        out, err = data.decode("utf-8"), said.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"what it wrote is no UTF-8: {error}"
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if "fault of tinytf" in err or "Traceback" in err:
        return err[:400]
    errors = err.count("tinytf: error: ")
    if max(errors, err.count("\nhint: ")) > lines:
        return f"more than one line and a hint: {err[:400]!r}"
    if status and not errors and not out and "tinytf: wrote" not in err:
        return f"status {status} without a word: {err[:400]!r}"
    if strange := [line for line in err.splitlines() if _OTHERS.search(line)]:
        return f"not said by tinytf: {strange[0][:400]!r}"
    for name, text in (("stdout", _COLOUR.sub("", out)), ("stderr", err)):
        if acting := acting_in(text):
            return f"{name} holds {acting}"
    if (folder / "owned").exists():
        return "it ran somebody's code"
    for path in sorted(folder.glob("out.*")):
        if wrong := _wrong_in(path):
            return f"{path.suffix[1:]}: {wrong}"
    return ""


def state_of(path: Path) -> dict[Path, object]:
    """What tells whether a file or folder, or something in it, has been changed; files may be added to a folder."""
    found: dict[Path, object] = {}
    for place in [path, *(path.rglob("*") if path.is_dir() else ())]:
        with suppress(OSError):
            status = place.lstat()
            readable = stat.S_ISREG(status.st_mode) and os.access(place, os.R_OK)
            found[place] = status.st_ino, status.st_mode, status.st_uid, place.read_bytes() if readable else b""
    return found


def acting_in(text: str) -> str:
    """The first character that could act on a terminal or hide, with what is around it; line ends are none."""
    place = next((n for n, char in enumerate(text) if char != "\n" and unicodedata.category(char) in _FORBIDDEN), None)
    return "" if place is None else ascii(text[max(0, place - 20) : place + 20])


def _wrong_in(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix in (".safetensors", ".npz", ""):
        return ""
    text = data.decode("utf-8")
    if acting := acting_in(text):
        return f"holds {acting}"
    if path.suffix == ".json":
        json.loads(text)
    if path.suffix == ".ndjson":
        for line in text.splitlines():
            json.loads(line)
    if path.suffix not in _DRAWN:
        return ""
    drawn = _Drawn()
    if path.suffix == ".svg":
        for element in ElementTree.fromstring(text).iter():
            drawn.handle_starttag(element.tag.rpartition("}")[2], [(key, "") for key in element.attrib])
    else:
        drawn.feed(text)
    if strange := drawn.tags - set(_DRAWN[path.suffix].split()):
        return f"holds {sorted(strange)}"
    return f"has {sorted(drawn.acting)}" if drawn.acting else ""


class _Drawn(HTMLParser):
    """The tags of a picture, and the attributes that do something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.acting = set[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.acting |= {name for name, _ in attrs if _ACTING.search(name)}


def _run(words: list[str]) -> int:
    from tinytf_cli.main import run

    return run(words)


@contextmanager
def _folder() -> Iterator[Path]:
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="tinytf-hostile-"))
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def _make(folder: Path, case: Case) -> None:
    for name, made in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(made):
            made(path)
        else:
            path.write_bytes(made)


@contextmanager
def _streams(out: _Stream, err: _Stream, stdin: _Stream) -> Iterator[None]:
    before = sys.stdout, sys.stderr, sys.stdin
    sys.stdout, sys.stderr, sys.stdin = out, err, stdin
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.stdin = before


@contextmanager
def _outside() -> Iterator[list[str]]:
    """What is written to the process's own stderr, past Python: by a library in Rust or C++."""
    written: list[str] = []
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield written
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            if data := file.read(400):
                written.append(f"written past tinytf: {data!r}")


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({"TINYTF_CACHE": "", **more})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _alarm() -> Iterator[list[bool]]:
    """Raise Hang after so many seconds, and each second again should it be kept; what is yielded is true then."""
    rang: list[bool] = []

    def ring(number: int, frame: FrameType | None) -> None:
        rang.append(True)
        raise Hang

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE)}
    before = {number: signal.signal(number, ring) for number in clocks}
    for clock, seconds in clocks.values():
        signal.setitimer(clock, seconds, 1)
    try:
        yield rang
    finally:
        for number, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(number, before[number])


@contextmanager
def watched() -> Iterator[None]:
    """For many cases: memory has an end, and nobody waits for somebody at the other end of a pipe."""
    with ExitStack() as stack:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + 3 * MOST, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_AS, (soft, hard))
        stack.enter_context(_patience())
        stack.enter_context(patch.object(cache, "MIN_TEXT_BYTES", 1))  # texts of any size are kept in a cache
        yield


@contextmanager
def _patience() -> Iterator[None]:
    from tinytf import files

    before = getattr(files, "_SECONDS_FOR_THE_OTHER_END", None)
    files._SECONDS_FOR_THE_OTHER_END = 0.02
    try:
        yield
    finally:
        if before is not None:
            files._SECONDS_FOR_THE_OTHER_END = before


def _reset_peak() -> int:
    """The memory that this process has, after Linux was told to count its peak from here."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return _peak()


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    """A line of Linux's own account of this process, in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
