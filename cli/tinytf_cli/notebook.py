"""Reports in Python: printed as their command prints them, and as HTML in a notebook."""

import sys
from typing import TYPE_CHECKING

from tinytf.errors import UsageError
from tinytf.report import Report
from tinytf_cli.output import Output
from tinytf_cli.terminal import Terminal, detect
from tinytf_cli.views.draw import blocks_of

if TYPE_CHECKING:
    from tinytf.look.page import TracePage


def show(report: Report) -> None:
    """Print what the command of the report prints. Raises as ``blocks_of`` does."""
    Output(detect(sys.stdout), stdout=sys.stdout).draw(report)


def page(report: "TracePage") -> str:
    """A page of explained numbers, as HTML."""
    from tinytf_cli.page import page as drawn

    return drawn(report)


def html(report: Report) -> str | None:
    """A report as an HTML fragment in true colour; None for a report without a view."""
    from tinytf_cli.paint.painter import paint
    from tinytf_cli.picture import fragment

    screen = Terminal(depth="truecolor", cuts=True)
    try:
        return fragment(paint(blocks_of(report, screen), screen), screen)
    except UsageError:
        return None
