"""Verbs about the session itself: its model, settings and lines; and the table of all verbs."""

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
from tinytf.trace.address import parse_single_number
from tinytf_cli.numbers import plural
from tinytf_cli.options import DEVICES, DTYPES
from tinytf_cli.output import require_place, write_file
from tinytf_cli.paint.text import shown
from tinytf_cli.ranges import SEEDS, Whole
from tinytf_cli.repl.helping import help_blocks
from tinytf_cli.repl.line import PROMPT, PYTHON, Lines, read_script
from tinytf_cli.repl.log import Entry
from tinytf_cli.repl.looking import LOOKING
from tinytf_cli.repl.moving import MOVING
from tinytf_cli.repl.naming import NAMING
from tinytf_cli.repl.numbers import set_no_number, set_number
from tinytf_cli.repl.python import script_lines, statements
from tinytf_cli.repl.running import diff, keep, run, use
from tinytf_cli.repl.session import Leave, Outcome, Session
from tinytf_cli.repl.settings import SETTINGS, find_setting
from tinytf_cli.repl.state import Ablation
from tinytf_cli.repl.stopping import STOPPING
from tinytf_cli.repl.trust import Trust
from tinytf_cli.repl.verbs import Verb, answer, change_lines, verb
from tinytf_cli.views.blocks import Column, Line, Span, Table
from tinytf_cli.views.draw import Shown

_MAX_DEPTH = 10
_HEADER = "# a session of tinytf; tinytf repl -f FILE runs it again, with --allow-code if it has a ! or a |"
_NO_ABLATION = _NO_NUMBER = "none"
_ADDRESS = re.compile(r"L[0-9*]|√|.*\[")
_INTEGER = re.compile(r"-?[0-9]+")
_NAMES_A_STOP = re.compile(r"\s*(?:del[a-z]*|ig[a-z]*)\s+[0-9]")
_verb = partial(verb, topic="session")


@_verb("without", takes=("site",), examples=(
    "without L0H3", "without L1H* L2.ffn --how mean", "without scaling", "without none",
))  # fmt: skip
@click.argument("addresses", nargs=-1, metavar="[ADDRESS … | scaling | mask | positions | none]")
@click.option("--how", type=click.Choice(["zero", "mean"]), help="What replaces the steps; zero by default.")
@click.option("--reference", metavar="FILE", help="Texts for the mean; by default those of the model.")
def without(session: Session, addresses: tuple[str, ...], how: str | None, reference: str | None) -> Shown:
    """Ablate some steps of the model, or show which steps are ablated.

    A step to ablate is a head (L0H3), a part of a layer (L2.attn, L2.ffn), both parts (L2), or the residual stream
    (L2.in, L2.out). scaling, mask and positions leave that part of attention out of every layer. Everything that the
    session runs on its model then runs without them: traces, heat, top, generate, score, lens, grad. The present text
    is run again, so diff compares it with the run before. A second without replaces the first; none restores the whole
    model, and undo the previous one. A command with its own --model, --device or --dtype opens an unablated model.
    """
    spec = session.state.spec
    if addresses or how or reference:
        spec = replace(spec, without=_read_ablation(session, addresses, how, reference))
        session.set_spec(spec)
    if spec.without is None:
        return answer("without", {"without": None}, Line("the model is whole"))
    hint = [] if session.run is None else [Line(Span("diff compares this run with the one before", "dim"))]
    return answer("without", {"without": spec.without.to_dict()}, *change_lines(replace(spec, numbers=())), *hint)


def _read_ablation(
    session: Session, addresses: tuple[str, ...], how: str | None, reference: str | None
) -> Ablation | None:
    """The ablation that the arguments ask for, tried on the model; None for the whole model."""
    previous = session.state.spec.without
    if addresses == (_NO_ABLATION,):
        if how or reference:
            raise UsageError("none restores the whole model, and takes neither --how nor --reference")
        return None
    sites = addresses or (previous.at if previous else ())
    if not sites:
        raise UsageError("no step is named", "name a head, a part of a layer or a layer: without L0H3, L2.ffn or L2")
    if _NO_ABLATION in sites:
        raise UsageError("none cannot be combined with an address", "without none restores the whole model")
    replacement = how or ("mean" if reference else "zero")
    if reference and replacement != "mean":
        raise UsageError("--how zero takes no --reference", "--how mean takes one")
    ablation = Ablation(sites, replacement, reference)
    if how and not ablation.steps:
        raise UsageError(f"--how is for steps, and {' and '.join(sites)} are parts of attention", "leave out --how")
    session.models.model(replace(session.state.spec, without=ablation))
    return ablation


@_verb("model", takes=("model",), examples=("model", "model tiny-encoder", "model preset:gpt2 --seed 1"))
@click.argument("name", required=False, metavar="[MODEL]")
@click.option("--device", type=click.Choice(DEVICES))
@click.option("--dtype", type=click.Choice(DTYPES))
@click.option("--seed", type=Whole(0, SEEDS), help="Random seed of a preset's weights.")
@click.option("--adapter", type=click.Path(path_type=Path), metavar="DIR", help="A LoRA adapter of PEFT to merge.")
@click.option("--tokenizer", metavar="PLACE,KEY=VALUE", help="Where its tokenizer is, or what its files leave open.")
@click.option("--through", type=click.Choice(["transformers"]), help="Run it through transformers, by its modules.")
@click.option(
    "--keep-quantized", is_flag=True, default=None, help="Leave its weights in their file, as it stores them."
)
@click.option("--quiet", is_flag=True, help="Show nothing.")
def model(session: Session, quiet: bool, **options: Any) -> Shown | None:
    """Open another model for the present text, or show which one is open.

    A model that is named has no adapter and its own tokenizer, unless an option gives others. One of an architecture
    that tinytf has no table for runs through transformers.
    """
    from tinytf_cli.views.banner import model_words, notes

    base = session.state.spec
    if options["name"]:
        base = replace(base, adapter=None, tokenizer=None, through=None)
        base = replace(base, keep_quantized=False, fence=None, reads="")
    spec = replace(base, **{key: value for key, value in options.items() if value is not None})
    try:
        loaded = session.models.opened(spec)
    except AddressError as error:  # this model lacks an ablated step or a set number
        hint = "the open model is changed; restore it first: without none, set none"
        raise AddressError(error.message, hint) from None
    if spec != session.state.spec:
        session.set_spec(spec)
        session.go_to_first()
    return None if quiet else answer("model", {"model": loaded.to_dict()}, Line(model_words(loaded)), *notes(loaded))


@_verb(
    "set", takes=("target", "value"),
    examples=(
        "set L0.W_Q[0,3] = 0", "set L1H2.weights[2,1] = 0", "set precision 2", "set colormap cividis", "set pager on",
        "set √d = 1", "set none",
    ),
)  # fmt: skip
@click.argument("words", nargs=-1, metavar="NAME VALUE | ADDRESS = NUMBER | none")
def set_value(session: Session, words: tuple[str, ...]) -> Shown:
    """Change a setting, or a number of the model and all that follows.

    A number is a cell, a row or a slice of a step (L1H2.weights[mat,cat], L1H2.weights[mat,:]) or of a parameter
    (L1H2.W_Q[0,3], E[cat]), or the divisor of attention scores, √d or scale, in all layers or in one (L1.√d = 1). The
    present text is run again, and the answer compares it with the run before. A token in an address becomes its
    position, in later texts too. Masked cells of a row stay masked. Numbers accumulate; set none takes all of them
    back, and undo the last one.
    """
    if not words:
        return _settings_result(session, *SETTINGS)
    name, equals, value = "".join(words).rpartition("=")
    if equals and name not in SETTINGS:
        return set_number(session, "".join(words))
    if words == (_NO_NUMBER,):
        return set_no_number(session)
    if equals:
        words = (name, value)
    if _ADDRESS.match(words[0]):
        raise UsageError("a number of the model is set with =", f"such as: set {words[0]} = 0")
    setting = find_setting(words[0])
    if len(words) != 2:
        raise UsageError(f"set takes a name and a value; {setting.name} takes {setting.takes}",
                         f"such as set {setting.name} {setting.shown(session.settings)}")  # fmt: skip
    if setting.name in ("layer", "head") and _INTEGER.fullmatch(words[1]):
        config = session.table.config  # raises AddressError if the model lacks that layer or head
        count = config.n_layers if setting.name == "layer" else config.n_heads
        words = (setting.name, str(parse_single_number(words[1], count, setting.name)))
    settings = session.settings.changed(*words)
    session.change(settings=settings)
    return _settings_result(session, setting.name)


set_value.command.context_settings["ignore_unknown_options"] = True  # -1 is a number


@_verb("show", takes=("setting",), examples=("show", "show precision"))
@click.argument("name", required=False, metavar="[NAME]")
def show(session: Session, name: str | None) -> Shown:
    """Show the settings and what is changed in the model, or one setting."""
    return _settings_result(session, *(SETTINGS if name is None else (find_setting(name).name,)))


def _settings_result(session: Session, *names: str) -> Shown:
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
    if len(names) < len(SETTINGS):
        return answer("settings", {"settings": values}, table)
    spec = session.state.spec
    return answer("settings", {"settings": values, **spec.changes_data}, table, *change_lines(spec))


@_verb("undo", "u", examples=("undo",))
def undo(session: Session) -> Shown:
    """Undo the last line that changed the session.

    undo restores the model, text, ablations, set numbers, kept runs, settings, stops, displays and aliases, but not the
    step: back undoes a movement. redo undoes an undo.
    """
    return _undo_result(session, "undone", session.undo())


@_verb("redo", examples=("redo",))
def redo(session: Session) -> Shown:
    """Repeat what the last undo took back.

    Once another line has changed the session, there is nothing to redo.
    """
    return _undo_result(session, "redone", session.redo())


def _undo_result(session: Session, kind: str, line: str) -> Shown:
    line = printable(line, spaces=False)
    return answer(kind, {"line": line}, Line([Span(f"{kind}: "), Span(line, "strong")], single=True))


@_verb("history", examples=("history", "history 5"))
@click.argument("count", type=Whole(1), default=50, metavar="[N]")
def history(session: Session, count: int) -> Shown:
    """List the last lines: which failed, can be undone, or were undone."""
    entries = list(enumerate(session.log.lines, start=1))[-count:]
    data = {
        "lines": [{"number": n, "line": entry.line, "done": entry.done, "undone": entry.undone} for n, entry in entries]
    }
    if not entries:
        return answer("history", data, Line("nothing has been typed yet"))
    columns = [
        Column("", [str(number) for number, _ in entries], "right"),
        Column("", [printable(entry.line[:200], spaces=False) for _, entry in entries], shrink=20),
        Column("", [_status(entry) for _, entry in entries]),
    ]
    return answer("history", data, Table(columns, header=False))


def _status(entry: Entry) -> Span:
    if not entry.done:
        return Span("failed", "bad")
    return Span("undone" if entry.undone else "can be undone" if entry.before is not None else "", "dim")


@_verb("save", takes=("file",), examples=("save look.session",))
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def save(session: Session, path: Path, force: bool) -> Shown:
    """Write the lines of this session to FILE, to be run again.

    Lines that failed are omitted, as are !!, history and save. source FILE and tinytf repl -f FILE run the rest, with
    the same output.
    """
    path = path.expanduser()
    require_place(path)
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "choose another name, or overwrite it with --force")
    lines = session.log.transcript()
    lines = [part for line in lines for part in (script_lines(line) if PYTHON.match(line) else [line])]
    multiline = next((line for line in lines if "\n" in line), None)
    if multiline is not None:
        raise UsageError(f"a line of this session has a line break, which a transcript cannot hold: {multiline[:60]!r}",
                         "undo does not remove lines; type it without the break in a new session")  # fmt: skip
    write_file(path, "".join(f"{line}\n" for line in (_HEADER, *lines)).encode("utf-8", "surrogateescape"))
    message = f"{plural(len(lines), 'line')} in {printable(str(path), spaces=False)}"
    return answer("saved", {"file": str(path), "lines": len(lines)}, Line(message))


@_verb("source", takes=("file",), examples=("source look.session",))
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--allow-code", is_flag=True, help="Let FILE run Python and programs, and write anywhere.")
@click.option(
    "--write-to", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
    help="Let FILE write new files of results below DIR.",
)  # fmt: skip
def source(session: Session, path: Path, allow_code: bool, write_to: Path | None) -> None:
    """Run the lines of FILE, up to the first that fails.

    Python (!), programs (|), check and sweep need --allow-code. Without it the lines write no files; --write-to lets
    them write new files of results below DIR.
    """
    if session.streams.depth >= _MAX_DEPTH:
        raise UsageError(f"{path} is nested {_MAX_DEPTH + 1} files deep", "check that no file sources itself")
    lines = list(read_script(path.expanduser()))
    location = next((location for location, line in lines if _NAMES_A_STOP.match(line)), "")
    if location and session.state.stops:
        raise UsageError(f"{location} names a stop by number, and the session has stops already", "delete removes them")
    session.streams.depth += 1
    try:
        for location, outcome in run_each(
            session, session.streams.of_file(statements(lines), Trust(allow_code, write_to))
        ):
            if outcome.leave:
                raise Leave
            if outcome.status == 130:
                raise KeyboardInterrupt
            if outcome.failure is not None:
                raise TinytfError(f"{location}: {outcome.failure.message}", outcome.failure.hint)
            if outcome.status:
                raise TinytfError(f"{location}: a check did not hold")
    finally:
        session.streams.depth -= 1


def run_each(session: Session, lines: Lines, *, echo: bool = False) -> Iterator[tuple[str, Outcome]]:
    """Execute statements in turn, skipping blank ones; yields the location and outcome of each."""
    for location, line in lines:
        if not line.strip():
            continue
        if echo:
            echo_line(session, line)
        yield location, session.execute(line)


def echo_line(session: Session, line: str) -> None:
    """Write a line as if it were typed at the prompt."""
    terminal = session.terminal()
    for mark, part in zip(itertools.chain([PROMPT], itertools.repeat("")), script_lines(line.rstrip()), strict=False):
        session.streams.write(f"{mark}{shown(printable(part, spaces=False), terminal)}\n")


def run_lines(session: Session, lines: Lines, *, echo: bool, stop: bool) -> int:
    """Execute statements in turn, and return 0, 1 if any failed, or 130; ``stop`` ends at the first failure."""
    status = 0
    for location, outcome in run_each(session, lines, echo=echo):
        if outcome.leave:
            break
        if outcome.status == 130:  # the caller reports it
            return 130
        if outcome.status == 0:
            continue
        session.say(outcome, f"{location}: ")
        status = 1
        if stop:
            break
    return status


@_verb("help", "h", "?", takes=("topic",), examples=("help", "help break", "help keys", "help conditions"))
@click.argument("topics", nargs=-1, metavar="[TOPIC]")
def show_help(session: Session, topics: tuple[str, ...]) -> Shown:
    """Show an overview, or the page of a verb, command or topic."""
    topic = " ".join(topics)
    return answer("help", {"topic": topic}, *help_blocks(session, topic))


@_verb("quit", "exit", "q", examples=("quit",))
def leave(session: Session) -> None:
    """Leave the session."""
    raise Leave


_SESSION = (without, model, keep, use, set_value, show, *NAMING, undo, redo, history, save, source, show_help, leave)

VERBS: dict[str, Verb] = {entry.name: entry for entry in (run, *MOVING, *LOOKING, diff, *STOPPING, *_SESSION)}
"""All verbs, in the order in which help lists them."""
