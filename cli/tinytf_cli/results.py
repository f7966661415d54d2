"""Show one result, or several of one kind, through one output."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tinytf.report import SCHEMA_VERSION, Report
from tinytf.tables import Array, Sheet, joined
from tinytf_cli.output import Output, Result
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.draw import Display


def show_all(output: Output, results: Iterable[Result], kind: str, lines: bool) -> None:
    """Show one result, or with ``lines`` several in turn.

    A stream shows each as soon as it is made; JSON and files join them into one.
    """
    streams = output.file is None and output.format in ("text", "ndjson")
    if lines:
        results = itertools.starmap(_numbered, enumerate(results))
    if not lines or streams:
        with output.paged() as paged:
            for place, result in enumerate(results):
                if place and output.format == "text":
                    paged.stdout.write("\n")
                paged.show(result)
        return
    output.show(_joined(list(results), kind))


def _numbered(number: int, result: Result) -> Result:
    """A result whose events say which of several it is."""

    def events() -> Iterator[dict[str, Any]]:
        for event in result.events():
            yield {"type": event["type"], "result": number, **event}

    return replace(result, events=events)


def show_views(
    output: Output, reports: Iterable[Report], kind: str, lines: bool, display: Display | None = None
) -> int:
    """Show each report as it is made. Returns the exit status: 1 where a check of one of them fails, else 0."""
    holds = True

    def results() -> Iterator[Result]:
        nonlocal holds
        for report in reports:
            holds = holds and report.holds
            yield Result.of(report, display)
            if report.interrupted:
                return

    show_all(output, results(), kind, lines)
    return 0 if holds else 1


def _joined(results: list[Result], kind: str) -> Result:
    def blocks(terminal: Terminal) -> Iterator[Any]:
        for place, result in enumerate(results):
            if place:
                yield Line("")
            yield from result.blocks(terminal)

    def data() -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "kind": kind, kind: [result.data() for result in results]}

    def events() -> Iterator[Any]:
        for result in results:
            yield from result.events()

    def stored() -> list[Array]:
        found = ((number, result.stored) for number, result in enumerate(results))
        return [replace(one, name=f"{number}/{one.name}") for number, of in found if of is not None for one in of()]

    def metadata() -> dict[str, Any]:
        return {"kind": kind, kind: [result.metadata() for result in results if result.metadata is not None]}

    def text(terminal: Terminal) -> "Iterator[Block | Span]":
        for place, result in enumerate(results):
            yield Span("\n" if place else "")
            yield from result.text(terminal) if result.text else ()

    def sheet(long: bool) -> Sheet | None:
        found = [result.sheet(True) if result.sheet else None for result in results]
        return joined(one for one in found if one) if any(found) else None

    return Result(
        blocks, data, events, stored, text if results[0].text else None, metadata=metadata, sheet=sheet
    )  # fmt: skip
