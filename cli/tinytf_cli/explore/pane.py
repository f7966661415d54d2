"""A pane of the screen: a rule with a title, and painted lines below it, scrolled by whole lines."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tinytf_cli.paint.colour import role_style
from tinytf_cli.paint.painter import paint_segments
from tinytf_cli.paint.text import PaintedLine, cut, line_width, segments, shown
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Words


class Pane(Widget):
    """A scrolled pane of lines; ``on_chosen`` gets the line and column of a click.

    A pane with a ``corner`` has a rule with its title above it, and a rule to its left.
    """

    can_focus = False

    def __init__(self, id: str, terminal: Terminal, on_chosen: Callable[[int, int], None] | None = None) -> None:
        super().__init__(id=id)
        self.corner, self.active, self.top = "", False, 0
        self.extent = Region(0, 0, 0, 0)
        self.title: Words = ""
        self._terminal, self._chosen = terminal, on_chosen
        self._lines: list[PaintedLine] = []
        self._background: Style | None = None

    def place(self, area: Region, corner: str) -> None:
        """Put the pane into a region of the screen."""
        self.corner = corner
        if area != self.extent:
            self.extent = area
            self.styles.offset, self.styles.width, self.styles.height = (
                (area.x, area.y),
                area.width,
                area.height,
            )
            self.refresh()

    @property
    def has_rule(self) -> bool:
        """Whether there is a rule above the pane."""
        return bool(self.corner)

    @property
    def _margin(self) -> int:
        """The columns of the rule to the left and its space; 0 at the left edge of the screen."""
        return 2 if self.corner not in ("", "─") else 0

    @property
    def terminal(self) -> Terminal:
        """The terminal as large as the pane."""
        return replace(
            self._terminal, width=max(20, self.extent.width - self._margin), height=self.room, cuts=True, advises=False
        )

    @property
    def room(self) -> int:
        """The number of lines that fit."""
        return max(0, self.extent.height - self.has_rule)

    def show(self, blocks: Iterable[Block], title: Words = "", *, keep: tuple[int, int] | None = None) -> None:
        """Show blocks from the first line, or scrolled so that the second line of ``keep`` is visible.

        The first one is too, if both fit.
        """
        self.show_lines(paint_segments(blocks, self.terminal), title, keep=keep)

    def show_lines(
        self, lines: Iterable[Sequence[Segment]], title: Words = "", *, keep: tuple[int, int] | None = None
    ) -> None:
        """Show painted lines."""
        previous = self._visible_lines()
        self.title = title
        self._lines = [list(line) for line in lines]
        while self._lines and not any(segment.text.strip() for segment in self._lines[0]):
            del self._lines[0]
        if keep is None:
            self.top = 0
        elif keep[1] - keep[0] < self.room:
            self.top = max(keep[1] + 1 - self.room, min(self.top, keep[0]))
        elif not self.top <= keep[1] < self.top + self.room:
            self.top = keep[1] - self.room // 2
        self._draw(previous)

    def scroll_lines(self, by: int) -> None:
        """Scroll, no further than the ends."""
        previous = self._visible_lines()
        self.top += by
        self._draw(previous)

    def scroll_page(self) -> None:
        """Scroll by a page; from the end, back to the beginning."""
        self.scroll_lines(self.room - 1 if self.lines_below else -self.top)

    def _visible_lines(self) -> list[PaintedLine]:
        title = [self._title_line()] if self.has_rule else []
        return title + self._lines[self.top : self.top + self.room]

    def _title_line(self) -> PaintedLine:
        """The rule above the pane, with its title and the number of lines below the last visible one."""
        width, terminal = self.extent.width, self.terminal
        rule = role_style("strong" if self.active else "dim", terminal)
        more = [Segment(shown(f" {self.lines_below} more ", terminal), rule)] if self.lines_below else []
        lead = [Segment(shown(f"{self.corner}─ ", terminal), rule)]
        title = cut(segments(self.title, terminal), max(1, width - line_width([*lead, *more]) - 3), terminal)
        rest = width - line_width([*lead, *title, *more]) - 2
        return [
            *lead,
            *title,
            Segment(shown(" " + "─" * rest, terminal), rule),
            *more,
            Segment(shown("─", terminal), rule),
        ]

    def _draw(self, previous: list[PaintedLine]) -> None:
        """Redraw only the lines that changed: over a slow connection drawing dominates."""
        self.top = max(0, min(self.top, len(self._lines) - self.room))
        current, width = self._visible_lines(), self.extent.width
        for y in range(max(len(previous), len(current))):
            if previous[y : y + 1] != current[y : y + 1]:
                self.refresh(Region(0, y, width, 1))

    @property
    def line_count(self) -> int:
        """The number of lines."""
        return len(self._lines)

    @property
    def lines_below(self) -> int:
        """The number of lines below the last visible one."""
        return max(0, len(self._lines) - self.top - self.room)

    def render_line(self, y: int) -> Strip:
        if self._background is None:
            self._background = self.rich_style
        number = self.top + y - self.has_rule
        line = self._lines[number] if 0 <= number < len(self._lines) else []
        if number < self.top:
            line = self._title_line()
        elif self._margin:
            line = [Segment(shown("│ ", self._terminal), role_style("dim", self._terminal)), *line]
        return Strip(line).adjust_cell_length(self.size.width).apply_style(self._background)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.scroll_lines(-3)

    def on_click(self, event: events.Click) -> None:
        if self._chosen is not None and event.y >= self.has_rule:
            self._chosen(self.top + event.y - self.has_rule, event.x - self._margin)
