"""What there is here to work with, in twenty lines."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinytf.doctor import Checkup, Device, Extra, Place
from tinytf.text.printable import printable
from tinytf_cli.numbers import in_bytes, number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Line, Span, Table
from tinytf_cli.views.draw import Display, draws


@draws(Checkup)
def doctor(report: Checkup, terminal: Terminal, display: Display) -> Iterator[Block]:
    """A table: what it is, how it is, what is to be done."""
    first, *others = (f"{name} {version}" for name, version in report.versions.items())
    yield Line([Span(first, "strong"), Span(f" · {report.system}")])
    yield Line(Span(" · ".join(others), "dim"))
    rows: list[tuple[str, Cell, str]] = [_device(device) for device in report.devices]
    rows.append(("threads", f"{report.threads} of {plural(report.cores, 'core')}", ""))
    rows += [_screen(report.terminal)] if report.terminal is not None else []
    rows += [_place(folder) for folder in report.places]
    rows += [_extra(extra) for extra in report.extras]
    yield Table(
        [
            Column("what", [Span(name, "strong") for name, _, _ in rows]),
            Column("here", [state for _, state, _ in rows], shrink=12),
            Column("about", [Span(printable(more, spaces=False), "dim") for _, _, more in rows], shrink=12),
        ],
        header=False,
    )
    for name, value in report.variables.items():
        yield Line(Span(f"{name}={printable(value, spaces=False)}", "dim"), indent=2)


def _screen(screen: Mapping[str, Any]) -> tuple[str, Cell, str]:
    colours = f"{screen['colours']} colours, {screen['theme']}" if screen["colours"] != "none" else "no colours"
    drawn = "Unicode" if screen["unicode"] else "7-bit characters"
    pager = f"pager {Path(screen['pager'][0]).name}" if screen["pager"] else "no pager"
    size = f"{screen['width']} × {screen['height']}" if screen["screen"] else "none"
    return "terminal", size, f"{colours}, {drawn}, {pager}"


def _device(one: Device) -> tuple[str, Cell, str]:
    free = "" if one.free is None else f", {in_bytes(one.free)}"
    memory = f"{free} of {in_bytes(one.total)} free" if free and one.total is not None else free
    if one.check is None:
        return one.name, Span("fails", "bad"), f"{one.problem}; {one.what}{memory}"
    worst = f"{one.check.what} of a trace within {number(one.check.difference, '%.1e')}; {one.what}{memory}"
    return one.name, Span("works", "good") if one.check.holds else Span("computes wrongly", "bad"), worst


def _place(one: Place) -> tuple[str, Cell, str]:
    shut = f"{one.closed} cannot be opened, see tinytf models; " if one.closed else ""
    return one.name, plural(one.models, "model") if one.models else Span("no models", "dim"), shut + one.folder


def _extra(one: Extra) -> tuple[str, Cell, str]:
    if one.version is None:
        return one.name, Span("missing", "bad"), f"for {one.needed_for}: {one.get}"
    return one.name, printable(one.version, spaces=False), f"for {one.needed_for}"
