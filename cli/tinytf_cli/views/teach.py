"""A pass told step by step."""

from collections.abc import Iterator

from tinytf.learn.teach import Taught
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Heading, Line, Span
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.learn import LessonView

_TABLE_ROWS = 6
"""The rows of a map or table."""


@draws(Taught)
def taught(report: Taught, terminal: Terminal, display: Display) -> Iterator[Block]:
    """For each lesson that is met on the way: its texts once, and the numbers of the steps; then where to read on."""
    live = report.live
    yield from banner(live.model, report.encoding)
    way = f"one way through: layer {live.layer}, head {live.head}, token {live.here} {live.token(live.here)}"
    yield Line(Span(way, "strong"))
    for part in report.parts:
        lesson = part.lesson
        yield Heading(", ".join(part.steps), f"{lesson.title}{', again' if part.again else ''}", lesson.role)
        view = LessonView(live, lesson)
        if not part.again:
            yield from view.why()
        yield from view.numbers(_TABLE_ROWS)
    names = ", ".join(dict.fromkeys(part.lesson.name for part in report.parts))
    yield Heading("read on", "", "attention")
    for command, about in (
        ("learn NAME", f"asks about a step: {names}"),
        ("explain TEXT ADDRESS", "shows the arithmetic of one number"),
        ("help words", "says what the words mean"),
    ):
        yield Line([Span(f"tinytf {command}", "strong"), Span(f"  {about}")], indent=2)
