"""Pages that fill the terminal, turned by single keys."""

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output import Output as Screen

from tinytf_cli.terminal import Terminal, too_small


class Paged(Protocol):
    """What the screen shows. Keys wait until it is ``ready``, after ``compute``. The key ``interrupt`` is Ctrl-C."""

    terminal: Terminal

    @property
    def keys(self) -> Mapping[Any, str]: ...
    @property
    def ready(self) -> bool: ...
    def compute(self) -> None: ...
    def press(self, key: str) -> bool: ...
    def lines(self, columns: int, rows: int) -> list[str]: ...


def screen_of(
    pages: Paged,
    width: int | None = None,
    *,
    input: Input | None = None,
    output: Screen | None = None,
    every: float | None = None,
) -> Application[None]:
    """The pages as an application that fills the terminal, up to ``width`` columns.

    It is redrawn after each key, and ``every`` so many seconds.
    """
    bindings = KeyBindings()
    waiting: deque[str] = deque()

    @bindings.add(Keys.Any, eager=True)  # eager: before the key bindings of prompt_toolkit, such as arrows
    def press(event: KeyPressEvent) -> None:
        waiting.append(pages.keys.get(event.key_sequence[0].key, "other"))
        take()

    def take() -> None:
        """Handle the waiting keys, until one needs a page that is not computed yet."""
        while waiting and pages.ready and not app.is_done:
            key = waiting.popleft()
            if key == "interrupt":
                app.exit(exception=KeyboardInterrupt())
            elif not pages.press(key):
                app.exit()

    @lru_cache(maxsize=1)
    def parsed(page: str) -> ANSI:
        return ANSI(page)

    def text() -> ANSI:
        columns, rows = app.output.get_size().columns, app.output.get_size().rows
        return parsed("\n".join(too_small(columns, rows) or pages.lines(min(columns, width or columns), rows)))

    def compute(app: Application[None]) -> None:
        """Compute the page after the screen has announced it. Keys pressed meanwhile wait."""
        if not pages.ready and not app.is_done:
            try:
                pages.compute()
            except Exception as error:
                app.exit(exception=error)
            take()
            app.invalidate()

    app: Application[None] = Application(
        Layout(Window(FormattedTextControl(text), always_hide_cursor=True)),
        key_bindings=bindings,
        full_screen=True,
        # The painter has already chosen colours that this terminal supports.
        color_depth=ColorDepth.DEPTH_8_BIT if pages.terminal.depth == "256" else ColorDepth.DEPTH_24_BIT,
        refresh_interval=every,
        after_render=compute,
        input=input,
        output=output,
    )
    return app
