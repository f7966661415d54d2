"""The view of a recorder: its file as it is, so that it can be redirected into one."""

from collections.abc import Iterator

from tinytf.recorders import Recorder
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line
from tinytf_cli.views.draw import Display, draws


@draws(Recorder)
def recorder(report: Recorder, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The lines of the file."""
    yield from (Line(line, verbatim=True, whole=True) for line in report.text.splitlines())
