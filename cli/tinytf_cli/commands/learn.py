"""``tinytf learn``: lessons on a text and a model of one's own."""

import sys
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from tinytf_cli.inputs import read_texts
from tinytf_cli.options import TRUNCATE, Opening, model_options, output_options
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.lessons.live import Live
    from tinytf.loading import Model


def _complete_lesson(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tinytf.lessons.titles import TITLES

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

    LESSON is a number or a name, such as 7 or softmax; without one it goes on where you left. On a terminal: space goes
    on, b back, a number answers, e explains a cell, q leaves. Elsewhere, and with --plain, the lessons are printed.
    """
    from tinytf.lessons.titles import NAMES, find
    from tinytf_cli.board import takes_pictures

    number = None if lesson is None else find(lesson)
    if listed:
        from tinytf_cli.views.learn import list_blocks, list_data, list_events

        output.show(Result(list_blocks, list_data, list_events))
        return
    live = _live(opening.open(), text, truncate=truncate, seed=opening.seed)
    on_screen = output.file is None and output.format == "text" and takes_pictures(output.terminal)
    if on_screen and sys.stdin is not None and sys.stdin.isatty():
        from tinytf_cli.lessons_screen import run_lessons

        run_lessons(live, number, output, fixed=bool(click.get_current_context().params.get("width")))
        return
    from tinytf.lessons import lesson as made
    from tinytf_cli.views.learn import LessonsView

    wanted = range(1, len(NAMES) + 1) if number is None else (number,)
    view = LessonsView(live, [made(one, live) for one in wanted])
    output.show(Result(view.blocks, view.data, view.events))


def _live(model: "Model", text: str | None, *, truncate: bool, seed: int) -> "Live":
    from tinytf.lessons.live import Live

    given = None if text is None else read_texts((text,), lines=False)[0]
    return Live(model, given, seed=seed, truncate=truncate)
