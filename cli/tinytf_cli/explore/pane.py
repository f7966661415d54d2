"""A pane of the screen: painted lines, scrolled by whole lines."""

from collections.abc import Callable, Iterable, Sequence

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Pane(Widget):
    """Lines, and what a click does: ``on_chosen`` gets the line and column, in the lines, of a click."""

    can_focus = False

    def __init__(self, *, id: str, on_chosen: Callable[[int, int], None] | None = None) -> None:
        super().__init__(id=id)
        self._strips: list[Strip] = []
        self._chosen = on_chosen
        self.top = 0

    def show(self, lines: Iterable[Sequence[Segment]], *, keep: int | None = None) -> None:
        """Show other lines, from the first one, or scrolled so that the line ``keep`` is in sight."""
        before = self._in_sight()
        self._strips = [Strip(line) for line in lines]
        if keep is None:
            self.top = 0
        elif not self.top <= keep < self.top + self.size.height:
            self.top = keep - self.size.height // 2
        self._draw(before)

    def show_text(self, text: str) -> None:
        """Show lines with escape codes."""
        lines = (Text.from_ansi(line, no_wrap=True, end="") for line in text.splitlines())
        self.show([*line.render(self.app.console)] for line in lines)

    def scroll_lines(self, by: int) -> None:
        """Scroll, no further than the ends."""
        before = self._in_sight()
        self.top += by
        self._draw(before)

    def _in_sight(self) -> list[Strip]:
        return self._strips[self.top : self.top + self.size.height]

    def _draw(self, before: list[Strip]) -> None:
        """Draw the lines that are no longer what they were: over a slow line that is what takes time."""
        self.top = max(0, min(self.top, len(self._strips) - self.size.height))
        now, width = self._in_sight(), self.size.width
        for y in range(max(len(before), len(now))):
            if before[y : y + 1] != now[y : y + 1]:
                self.refresh(Region(0, y, width, 1))

    @property
    def count(self) -> int:
        """How many lines there are."""
        return len(self._strips)

    @property
    def hidden(self) -> int:
        """How many lines are below the last one in sight."""
        return max(0, len(self._strips) - self.top - self.size.height)

    def render_line(self, y: int) -> Strip:
        number = self.top + y
        strip = self._strips[number] if number < len(self._strips) else Strip.blank(0)
        return strip.adjust_cell_length(self.size.width).apply_style(self.rich_style)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.scroll_lines(-3)

    def on_click(self, event: events.Click) -> None:
        if self._chosen is not None:
            self._chosen(self.top + event.y, event.x)
