"""A pane of the screen: a title in a rule, and painted lines below it, scrolled by whole lines."""

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
    """Lines, and what a click does: ``on_chosen`` gets the line and column of a click, in the lines.

    A pane with a ``corner`` has a title in a rule above it, and a rule to its left.
    """

    can_focus = False

    def __init__(self, id: str, terminal: Terminal, on_chosen: Callable[[int, int], None] | None = None) -> None:
        super().__init__(id=id)
        self.corner, self.active, self.top = "", False, 0
        self.extent = Region(0, 0, 0, 0)
        self.title: Words = ""
        self._terminal, self._chosen = terminal, on_chosen
        self._lines: list[PaintedLine] = []
        self._ground: Style | None = None

    def put(self, where: Region, corner: str) -> None:
        """Stand somewhere on the screen."""
        self.corner = corner
        if where != self.extent:
            self.extent = where
            self.styles.offset, self.styles.width, self.styles.height = (where.x, where.y), where.width, where.height
            self.refresh()

    @property
    def ruled(self) -> bool:
        """Whether there is a rule above; one to the left is where it does not begin at the edge."""
        return bool(self.corner)

    @property
    def _margin(self) -> int:
        """The columns of the rule to the left, and a space."""
        return 2 if self.corner not in ("", "─") else 0

    @property
    def terminal(self) -> Terminal:
        """What the pane can show."""
        return replace(self._terminal, width=max(20, self.extent.width - self._margin), height=self.room, cuts=True)

    @property
    def room(self) -> int:
        """How many lines are in sight."""
        return max(0, self.extent.height - self.ruled)

    def show(self, blocks: Iterable[Block], title: Words = "", *, keep: int | None = None) -> None:
        """Show blocks, from the first line, or scrolled so that the line ``keep`` is in sight."""
        self.show_lines(paint_segments(blocks, self.terminal), title, keep=keep)

    def show_lines(self, lines: Iterable[Sequence[Segment]], title: Words = "", *, keep: int | None = None) -> None:
        """Show painted lines."""
        before = self._in_sight()
        self.title = title
        self._lines = [list(line) for line in lines]
        while self._lines and not any(segment.text.strip() for segment in self._lines[0]):
            del self._lines[0]
        if keep is None:
            self.top = 0
        elif not self.top <= keep < self.top + self.room:
            self.top = keep - self.room // 2
        self._draw(before)

    def scroll_lines(self, by: int) -> None:
        """Scroll, no further than the ends."""
        before = self._in_sight()
        self.top += by
        self._draw(before)

    def scroll_page(self) -> None:
        """Scroll by what is in sight; from the end to the beginning."""
        self.scroll_lines(self.room - 1 if self.hidden else -self.top)

    def _in_sight(self) -> list[PaintedLine]:
        head = [self._head()] if self.ruled else []
        return head + self._lines[self.top : self.top + self.room]

    def _head(self) -> PaintedLine:
        """The rule above the pane, with its title, and how many lines there are below the last one in sight."""
        width, terminal = self.extent.width, self.terminal
        rule = role_style("strong" if self.active else "dim", terminal)
        more = [Segment(shown(f" {self.hidden} more ", terminal), rule)] if self.hidden else []
        lead = [Segment(shown(f"{self.corner}─ ", terminal), rule)]
        title = cut(segments(self.title, terminal), max(1, width - line_width([*lead, *more]) - 3), terminal)
        left = width - line_width([*lead, *title, *more]) - 2
        return [
            *lead,
            *title,
            Segment(shown(" " + "─" * left, terminal), rule),
            *more,
            Segment(shown("─", terminal), rule),
        ]

    def _draw(self, before: list[PaintedLine]) -> None:
        """Draw the lines that are no longer what they were: over a slow line that is what takes time."""
        self.top = max(0, min(self.top, len(self._lines) - self.room))
        now, width = self._in_sight(), self.extent.width
        for y in range(max(len(before), len(now))):
            if before[y : y + 1] != now[y : y + 1]:
                self.refresh(Region(0, y, width, 1))

    @property
    def count(self) -> int:
        """How many lines there are."""
        return len(self._lines)

    @property
    def hidden(self) -> int:
        """How many lines are below the last one in sight."""
        return max(0, len(self._lines) - self.top - self.room)

    def render_line(self, y: int) -> Strip:
        if self._ground is None:
            self._ground = self.rich_style
        number = self.top + y - self.ruled
        line = self._lines[number] if 0 <= number < len(self._lines) else []
        if number < self.top:
            line = self._head()
        elif self._margin:
            line = [Segment(shown("│ ", self._terminal), role_style("dim", self._terminal)), *line]
        return Strip(line).adjust_cell_length(self.size.width).apply_style(self._ground)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.scroll_lines(-3)

    def on_click(self, event: events.Click) -> None:
        if self._chosen is not None and event.y >= self.ruled:
            self._chosen(self.top + event.y - self.ruled, event.x - self._margin)
