"""What works on this machine, in twenty lines."""

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
    """Versions, then a table of devices, the terminal, model folders and extras, with their state and a remedy."""
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
            Column("about", [Span(printable(remark, spaces=False), "dim") for _, _, remark in rows], shrink=12),
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


def _device(device: Device) -> tuple[str, Cell, str]:
    free = "" if device.free is None else f", {in_bytes(device.free)}"
    memory = f"{free} of {in_bytes(device.total)} free" if free and device.total is not None else free
    if device.check is None:
        return device.name, Span("fails", "bad"), f"{device.problem}; {device.what}{memory}"
    worst = f"{device.check.what} of a trace within {number(device.check.difference, '%.1e')}; {device.what}{memory}"
    return device.name, Span("works", "good") if device.check.holds else Span("computes wrongly", "bad"), worst


def _place(place: Place) -> tuple[str, Cell, str]:
    closed = f"{place.closed} cannot be opened, see tinytf models; " if place.closed else ""
    return (
        place.name,
        plural(place.models, "model") if place.models else Span("no models", "dim"),
        closed + place.folder,
    )


def _extra(extra: Extra) -> tuple[str, Cell, str]:
    if extra.version is None:
        return extra.name, Span("missing", "bad"), f"for {extra.needed_for}: {extra.get}"
    return extra.name, printable(extra.version, spaces=False), f"for {extra.needed_for}"
