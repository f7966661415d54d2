"""What the panes ask behind the screen: the answers to their lines, and the overview of a prediction."""

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

from tinytf_cli.explore.engine import Engine, Superseded
from tinytf_cli.explore.panels import LINES, Panel, Request
from tinytf_cli.explore.scene import Look
from tinytf_cli.repl.session import Outcome


class Answering:
    """Runs the lines of ``panels`` in the engine. ``present`` is the view on the screen, ``redraw`` draws it again.

    ``on_screen`` schedules work on the screen from the engine's thread.
    """

    def __init__(
        self,
        engine: Engine,
        panels: Mapping[str, Panel],
        present: Callable[[], Look],
        redraw: Callable[[], None],
        on_screen: Callable[[Callable[[], None]], None],
    ) -> None:
        self._engine, self._panels = engine, panels
        self._present, self._redraw, self._on_screen = present, redraw, on_screen

    def send(self, visible: Container[str]) -> None:
        """Run the lines of visible panes that do not show the present view yet, and read the lens at its token."""
        look = self._present()
        self._send_overview(look, look.scene.at_token(look.position))
        for name in LINES:
            panel = self._panels[name]
            comparing = look.comparing and look.scene.previous is not None and name != "difference"
            request = Request(LINES[name](look), look.scene, comparing)
            if name in visible and request != panel.request:
                panel.request = request
                self._send_request(panel, request, look, self._engine.text_number)
            elif name in visible and not panel.noted and panel.succeeded:
                panel.noted = True
                self._engine.submit(partial(self._engine.log_line, request.line, look.cursor), lambda *_: None)

    def _send_overview(self, look: Look, position: int) -> None:
        scene = look.scene
        if position in scene.overviews:
            return
        scene.overviews[position] = None

        def work() -> None:
            if scene is not self._present().scene:
                raise Superseded
            scene.overview(position)

        def done(_: object, error: Exception | None) -> None:
            if error is None:
                self._on_screen(self._redraw)
            else:
                del scene.overviews[position]

        self._engine.submit(work, done)

    def _send_request(self, panel: Panel, request: Request, look: Look, number: int) -> None:
        def work() -> list[Outcome]:
            if panel.request is not request:
                raise Superseded
            outcomes = self._engine.answers(request.line, request.scene, request.comparing, number)
            if not panel.noted and outcomes[0].failure is None:
                panel.noted = True
                self._engine.log_line(request.line, look.cursor)
            return outcomes

        def done(outcomes: Any, error: Exception | None) -> None:
            if error is None:
                self._on_screen(lambda: panel.answer(look, *outcomes) if panel.request is request else None)
            elif panel.request is request:
                panel.request = None

        self._engine.submit(work, done)
