"""``tinytf learn``: lessons on your own text and model."""

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host, is_typed
from tinytf_cli.inputs import read_texts
from tinytf_cli.options import ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.text_options import asked_of, target_option

if TYPE_CHECKING:
    from tinytf.loading import Model

_TRANSLATOR = "tiny-translator"
"""The model of lessons about two stacks, unless another is named."""


def _complete_lesson(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tinytf.learn import TITLES

    return [CompletionItem(name, help=title) for name, title in TITLES.items() if name.startswith(incomplete)]


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    lesson: str | None = argument(required=False, shell_complete=_complete_lesson)
    text: str | None = option(metavar="TEXT", help="Text to use in the lessons; - reads it from a pipe.")
    target_text: str | None = target_option()
    truncate: bool = option(is_flag=True, help="Cut a text that is longer than the model's context.")
    listed: bool = option("--list", is_flag=True, help="List every lesson, with ✓ where you answered right.")
    reset: bool = option(is_flag=True, help="Forget where you left off and what you answered.")


@command("learn")
def learn(options: Options, model_options: ModelOptions, output: Output) -> None:
    """Each lesson shows real numbers, and asks a question before it shows the answer. LESSON is a number or a name,
    such as 7 or softmax; the default is where you left off. Keys on a terminal: space to go on, b to go back, a number
    to answer, e to explain a cell, q to quit. Elsewhere, and with --plain, the lessons are printed.
    """
    from tinytf.learn import NAMES, OF_TWO_STACKS, LessonList, find

    number = None if options.lesson is None else find(options.lesson)
    if options.listed or options.reset:
        from tinytf_cli.bookmark import Bookmark

        bookmark = Bookmark()
        if options.reset:
            bookmark.forget()
            output.note(bookmark.trouble or "the place and the score of the lessons are forgotten")
            return
        if bookmark.unread:
            output.note(bookmark.unread)
        output.draw(LessonList().answered(bookmark.answers))
        return
    from tinytf.learn.course import Course
    from tinytf.learn.live import Live
    from tinytf_cli.board import takes_pictures

    if number is not None and NAMES[number - 1] in OF_TWO_STACKS and host() is None and not is_typed("model"):
        model_options = replace(model_options, model=_TRANSLATOR)
    model, text = _facing(model_options.open(two_stacks=True), options, output)
    live = Live(model, text, seed=model_options.seed, truncate=options.truncate)
    on_screen = output.file is None and output.format == "text" and takes_pictures(output.terminal)
    if on_screen and sys.stdin is not None and sys.stdin.isatty():
        from tinytf_cli.learn import run_lessons

        run_lessons(live, number, output, fixed=bool(click.get_current_context().params.get("width")))
        return

    output.draw(Course.of(live, number))


def _facing(model: "Model", options: Options, output: Output) -> "tuple[Model, str | None]":
    """The model and the text of the lessons, None for the usual one; in a model of two stacks, bound, the target."""
    from tinytf.learn.two_stacks import SOURCE

    text = None if options.text is None else read_texts((options.text,), lines=False)[0]
    session, is_bound = host(), model.transformer.reads is not None
    if session is not None and is_bound and text is None and options.target_text is None:
        return model, str(session.require_text())
    if text is None and model.config.encoder is None and options.target_text is None:
        return model, None
    (bound,), (asked,) = asked_of(model, [text or SOURCE], options.target_text, output, truncate=options.truncate)
    return bound, str(asked)
