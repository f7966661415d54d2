"""``tinytf explore``: a forward pass on one screen, with live editing of the text."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host, is_typed
from tinytf_cli.options import ModelOptions
from tinytf_cli.output import DrawingOptions
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import target_option

if TYPE_CHECKING:
    from tinytf_cli.explore.tour import Tour
    from tinytf_cli.repl.state import Spec

_TEXT = "The cat sat on the mat."


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    words: tuple[str, ...] = argument(nargs=-1, metavar="[TEXT]")
    target_text: str | None = target_option()
    tour: bool = option(is_flag=True, help="A guided tour of eight stops; TEXT may be the file of another.")
    serve: bool = option(is_flag=True, help="Show it in a browser of this machine; each page is a session of its own.")
    address: str = option("--host", metavar="NAME", shown="localhost", help="With --serve, the address to listen at.")
    port: int = option(type=Whole(1, 65535), shown=8000, help="With --serve, the port.")


@command("explore")
def explore(options: Options, model_options: ModelOptions, drawing: DrawingOptions) -> int:
    """The steps are on the left, with the numbers of the chosen step beside them; below are the heads and the
    prediction. Press ? to ask what something is, F1 to list the keys, t to edit the text (every pane follows as you
    type), and : to run any session line. TEXT may be the folder of a training run; < and > then step through its
    checkpoints. Inside a session, explore shows the session's text, and records what you do on the screen as session
    lines.
    """
    from tinytf.outputs import Fence, fenced
    from tinytf.read_fence import ReadFence
    from tinytf_cli.repl.session import Session
    from tinytf_cli.repl.session_verbs import VERBS
    from tinytf_cli.repl.settings import Settings
    from tinytf_cli.repl.state import OPENED_BY, Spec

    if options.serve:
        return _serve(options)
    if is_typed("address", "port"):
        raise UsageError("--host and --port go with --serve", "add it, or leave them out")
    text = " ".join(options.words)
    # textual-serve sets this to show the screen in a browser. Textual imports whatever it names: accept only its own.
    served = os.environ.get("TEXTUAL_DRIVER", "").startswith("textual.drivers.")
    if served:
        from tinytf_cli.explore.page import end_with_server

        end_with_server()
    else:
        os.environ.pop("TEXTUAL_DRIVER", None)
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty() and (sys.__stdout__ or sys.stdout).isatty()
    if not served and (not at_a_terminal or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")):
        shown = _TEXT if options.tour or not text else text  # with --tour the words name its file
        raise UsageError("explore needs a terminal that can be drawn on", f'tinytf trace "{shown}" works here')
    tour = _tour(options.words) if options.tour else None
    text = text if tour is None else tour.text
    is_folder = tour is None and len(options.words) == 1 and os.path.isdir(text)  # a long text is no path
    folder = Path(text) if is_folder else None
    session, terminal = host(), drawing.terminal()
    if served:
        terminal = replace(terminal, depth="truecolor", cuts=True)
    if not isinstance(session, Session):
        model = model_options.model if folder is None else text
        if tour is not None and tour.model and not is_typed("model"):
            model = tour.model
        opened = model_options
        spec = Spec(model, **{name: getattr(opened, name) for name in OPENED_BY})
        session = Session(VERBS, spec, Settings(**vars(drawing)))
    elif folder is not None:
        raise UsageError(
            "a session has its own model", f"model {text} opens this one; tinytf explore {text} explores the run"
        )
    if tour is not None and tour.model not in ("", session.state.spec.name):
        raise UsageError(
            f"the tour is about {tour.model}, and this is {session.state.spec.name}",
            "tinytf explore --tour FILE takes a tour of your own",
        )
    if session.through is not None and (tour is not None or folder is not None):
        raise UsageError(
            "a model that runs through transformers has no tour", f"tinytf explore -m {session.state.spec.name} TEXT"
        )
    reading = ReadFence(*_named_folders(session.state.spec)) if served else None
    settings = session.settings
    session.change(settings=replace(settings, color="always" if terminal.coloured else "never", theme=terminal.theme))
    if folder is not None or text or session.run is None or options.target_text is not None:
        outcome = session.begin(_TEXT if folder is not None else text or _TEXT, target=options.target_text)
        if outcome.failure is not None or outcome.status:
            session.say(outcome)
            return outcome.status
    if reading is not None:  # whoever opens the page is not who started the server
        reading.close()
        session.streams.fence = Fence(page=True)
        click.get_current_context().with_resource(fenced(session.streams.fence))
    if not terminal.coloured:
        os.environ["NO_COLOR"] = "1"
    if session.through is not None:
        from tinytf_cli.explore.modules import ModuleExplorer

        modules = ModuleExplorer(session, terminal)
        status = modules.run()
        session.change(settings=settings)
        return status or 0
    from tinytf_cli.explore.app import Explorer
    from tinytf_cli.explore.keys import KEYS

    app = Explorer(KEYS, session, terminal, _checkpoints(folder) if folder else [], tour)
    status = app.run()
    session.change(settings=settings)
    if app.fault is not None:
        raise app.fault
    return status or 0


def _named_folders(spec: "Spec") -> list[Path]:
    """The folders that the command line names: of the model or the run, an adapter, a tokenizer."""
    names = (spec.name, spec.adapter, spec.tokenizer)
    return [Path(name) for name in names if name is not None and os.path.isdir(name)]


def _serve(options: Options) -> int:
    """Serve the explorer. Raises UsageError without textual-serve."""
    try:
        from tinytf_cli.explore.serving import LOOPBACK, command_line, serve
    except ImportError:
        raise UsageError("--serve needs textual-serve, which is not installed", 'pip install "tinytf[web]"') from None
    if host() is not None:
        raise UsageError("a session has its own screen", "use --serve on the command line")
    if options.address not in LOOPBACK:
        click.echo(f"tinytf: whoever reaches {options.address}:{options.port} can use this model", err=True)
    serve(command_line(click.get_current_context(), ("serve", "address", "port")), options.address, options.port)
    return 0


def _tour(words: tuple[str, ...]) -> "Tour":
    """The tour in the file that the words name; without any, the built-in one."""
    from tinytf_cli.explore.tour import read_tour

    text = " ".join(words)
    if text and not os.path.exists(text):
        raise UsageError(f"there is no file {text} of a tour", f'tinytf explore "{text}" explores a text of your own')
    return read_tour(Path(text) if text else None)


def _checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a training run, earliest first, then the run itself."""
    return [*sorted(run.glob("checkpoints/step-*")), run]
