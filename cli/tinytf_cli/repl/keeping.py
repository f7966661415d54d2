"""Verbs about the session itself: its model, its settings, what was done, and what is kept of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.text.printable import printable
from tinytf.trace.address import parse_address
from tinytf_cli.numbers import plural
from tinytf_cli.options import DEVICES, DTYPES
from tinytf_cli.output import Result, require_place, write_file
from tinytf_cli.repl.helping import help_blocks
from tinytf_cli.repl.outcome import Leave
from tinytf_cli.repl.results import answer, gone_data, gone_lines
from tinytf_cli.repl.script import Failed, read_script, run_lines
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.settings import SETTINGS, changed, find_setting
from tinytf_cli.repl.verbs import positional, verb
from tinytf_cli.views.blocks import Cell, Column, Line, Span, Table

_DEEPEST = 10
_HEADER = "# a session of tinytf; tinytf repl -f FILE runs it again"


@verb(
    "model", topic="session", usage="[MODEL]", takes=("model",),
    examples=("model", "model tiny-encoder", "model preset:gpt2 --seed 1"),
)  # fmt: skip
@click.argument("name", required=False, metavar="[MODEL]")
@click.option("--device", type=click.Choice(DEVICES))
@click.option("--dtype", type=click.Choice(DTYPES))
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Makes the weights of a preset.")
@click.option("--quiet", is_flag=True, help="Show nothing.")
def model(
    session: Session, name: str | None, device: str | None, dtype: str | None, seed: int | None, quiet: bool
) -> Result | None:
    """Open another model for the present text, or say which one is open."""
    from tinytf_cli.views.banner import model_words, notes
    from tinytf_cli.views.blocks import Line

    asked: dict[str, Any] = {"name": name, "device": device, "dtype": dtype, "seed": seed}
    spec = replace(session.state.spec, **{key: value for key, value in asked.items() if value is not None})
    try:
        opened = session.models.model(spec)
    except AddressError as error:  # of a step that this model does not have
        raise AddressError(error.message, "the session runs without it: without none comes first") from None
    if spec != session.state.spec:
        session.take(spec)
        session.place = 0 if session.run else session.place
    return None if quiet else answer("model", {"model": opened.to_dict()}, Line(model_words(opened)), *notes(opened))


@verb(
    "set", topic="session", usage="NAME VALUE", takes=("setting",),
    examples=("set precision 2", "set dims 16", "set colormap cividis", "set width 120", "set pager on"),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="NAME VALUE")
def set_value(session: Session, words: tuple[str, ...]) -> Result:
    """Set how things are shown; show lists what there is."""
    if not words:
        return listed(session)
    if len(words) != 2:
        setting = find_setting(words[0])
        raise UsageError(f"set takes a name and a value, and {setting.name} takes {setting.takes}",
                         f"such as set {setting.name} {setting.shown(session.settings)}")  # fmt: skip
    setting, settings = changed(session.settings, *words)
    _require_there(session, setting.name, getattr(settings, setting.name))
    session.change(settings=settings)
    return _shown(session, (setting.name,))


def _require_there(session: Session, name: str, number: Any) -> None:
    """AddressError for a layer or head that the open model does not have."""
    if name in ("layer", "head"):
        parse_address(f"L{number}" if name == "layer" else f"L0H{number}", session.table)


@verb("show", topic="session", usage="[NAME]", takes=("setting",), examples=("show", "show precision"))
@click.argument("name", required=False, metavar="[NAME]")
def show(session: Session, name: str | None) -> Result:
    """Show the settings, or one of them, and what is taken away."""
    return listed(session) if name is None else _shown(session, (find_setting(name).name,))


def listed(session: Session) -> Result:
    """All settings."""
    return _shown(session, tuple(SETTINGS))


def _shown(session: Session, names: tuple[str, ...]) -> Result:

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
    gone = session.state.spec.without if len(names) == len(SETTINGS) else None
    return answer("settings", {"settings": values, **gone_data(gone)}, table, *gone_lines(gone))


@verb("undo", "u", topic="session", examples=("undo",))
def undo(session: Session) -> Result:
    """Take back the last line that changed the session.

    That is its model, text, ablations, settings, stops and displays. Movements are not taken back: back goes back.
    """
    line = printable(session.undo(), spaces=False)
    return answer("undone", {"line": line}, Line([Span("taken back: "), Span(line, "strong")], single=True))


@verb("history", topic="session", usage="[N]", takes=("number",), examples=("history", "history 5"))
@click.argument("count", type=click.IntRange(1, 10**9), default=50, metavar="[N]")
def history(session: Session, count: int) -> Result:
    """List the last lines: which failed, can be undone, or were undone."""
    first = max(0, len(session.log.lines) - count)
    rows = [(number, one) for number, one in enumerate(session.log.lines, start=1)][first:]
    data = {
        "lines": [
            {"number": number, "line": one.line, "done": one.done, "undone": number in session.log.undone}
            for number, one in rows
        ]
    }
    if not rows:
        return answer("history", data, Line("nothing has been typed yet"))
    changes = session.log.changes
    marks: list[Cell] = [
        Span("failed", "bad")
        if not one.done
        else Span("undone" if number in session.log.undone else "can be undone" if number in changes else "", "dim")
        for number, one in rows
    ]
    columns = [
        Column("", [str(number) for number, _ in rows], "right"),
        Column("", [printable(one.line[:200], spaces=False) for _, one in rows], shrink=20),
        Column("", marks),
    ]
    return answer("history", data, Table(columns, header=False))


@verb("save", topic="session", usage="FILE", takes=("file",), examples=("save look.session",))
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def save(session: Session, path: Path, force: bool) -> Result:
    """Write the lines of this session to FILE, to be run again.

    Lines that failed are left out. source FILE and tinytf repl -f FILE run them, and give the same output.
    """

    path = path.expanduser()
    require_place(path)
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", "choose another name, or write over it with --force")
    lines = transcript(session)
    broken = next((line for line in lines if "\n" in line), None)
    if broken is not None:
        raise UsageError(f"a line of this session has a line break, which a transcript cannot hold: {broken[:60]!r}",
                         "undo does not take lines away; say it in another session without the break")  # fmt: skip
    write_file(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    said = f"{plural(len(lines) - 1, 'line')} in {printable(str(path), spaces=False)}"
    return answer("saved", {"file": str(path), "lines": len(lines) - 1}, Line(said))


def transcript(session: Session) -> list[str]:
    """The lines that, run again, give the same output."""
    kept = [one.line for one in session.log.lines if one.done and one.verb not in ("save", "quit")]
    return [_HEADER, *kept]


@verb("source", topic="session", usage="FILE", takes=("file",), examples=("source look.session",))
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
def source(session: Session, path: Path) -> None:
    """Run the lines of FILE, up to one that fails."""
    if session.streams.depth >= _DEEPEST:
        raise UsageError(f"{path} is the {_DEEPEST + 1}th file inside another", "a file does not source itself")
    lines = read_script(path.expanduser())
    session.streams.depth += 1
    try:
        run_lines(session, lines, echo=False, stop=True, inside=True)
    except Failed as failed:
        if failed.outcome.status == 130:
            raise KeyboardInterrupt from None
        failure = failed.outcome.failure
        if failure is None:
            raise TinytfError(f"{failed.where}: a check did not hold") from None
        raise TinytfError(f"{failed.where}: {failure.message}", failure.hint) from None
    finally:
        session.streams.depth -= 1


@verb(
    "diff", topic="looking", names_models=True, usage="[TEXT TEXT]", takes=("text",),
    examples=("diff", "diff --head L0H1 --top 3"),
    claims=lambda words: _claims_diff(words),
)  # fmt: skip
@click.option("--tolerance", type=click.FloatRange(0), help="Relative difference that is none yet.")
@click.option("--head", metavar="ADDRESS", help="Show the weights of this head, not of the worst one.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Most probable tokens of either.")
@click.option("--rows", type=click.IntRange(0), help="Positions shown in a table (0: all; on a screen 16).")
def diff(session: Session, tolerance: float | None, head: str | None, top: int, rows: int | None) -> Result:
    """Compare the last two runs: where they begin to differ, and how.

    They are of two texts, or of one text through two models, or through one with and without some steps. With texts it
    is the command of the same name.
    """
    from tinytf.analysis.alignment import Side
    from tinytf.analysis.difference import difference, parse_head
    from tinytf.report import About
    from tinytf_cli.views.difference import DifferenceView

    runs = session.state.runs
    if len(runs) < 2:
        raise UsageError("diff compares the last two runs", f"there is {'one' if runs else 'none'} so far: run TEXT")
    a, b = (session.models.model(run.spec) for run in runs)
    traces = [session.models.trace(run) for run in runs]
    first, second = (trace.encoding for trace in traces)
    found = difference(
        Side(a.transformer, a.tokenizer, first, traces[0]),
        Side(b.transformer, b.tokenizer, second, traces[1]),
        tolerance=tolerance,
        head=None if head is None else parse_head(head, session.table),
        top=top,
    )
    found = replace(found, sides=(About(a, first), About(b, second)))
    return Result.of(DifferenceView((a, b), found, rows))


def _claims_diff(words: tuple[str, ...]) -> bool:
    """Whether these words are for the verb: its own options alone."""
    return positional(diff.command, words) == ()


@verb("help", "h", "?", topic="session", usage="[TOPIC]", takes=("topic",),
      examples=("help", "help break", "help keys", "help conditions"))  # fmt: skip
@click.argument("topics", nargs=-1, metavar="[TOPIC]")
def help_on(session: Session, topics: tuple[str, ...]) -> Result:
    """Say what there is, or more about one verb, command or topic."""
    blocks = list(help_blocks(session, " ".join(topics)))
    return answer("help", {"topic": " ".join(topics)}, *blocks)


@verb("quit", "exit", "q", topic="session", examples=("quit",))
def leave(session: Session) -> None:
    """Leave the session."""
    raise Leave


KEEPING = (diff, model, set_value, show, undo, history, save, source, help_on, leave)
