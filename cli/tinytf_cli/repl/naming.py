"""Verbs about aliases: words of the user's own that a line can begin with."""

import re
from functools import partial

import click

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable
from tinytf_cli.output import Result
from tinytf_cli.repl.line import read_line
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.verbs import Lexicon, answer, verb
from tinytf_cli.views.blocks import Column, Line, Span, Table

_NAME = re.compile(r"[A-Za-z][\w-]{0,39}", re.ASCII)
_verb = partial(verb, topic="session")


@_verb(
    "alias", usage="[NAME [LINE]]", takes=("alias", "text"), raw=True,
    examples=("alias pw print L1H2.weights", "alias hot heat L1H2 | head -5", "alias most ! trace['logits'].max()"),
)  # fmt: skip
def alias(session: Session) -> Result:
    """Give a line a name of its own, or list those names.

    A line that begins with NAME is then LINE, followed by what else was typed: pw /stats. save writes the line itself.
    """
    name, text = (*session.typed.rest.split(maxsplit=1), "", "")[:2]
    if not text:
        return _listed(session, *([_known(session, name)] if name else session.state.aliases))
    own, words = session.lexicon.built_in, session.typed.words
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:60]!r} is no name", "letters, digits, _ and -, a letter first: alias pw print")
    if name in own:
        raise UsageError(f"{name} means {own[name]} already", "choose a word that no verb or command has")
    line = _resolved(session.lexicon, words[2] if len(words) == 3 else text)
    session.change(aliases={**session.state.aliases, name: line})
    return _listed(session, name)


@_verb("unalias", takes=("alias",), examples=("unalias pw",))
@click.argument("name", metavar="NAME")
def unalias(session: Session, name: str) -> Result:
    """Remove an alias."""
    _known(session, name)
    session.change(aliases={one: line for one, line in session.state.aliases.items() if one != name})
    return _listed(session, *session.state.aliases)


def _known(session: Session, name: str) -> str:
    """The name; UsageError where no line has it."""
    aliases = session.state.aliases
    if name not in aliases:
        hint = did_you_mean(name, aliases) if aliases else f"alias {name[:60]} LINE makes one"
        raise UsageError(f"there is no alias {name[:60]!r}", hint)
    return name


def _resolved(lexicon: Lexicon, line: str) -> str:
    """The line with its first word written out, so that no alias depends on another one, or on itself."""
    typed = read_line(line, lexicon.redirects)
    if typed.sign == "!":
        return line
    if not typed.words:
        raise UsageError("an alias is for a line", "such as: alias pw print L1H2.weights")
    if lexicon.is_sentence(typed.words):
        return f"run -- {line}"
    line = lexicon.expanded(line)
    first = re.match(r"[^\s/]*", line)
    word = first[0] if first is not None else ""
    return lexicon.find(word) + line[len(word) :]


def _listed(session: Session, *names: str) -> Result:
    data = {name: session.state.aliases[name] for name in names}
    if not data:
        return answer("aliases", {"aliases": data}, Line("there are no aliases"))
    columns = [
        Column("", [Span(name, "strong") for name in data]),
        Column("", [printable(line, spaces=False) for line in data.values()], shrink=20),
    ]
    return answer("aliases", {"aliases": data}, Table(columns, header=False))


NAMING = (alias, unalias)
