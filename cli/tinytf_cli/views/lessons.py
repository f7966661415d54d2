"""Several lessons, one after the other."""

from collections.abc import Iterator

from tinytf.lessons.course import Course
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.learn import LessonView


@draws(Course)
def course(report: Course, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The model and text, then each lesson."""
    yield from banner(report.live.model, report.live.encoding)
    for lesson in report.lessons:
        yield from LessonView(report.live, lesson).blocks(terminal)
