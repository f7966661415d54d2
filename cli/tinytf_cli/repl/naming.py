"""Verbs about aliases: the user's own words that a line can begin with."""

import re
from functools import partial

import click

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable
from tinytf_cli.repl.line import read_line
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Alias
from tinytf_cli.repl.verbs import Lexicon, answer, verb
from tinytf_cli.views.blocks import Column, Line, Span, Table
from tinytf_cli.views.draw import Shown

_NAME = re.compile(r"[A-Za-z][\w-]{0,39}", re.ASCII)
_verb = partial(verb, topic="session")


@_verb(
    "alias", usage="[NAME [LINE]]", takes=("alias", "text"), raw=True,
    examples=("alias pw print L1H2.weights", "alias hot heat L1H2 | head -5", "alias most ! trace['logits'].max()"),
)  # fmt: skip
def alias(session: Session) -> Shown:
    """Give a line a short name, or list these names.

    A line that begins with NAME then runs LINE, followed by the rest of what was typed, as in pw /stats.
    save writes LINE, not NAME. The names that a file defines end with it, unless it may run code.
    """
    name, text = (*session.typed.rest.split(maxsplit=1), "", "")[:2]
    if not text:
        return _aliases_result(session, *([_require_alias(session, name)] if name else session.aliases))
    built_in, words = session.lexicon.built_in, session.typed.words
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:60]!r} cannot be an alias", "letters, digits, _ and -, the first a letter: alias pw print"
        )
    if name in built_in:
        raise UsageError(f"{name} means {built_in[name]} already", "choose a word that is no verb or command")
    line = _resolve_first_word(session.lexicon, words[2] if len(words) == 3 else text)
    session.change(aliases=(*_without(session, name), Alias(name, line)))
    return _aliases_result(session, name)


@_verb("unalias", takes=("alias",), examples=("unalias pw",))
@click.argument("name", metavar="NAME")
def unalias(session: Session, name: str) -> Shown:
    """Remove an alias."""
    _require_alias(session, name)
    session.change(aliases=_without(session, name))
    return _aliases_result(session, *session.aliases)


def _without(session: Session, name: str) -> tuple[Alias, ...]:
    """The aliases without the one that the running line may replace: a file leaves those of the user alone."""
    return tuple(alias for alias in session.state.aliases if (alias.name, alias.fence) != (name, session.streams.fence))


def _require_alias(session: Session, name: str) -> str:
    """The name of an alias; UsageError if there is no such alias."""
    aliases = session.aliases
    if name not in aliases:
        hint = did_you_mean(name, aliases) if aliases else f"alias {name[:60]} LINE makes one"
        raise UsageError(f"there is no alias {name[:60]!r}", hint)
    return name


def _resolve_first_word(lexicon: Lexicon, line: str) -> str:
    """The line with its first word resolved, so that an alias depends on no other alias, nor on itself."""
    typed = read_line(line, lexicon.redirects)
    if typed.sign == "!":
        return line
    if not typed.words:
        raise UsageError("an alias needs a line", "such as: alias pw print L1H2.weights")
    if lexicon.is_sentence(typed.words):
        return f"run -- {line}"
    line = lexicon.expanded(line)
    match = re.match(r"[^\s/]*", line)
    word = match[0] if match is not None else ""
    return lexicon.find(word) + line[len(word) :]


def _aliases_result(session: Session, *names: str) -> Shown:
    data = {name: session.aliases[name] for name in names}
    if not data:
        return answer("aliases", {"aliases": data}, Line("there are no aliases"))
    columns = [
        Column("", [Span(name, "strong") for name in data]),
        Column("", [printable(line, spaces=False) for line in data.values()], shrink=20),
    ]
    return answer("aliases", {"aliases": data}, Table(columns, header=False))


NAMING = (alias, unalias)
