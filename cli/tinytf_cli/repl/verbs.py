"""Verbs: how one is declared, which verb or command a line begins with, and how a verb answers."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from tinytf.errors import TinytfError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import SCHEMA_VERSION, Report
from tinytf.steps.table import StepTable
from tinytf.tables import Array, Sheet, of_records, records_in
from tinytf.trace.address import parse_address
from tinytf_cli.command import Option, build, parameters_of
from tinytf_cli.host import Host
from tinytf_cli.main import COMMANDS, cli
from tinytf_cli.output import Output
from tinytf_cli.repl.line import begun_name
from tinytf_cli.repl.state import Without
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.draw import Display, Shown, draws
from tinytf_cli.working import working

TOPICS = {
    "moving": "through the steps",
    "looking": "at numbers",
    "stopping": "where something happens",
    "session": "model, text, settings, and what was done",
    "lines": "what else a line can be",
}

OUTPUT_OPTIONS = [
    *parameters_of(Output),
    Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error."),
]
"""The options of every verb."""


@dataclass(frozen=True)
class Verb:
    """One verb. ``takes`` are the kinds of its words in order (``completing.OFFERS`` lists them).

    The last kind is that of all further words. A ``raw`` verb reads the line as it was typed; a blank line repeats one
    that ``moves``. ``leaves`` says which words are for the command of the same name.
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
    leaves: Callable[[Sequence[str]], bool] | None = None

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return (self.command.help or "").strip().split("\n")[0]

    def claims(self, words: Sequence[str], host: Host) -> bool:
        """Whether these words are for the verb where a command has its name: those that click takes for it."""
        if self.leaves is not None:
            return not self.leaves(words)
        try:
            self.command.make_context(self.name, list(words), help_option_names=[], obj=host)
        except click.UsageError:
            return False
        return True


def verb(
    name: str, *aliases: str, topic: str, names_models: bool = False, **described: Any
) -> Callable[[Callable[..., Shown | None]], Verb]:
    """Turn a function of the session and its click parameters into a verb, with the output options of every command.

    ``described`` are further fields of Verb; the default ``usage`` is that of the arguments. A verb about a trace also
    says which steps are ablated, unless it ``names_models`` itself.
    """

    def made(function: Callable[..., Shown | None]) -> Verb:
        @functools.wraps(function)
        def run(**values: Any) -> int:
            session, output = click.get_current_context().obj, build(Output, values)
            with working(name):
                found = function(session, **{key: value for key, value in values.items() if key not in shared})
                if found is not None:
                    gone = None if names_models or topic not in ("moving", "looking") else session.state.spec.without
                    output.show(found if gone is None else Shown(Ablated(whole=found, without=gone)))
            return 0

        shared = {one.name for one in OUTPUT_OPTIONS}
        command = click.command(name, params=[*OUTPUT_OPTIONS], add_help_option=False)(run)
        usage = " ".join(str(one.metavar) for one in command.params if isinstance(one, click.Argument))
        return Verb(name, topic, command, aliases, **{"usage": usage, **described})

    return made


_FIRST = re.compile(r"[\s/!]")
"""What ends the first word of a line."""


class Lexicon:
    """The words that a line of a session can begin with: ``verbs`` by name.

    ``own`` has the words of verbs and commands, each with the name that it means.
    """

    def __init__(self, verbs: Mapping[str, Verb], host: Host, aliases: Callable[[], Mapping[str, str]]) -> None:
        self.verbs, self._host, self._aliases = verbs, host, aliases
        self.own = {name: name for name in (*COMMANDS, *verbs)}
        for one in verbs.values():
            self.own.update(dict.fromkeys(one.aliases, one.name))

    @property
    def names(self) -> Mapping[str, str]:
        """Every word that a line can begin with, and the name that it means; empty for an alias of Python."""
        return {**self.own, **{name: _FIRST.split(line, maxsplit=1)[0] for name, line in self._aliases().items()}}

    def expanded(self, line: str) -> str:
        """The line that a line means: one that begins with an alias is written out."""
        start = len(line) - len(line.lstrip())
        word = _FIRST.split(line[start:], maxsplit=1)[0]
        meant = self._aliases().get(word)
        return line if meant is None else meant + line[start + len(word) :]

    def find(self, word: str, line: str = "TEXT") -> str:
        """The name that a word means: a name, an alias, or the beginning of one name only.

        Raises UsageError for any other word, with what it could be.
        """
        found = self.names.get(word) or begun_name(word, sorted(set(self.own.values())))
        if found:
            return found
        near = did_you_mean(word, set(self.own.values()), otherwise="help lists what there is")
        hint = f"{near}{'' if near.endswith('?') else ';'} to look at a text: run {line[:200]}"
        raise UsageError(f"there is no verb or command {word[:60]!r}", hint)

    def is_sentence(self, words: Sequence[str]) -> bool:
        """Whether a line is a text to run: three words or more, the first neither a name nor like one."""
        first, names = words[0], set(self.names)
        if len(words) < 3 or any(name.startswith(first.partition("/")[0]) for name in names):
            return False
        return first[0].isupper() or not did_you_mean(first, names).endswith("?")

    def meaning(self, word: str) -> str:
        """The name that a word means, or the empty string."""
        try:
            return self.find(word)
        except UsageError:
            return ""

    def command(self, name: str) -> click.Command | None:
        """A command of the command line by its name."""
        return cli.get_command(click.Context(cli), name)

    def verb_for(self, words: Sequence[str]) -> Verb | None:
        """The verb that takes a line of these words; None where a command does.

        Raises UsageError for a first word that is neither.
        """
        found = self.verbs.get(name := self.find(words[0]))
        return None if found is None or (name in COMMANDS and not found.claims(words[1:], self._host)) else found

    def split(self, words: Sequence[str]) -> list[str]:
        """The words of a line, the first as the name that it means; ``print/stats`` is ``print /stats``.

        --help after a verb is ``help``. Raises UsageError as ``find`` does.
        """
        word, slash, flag = words[0].partition("/")
        verb = self.verbs.get(self.meaning(word))
        if slash and verb is not None and "flag" in verb.takes:
            return [verb.name, f"/{flag}", *words[1:]]
        name = self.find(words[0], " ".join(words) if len(words) > 1 else "TEXT")
        asks = {"-h", "--help"} & set(itertools.takewhile("--".__ne__, words[1:]))
        return ["help", name] if asks and name in self.verbs else [name, *words[1:]]

    def redirects(self, word: str) -> bool:
        """Whether ``|`` and ``>`` after this first word redirect the output; in a condition they do not."""
        found = self.verbs.get(self.meaning(word))
        return found is None or not found.raw


# Commands that a session reads differently

NOTES = {
    "grad": "In a session, words that are all addresses are those of --at: grad L0H1.weights uses the present text.",
    "explain": "In a session, explain ADDRESS uses the present text.",
    "info": "In a session, info without MODEL describes the open model.",
}
"""What help adds to a command."""


def adjust(name: str, parameters: dict[str, Any], table: Callable[[], StepTable]) -> None:
    """Change the parsed parameters of a command that a session reads differently; ``table`` gives the steps."""
    words: tuple[str, ...] = parameters.get("words") or ()
    if name == "grad" and words and all(_is_address(word, table()) for word in words):
        parameters["addresses"] = (*words, *parameters["addresses"])
        parameters["words"] = ()


def _is_address(word: str, table: StepTable) -> bool:
    try:
        parse_address(word, table)
    except TinytfError:
        return re.match("L[0-9-]", word) is not None  # of a layer that does not exist; the command says so
    return True


# Answers


@dataclass(frozen=True, kw_only=True)
class Answer(Report):
    """What a verb answers: a few blocks, and the same as data; as events it is one.

    ``table`` leads to the records of its table; without it they are the first list of records in the data.
    """

    KIND = "answer"

    kind: str
    data: Mapping[str, Any]
    draw: Callable[[Terminal], Iterable[Block]]
    table: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "kind": self.kind, **self.data}

    def events(self) -> Iterator[dict[str, Any]]:
        yield {"type": self.kind, "schema_version": SCHEMA_VERSION, **self.data}

    def sheet(self, *, long: bool = False) -> Sheet | None:
        first = (
            name
            for name, records in self.data.items()
            if isinstance(records, list) and records and isinstance(records[0], Mapping)
        )
        path = self.table or tuple(itertools.islice(first, 1))
        return of_records(records_in(self.data, path)) if path else None


@draws(Answer)
def draw_answer(report: Answer, terminal: Terminal, display: Display) -> Iterable[Block]:
    """The blocks of the answer."""
    return report.draw(terminal)


def answer(kind: str, data: Mapping[str, Any], *blocks: Block) -> Shown:
    """An answer of a few blocks that are the same on every terminal."""
    return Shown(Answer(kind=kind, data=data, draw=lambda terminal: blocks))


@dataclass(frozen=True, kw_only=True)
class Ablated(Report):
    """An answer about a trace, and the steps that were ablated in it."""

    KIND = "ablated"

    whole: Shown
    without: Without

    def to_dict(self) -> dict[str, Any]:
        return {**self.whole.report.to_dict(), "without": self.without.to_dict()}

    def events(self) -> Iterator[dict[str, Any]]:
        for event in self.whole.report.events():
            yield {**event, "without": self.without.to_dict()}

    def stored(self) -> list[Array]:
        return self.whole.report.stored()

    def metadata(self) -> dict[str, Any]:
        return self.whole.report.metadata()

    def sheet(self, *, long: bool = False) -> Sheet | None:
        return self.whole.report.sheet(long=long)


@draws(Ablated)
def draw_ablated(report: Ablated, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The answer, and a line that names the ablated steps."""
    yield from report.whole.blocks(terminal)
    yield without_line(report.without)


def without_line(gone: Without) -> Line:
    """The line that names the ablated steps."""
    return Line(Span(f"without {gone.words}", "dim"))
