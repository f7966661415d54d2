"""The film of a training run on a terminal, and its keys."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prompt_toolkit.keys import Keys

from tinytf.runs.film import Film
from tinytf_cli.film import fitting
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Line, Span
from tinytf_cli.views.frame import LAYOUTS, FrameView, Sight

KEYS = {
    " ": "play", Keys.Right: "next", Keys.Left: "back", Keys.Home: "first", Keys.End: "last",
    Keys.Up: "token back", Keys.Down: "token", Keys.Tab: "probe", Keys.ControlI: "probe",
    "h": "head", "H": "head back", "+": "faster", "-": "slower",
    Keys.Enter: "open", Keys.ControlJ: "open",
    "q": "leave", Keys.Escape: "leave", Keys.ControlD: "leave", Keys.ControlC: "interrupt", Keys.SIGINT: "interrupt",
}  # fmt: skip
SECONDS = 0.6
"""How long each frame is shown during play."""
_SHORT = {
    "←→": "step", "space": "play", "+ -": "speed", "↑↓": "token", "tab": "text", "h": "head", "Enter": "open",
    "q": "leave",
}  # fmt: skip


class Player:
    """Plays a film, or two in step. ``opened`` is the model to open in the explorer when the player exits."""

    keys = KEYS
    ready = True

    def __init__(self, films: Sequence[Film], terminal: Terminal) -> None:
        self.films, self.terminal = films, terminal
        self.steps = sorted({frame.step for film in films for frame in film.frames})
        self.index, self.playing, self.seconds, self.note = 0, False, SECONDS, ""
        self.sight = Sight(self.steps[0])
        self.opened: Path | None = None
        self._turned = time.monotonic()
        self._shown: object = None  # of what the lines below are
        self._lines: list[str] = []

    def compute(self) -> None: ...

    def press(self, key: str) -> bool:
        """Handle a key. Returns false to leave."""
        self.note = ""
        film = self.films[0]
        probe = film.probes[self.sight.probe]
        heads = film.frames[0].maps[probe.name].shape
        if key in ("next", "back", "first", "last"):
            self.playing = False
            self._turn({"next": self.index + 1, "back": self.index - 1, "first": 0, "last": len(self.steps)}[key])
        elif key == "play":
            self.playing, self._turned = not self.playing, time.monotonic()
            if self.playing and self.index == len(self.steps) - 1:
                self._turn(0)
        elif key in ("faster", "slower"):
            self.seconds = min(5.0, max(0.1, self.seconds * (0.7 if key == "faster" else 1.4)))
            self.note = f"{self.seconds:.1f} s a frame"
        elif key in ("token", "token back"):
            change = 1 if key == "token" else -1
            self.sight = replace(self.sight, token=(self.sight.token + change) % len(probe.tokens))
        elif key == "probe":
            self.sight = replace(self.sight, probe=(self.sight.probe + 1) % len(film.probes), token=0)
        elif key in ("head", "head back"):
            current = FrameView(self.films, self.sight).chosen(film)
            change = 1 if key == "head" else -1
            self.sight = replace(self.sight, head=(current + change) % (heads[0] * heads[1]))
        elif key == "open":
            return not self._open()
        return key != "leave"

    def _turn(self, index: int) -> None:
        self.index = max(0, min(index, len(self.steps) - 1))
        self.sight = replace(self.sight, step=self.steps[self.index])
        self._turned = time.monotonic()

    def _open(self) -> bool:
        """Open the model of the frame. Returns whether it was saved; if not, a note lists the frames that have one."""
        frame = self.films[0].at(self.sight.step)
        self.opened = frame.model
        if frame.model is None:
            saved = [f"{frame.step:,}" for frame in self.films[0].frames if frame.model is not None]
            others = f"; those of step {', '.join(saved)} were" if saved else ""
            self.note = f"the weights of step {frame.step:,} were not kept{others} (train --frames keeps all)"
        return frame.model is not None

    def _tick(self) -> None:
        """Turn to the next frame when it is due."""
        if self.playing and time.monotonic() - self._turned >= self.seconds:
            self._turn(self.index + 1)
            self.playing = self.index < len(self.steps) - 1

    def lines(self, columns: int, rows: int) -> list[str]:
        """The screen: exactly as many lines as it has. It is drawn anew where something on it changes."""
        self._tick()
        shown = (self.sight, self.playing, self.note, columns, rows)
        if shown != self._shown:
            self._shown, self._lines = shown, self._drawn(columns, rows)
        return self._lines

    def _drawn(self, columns: int, rows: int) -> list[str]:
        terminal = replace(self.terminal, width=max(20, columns))
        tried = (layout for layout in LAYOUTS if layout.maps <= max(rows, LAYOUTS[-1].maps))
        layouts = (FrameView(self.films, self.sight, layout).blocks(terminal) for layout in tried)
        visible = fitting(layouts, terminal, rows - 1)
        visible += [""] * (rows - 1 - len(visible))
        return [*visible, *paint([self._foot()], terminal)][:rows]

    def _foot(self) -> Line:
        if self.note:
            return Line(Span(self.note, "strong"), single=True)
        keys = {**_SHORT, "space": "stop" if self.playing else "play"}
        spans = [span for key, does in keys.items() for span in (Span(f"  {key}", "strong"), Span(f" {does}", "dim"))]
        return Line([Span(spans[0].text.lstrip(), "strong"), *spans[1:]], single=True)
