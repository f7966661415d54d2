"""The lessons that there are."""

from collections.abc import Iterator

from tinytf.lessons import NAMES, TITLES, LessonList
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Table
from tinytf_cli.views.draw import Display, draws


@draws(LessonList)
def lesson_list(report: LessonList, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Number, name and title of every lesson."""
    numbers = [str(number) for number in range(1, len(TITLES) + 1)]
    yield Table([Column("#", numbers, "right"), Column("lesson", NAMES), Column("", list(TITLES.values()))])
