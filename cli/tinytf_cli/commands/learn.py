"""``tinytf learn``: lessons on a text and a model of one's own."""

import sys

import click
from click.shell_completion import CompletionItem

from tinytf_cli.inputs import read_texts
from tinytf_cli.options import TRUNCATE, Opening, model_options, output_options
from tinytf_cli.output import Output, Result


def _complete_lesson(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tinytf.lessons import TITLES

    return [CompletionItem(name, help=title) for name, title in TITLES.items() if name.startswith(incomplete)]


@click.command("learn")
@click.argument("lesson", required=False, shell_complete=_complete_lesson)
@click.option("--text", metavar="TEXT", help="The text to learn on; - reads it from a pipe.")
@TRUNCATE
@click.option("--list", "listed", is_flag=True, help="Number, name and title of every lesson.")
@model_options
@output_options
def command(
    lesson: str | None, text: str | None, truncate: bool, listed: bool, opening: Opening, output: Output
) -> None:
    """Go through the pipeline in 21 lessons, each with real numbers and a question to answer first.

    LESSON is a number or a name, such as 7 or softmax; without one, continue where you left. On a terminal: space goes
    on, b back, a number answers, e explains a cell, q leaves. Elsewhere, and with --plain, the lessons are printed.
    """
    from tinytf.lessons import LessonList, find

    number = None if lesson is None else find(lesson)
    if listed:
        from tinytf_cli.views.learn import ListView

        output.show(Result.of(ListView(LessonList())))
        return
    from tinytf.lessons.course import Course
    from tinytf.lessons.live import Live
    from tinytf_cli.board import takes_pictures

    given = None if text is None else read_texts((text,), lines=False)[0]
    live = Live(opening.open(), given, seed=opening.seed, truncate=truncate)
    on_screen = output.file is None and output.format == "text" and takes_pictures(output.terminal)
    if on_screen and sys.stdin is not None and sys.stdin.isatty():
        from tinytf_cli.learn import run_lessons

        run_lessons(live, number, output, fixed=bool(click.get_current_context().params.get("width")))
        return
    from tinytf_cli.views.learn import CourseView

    output.show(Result.of(CourseView(Course.of(live, number))))
