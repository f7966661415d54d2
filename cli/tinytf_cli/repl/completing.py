"""What the word at the cursor can become: read from the session's tables, without opening or computing anything."""

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from tinytf.errors import UsageError
from tinytf.text.printable import printable
from tinytf_cli.options import complete_model
from tinytf_cli.repl.addressing import Offer, addresses, beginning, cell_words, layers
from tinytf_cli.repl.colouring import LONGEST
from tinytf_cli.repl.helping import PAGES
from tinytf_cli.repl.lexicon import TOPICS, Verb
from tinytf_cli.repl.line import Piece, escaped, pieces_of
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.settings import SETTINGS, find_setting

_MOST = 500
_SCANNED = 5_000
_MODEL_FILE = ".gguf"
_HEAD_ALONE = re.compile(r"L[^.\[]*")
_QUOTED = set(" \"'|>#")


class SessionCompleter(Completer):
    """Completion of prompt_toolkit."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        with contextlib.suppress(Exception):  # a fault here must not end the session
            yield from self._found(document.current_line_before_cursor)

    def _found(self, line: str) -> Iterator[Completion]:
        start, offers = offered(self._session, line)
        for one in itertools.islice(offers, _MOST):
            yield Completion(
                one.word + (" " if one.whole else ""),
                start_position=start,
                display=printable(one.word, spaces=False),
                display_meta=printable(one.about, spaces=False),
            )


def offered(session: Session, line: str) -> tuple[int, Iterator[Offer]]:
    """What stands before the cursor can end in: how far back the words begin (0 or less), and the words."""
    if len(line) > LONGEST:
        return 0, iter(())
    pieces = pieces_of(line, session.lexicon.redirects)
    words = [piece for piece in pieces if piece.kind == "word"]
    last = pieces[-1] if pieces else Piece("space", 0, 0)
    if last.kind in ("target", "sign") or (len(pieces) > 1 and pieces[-2].kind == "sign"):
        return _behind_sign(line, pieces)
    if last.kind in ("comment", "bang", "python"):
        return _in_python(line, last) if last.kind == "python" else (0, iter(()))
    typed = line[last.start :] if last.kind == "word" else ""
    before = [piece.word for piece in words[:-1]] if typed else [piece.word for piece in words]
    begun = words[-1].word if typed else ""
    if not before:
        return -len(typed), _first(session, begun)
    found = (one for one in _behind(session, before, begun) if one.word != typed or one.whole)
    return -len(typed), (Offer(quoted(one.word, typed), one.about, one.whole) for one in found)


def quoted(word: str, typed: str) -> str:
    """A word so that a line takes it for one, in the quotes that were begun."""
    quote = typed[:1] if typed[:1] in ('"', "'") else ('"' if set(word) & _QUOTED else "")
    if not quote:
        return word
    inside = escaped(word) if quote == '"' else word
    folder = word.endswith("/")  # more may follow
    return f"{quote}{inside}{'' if folder else quote}"


# The first word


def _first(session: Session, begun: str) -> Iterator[Offer]:
    word, slash, flag = begun.partition("/")
    if slash:
        yield from (Offer(f"{word}{one.word}", one.about, True) for one in beginning(f"/{flag}", _FLAGS))
        return
    for name in dict.fromkeys((*session.lexicon.verbs, *session.lexicon.names.values())):
        if name.startswith(begun) and name != "repl":
            yield Offer(name, _summary(session, name), True)


@functools.lru_cache(maxsize=100)
def _short_help(command: click.Command) -> str:
    return command.get_short_help_str(70)


def _summary(session: Session, name: str) -> str:
    found = session.lexicon.verbs.get(name)
    command = found.command if found else session.lexicon.command(name)
    return _short_help(command) if command is not None else ""


# Words behind it


def _behind(session: Session, before: list[str], begun: str) -> Iterator[Offer]:
    name = session.lexicon.meaning(before[0].partition("/")[0])  # as in print/stats
    if not name:
        return iter(())
    verb = session.lexicon.verb_for([name, *before[1:]])
    command = verb.command if verb is not None else session.lexicon.command(name)
    if command is None:
        return iter(())
    if verb is not None and verb.raw:
        return _of_verb(session, verb, before[1:], begun)
    place, waiting = _placed(command, before[1:])
    if waiting is not None:
        return _of_parameter(session, command, waiting, begun)
    if begun.startswith("-") and "--" not in before:
        also = session.lexicon.command(name) if verb is not None else None  # of the same name, for other words
        return _options(begun, *command.params, *(also.params if also is not None else ()))
    if verb is not None:
        return _of_verb(session, verb, before[1:], begun, place)
    if session.lexicon.takes(name)[:1] == ("address",):
        return addresses(session, begun)
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    if not arguments:
        return iter(())
    return _of_parameter(session, command, arguments[min(place, len(arguments) - 1)], begun, place)


def _placed(command: click.Command, words: list[str]) -> tuple[int, click.Option | None]:
    """How many words that are no option stand there, and the option that waits for its value, if one does."""
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
    name, sign, _ = begun.partition("=")
    options = {word: one for one in reversed(parameters) if isinstance(one, click.Option) for word in one.opts}
    for word, one in reversed(options.items()):
        if one.hidden:
            continue
        if sign and word == name and isinstance(one.type, click.Choice):
            yield from beginning(begun, ((f"{name}={choice}", "") for choice in one.type.choices))
        elif not sign and word.startswith(begun) and (word.startswith("--") or not begun.startswith("--")):
            about = one.help or " | ".join(map(str, getattr(one.type, "choices", ())))
            yield Offer(word, about, True)


def _of_parameter(
    session: Session, command: click.Command, parameter: click.Parameter, begun: str, place: int = 0
) -> Iterator[Offer]:
    """The values of an option, or of an argument of a command."""
    kind = str(parameter.metavar or parameter.name or "")
    if ("ADDRESS" in kind.upper() or kind.startswith("L3")) and place == 0:
        whole = parameter.name in ("head", "heads")  # a head has no step behind it
        yield from (one for one in addresses(session, begun) if not whole or _HEAD_ALONE.fullmatch(one.word))
    elif parameter.name in _POSITIONS:
        for number, (word, shown) in enumerate(zip(cell_words(session.tokens), session.tokens, strict=True)):
            if word.casefold().startswith(begun.casefold()):
                yield Offer(word, f"token {number}, {shown}", True)
    elif kind.upper() in ("MODEL", "WITH_MODEL"):
        yield from models(begun)
    elif parameter.name in ("layer", "head") and isinstance(parameter, click.Option):
        if session.is_open:
            config = session.table.config
            count = config.n_layers if parameter.name == "layer" else config.n_heads
            yield from beginning(begun, ((str(one), "") for one in range(count)))
    elif isinstance(parameter.type, click.Path) or "FILE" in kind:
        yield from files(begun)
    else:
        context = click.Context(command, resilient_parsing=True)
        for item in parameter.shell_complete(context, begun):
            if item.type == "plain":
                yield Offer(str(item.value), item.help or "", True)


def _of_verb(session: Session, verb: Verb, words: list[str], begun: str, place: int | None = None) -> Iterator[Offer]:
    """The words of a verb, by the kinds that it takes."""
    own = _OWN.get(verb.name)
    if own is not None:
        yield from own(session, begun)
        return
    place = len(words) if place is None else place
    if "condition" in verb.takes and ("if" in words or verb.takes[0] == "condition"):
        yield from _conditions(session, begun)
        if verb.takes[0] == "condition" and not words:
            yield from addresses(session, begun)
        return
    if "condition" in verb.takes and words:
        yield from beginning(begun, [("if", "a condition follows")])
        return
    if begun.startswith("/") and "flag" in verb.takes:
        yield from beginning(begun, _FLAGS)
        return
    takes = verb.takes[min(place, len(verb.takes) - 1)] if verb.takes else ""
    if takes == "setting":
        yield from _settings(session, words, begun, valued=verb.name == "set")
    elif takes == "address":
        yield from addresses(session, begun, bare="condition" not in verb.takes)
    elif takes in _KINDS:
        yield from _KINDS[takes](session, begun)


_FLAGS = (
    ("/shape", "its axes"), ("/stats", "mean, range and the like"), ("/values", "every number"), ("/json", "as data"),
)  # fmt: skip


def _settings(session: Session, words: list[str], begun: str, *, valued: bool) -> Iterator[Offer]:
    if not words:
        about = {name: f"{one.shown(session.settings)}: {one.about}" for name, one in SETTINGS.items()}
        yield from beginning(begun, about.items())
    elif len(words) == 1 and valued:
        try:
            found = find_setting(words[0])
        except UsageError:
            return
        now = found.shown(session.settings)
        values = dict.fromkeys((*found.choices, now))
        yield from beginning(begun, ((value, "as it is now" if value == now else "") for value in values))


def _conditions(session: Session, begun: str) -> Iterator[Offer]:
    if not session.is_open:  # torch comes with the model
        return
    from tinytf.trace.conditions import MEASURES

    inside = begun.rpartition("(")[0] + "(" if "(" in begun else ""
    for name, (_, about) in MEASURES.items():
        if name.startswith(begun.removeprefix(inside)):
            yield Offer(f"{inside}{name}", about, True)
    if begun:
        yield from beginning(begun, [("and", ""), ("or", "")])


def _topics(session: Session, begun: str) -> Iterator[Offer]:
    for name in dict.fromkeys((*PAGES, *TOPICS, *session.lexicon.names.values())):
        if name.startswith(begun):
            yield Offer(name, TOPICS.get(name, "") or _summary(session, name) or "more about it", True)


def _displays(session: Session, begun: str) -> Iterator[Offer]:
    shown = enumerate(session.state.displays, start=1)
    return beginning(begun, ((address, f"display {number}") for number, address in shown))


def _stops(session: Session, begun: str) -> Iterator[Offer]:
    return beginning(begun, ((str(stop.number), stop.words) for stop in session.state.stops))


def models(begun: str) -> Iterator[Offer]:
    """The models that are built in, and files."""
    context = click.Context(click.Command("model"))
    for item in complete_model(context, click.Option(["--model"]), begun):
        if item.type == "plain":
            built_in = "built in" if not item.value.startswith("preset:") else "random weights of this shape"
            yield Offer(item.value, built_in, True)
    if not begun.startswith("preset:"):
        yield from (one for one in files(begun) if not one.whole or one.word.endswith(_MODEL_FILE))


def files(begun: str) -> Iterator[Offer]:
    """The files that a path can become, folders with a / behind."""
    folder, _, name = begun.rpartition("/")
    folder = f"{folder}/" if "/" in begun else ""
    try:
        with os.scandir(Path(folder or ".").expanduser()) as entries:
            found = sorted(
                (entry.name, entry.is_dir())
                for entry in itertools.islice(entries, _SCANNED)
                if entry.name.startswith(name) and (name or not entry.name.startswith("."))
            )
    except (OSError, ValueError, RuntimeError):
        return
    for one, is_folder in found:
        yield Offer(f"{folder}{one}{'/' if is_folder else ''}", "folder" if is_folder else "", not is_folder)


_KINDS: dict[str, Callable[[Session, str], Iterator[Offer]]] = {
    "step": addresses,
    "cell": addresses,
    "layer": layers,
    "model": lambda session, begun: models(begun),
    "file": lambda session, begun: files(begun),
    "topic": _topics,
}


def _sites(session: Session, begun: str) -> Iterator[Offer]:
    """What the model can go without."""
    for one in addresses(session, begun):
        _, dot, step = one.word.partition(".")
        if one.word.startswith("L") and (not dot or ("H" not in one.word and step in _STEPS_WITHOUT)):
            yield one
    yield from beginning(begun, [("none", "the whole model")])


_STEPS_WITHOUT = ("in", "attn", "ffn", "out")
_POSITIONS = ("row", "query", "position")
_OWN = {"undisplay": _displays, "delete": _stops, "without": _sites}


# Behind a sign


def _behind_sign(line: str, pieces: list[Piece]) -> tuple[int, Iterator[Offer]]:
    """A file behind ``>``, and behind ``|`` the files of the command."""
    target = pieces[-1] if pieces[-1].kind == "target" else None
    typed = target.word if target is not None else ""
    sign = next(line[piece.start] for piece in pieces if piece.kind == "sign")
    if sign == "|":
        if not typed or " " not in typed:
            return 0, iter(())
        typed = typed.rpartition(" ")[2]
    return -len(typed), (Offer(quoted(one.word, typed), one.about, one.whole) for one in files(typed.strip("\"'")))


def _in_python(line: str, piece: Piece) -> tuple[int, Iterator[Offer]]:
    """The names that Python has here."""
    code = line[piece.start : piece.end]
    begun = code[len(code.rstrip("abcdefghijklmnopqrstuvwxyz")) :]
    if code[: len(code) - len(begun)][-1:] in (".", '"', "'", "_") or (code.count('"') + code.count("'")) % 2:
        return 0, iter(())
    about = {"trace": "the recorded trace", "model": "the open model", "torch": "", "np": "numpy", "session": "this"}
    return -len(begun), (Offer(name, words) for name, words in about.items() if begun and name.startswith(begun))
