"""Verbs that run a text, name runs, return to a named run, and compare two runs."""

import re
from collections.abc import Sequence
from dataclasses import replace

import click

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable
from tinytf_cli.host import is_typed
from tinytf_cli.inputs import read_conversations
from tinytf_cli.options import FoldOptions
from tinytf_cli.ranges import Real, Whole
from tinytf_cli.repl.moving import no_stop_held, run_to_stop, step_result
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Run
from tinytf_cli.repl.verbs import answer, verb
from tinytf_cli.views.blocks import Column, Line, Span, Table
from tinytf_cli.views.draw import Shown

_NAME = re.compile(r"[A-Za-z_][\w.-]{0,39}")


@verb("run", "r", topic="moving", takes=("text",), examples=('run "The cat sat on the"', "run The cat"))
@click.argument("words", nargs=-1, metavar="TEXT")
@click.option("--truncate", is_flag=True, help="Truncate a text that is longer than the model's context.")
@click.option("--force", is_flag=True, help="Record even if the trace is larger than the free memory.")
@click.option(
    "--target-text", metavar="TEXT", help="What a model of two stacks writes for TEXT, or for the present one."
)
@click.option("--quiet", is_flag=True, help="Show nothing.")
@click.option("--chat", is_flag=True, help="Put TEXT, or the messages of a .json file, into the chat template.")
def run(
    session: Session,
    words: tuple[str, ...],
    truncate: bool,
    force: bool,
    target_text: str | None,
    quiet: bool,
    chat: bool,
) -> Shown | None:
    """Record a text, and go to its first step, or to the first stop.

    Without TEXT, run the present text again from its first step.
    """
    if words:
        text = read_conversations(words, lines=False)[0] if chat else " ".join(words)
        session.set_run(Run(replace(session.state.spec, reads=""), text, truncate, force), target_text)
    elif target_text is not None:
        session.set_run(replace(session.require_run(), text=target_text))
    else:
        session.require_run()
    if session.through is not None:
        return None if quiet else step_result(session, new_run=True)
    session.change(row=0, stops=tuple(replace(stop, hits=0) for stop in session.state.stops))
    last, stops = len(session.table.rows) - 1, session.state.stops
    message = (run_to_stop(session, 0, last) or no_stop_held(session)) if stops else ""
    return None if quiet else step_result(session, message, new_run=True)


@verb("keep", topic="session", takes=("run",), examples=("keep cat", "keep"))
@click.argument("name", required=False, metavar="[NAME]")
def keep(session: Session, name: str | None) -> Shown:
    """Keep the present run under a name, or list the kept runs.

    use NAME goes back to it: its text, model and ablations. diff NAME compares the present run with it. Keeping a run
    under a name that is taken replaces the earlier one.
    """
    if name is not None:
        if not _NAME.fullmatch(name):
            hint = "use at most 40 letters, digits, _, . and -, the first a letter: keep cat"
            raise UsageError(f"{name[:60]!r} cannot name a run", hint)
        session.change(named_runs={**session.state.named_runs, name: session.require_run()})
    return _runs_result(session)


@verb("use", topic="session", names_models=True, takes=("run",), examples=("use cat",))
@click.argument("name", metavar="NAME")
def use(session: Session, name: str) -> Shown:
    """Go back to a kept run: its text, model and ablations.

    It becomes the present run, and diff compares it with the run before. The present step stays the same, or is the
    first one if the model is another.
    """
    run, previous_spec = _find_run(session, name), session.state.spec
    session.set_run(run)
    if run.spec.name != previous_spec.name or session.row is None:
        session.go_to_first()
    return step_result(session, new_run=True)


def _find_run(session: Session, name: str) -> Run:
    """The run kept under a name; UsageError if there is none."""
    runs = session.state.named_runs
    if name not in runs:
        hint = did_you_mean(name, runs) if runs else "keep NAME keeps the present run"
        raise UsageError(f"no run is kept as {name[:60]!r}", hint)
    return runs[name]


def _runs_result(session: Session) -> Shown:
    """The kept runs, with the present one marked."""
    runs = session.state.named_runs
    rows = [
        {"name": name, "model": run.spec.short, "text": str(run.text), "present": run == session.run}
        for name, run in runs.items()
    ]
    if not rows:
        return answer("kept", {"runs": rows}, Line("no run is kept"))
    columns = [
        Column("run", [Span(str(row["name"]), "strong") for row in rows]),
        Column("model", [printable(str(row["model"]), spaces=False) for row in rows], shrink=8),
        Column("text", [printable(str(row["text"])[:200], spaces=False) for row in rows], shrink=8),
        Column("", [Span("present" if row["present"] else "", "dim") for row in rows]),
    ]
    return answer("kept", {"runs": rows}, Table(columns))


def _run_names(context: click.Context, _: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, if all name kept runs; otherwise they are texts for the command of the same name."""
    if len(words) > 2 or not all(word in context.obj.state.named_runs for word in words):
        raise click.BadParameter("it is not a kept run")
    return words


@verb(
    "diff", topic="looking", names_models=True, usage="[NAME [NAME]]", takes=("run",),
    examples=("diff", "diff --head L0H1 --top 3", 'diff cat'),
)  # fmt: skip
@click.argument("names", nargs=-1, metavar="[NAME [NAME]]", callback=_run_names)
@click.option("--tolerance", type=Real(0), help="Relative difference that counts as none.")
@click.option("--head", metavar="ADDRESS", help="Show the weights of this head instead of the most different one.")
@click.option("--top", type=Whole(1), default=5, show_default=True, help="Most probable tokens of each run.")
@click.option("--rows", type=Whole(0), help="Positions shown; 0 for all.")
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
    """Compare the last two runs, or the present run with a kept one.

    The comparison shows where they begin to differ, and how. They may be two texts, one text through two models, or one
    text with and without some steps. Two names compare two kept runs. With texts, diff is the command of that name.
    """
    from tinytf_cli.views.diff import DifferenceDisplay

    named = [_find_run(session, name) for name in names]
    runs = [*session.state.runs[:-1], *named, *session.state.runs[-1:]][-2:] if len(named) < 2 else named
    if len(runs) < 2:
        raise UsageError("diff compares the last two runs", f"there is {'one' if runs else 'none'} so far: run TEXT")
    if session.through is not None:
        return _module_differences(session, runs, tolerance, full or everything)
    model_a, model_b = (session.models.model(run.spec) for run in runs)
    first, second = (session.models.trace(run) for run in runs)
    report = model_a.diff(first, (model_b, second), tolerance=tolerance, head=head, top=top)
    max_rows = FoldOptions(everything).rows(rows)
    return Shown(report, DifferenceDisplay(max_rows, full or everything, head is not None, top))


def _module_differences(session: Session, runs: Sequence[Run], tolerance: float | None, full: bool) -> Shown:
    """The modules of two runs through transformers, compared."""
    from tinytf.through.diff import diff_through
    from tinytf.through.model import ThroughModel
    from tinytf_cli.views.diff_modules import ModuleDifferencesDisplay

    if is_typed("head", "top", "rows"):
        raise UsageError("--head, --top and --rows show steps, and this model runs through transformers",
                         "leave them out; --full shows every module")  # fmt: skip
    first, second = (session.models.opened(run.spec) for run in runs)
    if not isinstance(first, ThroughModel) or not isinstance(second, ThroughModel):
        raise UsageError("one of the two runs is through transformers, and the other is not", "run both the same way")
    if first is not second and runs[0].text != runs[1].text:
        raise UsageError("the two runs differ in model and text", "run one text through both models")
    other = runs[1].text if first is second else second
    report = diff_through(first, runs[0].text, other, tolerance=tolerance, truncate=runs[0].truncate)
    return Shown(report, ModuleDifferencesDisplay(full))


RUNNING = (run, keep, use, diff)
