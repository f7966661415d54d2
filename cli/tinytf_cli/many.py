"""Many texts: read from a file as a stream, answered in chunks, shared out among processes, and resumed.

A chunk is a fixed number of texts, whoever answers it, so that its batches and its numbers are always the same.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tinytf import outputs
from tinytf.errors import TinytfError, UsageError
from tinytf.files import open_bytes
from tinytf.report import Report
from tinytf_cli.command import parameters_of
from tinytf_cli.output import Output, write_file
from tinytf_cli.progress_line import progress_line
from tinytf_cli.views.draw import Display, Shown

if TYPE_CHECKING:
    from tinytf.text.chat import Written
    from tinytf.training.tuning.processes import Processes

Answer = Callable[[Sequence[Any]], Iterable[Report]]
"""Answers some texts: a report for each, in their order."""

Item = TypeVar("Item")
CHUNK = 32
"""Texts that are answered together."""
_PATIENCE = 86_400.0
"""Seconds that a process waits for the others: each works by itself for as long as its texts take."""
_RESULT = re.compile(rb'\{"type": "[a-z_]+", "result": ([0-9]+)[,}]')
_HEAD = b'{"type": "lines", "of": "'


@dataclass(frozen=True)
class LineFile:
    """The non-blank lines of a text file, or the texts of a table's rows, read as a stream in every pass."""

    documents: Any
    read: "Callable[[str], Written]"
    checksum: str

    def __iter__(self) -> "Iterator[Written]":
        return (self.read(text) for text in self.documents)

    def __len__(self) -> int:
        return len(self.documents)


def line_file(path: Path, read: "Callable[[str], Written]") -> LineFile:
    """The texts of a file. Raises UsageError for a file that cannot be read as texts, as ``find_files`` does."""
    from tinytf.text.corpus import Reading, find_files
    from tinytf.text.rows import TABLES

    corpus = find_files([path], Reading("line", "" if path.suffix.lower() in TABLES else None))
    return LineFile(corpus.documents(), read, corpus.files[0].sha256)


def _is_one_of_several() -> bool:
    """Whether the environment may ask for several processes; what it says is checked when they join."""
    return os.environ.get("WORLD_SIZE", "") not in ("", "1")


def claim_gpu() -> None:
    """Take the GPU of this process's number, where torchrun started several processes and there are GPUs."""
    if _is_one_of_several() and (local := os.environ.get("LOCAL_RANK", "0")).isdecimal():
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(int(local) % torch.cuda.device_count())


@contextmanager
def processes_of(output: Output) -> Iterator["Processes"]:
    """The processes that torchrun started, or this one alone.

    Raises UsageError for an environment that makes no sense, TrainingError if the others do not start or end early.
    """
    import torch

    from tinytf.training.tuning.processes import ALONE, processes

    if not _is_one_of_several():
        yield ALONE
        return
    with processes(torch.device("cpu"), timeout=_PATIENCE, on_note=output.note) as group:
        yield group


def answer_each(
    texts: "Iterable[Written]", answer: Answer, output: Output, kind: str, display: Display | None,
    resume: Path | None, of: Sequence[object],
) -> int:  # fmt: skip
    """Write the answer to each text, in order; ``kind`` is their plural. Returns the exit status, as ``draw_all`` does.

    Text and NDJSON are written as the answers come, other formats at the end. Several processes take chunks in turn,
    and the first one writes. With ``resume`` they go to that file, which is continued after the results that it has, if
    it was begun with the same options and texts, and the same models and data ``of``.
    """
    streams = output.format in ("text", "ndjson") and (output.file is None or output.format == "ndjson")
    if resume is not None:
        if output.wants_data:
            raise UsageError("--resume writes the results to its own file, as NDJSON", "leave out -o and --format")
        output, streams = replace(output, format="ndjson"), True
    with processes_of(output) as group:
        if group.count > 1 and not streams:
            raise UsageError("several processes write text or NDJSON", "add --format ndjson")
        done = 0 if resume is None else _results_in(resume, _identity(texts, of))
        with _progress(texts, output, resume) if group.writes else nullcontext(lambda _: None) as on_text:
            reports = _Reports(texts, answer, done, on_text)
            if not streams or (group.count == 1 and resume is None and output.file is None):
                return output.draw_all(reports.alone(), kind, True, display)
            parts = reports.among(group, lambda number, report: output.text_of(Shown(report, display), number))
            _write(parts, output, resume, group)
        holds = not group.any(not reports.holds)
    return 130 if reports.interrupted else 0 if holds else 1


class _Reports:
    """The reports of many texts, chunk by chunk; ``holds`` and ``interrupted`` are of those so far."""

    def __init__(self, texts: "Iterable[Written]", answer: Answer, done: int, on_text: Callable[[int], None]) -> None:
        self.texts, self.answer, self.done, self.on_text = texts, answer, done, on_text
        self.holds, self.interrupted = True, False

    def _chunks(self) -> "Iterator[tuple[int, Sequence[Written]]]":
        """The chunks, each with the number of its first text, from the one with the first text that is not done."""
        skipped = self.done // CHUNK
        chunks = enumerate(_in_tuples(self.texts, CHUNK))
        return ((number * CHUNK, chunk) for number, chunk in islice(chunks, skipped, None))

    def alone(self) -> Iterator[Report]:
        return (report for first, chunk in self._chunks() for _, report in self._answered(first, chunk))

    def among(self, group: "Processes", text_of: Callable[[int, Report], str]) -> Iterator[str]:
        """The answers as texts, in order, in the first process; the others yield nothing and answer their chunks."""
        for turn in _in_tuples(self._chunks(), group.count):
            own = self._answered(*turn[group.rank]) if group.rank < len(turn) else iter(())
            parts = (text_of(number, report) for number, report in own if number >= self.done)
            if group.count == 1:
                yield from parts
                continue
            for answers in group.gathered(list(parts)):
                yield from answers

    def _answered(self, first: int, chunk: "Sequence[Written]") -> Iterator[tuple[int, Report]]:
        """The reports of a chunk, whose first text has the number ``first``.

        An error names the text that it is about; the answers to those before it come first.
        """
        answers, count = self._together(chunk), 0
        while count < len(chunk) and not self.interrupted:
            try:
                report = next(answers)
            except UsageError:
                answers = self._one_by_one(first + count, chunk[count:])
                continue
            yield first + count, report
            count += 1
            self.holds, self.interrupted = self.holds and report.holds, report.interrupted
            self.on_text(first + count)

    def _together(self, chunk: "Sequence[Written]") -> Iterator[Report]:
        """The reports of a chunk; an answer that raises at once does so when the first is asked for."""
        yield from self.answer(chunk)

    def _one_by_one(self, first: int, texts: "Sequence[Written]") -> Iterator[Report]:
        for number, text in enumerate(texts, first + 1):
            try:
                yield from self.answer([text])
            except UsageError as error:
                error.message = f"text {number:,}: {error.message}"
                raise TextError(error.message, error.hint) from None


def _in_tuples(items: Iterable[Item], size: int) -> Iterator[tuple[Item, ...]]:
    remaining = iter(items)
    while some := tuple(islice(remaining, size)):
        yield some


class TextError(TinytfError):
    """One of many texts cannot be answered."""

    exit_status = UsageError.exit_status


@contextmanager
def _progress(texts: object, output: Output, resume: Path | None) -> Iterator[Callable[[int], None]]:
    """A function that shows how many texts are done, unless the answers themselves appear on the terminal."""
    shows = isinstance(texts, Sized) and (resume or output.file or not output.stdout.isatty())
    with progress_line(output.stderr if shows else None, "texts:") as on_progress:
        yield lambda done: on_progress(done, len(texts) if isinstance(texts, Sized) else done)


def _write(parts: Iterator[str], output: Output, resume: Path | None, group: "Processes") -> None:
    """Write all parts, in the first process."""
    if not group.writes:
        deque(parts, 0)
    elif resume is not None:
        count = 0
        with outputs.writing(resume, "give the same command again"), outputs.appending(resume) as file:
            for count, part in enumerate(parts, 1):  # noqa: B007 - counted
                file.write(part.encode("utf-8"))
                file.flush()
        output.note(f"wrote {count:,} results to {resume}")
    elif output.file is not None:
        size = write_file(output.file, (part.encode("utf-8") for part in parts))
        output.note(f"wrote {output.file} ({size:,} bytes)")
    else:
        with output.paged() as page:
            for number, part in enumerate(parts):
                page.write(["\n" if number and output.format == "text" else "", part])


def _identity(texts: object, of: Sequence[object]) -> str:
    """A checksum of all that the results depend on: the command with its options, the texts, and models."""
    from tinytf.resume_log import checksum

    context = click.get_current_context()
    beside = {"words", "lines", "resume", *(str(parameter.name) for parameter in parameters_of(Output))}
    options = {name: repr(value) for name, value in sorted(context.params.items()) if name not in beside}
    source = texts.checksum if isinstance(texts, LineFile) else [repr(text) for text in texts]  # type: ignore[attr-defined]
    return checksum(context.info_name, options, source, *of)


def _results_in(path: Path, identity: str) -> int:
    """How many results a file has; the last, which may be torn, is cut off. A new file is begun.

    Raises UsageError for a file with anything else in it.
    """
    outputs.require_outside(path)
    head = _HEAD + identity.encode("ascii") + b'"}\n'
    with outputs.writing(path):
        if not path.exists() or path.stat().st_size == 0:
            with outputs.appending(path) as file:
                file.write(head)
            return 0
        with open_bytes(path) as stream:
            first = stream.readline(len(head) + 1)
            if first != head:
                if first.startswith(_HEAD):
                    hint = "name a new file, or give the command that began this one"
                    raise UsageError(f"{path} has results of another model, of other texts or options", hint)
                raise UsageError(f"{path} is not a file of results", "name a new file")
            done, end, offset = 0, len(head), len(head)
            for line in stream:
                match = _RESULT.match(line)
                if match is None or int(match[1]) not in (done, done + 1):
                    break
                if int(match[1]) > done:
                    done, end = done + 1, offset
                offset += len(line)
        outputs.cut(path, end)
    return done
