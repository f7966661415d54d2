"""Completion of the word at the cursor: read from the session's tables, without opening or computing anything."""

import contextlib
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.text.printable import printable
from tinytf_cli.options import available_names
from tinytf_cli.repl.addressing import Offer, addresses, beginning, parameters, tokens, vocabulary
from tinytf_cli.repl.colouring import LONGEST
from tinytf_cli.repl.helping import PAGES
from tinytf_cli.repl.line import PYTHON, Piece, escaped, pieces_of
from tinytf_cli.repl.looking import FLAGS
from tinytf_cli.repl.python import statements
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.settings import SETTINGS, find_setting
from tinytf_cli.repl.verbs import TOPICS, Verb

_MOST = 500
_SCANNED = 5_000
_SITES = re.compile(r"L[^.\[]*|L[^H]*\.(?:in|attn|ffn|out)")
_HEADS = re.compile(r"L[^.\[]*")
_LAYER = re.compile(r"L[0-9]+")
_QUOTED = set(" \"'|>")
_FLAGS = [(f"/{flag}", about) for flag, about in FLAGS.items()]
_PYTHON = {"trace": "the recorded trace", "model": "the open model", "torch": "", "np": "numpy", "session": "this"}


class SessionCompleter(Completer):
    """prompt_toolkit's completer of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        with contextlib.suppress(Exception):  # a fault here must not end the session
            before = document.text_before_cursor
            *_, (_, typed) = statements(enumerate(before.split("\n")))
            is_python = PYTHON.match(typed) is not None
            start, offers = offered(self._session, typed if is_python else document.current_line_before_cursor)
            for one in itertools.islice(offers, _MOST):
                yield Completion(
                    one.word + (" " if one.whole else ""),
                    start_position=start,
                    display=printable(one.word, spaces=False),
                    display_meta=printable(one.about, spaces=False),
                )


def offered(session: Session, line: str) -> tuple[int, Iterator[Offer]]:
    """The words that the end of a line can become, and where they begin relative to the cursor (0 or less)."""
    if len(line) > LONGEST:
        return 0, iter(())
    if line.lstrip().partition(" ")[1]:
        line = session.lexicon.expanded(line)
    pieces = pieces_of(line, session.lexicon.redirects)
    words = [piece for piece in pieces if piece.kind == "word"]
    last = pieces[-1] if pieces else Piece("space", 0, 0)
    if last.kind in ("target", "sign") or (len(pieces) > 1 and pieces[-2].kind == "sign"):
        return _after_sign(line, pieces)
    if last.kind in ("comment", "bang", "python"):
        return _in_python(session, line[last.start : last.end]) if last.kind == "python" else (0, iter(()))
    typed = line[last.start :] if last.kind == "word" else ""
    before = [piece.word for piece in words[:-1]] if typed else [piece.word for piece in words]
    begun = words[-1].word if typed else ""
    if not before:
        return -len(typed), _first(session, begun)
    found = (one for one in _after_first(session, before, begun) if one.word != typed or one.whole)
    return -len(typed), (Offer(_quoted(one.word, typed), one.about, one.whole) for one in found)


def _quoted(word: str, typed: str) -> str:
    """A word as one word of a line, in the quotes that were begun."""
    quote = typed[:1] if typed[:1] in ('"', "'") else ('"' if set(word) & _QUOTED or word.startswith("#") else "")
    if not quote:
        return word
    inside = escaped(word) if quote == '"' else word
    return f"{quote}{inside}{'' if word.endswith('/') else quote}"  # more may follow a folder


# The first word


def _first(session: Session, begun: str) -> Iterator[Offer]:
    word, slash, flag = begun.partition("/")
    if slash:
        yield from (Offer(f"{word}{one.word}", one.about, True) for one in beginning(f"/{flag}", _FLAGS))
        return
    for name in dict.fromkeys((*session.lexicon.verbs, *session.lexicon.own.values())):
        if name.startswith(begun) and name != "repl":
            yield Offer(name, _summary(session, name), True)
    yield from beginning(begun, session.state.aliases.items())


def _summary(session: Session, name: str) -> str:
    if (verb := session.lexicon.verbs.get(name)) is not None:
        return verb.summary
    command = session.lexicon.command(name)
    return "" if command is None else command.get_short_help_str(70)


# The words after it


def _after_first(session: Session, before: list[str], begun: str) -> Iterator[Offer]:
    name = session.lexicon.meaning(before[0].partition("/")[0])  # such as print/stats
    if not name:
        return iter(())
    words = before[1:]
    verb, same = session.lexicon.verb_for([name, *words]), session.lexicon.command(name)
    if verb is not None and verb.raw:
        return _of_verb(session, verb, words, begun, len(words))
    command = same if verb is None else verb.command
    if command is None:
        return iter(())
    place, waiting = _placed(command, words)
    if waiting is not None:
        return _of_parameter(session, command, waiting, begun)
    if begun.startswith("-") and "--" not in before:
        return _options(begun, *command.params, *(same.params if same is not None and verb is not None else ()))
    if verb is not None:
        return _of_verb(session, verb, words, begun, place)
    if name == "grad":
        return addresses(session, begun)
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    if not arguments:
        return iter(())
    return _of_parameter(session, command, arguments[min(place, len(arguments) - 1)], begun, place)


def _placed(command: click.Command, words: list[str]) -> tuple[int, click.Option | None]:
    """How many of the words are arguments, and the option that still needs its value."""
    options = {name: one for one in command.params if isinstance(one, click.Option) for name in one.opts}
    count, waiting = 0, None
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and "=" not in word and word in options and not options[word].is_flag:
            waiting = options[word]
        elif not word.startswith("-"):
            count += 1
    return count, waiting


def _options(begun: str, *parameters: click.Parameter) -> Iterator[Offer]:
    """The options that begin so; of two of one name the first. After ``--by=``, the values of ``--by``."""
    name, sign, _ = begun.partition("=")
    options = {word: one for one in reversed(parameters) if isinstance(one, click.Option) for word in one.opts}
    for word, one in reversed(options.items()):
        choices = [str(choice) for choice in getattr(one.type, "choices", ())]
        if sign and word == name:
            yield from beginning(begun, ((f"{name}={choice}", "") for choice in choices))
        elif word.startswith(begun) and not one.hidden:
            yield Offer(word, one.help or " | ".join(choices), True)


def _of_parameter(
    session: Session, command: click.Command, parameter: click.Parameter, begun: str, place: int = 0
) -> Iterator[Offer]:
    """The values of an option, or of an argument of a command."""
    kind, name = str(parameter.metavar or parameter.name or ""), parameter.name
    if ("ADDRESS" in kind.upper() or kind.startswith("L3")) and place == 0:
        found = addresses(session, begun)
        if command.name in ("trace", "explain"):
            return itertools.chain(found, parameters(session, begun))
        return found if name not in ("head", "heads") else (one for one in found if _HEADS.fullmatch(one.word))
    if name in ("row", "query", "position"):
        return tokens(session, begun)
    if kind == "TOKEN":
        return vocabulary(session, begun)
    if kind.upper() in ("MODEL", "WITH_MODEL"):
        return _models(session, begun, [])
    if name in ("layer", "head") and isinstance(parameter, click.Option):
        table = session.known_table
        count = 0 if table is None else table.config.n_layers if name == "layer" else table.config.n_heads
        return beginning(begun, ((str(one), "") for one in range(count)))
    if isinstance(parameter.type, click.Path) or "FILE" in kind:
        return _files(session, begun, [])
    items = parameter.shell_complete(click.Context(command, resilient_parsing=True), begun)
    return (Offer(str(item.value), item.help or "", True) for item in items if item.type == "plain")


def _of_verb(session: Session, verb: Verb, words: list[str], begun: str, place: int) -> Iterator[Offer]:
    """The words of a verb, by the kinds that it takes."""
    if begun.startswith("/") and "flag" in verb.takes:
        return beginning(begun, _FLAGS)
    kind = verb.takes[min(place, len(verb.takes) - 1)] if verb.takes else ""
    return OFFERS[kind](session, begun, words) if kind in OFFERS else iter(())


def _settings(session: Session, begun: str, words: list[str]) -> Iterator[Offer]:
    about = {name: f"{one.shown(session.settings)}: {one.about}" for name, one in SETTINGS.items()}
    return beginning(begun, () if words else about.items())


def _values(session: Session, begun: str, words: list[str]) -> Iterator[Offer]:
    """The values of the setting that is the only word before."""
    with contextlib.suppress(UsageError, ValueError):
        (name,) = words
        setting = find_setting(name)
        now = setting.shown(session.settings)
        values = dict.fromkeys((*setting.choices, now))
        yield from beginning(begun, ((value, "as it is now" if value == now else "") for value in values))


def _conditions(session: Session, begun: str, words: list[str]) -> Iterator[Offer]:
    """``if`` after an address; else measures, and the addresses that may come first."""
    first = re.match(r"\(*([A-Za-z]*)", words[0]) if words and "if" not in words else None
    measures: dict[str, str] = {}
    if session.known_table is not None:  # so that torch is there
        from tinytf.trace.measures import MEASURES

        measures = {name: about for name, (_, about) in MEASURES.items()}
    if first is not None and first[1] and first[1] not in measures:
        yield from beginning(begun, [("if", "a condition follows")])
        return
    inside = begun.rpartition("(")[0] + "(" if "(" in begun else ""
    if of := re.fullmatch(r"(.*\b(?:prob|rank)\()([^)]*)", begun):
        for one in vocabulary(session, of[2]):
            yield Offer(f"{of[1]}{one.word})", one.about, True)
        return
    for name, about in measures.items():
        if name.startswith(begun.removeprefix(inside)):
            yield Offer(f"{inside}{name}", about, True)
    if begun and measures:
        yield from beginning(begun, [("and", ""), ("or", "")])
    if not words:
        yield from addresses(session, begun)


def _topics(session: Session, begun: str, words: list[str]) -> Iterator[Offer]:
    for name in dict.fromkeys((*PAGES, *TOPICS, *session.lexicon.names.values())):
        if name.startswith(begun):
            yield Offer(name, TOPICS.get(name, "") or _summary(session, name) or "more about it", True)


def _sites(session: Session, begun: str, words: list[str]) -> Iterator[Offer]:
    """The steps that can be ablated, and the parts that can be left out."""
    yield from (one for one in addresses(session, begun) if _SITES.fullmatch(one.word))
    yield from beginning(begun, [*((part, "in no layer") for part in LEFT_OUT), ("none", "the whole model")])


def _models(session: Session, begun: str, words: list[str]) -> Iterator[Offer]:
    """The models that are here by a name, and files."""
    yield from beginning(begun, available_names())
    if ":" not in begun:
        yield from (one for one in _files(session, begun, words) if not one.whole or one.word.endswith(".gguf"))


def _files(session: Session | None, begun: str, words: list[str]) -> Iterator[Offer]:
    """The files that a path can become, and folders with a /."""
    folder, slash, name = begun.rpartition("/")
    try:
        with os.scandir(Path(folder + slash or ".").expanduser()) as entries:
            found = sorted(
                (entry.name, entry.is_dir())
                for entry in itertools.islice(entries, _SCANNED)
                if entry.name.startswith(name) and (name or not entry.name.startswith("."))
            )
    except (OSError, ValueError, RuntimeError):
        return
    for one, is_folder in found:
        yield Offer(f"{folder}{slash}{one}{'/' if is_folder else ''}", "folder" if is_folder else "", not is_folder)


OFFERS: dict[str, Callable[[Session, str, list[str]], Iterator[Offer]]] = {
    "address": lambda session, begun, words: addresses(session, begun, bare=True),
    "number": lambda session, begun, words: itertools.chain(
        addresses(session, begun, bare=True), parameters(session, begun)
    ),
    "step": lambda session, begun, words: addresses(session, begun),
    "site": _sites,
    "layer": lambda session, begun, words: (one for one in addresses(session, begun) if _LAYER.fullmatch(one.word)),
    "display": lambda session, begun, words: beginning(
        begun, ((address, f"display {number}") for number, address in enumerate(session.state.displays, start=1))
    ),
    "stop": lambda session, begun, words: beginning(
        begun, ((str(stop.number), stop.words) for stop in session.state.stops)
    ),
    "alias": lambda session, begun, words: beginning(begun, session.state.aliases.items()),
    "run": lambda session, begun, words: beginning(
        begun, ((name, str(run.text)) for name, run in session.state.kept.items())
    ),
    "condition": _conditions,
    "setting": _settings,
    "value": _values,
    "model": _models,
    "file": _files,
    "topic": _topics,
}
"""The kinds of words that are completed, each with what can stand there: by the session, the beginning of the word,

and the words between the verb and it. Other kinds are text, and flag, such as /stats.
"""


# After a sign


def _after_sign(line: str, pieces: list[Piece]) -> tuple[int, Iterator[Offer]]:
    """A file after ``>``, and after ``|`` the files of the command."""
    target = pieces[-1] if pieces[-1].kind == "target" else None
    typed = target.word if target is not None else ""
    sign = next(line[piece.start] for piece in pieces if piece.kind == "sign")
    if sign == "|":
        if " " not in typed:
            return 0, iter(())
        typed = typed.rpartition(" ")[2]
    found = _files(None, typed.strip("\"'"), [])
    return -len(typed), (Offer(_quoted(one.word, typed), one.about, one.whole) for one in found)


def _in_python(session: Session, code: str) -> tuple[int, Iterator[Offer]]:
    """The end of Python: addresses in ``trace["…``, attributes after a dot, and the names that there are."""
    if address := re.search(r"\btrace\[[\"']([^\"']*)$", code):
        return -len(address[1]), addresses(session, address[1])
    if (code.count('"') + code.count("'")) % 2:
        return 0, iter(())
    *path, begun = re.search(r"(?:[^\W\d]\w*\.)*\w*$", code)[0].split(".")  # type: ignore[index]  # it may be empty
    if code[: len(code) - len(".".join([*path, begun]))].endswith("."):  # of what is no name
        return 0, iter(())
    names = session.python_names
    if not path:
        known = {**dict.fromkeys(names, ""), **{name: about for name, about in _PYTHON.items() if name not in names}}
        found = ((name, _PYTHON.get(name, about)) for name, about in known.items() if begun)
        return -len(begun), (Offer(name, about) for name, about in found if name.startswith(begun))
    return -len(begun), _attributes(names, path, begun)


def _attributes(names: Mapping[str, Any], path: list[str], begun: str) -> Iterator[Offer]:
    """The attributes of a name, or of its attributes, each with the first line of what it says of itself."""
    if path[0] not in names:
        return
    value = names[path[0]]
    for name in path[1:]:
        value = getattr(value, name)
    for name in dir(value):
        if name.startswith(begun) and (begun or not name.startswith("_")):
            own = inspect.getattr_static(type(value), name, None)
            says = callable(own) or isinstance(own, (property, cached_property))  # else it is about the value's type
            yield Offer(name, (inspect.getdoc(own) or "").partition("\n")[0] if says else "")
