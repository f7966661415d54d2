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
        rows.append(self._terminal_row())
        rows += [_place(one) for one in found.places]
        rows += [_extra(one) for one in found.extras]
        yield Table(
            [
                Column("what", [Span(name, "strong") for name, _, _ in rows]),
                Column("here", [state for _, state, _ in rows], shrink=12),
                Column("about", [Span(printable(more, spaces=False), "dim") for _, _, more in rows], shrink=12),
            ],
            header=False,
        )
        for name, value in found.variables.items():
            yield Line(Span(f"{name}={printable(value, spaces=False)}", "dim"), indent=2)

    def _terminal_row(self) -> tuple[str, Cell, str]:
        screen = self.screen
        colours = f"{screen.depth} colours, {screen.theme}" if screen.coloured else "no colours"
        drawn = "7-bit characters" if screen.ascii else "Unicode"
        pager = f"pager {Path(self.pager[0]).name}" if self.pager else "no pager"
        size = f"{screen.width} × {screen.height}"
        return "terminal", size if screen.cuts else "none", f"{colours}, {drawn}, {pager}"


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
