"""Verbs that run a text, keep runs by name, go back to one, and compare two."""

import re
from dataclasses import replace

import click

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable
from tinytf_cli.command import FloatRange
from tinytf_cli.inputs import read_conversations
from tinytf_cli.options import FoldOptions
from tinytf_cli.repl.moving import NO_STOP, forward, standing
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Run
from tinytf_cli.repl.verbs import answer, verb
from tinytf_cli.views.blocks import Column, Line, Span, Table
from tinytf_cli.views.draw import Shown

_NAME = re.compile(r"[A-Za-z_][\w.-]{0,39}")


@verb("run", "r", topic="moving", takes=("text",), examples=('run "The cat sat on the"', "run The cat"))
@click.argument("words", nargs=-1, metavar="TEXT")
@click.option("--truncate", is_flag=True, help="Truncate a text that is longer than the model's context.")
@click.option("--force", is_flag=True, help="Record even what is larger than the free memory.")
@click.option("--quiet", is_flag=True, help="Show nothing.")
@click.option("--chat", is_flag=True, help="Put TEXT, or the messages of a .json file, into the chat template.")
def run(session: Session, words: tuple[str, ...], truncate: bool, force: bool, quiet: bool, chat: bool) -> Shown | None:
    """Record a text, and go to its first step, or to the first stop.

    Without TEXT the present one is run again from its first step.
    """
    if words:
        text = read_conversations(words, lines=False)[0] if chat else " ".join(words)
        session.follow(Run(session.state.spec, text, truncate, force))
    else:
        session.models.trace(session.require_run())
    session.change(place=0, stops=tuple(replace(stop, hits=0) for stop in session.state.stops))
    said = (forward(session, 0, len(session.table.rows) - 1) or NO_STOP) if session.state.stops else ""
    return None if quiet else standing(session, said, begun=True)


@verb("keep", topic="session", takes=("run",), examples=("keep cat", "keep"))
@click.argument("name", required=False, metavar="[NAME]")
def keep(session: Session, name: str | None) -> Shown:
    """Keep the present run under a name, or list those that are kept.

    use NAME goes back to it: its text, model and ablations; diff NAME compares the present run with it. A name that is
    kept again is that of the present run from then on.
    """
    if name is not None:
        if not _NAME.fullmatch(name):
            hint = "letters, digits, _ . and -, beginning with a letter, at most 40: keep cat"
            raise UsageError(f"{name[:60]!r} is no name of a run", hint)
        session.change(kept={**session.state.kept, name: session.require_run()})
    return _kept(session)


@verb("use", topic="session", names_models=True, takes=("run",), examples=("use cat",))
@click.argument("name", metavar="NAME")
def use(session: Session, name: str) -> Shown:
    """Go back to a run that was kept: its text, model and ablations.

    It is the present run then, and diff compares it with the one before. The step stays, in another model it is the
    first.
    """
    wanted, before = _find(session, name), session.state.spec
    session.follow(wanted)
    if wanted.spec.name != before.name:
        session.change(place=0, head=None)
    return standing(session, begun=True)


def _find(session: Session, name: str) -> Run:
    """A run by its name; UsageError for one that is not kept."""
    kept = session.state.kept
    if name not in kept:
        hint = did_you_mean(name, kept) if kept else "keep NAME keeps the present one"
        raise UsageError(f"no run is kept as {name[:60]!r}", hint)
    return kept[name]


def _kept(session: Session) -> Shown:
    """The runs that are kept, and which of them is the present one."""
    kept = session.state.kept
    data = [
        {"name": name, "model": run.spec.short, "text": str(run.text), "present": run == session.run}
        for name, run in kept.items()
    ]
    if not data:
        return answer("kept", {"runs": data}, Line("no run is kept"))
    columns = [
        Column("run", [Span(str(one["name"]), "strong") for one in data]),
        Column("model", [printable(str(one["model"]), spaces=False) for one in data], shrink=8),
        Column("text", [printable(str(one["text"])[:200], spaces=False) for one in data], shrink=8),
        Column("", [Span("present" if one["present"] else "", "dim") for one in data]),
    ]
    return answer("kept", {"runs": data}, Table(columns))


def _names(context: click.Context, _: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, if they are names of runs; others are texts, for the command."""
    if len(words) > 2 or not all(word in context.obj.state.kept for word in words):
        raise click.BadParameter("it is not a run that is kept")
    return words


@verb(
    "diff", topic="looking", names_models=True, usage="[NAME [NAME]]", takes=("run",),
    examples=("diff", "diff --head L0H1 --top 3", 'diff cat'),
)  # fmt: skip
@click.argument("names", nargs=-1, metavar="[NAME [NAME]]", callback=_names)
@click.option("--tolerance", type=FloatRange(0), help="Relative difference that counts as none.")
@click.option("--head", metavar="ADDRESS", help="Show the weights of this head, not of the worst one.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Most probable tokens of each.")
@click.option("--rows", type=click.IntRange(0), help="Positions shown; 0 for all.")
@click.option("--full", is_flag=True, help="Show every step.")
@click.option("--all", "everything", is_flag=True, help="Show every step, head, position and token.")
def diff(
    session: Session,
    names: tuple[str, ...],
    tolerance: float | None,
    head: str | None,
    top: int,
    rows: int | None,
    full: bool,
    everything: bool,
) -> Shown:
    """Compare the last two runs, or the present one with a kept one.

    It says where they begin to differ, and how. They may be two texts, one text through two models, or one text with
    and without some steps. Two names compare these two; with texts it is the command of the same name.
    """
    from tinytf_cli.views.difference import DifferenceDisplay

    named = [_find(session, name) for name in names]
    runs = [*session.state.runs[:-1], *named, *session.state.runs[-1:]][-2:] if len(named) < 2 else named
    if len(runs) < 2:
        raise UsageError("diff compares the last two runs", f"there is {'one' if runs else 'none'} so far: run TEXT")
    a, b = (session.models.model(run.spec) for run in runs)
    first, second = (session.models.trace(run) for run in runs)
    report = a.diff(first, (b, second), tolerance=tolerance, head=head, top=top)
    limit = FoldOptions(everything).rows(rows)
    return Shown(report, DifferenceDisplay(limit, full, head is not None, top))


RUNNING = (run, keep, use, diff)
