"""A verb of the session: its name, what it takes, what it says of itself, and the function behind it.

A verb is parsed by click, as every command is, and has the options that shape output.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import SCHEMA_VERSION
from tinytf_cli.options import output_options
from tinytf_cli.output import Result

if TYPE_CHECKING:
    import torch

    from tinytf_cli.paint.terminal import Terminal
    from tinytf_cli.repl.session import Session
    from tinytf_cli.repl.state import Without
    from tinytf_cli.views.blocks import Block

TOPICS = {
    "moving": "through the steps",
    "looking": "at numbers",
    "stopping": "where something happens",
    "session": "model, text, settings, and what was done",
    "lines": "what else a line can be",
}


@dataclass(frozen=True)
class Verb:
    """One verb. ``takes`` are the kinds of its words, in order, the last one's for all that follow (``KINDS``).

    ``raw`` ones read the line as it was typed; a blank line repeats one that ``moves``. ``claims`` decides, where a
    command has the same name, whether these words are for the verb.
    """

    name: str
    topic: str
    command: click.Command
    aliases: tuple[str, ...] = ()
    usage: str = ""
    examples: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    raw: bool = False
    moves: bool = False
    claims: "Callable[[Session, tuple[str, ...]], bool]" = lambda session, words: True

    @property
    def summary(self) -> str:
        """The first sentence that it says of itself."""
        return (self.command.help or "").strip().split("\n")[0]


KINDS = {
    "address": "an address, such as L3H5.weights",
    "cell": "an address with a cell, such as L0H0.scores[1,0]",
    "layer": "a layer, such as L3",
    "step": "a step or its number",
    "number": "a number",
    "text": "a text",
    "setting": "a setting, then one of its values",
    "model": "a model, as --model takes it",
    "file": "a file",
    "topic": "a verb, a command or a topic of help",
    "flag": "/shape, /stats, /values or /json",
    "condition": "measures and numbers, such as max > 0.9",
}
"""What the words of a verb can be; completion reads it."""


def verb(
    name: str,
    *aliases: str,
    topic: str,
    usage: str = "",
    takes: tuple[str, ...] = (),
    examples: tuple[str, ...] = (),
    raw: bool = False,
    moves: bool = False,
    names_models: bool = False,
    claims: "Callable[[Session, tuple[str, ...]], bool] | None" = None,
) -> "Callable[[Callable[..., Result | None]], Verb]":
    """Make a verb of a function that takes the session, then what its click parameters say, and gives a Result.

    What is said about a trace says too what its model ran without, but for a verb that ``names_models`` itself.
    """

    def made(function: "Callable[..., Result | None]") -> Verb:
        @functools.wraps(function)
        def run(*args: Any, output: Any, **kwargs: Any) -> int:
            session: Session = click.get_current_context().obj
            found = function(session, *args, **kwargs)
            if found is not None:
                gone = None if names_models or topic not in ("moving", "looking") else session.state.spec.without
                output.show(found if gone is None else _ablated(found, gone))
            return 0

        settings: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        command = click.command(name, context_settings=settings)(output_options(run))
        chosen = {} if claims is None else {"claims": claims}
        return Verb(name, topic, command, aliases, usage, examples, takes, raw, moves, **chosen)

    return made


def gone_lines(gone: "Without | None") -> "tuple[Block, ...]":
    """What is said where a number depends on what the model runs without."""
    from tinytf_cli.views.blocks import Line, Span

    return () if gone is None else (Line(Span(f"without {gone.words}", "dim")),)


def gone_data(gone: "Without | None") -> dict[str, Any]:
    """The same as data; nothing where the model is whole."""
    return {} if gone is None else {"without": {"at": list(gone.at), "how": gone.how, "reference": gone.reference}}


def _ablated(found: Result, gone: "Without") -> Result:
    """A result that says what the model ran without."""

    def events() -> Iterator[Mapping[str, Any]]:
        for event in found.events():
            yield {**event, **gone_data(gone)}

    def blocks(terminal: "Terminal") -> "Iterator[Block]":
        yield from found.blocks(terminal)
        yield from gone_lines(gone)

    return replace(found, blocks=blocks, data=lambda: {**found.data(), **gone_data(gone)}, events=events)


def answer(kind: str, data: Mapping[str, Any], *blocks: "Block") -> Result:
    """A result that is a few blocks, and the same as data."""
    return made_of(kind, lambda terminal: blocks, lambda: data)


def made_of(
    kind: str,
    blocks: "Callable[[Terminal], Iterable[Block]]",
    data: Callable[[], Mapping[str, Any]],
    tensors: "Callable[[], dict[str, torch.Tensor]] | None" = None,
) -> Result:
    """A result whose blocks and data are made when they are asked for; as events it is one."""

    def whole() -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "kind": kind, **data()}

    def events() -> Iterator[Mapping[str, Any]]:
        yield {"type": kind, "schema_version": SCHEMA_VERSION, **data()}

    return Result(blocks, whole, events, tensors)


def positional(command: click.Command, words: Sequence[str]) -> tuple[str, ...] | None:
    """The words that are no options of a command nor their values; None where an option is not one of its own."""
    context = click.Context(command, info_name=command.name)
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError:
        return None
    found = values.get("words")
    return (*found, *rest) if isinstance(found, tuple) else tuple(rest)  # click has a value of its own for none


def find_name(word: str, names: Mapping[str, str]) -> str:
    """What a word means: a name, an alias (``names`` maps both to names), or the only one that begins so.

    Raises UsageError for anything else, with what it could be.
    """
    if word in names:
        return names[word]
    found = sorted({name for known, name in names.items() if word and known == name and known.startswith(word)})
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{word!r} can be {', '.join(found)}", "write a little more of it")
    near = did_you_mean(word, set(names.values())) or "help lists what there is"
    hint = f"{near}{'' if near.endswith('?') else ';'} a text is looked at with: run TEXT"
    raise UsageError(f"there is no verb or command {word[:60]!r}", hint)
