"""Verbs about the session itself: its model, its settings, its lines; and the table of all verbs."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.text.printable import printable
from tinytf.trace.address import one_number
from tinytf_cli.numbers import plural
from tinytf_cli.options import DEVICES, DTYPES
from tinytf_cli.output import Result, require_place, write_file
from tinytf_cli.paint.text import shown
from tinytf_cli.repl.helping import help_blocks
from tinytf_cli.repl.line import PROMPT, PYTHON, Lines, read_script
from tinytf_cli.repl.log import Entry
from tinytf_cli.repl.looking import LOOKING
from tinytf_cli.repl.moving import MOVING
from tinytf_cli.repl.naming import NAMING
from tinytf_cli.repl.python import script_lines, statements
from tinytf_cli.repl.running import diff, keep, run, use
from tinytf_cli.repl.session import Leave, Outcome, Session
from tinytf_cli.repl.settings import SETTINGS, find_setting
from tinytf_cli.repl.state import Ablation
from tinytf_cli.repl.stopping import STOPPING
from tinytf_cli.repl.trust import Trust
from tinytf_cli.repl.verbs import Verb, ablation_line, answer, verb
from tinytf_cli.views.blocks import Column, Line, Span, Table

_DEEPEST = 10
_HEADER = "# a session of tinytf; tinytf repl -f FILE runs it again, with --allow-code where it has a ! or a |"
_NONE = "none"
_NUMBER = re.compile(r"-?[0-9]+")
_DELETES = re.compile(r"\s*(?:del[a-z]*|ig[a-z]*)\s+[0-9]")
_verb = partial(verb, topic="session")


@_verb("without", takes=("site",), examples=(
    "without L0H3", "without L1H* L2.ffn --how mean", "without scaling", "without none",
))  # fmt: skip
@click.argument("addresses", nargs=-1, metavar="[ADDRESS … | scaling | mask | positions | none]")
@click.option("--how", type=click.Choice(["zero", "mean"]), help="What replaces them, zero by default.")
@click.option("--reference", metavar="FILE", help="Texts for the mean; without it the model's own.")
def without(session: Session, addresses: tuple[str, ...], how: str | None, reference: str | None) -> Result:
    """Take some steps out of the model, or show which it goes without.

    A step that is ablated is a head (L0H3), a part of a layer (L2.attn, L2.ffn), both of them (L2), or the residual
    stream (L2.in, L2.out). scaling, mask and positions leave that part of attention out of every layer. Everything the
    session runs on its model then runs without them: traces, heat, top, generate, score, lens, grad. The present text
    is run again, so that diff compares it with the run before. The words replace those given before; none restores the
    whole model, and undo the model before. A command with its own --model, --device or --dtype opens a whole one.
    """
    spec = session.state.spec
    if addresses or how or reference:
        session.set_spec(replace(spec, without=_asked(session, addresses, how, reference)))
    gone = session.state.spec.without
    if gone is None:
        return answer("without", {"without": None}, Line("the model is whole"))
    compare = [] if session.run is None else [Line(Span("diff compares this run with the one before", "dim"))]
    return answer("without", {"without": gone.to_dict()}, ablation_line(gone), *compare)


def _asked(session: Session, addresses: tuple[str, ...], how: str | None, reference: str | None) -> Ablation | None:
    """What the words leave out or ablate, tried on the model; None is the whole model."""
    before = session.state.spec.without
    if addresses == (_NONE,):
        if how or reference:
            raise UsageError("none restores the whole model, and takes no --how and no --reference")
        return None
    at = addresses or (before.at if before else ())
    if not at:
        raise UsageError("no step is named", "such as: without L0H3, or L2.ffn, or a layer, L2")
    if _NONE in at:
        raise UsageError("none cannot be combined with an address", "without none restores the whole model")
    kind = how or ("mean" if reference else "zero")
    if reference and kind != "mean":
        raise UsageError("zeros have no --reference", "--how mean has one")
    wanted = Ablation(at, kind, reference)
    if how and not wanted.steps:
        raise UsageError(f"--how says what replaces a step, and {' and '.join(at)} are left out", "leave --how out")
    session.models.model(replace(session.state.spec, without=wanted))
    return wanted


@_verb("model", takes=("model",), examples=("model", "model tiny-encoder", "model preset:gpt2 --seed 1"))
@click.argument("name", required=False, metavar="[MODEL]")
@click.option("--device", type=click.Choice(DEVICES))
@click.option("--dtype", type=click.Choice(DTYPES))
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Random seed of a preset's weights.")
@click.option("--adapter", type=click.Path(path_type=Path), metavar="DIR", help="A LoRA adapter of PEFT to merge.")
@click.option("--quiet", is_flag=True, help="Show nothing.")
def model(session: Session, quiet: bool, **asked: Any) -> Result | None:
    """Open another model for the present text, or show which one is open.

    A model that is named has no adapter but its own --adapter.
    """
    from tinytf_cli.views.banner import model_words, notes

    kept = replace(session.state.spec, adapter=None) if asked["name"] else session.state.spec
    spec = replace(kept, **{key: value for key, value in asked.items() if value is not None})
    try:
        opened = session.models.model(spec)
    except AddressError as error:  # of an ablated step that this model does not have
        raise AddressError(error.message, "some steps are ablated; restore them first: without none") from None
    if spec != session.state.spec:
        session.set_spec(spec)
        session.change(row=0 if session.run else None, head=None)
    return None if quiet else answer("model", {"model": opened.to_dict()}, Line(model_words(opened)), *notes(opened))


@_verb(
    "set", takes=("setting", "value"),
    examples=("set precision 2", "set dims 16", "set colormap cividis", "set width 120", "set pager on"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="NAME VALUE")
def set_value(session: Session, words: tuple[str, ...]) -> Result:
    """Change how things are shown; show lists the settings."""
    if not words:
        return _shown(session, *SETTINGS)
    setting = find_setting(words[0])
    if len(words) != 2:
        raise UsageError(f"set takes a name and a value, and {setting.name} takes {setting.takes}",
                         f"such as set {setting.name} {setting.shown(session.settings)}")  # fmt: skip
    if setting.name in ("layer", "head") and _NUMBER.fullmatch(words[1]):
        config = session.table.config  # AddressError for one that the model does not have
        count = config.n_layers if setting.name == "layer" else config.n_heads
        words = (setting.name, str(one_number(words[1], count, setting.name)))
    settings = session.settings.changed(*words)
    session.change(settings=settings)
    return _shown(session, setting.name)


@_verb("show", takes=("setting",), examples=("show", "show precision"))
@click.argument("name", required=False, metavar="[NAME]")
def show(session: Session, name: str | None) -> Result:
    """Show the settings, or one of them, and which steps are ablated."""
    return _shown(session, *(SETTINGS if name is None else (find_setting(name).name,)))


def _shown(session: Session, *names: str) -> Result:
    values = {name: SETTINGS[name].shown(session.settings) for name in names}
    table = Table(
        [
            Column("setting", list(values)),
            Column("value", [Span(value, "strong") for value in values.values()]),
            Column("takes", [Span(SETTINGS[name].takes, "dim") for name in names], drop=1),
            Column("what", [SETTINGS[name].about for name in names], shrink=8),
        ],
        header=len(names) > 1,
    )
    gone = session.state.spec.without
    if gone is None or len(names) < len(SETTINGS):
        return answer("settings", {"settings": values}, table)
    return answer("settings", {"settings": values, "without": gone.to_dict()}, table, ablation_line(gone))


@_verb("undo", "u", examples=("undo",))
def undo(session: Session) -> Result:
    """Undo the last line that changed the session.

    That is its model, text, ablations, kept runs, settings, stops, displays and aliases. It does not undo movements:
    back goes back, and redo undoes an undo.
    """
    return _restored(session, "undone", session.undo())


@_verb("redo", examples=("redo",))
def redo(session: Session) -> Result:
    """Do again what the last undo took back.

    After another line that changes the session there is nothing to redo.
    """
    return _restored(session, "redone", session.redo())


def _restored(session: Session, kind: str, line: str) -> Result:
    line = printable(line, spaces=False)
    return answer(kind, {"line": line}, Line([Span(f"{kind}: "), Span(line, "strong")], single=True))


@_verb("history", examples=("history", "history 5"))
@click.argument("count", type=click.IntRange(1), default=50, metavar="[N]")
def history(session: Session, count: int) -> Result:
    """List the last lines: which failed, can be undone, or were undone."""
    rows = list(enumerate(session.log.lines, start=1))[-count:]
    data = {
        "lines": [{"number": number, "line": one.line, "done": one.done, "undone": one.undone} for number, one in rows]
    }
    if not rows:
        return answer("history", data, Line("nothing has been typed yet"))
    columns = [
        Column("", [str(number) for number, _ in rows], "right"),
        Column("", [printable(one.line[:200], spaces=False) for _, one in rows], shrink=20),
        Column("", [_mark(one) for _, one in rows]),
    ]
    return answer("history", data, Table(columns, header=False))


def _mark(entry: Entry) -> Span:
    if not entry.done:
        return Span("failed", "bad")
    return Span("undone" if entry.undone else "can be undone" if entry.before is not None else "", "dim")


@_verb("save", takes=("file",), examples=("save look.session",))
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def save(session: Session, path: Path, force: bool) -> Result:
    """Write the lines of this session to FILE, to be run again.

    Lines that failed are omitted, and so are !!, history and save. source FILE and tinytf repl -f FILE run the others,
    and give the same output.
    """
    path = path.expanduser()
    require_place(path)
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "choose another name, or overwrite it with --force")
    lines = session.log.transcript()
    lines = [one for line in lines for one in (script_lines(line) if PYTHON.match(line) else [line])]
    broken = next((line for line in lines if "\n" in line), None)
    if broken is not None:
        raise UsageError(f"a line of this session has a line break, which a transcript cannot hold: {broken[:60]!r}",
                         "undo does not remove lines; type it in another session without the break")  # fmt: skip
    write_file(path, "".join(f"{line}\n" for line in (_HEADER, *lines)).encode("utf-8", "surrogateescape"))
    said = f"{plural(len(lines), 'line')} in {printable(str(path), spaces=False)}"
    return answer("saved", {"file": str(path), "lines": len(lines)}, Line(said))


@_verb("source", takes=("file",), examples=("source look.session",))
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--allow-code", is_flag=True, help="Let it run Python and programs, and write anywhere.")
@click.option(
    "--write-to", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
    help="Let it write new files of results below DIR.",
)  # fmt: skip
def source(session: Session, path: Path, allow_code: bool, write_to: Path | None) -> None:
    """Run the lines of FILE, up to one that fails.

    Python (!), programs (|), check and sweep need --allow-code. Without it the lines write nothing, or with --write-to
    new files of results below DIR.
    """
    if session.streams.depth >= _DEEPEST:
        raise UsageError(f"{path} is the {_DEEPEST + 1}th file inside another", "a file does not source itself")
    lines = list(read_script(path.expanduser()))
    where = next((where for where, line in lines if _DELETES.match(line)), "")
    if where and session.state.stops:
        raise UsageError(f"{where} names a stop by its number, and there are stops already", "delete removes them")
    session.streams.depth += 1
    try:
        for where, outcome in run_each(
            session, session.streams.of_file(statements(lines), Trust(allow_code, write_to))
        ):
            if outcome.leave:
                raise Leave
            if outcome.status == 130:
                raise KeyboardInterrupt
            if outcome.failure is not None:
                raise TinytfError(f"{where}: {outcome.failure.message}", outcome.failure.hint)
            if outcome.status:
                raise TinytfError(f"{where}: a check did not hold")
    finally:
        session.streams.depth -= 1


def run_each(session: Session, lines: Lines, *, echo: bool = False) -> Iterator[tuple[str, Outcome]]:
    """Run whole statements in turn, without blank ones: the place of each, and its outcome."""
    for where, line in lines:
        if not line.strip():
            continue
        if echo:
            echo_line(session, line)
        yield where, session.execute(line)


def echo_line(session: Session, line: str) -> None:
    """Show what is run as it would be typed."""
    terminal = session.terminal()
    for mark, part in zip(itertools.chain([PROMPT], itertools.repeat("")), script_lines(line.rstrip()), strict=False):
        session.streams.write(f"{mark}{shown(printable(part, spaces=False), terminal)}\n")


def run_lines(session: Session, lines: Lines, *, echo: bool, stop: bool) -> int:
    """Run whole statements in turn, and return 0, 1 if one failed, or 130; ``stop`` ends at the first that fails."""
    status = 0
    for where, outcome in run_each(session, lines, echo=echo):
        if outcome.leave:
            break
        if outcome.status == 130:  # the caller says so
            return 130
        if outcome.status == 0:
            continue
        session.say(outcome, f"{where}: ")
        status = 1
        if stop:
            break
    return status


@_verb("help", "h", "?", takes=("topic",), examples=("help", "help break", "help keys", "help conditions"))
@click.argument("topics", nargs=-1, metavar="[TOPIC]")
def help_on(session: Session, topics: tuple[str, ...]) -> Result:
    """Show what there is, or more about one verb, command or topic."""
    topic = " ".join(topics)
    return answer("help", {"topic": topic}, *help_blocks(session, topic))


@_verb("quit", "exit", "q", examples=("quit",))
def leave(session: Session) -> None:
    """Leave the session."""
    raise Leave


_SESSION = (without, model, keep, use, set_value, show, *NAMING, undo, redo, history, save, source, help_on, leave)

VERBS: dict[str, Verb] = {one.name: one for one in (run, *MOVING, *LOOKING, diff, *STOPPING, *_SESSION)}
"""All verbs, in the order in which help lists them."""
