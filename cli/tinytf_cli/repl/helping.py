"""The pages of ``help``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click
from rich.cells import cell_len

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.main import COMMANDS
from tinytf_cli.repl.line import complete_name
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.verbs import NOTES, OUTPUT_OPTIONS, TOPICS, Verb
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table

_COMMANDS = "commands"
_DEEPEST = 18
"""The largest indent of a line's continuation: a screen may be narrow."""


@dataclass(frozen=True)
class Page:
    """A page about neither a verb nor a command: names with their descriptions, a note, examples."""

    about: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    note: str = ""
    examples: tuple[str, ...] = ()


PAGES = {
    "conditions": Page(
        "of break and watch",
        pairs=(
            ("max(L0.ffn)", "a measure of another step; max(mid): of one of this layer"),
            ("L1H2.weights[4,cat]", "a cell; break L*.weights[1:] leaves out row 0, [-1] keeps the last"),
            ("last(max)", "in the run before"),
        ),
        note="compared by < <= > >= == !=, with + - * / abs(), joined by and, or, not and round brackets; nan alone is "
        "nan > 0. Heads that are named, such as L1H*, are each measured alone; a stop says where it held.",
        examples=("break L*.weights[1:] if max > 0.99", "break L*.out if rank(mat) == 1", "watch nan or norm > 1000"),
    ),
    "addresses": Page(
        pairs=(
            ("L3", "a layer"),
            ("L3H5", "a head; heat L3H5 draws its weights"),
            ("L3H5.weights", "a step of a head"),
            ("L3.ffn", "a step of a layer"),
            ("logits", "a step outside of layers"),
            ("L3H5.weights[sat,cat]", "a cell, by tokens or by numbers"),
            ("L0-2H*.weights", "a set"),
        ),
    ),
    "lines": Page(
        TOPICS["lines"],
        (
            ("a blank line", "repeats the last movement"),
            ("| COMMAND", "pipes the last output into a shell command; also after a line: heat L0H0 | head -3"),
            ("> FILE", "writes the last output, as -o does by the extension; also after a line"),
            ("! PYTHON", "shows an expression, or executes a statement, with trace, model, torch, np"),
            ("!!", "shows the traceback of the last error"),
            ("# …", "is ignored"),
        ),
        'Words are split as in a shell; put a text with a | or a > between "…". A sentence alone is run.',
    ),
    "keys": Page(),
    "scripts": Page(
        "the same session without a terminal",
        (
            ("tinytf repl -c LINE -c LINE", "runs these lines"),
            ("tinytf repl -f FILE", "runs the lines of a file, such as save writes"),
            ("… | tinytf repl", "runs the lines of a pipe"),
            ("--echo", "shows each line before its output"),
            ("--startup", "begins with the lines of the start-up file, as at a terminal"),
            ("--on-error stop|continue", "what to do after a line that failed; the status is 1"),
        ),
    ),
}


def help_blocks(session: Session, topic: str) -> Iterator[Block]:
    """The overview, or the page of a topic. Raises UsageError for an unknown topic."""
    if not topic:
        return _overview(session)
    if topic in PAGES:
        return _page(session, topic)
    if topic in TOPICS or topic == _COMMANDS:
        return _of_topic(session, topic)
    if name := session.lexicon.meaning(topic):
        return _of_name(session, name)
    known = [*dict.fromkeys((*PAGES, *TOPICS, _COMMANDS, *session.lexicon.names.values()))]
    if page := complete_name(topic, known):
        return help_blocks(session, page)
    raise UsageError(f"there is no help on {topic!r}", did_you_mean(topic, known, otherwise="help lists what there is"))


def _overview(session: Session) -> Iterator[Block]:
    verbs = session.lexicon.verbs.values()
    names = {topic: [one.name for one in verbs if one.topic == topic] for topic in TOPICS}
    names["lines"] = [sign.rstrip(" …") for sign, _ in PAGES["lines"].pairs]
    names[_COMMANDS] = [name for name in COMMANDS if name != "repl"]
    yield Line("a sentence, or run TEXT, records it; step, next and goto L1H2.weights move")
    yield Line("print, heat and top show numbers; break stops where something happens")
    yield Line("")
    yield from _pairs([(topic, ", ".join(some)) for topic, some in names.items()])
    yield Line("")
    yield Line(f"help TOPIC says a line a verb ({', '.join(names)}), help VERB all of it;", indent=2)
    yield Line(f"so do {', '.join(f'help {page}' for page in PAGES if page not in names)}", indent=2)


def _page(session: Session, name: str) -> Iterator[Block]:
    page = PAGES[name]
    pairs: Sequence[tuple[str, str]] = session.keys if name == "keys" else page.pairs
    if name == "conditions":
        from tinytf.trace.measures import MEASURES, OUTCOMES

        pairs = (
            [(measure, about) for measure, (_, about) in MEASURES.items()] + list(OUTCOMES.items()) + list(page.pairs)
        )
    yield Heading(name, page.about)
    yield from _pairs(pairs)
    if page.note:
        yield Line("", indent=2)
        yield Line(page.note, indent=2)
    if page.examples:
        yield _examples(*page.examples)


def _of_topic(session: Session, topic: str) -> Iterator[Block]:
    if topic in PAGES:
        yield from _page(session, topic)
        return
    if topic == _COMMANDS:
        yield Heading(topic, "of the command line, on the present model and text")
        every = ((name, session.lexicon.command(name)) for name in COMMANDS if name != "repl")
        yield from _pairs([(name, one.get_short_help_str(70)) for name, one in every if one is not None])
        return
    yield Heading(topic, TOPICS[topic])
    yield from _pairs([(one.name, one.summary) for one in session.lexicon.verbs.values() if one.topic == topic])


def _of_name(session: Session, name: str) -> Iterator[Block]:
    """The page of a verb, of a command, or of both where they have the same name."""
    found, command = session.lexicon.verbs.get(name), session.lexicon.command(name)
    if found is not None:
        yield from _of_verb(found)
    if command is not None:
        if found is not None:
            yield Heading(f"tinytf {name}", "the command of the same name, for words that the verb does not take")
        context = click.Context(command, info_name=name, max_content_width=100)
        for line in command.get_help(context).splitlines():
            yield Line(line, single=True)
        if name in NOTES:
            yield Line("")
            yield Line(NOTES[name])


def _of_verb(verb: Verb) -> Iterator[Block]:
    also = f"also {', '.join(verb.aliases)}" if verb.aliases else ""
    yield Heading(f"{verb.name} {verb.usage}".rstrip(), also)
    for paragraph in (verb.command.help or "").split("\n\n"):
        yield Line(" ".join(paragraph.split()), indent=2)
    options = [one for one in verb.command.params if isinstance(one, click.Option)]
    own = [_option(one) for one in options if one not in OUTPUT_OPTIONS]
    if own:
        yield Line("")
        yield from _pairs(own)
    if not verb.raw:
        yield Line("")
        yield Line(Span("--json, --format, -o FILE, --color, --width, --ascii, --plain as everywhere", "dim"), indent=2)
    yield _examples(*verb.examples)


def _option(option: click.Option) -> tuple[str, str]:
    """An option with its value, and its help."""
    name = ", ".join(option.opts)
    if isinstance(option.type, click.Choice):
        values = ", ".join(map(str, option.type.choices))
        about = (option.help or "").rstrip(".")
        return name, f"{about}: {values}." if about else f"One of {values}."
    return (name if option.is_flag else f"{name} {option.metavar or 'N'}"), option.help or ""


def _examples(*examples: str) -> Table:
    return Table([Column("", [Span("such as" if not place else "", "dim") for place in range(len(examples))]),
                  Column("", [Span(one, "strong") for one in examples])], header=False)  # fmt: skip


def _pairs(pairs: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """Names in a column, and their descriptions beside them, wrapped where they are long."""
    wide = max((cell_len(name) for name, _ in pairs), default=0) + 2
    for name, said in pairs:
        gap = " " * (wide - cell_len(name))
        hear = f"{name}, {said}{'' if said.endswith('.') else '.'}" if said else name
        yield Line([Span(name, "strong"), Span(f"{gap}{said}")], indent=2, said=hear, hanging=min(wide, _DEEPEST))
