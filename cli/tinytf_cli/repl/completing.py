"""Completion of the word at the cursor, from the session's tables; it opens no model and computes nothing."""

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
from tinytf_cli.repl.addressing import Offer, addresses, parameters, tokens, vocabulary, with_prefix
from tinytf_cli.repl.colouring import LONGEST
from tinytf_cli.repl.helping import PAGES
from tinytf_cli.repl.line import PYTHON, Piece, escape, pieces_of
from tinytf_cli.repl.looking import FLAGS
from tinytf_cli.repl.python import statements
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.settings import SETTINGS, find_setting
from tinytf_cli.repl.verbs import TOPICS, Verb

_MOST_OFFERS = 500
_MOST_ENTRIES = 5_000
_SITES = re.compile(r"L[^.\[]*|L[^H]*\.(?:in|attn|ffn|out)")
_HEADS = re.compile(r"L[^.\[]*")
_LAYER = re.compile(r"L[0-9]+")
_NEEDS_QUOTES = set(" \"'|>")
_FLAGS = [(f"/{flag}", about) for flag, about in FLAGS.items()]
_SCOPE = {
    "trace": "the recorded trace",
    "model": "the open model",
    "torch": "",
    "np": "numpy",
    "session": "this",
}


class SessionCompleter(Completer):
    """prompt_toolkit's completer of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        with contextlib.suppress(Exception):  # an error in completion must not end the session
            text = document.text_before_cursor
            *_, (_, typed) = statements(enumerate(text.split("\n")))
            is_python = PYTHON.match(typed) is not None
            start, offers = find_offers(self._session, typed if is_python else document.current_line_before_cursor)
            for offer in itertools.islice(offers, _MOST_OFFERS):
                yield Completion(
                    offer.word + (" " if offer.complete else ""),
                    start_position=start,
                    display=printable(offer.word, spaces=False),
                    display_meta=printable(offer.about, spaces=False),
                )


def find_offers(session: Session, line: str) -> tuple[int, Iterator[Offer]]:
    """The completions of the end of a line, and the column where they start, relative to the cursor (0 or less)."""
    if len(line) > LONGEST:
        return 0, iter(())
    if line.lstrip().partition(" ")[1]:
        line = session.lexicon.expanded(line)
    pieces = pieces_of(line, session.lexicon.redirects)
    words = [piece for piece in pieces if piece.kind == "word"]
    last = pieces[-1] if pieces else Piece("space", 0, 0)
    if last.kind in ("target", "sign") or (len(pieces) > 1 and pieces[-2].kind == "sign"):
        return _file_offers(line, pieces)
    if last.kind in ("comment", "bang", "python"):
        return _python_offers(session, line[last.start : last.end]) if last.kind == "python" else (0, iter(()))
    typed = line[last.start :] if last.kind == "word" else ""
    previous = [piece.word for piece in words[:-1]] if typed else [piece.word for piece in words]
    prefix = words[-1].word if typed else ""
    if not previous:
        return -len(typed), _first_words(session, prefix)
    offers = (offer for offer in _further_words(session, previous, prefix) if offer.word != typed or offer.complete)
    return -len(typed), (Offer(_quoted(offer.word, typed), offer.about, offer.complete) for offer in offers)


def _quoted(word: str, typed: str) -> str:
    """A completion, quoted if it needs quotes or if ``typed`` opens with one."""
    quote = typed[:1] if typed[:1] in ('"', "'") else ('"' if set(word) & _NEEDS_QUOTES or word.startswith("#") else "")
    if not quote:
        return word
    content = escape(word) if quote == '"' else word
    return f"{quote}{content}{'' if word.endswith('/') else quote}"  # a folder may go on, so its quote stays open


# The first word


def _first_words(session: Session, prefix: str) -> Iterator[Offer]:
    word, slash, flag = prefix.partition("/")
    if slash:
        yield from (Offer(f"{word}{offer.word}", offer.about, True) for offer in with_prefix(f"/{flag}", _FLAGS))
        return
    for name in dict.fromkeys((*session.lexicon.verbs, *session.lexicon.built_in.values())):
        if name.startswith(prefix) and name != "repl":
            yield Offer(name, _summary(session, name), True)
    yield from with_prefix(prefix, session.aliases.items())


def _summary(session: Session, name: str) -> str:
    if (verb := session.lexicon.verbs.get(name)) is not None:
        return verb.summary
    command = session.lexicon.command(name)
    return "" if command is None else command.get_short_help_str(70)


# Further words


def _further_words(session: Session, previous: list[str], prefix: str) -> Iterator[Offer]:
    name = session.lexicon.meaning(previous[0].partition("/")[0])  # such as print/stats
    if not name:
        return iter(())
    words = previous[1:]
    verb, namesake = session.lexicon.verb_for([name, *words]), session.lexicon.command(name)
    if namesake is not None and verb is None:
        namesake, words = namesake.in_form(words)
    if verb is not None and verb.raw:
        return _verb_words(session, verb, words, prefix, len(words))
    command = namesake if verb is None else verb.command
    if command is None:
        return iter(())
    position, option = _count_arguments(command, words)
    if option is not None:
        return _parameter_values(session, command, option, prefix)
    if prefix.startswith("-") and "--" not in previous:
        return _options(
            prefix, *command.params, *(namesake.params if namesake is not None and verb is not None else ())
        )
    if verb is not None:
        return _verb_words(session, verb, words, prefix, position)
    if name == "grad":
        return addresses(session, prefix)
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    if not arguments:
        return iter(())
    return _parameter_values(session, command, arguments[min(position, len(arguments) - 1)], prefix, position)


def _count_arguments(command: click.Command, words: list[str]) -> tuple[int, click.Option | None]:
    """The number of arguments among the words, and the option whose value comes next, if any."""
    options = {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}
    count, pending = 0, None
    for word in words:
        if pending is not None:
            pending = None
        elif word.startswith("-") and "=" not in word and word in options and not options[word].is_flag:
            pending = options[word]
        elif not word.startswith("-"):
            count += 1
    return count, pending


def _options(prefix: str, *parameters: click.Parameter) -> Iterator[Offer]:
    """The options with a prefix; of two with one name, the first. After ``--by=``, the values of ``--by``."""
    name, equals, _ = prefix.partition("=")
    options = {
        word: option for option in reversed(parameters) if isinstance(option, click.Option) for word in option.opts
    }
    for word, option in reversed(options.items()):
        choices = [str(choice) for choice in getattr(option.type, "choices", ())]
        if equals and word == name:
            yield from with_prefix(prefix, ((f"{name}={choice}", "") for choice in choices))
        elif word.startswith(prefix) and not option.hidden:
            yield Offer(word, option.help or " | ".join(choices), True)


def _parameter_values(
    session: Session, command: click.Command, parameter: click.Parameter, prefix: str, position: int = 0
) -> Iterator[Offer]:
    """The values of an option, or of an argument of a command."""
    metavar, name = str(parameter.metavar or parameter.name or ""), parameter.name
    if ("ADDRESS" in metavar.upper() or metavar.startswith("L3")) and position == 0:
        offers = addresses(session, prefix)
        if command.name in ("trace", "explain"):
            return itertools.chain(offers, parameters(session, prefix))
        return offers if name not in ("head", "heads") else (offer for offer in offers if _HEADS.fullmatch(offer.word))
    if name in ("row", "query", "position"):
        return tokens(session, prefix)
    if metavar == "TOKEN":
        return vocabulary(session, prefix)
    if metavar.upper() in ("MODEL", "WITH_MODEL"):
        return _models(session, prefix, [])
    if name in ("layer", "head") and isinstance(parameter, click.Option):
        table = session.known_table
        count = 0 if table is None else table.config.n_layers if name == "layer" else table.config.n_heads
        return with_prefix(prefix, ((str(index), "") for index in range(count)))
    if isinstance(parameter.type, click.Path) or "FILE" in metavar:
        return _files(session, prefix, [])
    items = parameter.shell_complete(click.Context(command, resilient_parsing=True), prefix)
    return (Offer(str(item.value), item.help or "", True) for item in items if item.type == "plain")


def _verb_words(session: Session, verb: Verb, words: list[str], prefix: str, position: int) -> Iterator[Offer]:
    """The words that a verb takes at an argument position, by their kind."""
    if prefix.startswith("/") and "flag" in verb.takes:
        return with_prefix(prefix, _FLAGS)
    kind = verb.takes[min(position, len(verb.takes) - 1)] if verb.takes else ""
    return OFFERS[kind](session, prefix, words) if kind in OFFERS else iter(())


def _settings(session: Session, prefix: str, words: list[str]) -> Iterator[Offer]:
    about = {name: f"{setting.shown(session.settings)}: {setting.about}" for name, setting in SETTINGS.items()}
    return with_prefix(prefix, () if words else about.items())


def _values(session: Session, prefix: str, words: list[str]) -> Iterator[Offer]:
    """The values of a setting, if it is the only word before the cursor."""
    with contextlib.suppress(UsageError, ValueError):
        (name,) = words
        setting = find_setting(name)
        current = setting.shown(session.settings)
        values = dict.fromkeys((*setting.choices, current))
        yield from with_prefix(prefix, ((value, "as it is now" if value == current else "") for value in values))


def _conditions(session: Session, prefix: str, words: list[str]) -> Iterator[Offer]:
    """``if`` after an address; otherwise measures, and as the first word also addresses."""
    address = re.match(r"\(*([A-Za-z]*)", words[0]) if words and "if" not in words else None
    measures: dict[str, str] = {}
    if session.known_table is not None:  # torch is imported by then
        from tinytf.trace.measures import MEASURES

        measures = {name: about for name, (_, about) in MEASURES.items()}
    if address is not None and address[1] and address[1] not in measures:
        yield from with_prefix(prefix, [("if", "a condition follows")])
        return
    start = prefix.rpartition("(")[0] + "(" if "(" in prefix else ""
    if call := re.fullmatch(r"(.*\b(?:prob|rank)\()([^)]*)", prefix):
        for offer in vocabulary(session, call[2]):
            yield Offer(f"{call[1]}{offer.word})", offer.about, True)
        return
    for name, about in measures.items():
        if name.startswith(prefix.removeprefix(start)):
            yield Offer(f"{start}{name}", about, True)
    if prefix and measures:
        yield from with_prefix(prefix, [("and", ""), ("or", "")])
    if not words:
        yield from addresses(session, prefix)


def _topics(session: Session, prefix: str, words: list[str]) -> Iterator[Offer]:
    for name in dict.fromkeys((*PAGES, *TOPICS, *session.lexicon.names.values())):
        if name.startswith(prefix):
            yield Offer(name, TOPICS.get(name, "") or _summary(session, name) or "more about it", True)


def _sites(session: Session, prefix: str, words: list[str]) -> Iterator[Offer]:
    """The steps that ``without`` can ablate, and the parts of attention that it can leave out."""
    yield from (offer for offer in addresses(session, prefix) if _SITES.fullmatch(offer.word))
    yield from with_prefix(prefix, [*((part, "in no layer") for part in LEFT_OUT), ("none", "the whole model")])


def _models(session: Session, prefix: str, words: list[str]) -> Iterator[Offer]:
    """The models that are available by name, then files."""
    yield from with_prefix(prefix, available_names())
    if ":" not in prefix:
        yield from (
            offer for offer in _files(session, prefix, words) if not offer.complete or offer.word.endswith(".gguf")
        )


def _files(session: Session | None, prefix: str, words: list[str]) -> Iterator[Offer]:
    """The files and folders that a path can be completed to; folders end in /."""
    folder, slash, name = prefix.rpartition("/")
    try:
        with os.scandir(Path(folder + slash or ".").expanduser()) as entries:
            files = sorted(
                (entry.name, entry.is_dir())
                for entry in itertools.islice(entries, _MOST_ENTRIES)
                if entry.name.startswith(name) and (name or not entry.name.startswith("."))
            )
    except (OSError, ValueError, RuntimeError):
        return
    for file, is_folder in files:
        yield Offer(f"{folder}{slash}{file}{'/' if is_folder else ''}", "folder" if is_folder else "", not is_folder)


OFFERS: dict[str, Callable[[Session, str, list[str]], Iterator[Offer]]] = {
    "address": lambda session, prefix, words: addresses(session, prefix, bare=True),
    "number": lambda session, prefix, words: itertools.chain(
        addresses(session, prefix, bare=True), parameters(session, prefix)
    ),
    "step": lambda session, prefix, words: addresses(session, prefix),
    "site": _sites,
    "layer": lambda session, prefix, words: (
        offer for offer in addresses(session, prefix) if _LAYER.fullmatch(offer.word)
    ),
    "display": lambda session, prefix, words: with_prefix(
        prefix, ((one.address, f"display {number}") for number, one in enumerate(session.state.displays, start=1))
    ),
    "stop": lambda session, prefix, words: with_prefix(
        prefix, ((str(stop.number), stop.words) for stop in session.state.stops)
    ),
    "alias": lambda session, prefix, words: with_prefix(prefix, session.aliases.items()),
    "run": lambda session, prefix, words: with_prefix(
        prefix, ((name, str(run.text)) for name, run in session.state.named_runs.items())
    ),
    "condition": _conditions,
    "setting": _settings,
    "target": lambda session, prefix, words: itertools.chain(
        _settings(session, prefix, words), () if words or not prefix else OFFERS["number"](session, prefix, words)
    ),
    "value": _values,
    "model": _models,
    "file": _files,
    "topic": _topics,
}
"""Completions by kind of word: a function of the session, the prefix, and the words between the verb and the prefix.

Two further kinds have none: text, and flag (such as /stats).
"""


# After | or >, and Python


def _file_offers(line: str, pieces: list[Piece]) -> tuple[int, Iterator[Offer]]:
    """Files to redirect to after ``>``; after ``|``, files as arguments of the shell command."""
    target = pieces[-1] if pieces[-1].kind == "target" else None
    typed = target.word if target is not None else ""
    sign = next(line[piece.start] for piece in pieces if piece.kind == "sign")
    if sign == "|":
        if " " not in typed:
            return 0, iter(())
        typed = typed.rpartition(" ")[2]
    files = _files(None, typed.strip("\"'"), [])
    return -len(typed), (Offer(_quoted(offer.word, typed), offer.about, offer.complete) for offer in files)


def _python_offers(session: Session, code: str) -> tuple[int, Iterator[Offer]]:
    """Completions of Python: addresses in ``trace["…``, attributes after a dot, and the names in scope."""
    if address := re.search(r"\btrace\[[\"']([^\"']*)$", code):
        return -len(address[1]), addresses(session, address[1])
    if (code.count('"') + code.count("'")) % 2:
        return 0, iter(())
    *path, prefix = re.search(r"(?:[^\W\d]\w*\.)*\w*$", code)[0].split(".")  # type: ignore[index]  # it may be empty
    if code[: len(code) - len(".".join([*path, prefix]))].endswith("."):  # attribute of an expression that is no name
        return 0, iter(())
    names = session.python_names
    if not path:
        described = {
            **dict.fromkeys(names, ""),
            **{name: about for name, about in _SCOPE.items() if name not in names},
        }
        pairs = ((name, _SCOPE.get(name, about)) for name, about in described.items() if prefix)
        return -len(prefix), (Offer(name, about) for name, about in pairs if name.startswith(prefix))
    return -len(prefix), _attributes(names, path, prefix)


def _attributes(names: Mapping[str, Any], path: list[str], prefix: str) -> Iterator[Offer]:
    """The attributes at the end of a dotted path, each with the first line of its docstring."""
    if path[0] not in names:
        return
    value = names[path[0]]
    for name in path[1:]:
        value = getattr(value, name)
    for name in dir(value):
        if name.startswith(prefix) and (prefix or not name.startswith("_")):
            attribute = inspect.getattr_static(type(value), name, None)
            # The docstring of any other attribute is that of its value's type.
            documented = callable(attribute) or isinstance(attribute, (property, cached_property))
            yield Offer(name, (inspect.getdoc(attribute) or "").partition("\n")[0] if documented else "")
