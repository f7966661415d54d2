"""How a verb is made of a function that takes the session.

A verb is parsed by click, as every command is, and has the options that shape output.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result
from tinytf_cli.repl.lexicon import Verb
from tinytf_cli.repl.results import ablated
from tinytf_cli.repl.session import Session


def verb(
    name: str, *aliases: str, topic: str, names_models: bool = False, **described: Any
) -> Callable[[Callable[..., Result | None]], Verb]:
    """Make a verb of a function that takes the session, then what its click parameters say, and gives a Result.

    ``described`` are further fields of Verb. What is said about a trace says too what its model ran without, but for a
    verb that ``names_models`` itself.
    """

    def made(function: Callable[..., Result | None]) -> Verb:
        @functools.wraps(function)
        def run(*args: Any, output: Output, **kwargs: Any) -> int:
            session = click.get_current_context().find_object(Session)
            assert session is not None
            found = function(session, *args, **kwargs)
            if found is not None:
                gone = None if names_models or topic not in ("moving", "looking") else session.state.spec.without
                output.show(found if gone is None else ablated(found, gone))
            return 0

        settings: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        command = click.command(name, context_settings=settings)(output_options(run))
        return Verb(name, topic, command, aliases, **described)

    return made


def positional(command: click.Command, words: Sequence[str]) -> tuple[str, ...] | None:
    """The words that are no options of a command nor their values; None where an option is not one of its own."""
    context = click.Context(command, info_name=command.name)
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError:
        return None
    found = values.get("words")
    return (*found, *rest) if isinstance(found, tuple) else tuple(rest)  # click has a value of its own for none
