"""Verbs: their declaration, the verb or command that a line begins with, and the results of verbs."""

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
from tinytf_cli.asking import command_meant, is_how
from tinytf_cli.command import FORMS, OLD_NAMES, Command, Option, build, parameters_of
from tinytf_cli.host import Host
from tinytf_cli.how import answered
from tinytf_cli.main import COMMANDS, cli, say_the_name
from tinytf_cli.output import Output
from tinytf_cli.repl.line import complete_name
from tinytf_cli.repl.state import Spec
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.draw import Display, Shown, draws
from tinytf_cli.working import working

TOPICS = {
    "moving": "through the steps",
    "looking": "at numbers",
    "stopping": "where something happens",
    "session": "model, text, settings and history",
    "lines": "other kinds of line",
}

OUTPUT_OPTIONS = [
    *parameters_of(Output),
    Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error."),
]
"""The options of every verb."""


@dataclass(frozen=True)
class Verb:
    """One verb. ``takes`` are the kinds of its words in order (see ``completing.OFFERS``).

    The last kind stands for all further words. A ``raw`` verb reads the line as typed. A blank line repeats the last
    verb that ``moves``.
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

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return (self.command.help or "").strip().split("\n")[0]

    def claims(self, words: Sequence[str], host: Host) -> bool:
        """Whether the words are for the verb, not for a command of the same name: whether click parses them for it."""
        try:
            self.command.make_context(self.name, list(words), help_option_names=[], obj=host)
        except click.UsageError:
            return False
        return True


def verb(
    name: str, *aliases: str, topic: str, names_models: bool = False, **fields: Any
) -> Callable[[Callable[..., Shown | None]], Verb]:
    """Turn a function of the session and its click parameters into a verb, with the output options of every command.

    ``fields`` are further fields of Verb; ``usage`` defaults to the metavars of the arguments. A verb that moves or
    looks also reports what is changed in the model, unless it ``names_models`` itself.
    """

    def decorate(function: Callable[..., Shown | None]) -> Verb:
        @functools.wraps(function)
        def run(**values: Any) -> int:
            session, output = click.get_current_context().obj, build(Output, values)
            with working(name):
                result = function(session, **{key: value for key, value in values.items() if key not in shared})
                if result is not None:
                    spec, says = session.state.spec, not names_models and topic in ("moving", "looking")
                    output.show(Shown(ChangedAnswer(whole=result, spec=spec)) if says and spec.changes else result)
            return 0

        shared = {parameter.name for parameter in OUTPUT_OPTIONS}
        command = click.command(name, params=[*OUTPUT_OPTIONS], add_help_option=False)(run)
        usage = " ".join(str(p.metavar) for p in command.params if isinstance(p, click.Argument))
        return Verb(name, topic, command, aliases, **{"usage": usage, **fields})

    return decorate


_WORD_END = re.compile(r"[\s/!]")
"""The end of the first word of a line."""


class Lexicon:
    """The words that a line of a session can begin with. ``verbs`` are by name.

    ``built_in`` maps the words of verbs and commands, short forms included, to the name that each means.
    """

    def __init__(self, verbs: Mapping[str, Verb], host: Host, aliases: Callable[[], Mapping[str, str]]) -> None:
        self.verbs, self._host, self._aliases = verbs, host, aliases
        self.built_in = {name: name for name in (*COMMANDS, *verbs)}
        for verb in verbs.values():
            self.built_in.update(dict.fromkeys(verb.aliases, verb.name))

    @property
    def names(self) -> Mapping[str, str]:
        """Every word that a line can begin with, and the name that it means; empty for an alias of a Python line."""
        return {
            **self.built_in,
            **{name: _WORD_END.split(text, maxsplit=1)[0] for name, text in self._aliases().items()},
        }

    def expanded(self, line: str) -> str:
        """The line with a leading alias expanded."""
        start = len(line) - len(line.lstrip())
        word = _WORD_END.split(line[start:], maxsplit=1)[0]
        replacement = self._aliases().get(word)
        return line if replacement is None else replacement + line[start + len(word) :]

    def answering(self, line: str) -> str:
        """The line that answers a question; empty for a line that is none."""
        from tinytf.glossary import spellings

        unanswered = f"help {line}" if is_how(line) and not self.is_sentence(line.split()) else ""
        return answered(line, (*self.names, *spellings())) or unanswered

    def find(self, word: str, line: str = "TEXT") -> str:
        """The name that a word means: a name, an alias, or the prefix of exactly one name.

        Raises UsageError for any other word, with a suggestion.
        """
        name = self.names.get(word) or complete_name(word, sorted(set(self.built_in.values())))
        if name:
            return name
        if meant := command_meant(word):
            raise UsageError(f"there is no verb or command {word[:60]!r}", f"{meant.replace(' TEXT', '')} does that")
        if re.match("L[0-9]", word):
            raise UsageError(f"there is no verb or command {word[:60]!r}", f"to look at a step: print {word[:60]}")
        suggestion = did_you_mean(word, set(self.built_in.values()), otherwise="help lists what there is")
        hint = f"{suggestion}{'' if suggestion.endswith('?') else ';'} to look at a text: run {line[:200]}"
        raise UsageError(f"there is no verb or command {word[:60]!r}", hint)

    def is_sentence(self, words: Sequence[str]) -> bool:
        """Whether a line is a text to run: three words or more, the first neither a name nor close to one."""
        word, names = words[0], set(self.names)
        if len(words) < 3 or word in OLD_NAMES or any(name.startswith(word.partition("/")[0]) for name in names):
            return False
        return word[0].isupper() or not did_you_mean(word, names).endswith("?")

    def meaning(self, word: str) -> str:
        """The name that a word means, or the empty string if it means none."""
        try:
            return self.find(word)
        except UsageError:
            return ""

    def command(self, name: str) -> Command | None:
        """The command of the command line with a name; None if there is none."""
        return cli.get_command(click.Context(cli), name)

    def verb_for(self, words: Sequence[str]) -> Verb | None:
        """The verb that takes a line of these words; None if a command does.

        Raises UsageError if the first word names neither.
        """
        verb = self.verbs.get(name := self.find(words[0]))
        return None if verb is None or (name in COMMANDS and not verb.claims(words[1:], self._host)) else verb

    def split(self, words: Sequence[str]) -> list[str]:
        """The words of a line, the first replaced by the name that it means; ``print/stats`` becomes ``print /stats``.

        --help after a verb becomes ``help``. Raises UsageError as ``find`` does.
        """
        word, slash, flag = words[0].partition("/")
        verb = self.verbs.get(self.meaning(word))
        if slash and verb is not None and "flag" in verb.takes:
            return [verb.name, f"/{flag}", *words[1:]]
        if verb is None and words[0] in OLD_NAMES:
            say_the_name(words[0])
            return [*OLD_NAMES[words[0]].split(), *words[1:]]
        name = self.find(words[0], " ".join(words) if len(words) > 1 else "TEXT")
        if name == "help" and (form := " ".join(words[1:3])) in FORMS:
            return [*form.split(), "--help"]
        help_options = {"-h", "--help"} & set(itertools.takewhile("--".__ne__, words[1:]))
        is_form = any(f"{name} {word}" in FORMS for word in words[1:])
        return ["help", name] if help_options and name in self.verbs and not is_form else [name, *words[1:]]

    def redirects(self, word: str) -> bool:
        """Whether ``|`` and ``>`` redirect the output after this first word; after a raw verb they do not."""
        verb = self.verbs.get(self.meaning(word))
        return verb is None or not verb.raw


# Commands that a session reads differently

NOTES = {
    "grad": "In a session, words that are all addresses are taken as --at: grad L0H1.weights uses the present text.",
    "explain": "In a session, explain ADDRESS uses the present text.",
    "info": "In a session, info without MODEL describes the open model.",
}
"""What help adds to the page of a command."""


def adjust(name: str, parameters: dict[str, Any], table: Callable[[], StepTable]) -> None:
    """Adjust the parsed parameters of a command that a session reads differently; ``table`` gives the steps."""
    words: tuple[str, ...] = parameters.get("words") or ()
    if name == "grad" and words and all(_is_address(word, table()) for word in words):
        parameters["addresses"] = (*words, *parameters["addresses"])
        parameters["words"] = ()


def _is_address(word: str, table: StepTable) -> bool:
    try:
        parse_address(word, table)
    except TinytfError:
        return re.match("L[0-9-]", word) is not None  # the layer does not exist; the command will say so
    return True


# Answers


@dataclass(frozen=True, kw_only=True)
class Answer(Report):
    """The answer of a verb: a few blocks, and the same as data; as NDJSON it is a single event.

    ``table`` is the path to the records of its table, by default the first list of records in the data.
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
        lists = (
            name for name, rows in self.data.items() if isinstance(rows, list) and rows and isinstance(rows[0], Mapping)
        )
        path = self.table or tuple(itertools.islice(lists, 1))
        return of_records(records_in(self.data, path)) if path else None


@draws(Answer)
def draw_answer(report: Answer, terminal: Terminal, display: Display) -> Iterable[Block]:
    """The blocks of the answer."""
    return report.draw(terminal)


def answer(kind: str, data: Mapping[str, Any], *blocks: Block) -> Shown:
    """An answer whose blocks are the same on every terminal."""
    return Shown(Answer(kind=kind, data=data, draw=lambda terminal: blocks))


def change_lines(spec: Spec) -> list[Line]:
    """The lines that name the ablated steps and the numbers that are set."""
    return [Line(Span(f"{name} {words}", "dim")) for name, words in spec.changes.items()]


@dataclass(frozen=True, kw_only=True)
class ChangedAnswer(Report):
    """An answer about a trace of a changed model, and the changes."""

    KIND = "changed_answer"

    whole: Shown
    spec: Spec

    def to_dict(self) -> dict[str, Any]:
        return {**self.whole.report.to_dict(), **self.spec.changes_data}

    def events(self) -> Iterator[dict[str, Any]]:
        for event in self.whole.report.events():
            yield {**event, **self.spec.changes_data}

    def stored(self) -> list[Array]:
        return self.whole.report.stored()

    def metadata(self) -> dict[str, Any]:
        return self.whole.report.metadata()

    def sheet(self, *, long: bool = False) -> Sheet | None:
        return self.whole.report.sheet(long=long)


@draws(ChangedAnswer)
def draw_changed_answer(report: ChangedAnswer, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The answer, and the lines that name the changes."""
    yield from report.whole.blocks(terminal)
    yield from change_lines(report.spec)
