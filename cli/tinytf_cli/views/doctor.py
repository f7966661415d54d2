"""What there is here to work with, in twenty lines."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinytf.doctor import Checkup, Device, Extra, Place
from tinytf.text.printable import printable
from tinytf_cli.numbers import in_bytes, number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Line, Span, Table


class DoctorView:
    """A checkup, and the ``screen`` that it is shown on with its pager."""

    def __init__(self, found: Checkup, screen: Terminal, pager: Sequence[str] | None) -> None:
        self.found, self.screen, self.pager = found, screen, pager

    def _terminal(self) -> dict[str, Any]:
        screen = self.screen
        return {
            "screen": screen.cuts, "width": screen.width, "height": screen.height, "colours": screen.depth,
            "unicode": not screen.ascii, "theme": screen.theme, "pager": list(self.pager or ()),
        }  # fmt: skip

    def data(self) -> dict[str, Any]:
        return {**self.found.to_dict(), "terminal": self._terminal()}

    def events(self) -> Iterator[dict[str, Any]]:
        yield from self.found.events()
        yield {"type": "terminal", **self._terminal()}

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table: what it is, how it is, what is to be done."""
        found = self.found
        first, *others = (f"{name} {number}" for name, number in found.versions.items())
        yield Line([Span(first, "strong"), Span(f" · {found.system}")])
        yield Line(Span(" · ".join(others), "dim"))
        rows: list[tuple[str, Cell, str]] = [_device(one) for one in found.devices]
        rows.append(("threads", f"{found.threads} of {plural(found.cores, 'core')}", ""))
        rows.append(("terminal", self._terminal_words(), ""))
        rows += [_place(one) for one in found.places]
        rows += [_extra(one) for one in found.extras]
        yield Table(
            [
                Column("what", [Span(name, "strong") for name, _, _ in rows]),
                Column("here", [state for _, state, _ in rows], shrink=20),
                Column("about", [Span(printable(more, spaces=False), "dim") for _, _, more in rows], shrink=12),
            ],
            header=False,
        )
        for name, value in found.variables.items():
            yield Line(Span(f"{name}={printable(value, spaces=False)}", "dim"), indent=2)

    def _terminal_words(self) -> str:
        screen = self.screen
        size = f"{screen.width} × {screen.height}" if screen.cuts else f"none: {screen.width} columns"
        colours = f"{screen.depth} colours, {screen.theme}" if screen.coloured else "no colours"
        return ", ".join((size, colours, "7-bit characters" if screen.ascii else "Unicode",
                          f"pager {Path(self.pager[0]).name}" if self.pager else "no pager"))  # fmt: skip


def _device(one: Device) -> tuple[str, Cell, str]:
    memory = f" of {in_bytes(one.total)}" if one.total is not None else ""
    free = f", {in_bytes(one.free)}{memory} free" if one.free is not None else ""
    if one.check is None:
        return one.name, Span(f"fails: {printable(one.problem, spaces=False)}", "bad"), one.what + free
    worst = f"{one.check.what} of a trace, at most {number(one.check.difference, '%.1e')} apart"
    state = Span(f"works: {worst}", "good") if one.check.holds else Span(f"computes wrongly: {worst}", "bad")
    return one.name, state, one.what + free


def _place(one: Place) -> tuple[str, Cell, str]:
    shut = f", {one.closed} of them cannot be opened: see tinytf models" if one.closed else ""
    return one.name, f"{plural(one.models, 'model')}{shut}" if one.models else Span("no models", "dim"), one.folder


def _extra(one: Extra) -> tuple[str, Cell, str]:
    if one.version is None:
        return one.name, Span("missing", "bad"), f"for {one.needed_for}: {one.get}"
    return one.name, printable(one.version, spaces=False), f"for {one.needed_for}"
