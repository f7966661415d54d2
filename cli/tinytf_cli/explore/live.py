"""The text that is being edited: each change is run, and only the last one is shown."""

import time
from collections.abc import Callable
from typing import Any

from tinytf_cli.explore.engine import Engine, Superseded
from tinytf_cli.explore.scene import Scene
from tinytf_cli.failing import explained


class LiveText:
    """Runs texts in the engine. ``show`` gets the scene of each and the seconds it took, ``say`` an error.

    ``on_screen`` schedules work on the screen from the engine's thread.
    """

    def __init__(
        self,
        engine: Engine,
        show: Callable[[Scene, float], None],
        say: Callable[[str], None],
        on_screen: Callable[[Callable[[], None]], None],
    ) -> None:
        self._engine, self._show, self._say, self._on_screen = engine, show, say, on_screen
        self._last_text, self._is_source = "", False

    def begin(self, text: str, *, source: bool = False) -> None:
        """Begin with the text on the screen, or with the ``source`` that its model reads."""
        self._engine.text_number += 1
        self._last_text, self._is_source = text, source

    def run(self, text: str) -> None:
        """Run a text, unless it is the last one asked for."""
        if text == self._last_text:
            return
        self._last_text = text
        self._engine.text_number += 1
        number, start, source = self._engine.text_number, time.perf_counter(), self._is_source

        def done(scene: Any, error: Exception | None) -> None:
            if error is None:
                self._on_screen(lambda: self._show(scene, time.perf_counter() - start))
            elif not isinstance(error, Superseded):
                self._on_screen(lambda: self._say(explained(error).message))

        self._engine.submit(lambda: self._engine.run_live(text, number, source=source), done)

    def finish(self, text: str) -> None:
        """Run a text and make it a line of the session."""
        self.run(text)  # after a burst of keys, its last change has not been run yet
        self._engine.submit(self._engine.commit_live, lambda *_: None)
