"""The base of the explorers' screens: panes and input lines on the terminal's background, drawn for its size."""

from textual import events
from textual.app import App
from textual.geometry import Region
from textual.theme import Theme

from tinytf_cli.explore.pane import Pane
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS
from tinytf_cli.terminal import Terminal, too_small
from tinytf_cli.views.blocks import Line


class FullScreen(App[int]):
    """A screen of ``panes``, one of them its ``status``, that is drawn again when the terminal changes its size."""

    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Pane { position: absolute; display: none; }
    Input { position: absolute; height: 1; border: none; padding: 0; display: none; background: $background; }
    #offers { background: $background; }
    """

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self.terminal = terminal
        self.panes: dict[str, Pane] = {}
        background = BACKGROUNDS[terminal.theme]
        self.register_theme(
            Theme(
                "tinytf", primary="#5aa2ff", background=background, surface=background, panel=background,
                foreground=FOREGROUNDS[terminal.theme], dark=terminal.theme == "dark",
            )
        )  # fmt: skip
        self.theme = "tinytf"

    def on_resize(self, event: events.Resize) -> None:
        self.call_later(self.draw)  # Textual sets the new size after this handler

    def draw(self) -> None:
        """Draw all panes again, or say that the terminal is too small for them."""
        width, height = self.size
        if lines := too_small(width, height):
            for pane in self.panes.values():
                pane.display = False
            status = self.panes["status"]
            status.display = True
            status.place(Region(0, 0, width, height), "")
            status.show(map(Line, lines))
        else:
            self.draw_panes()

    def draw_panes(self) -> None:
        """Draw all panes in a terminal of sufficient size."""
        raise NotImplementedError
