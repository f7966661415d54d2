"""``tinytf mcp``: the questions as tools for an assistant."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.host import host


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    roots: tuple[Path, ...] = option(
        "--root", multiple=True, metavar="FOLDER", type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Open models below this folder. Repeatable; without it, only built-in models and presets.",
    )  # fmt: skip


@command("mcp")
def mcp(options: Options) -> None:
    """\b
    Tools   trace explain diff lens attribute ablate patch score
    Setup   {"command": "tinytf", "args": ["mcp", "--root", "/path/to/models"]}

    Speaks the Model Context Protocol on standard input and output until the client leaves. Answers are the data of
    --json, cut to what an assistant can read. Calls that overlap are answered one after the other. Writes and downloads
    nothing.
    """
    if host() is not None:
        raise UsageError("a session has standard input and output already", "start tinytf mcp on the command line")
    try:
        from tinytf_cli.mcp_server import server
    except ImportError:
        raise UsageError(
            "tinytf mcp needs the package mcp, which is not installed", 'pip install "tinytf[mcp]"'
        ) from None
    server(options.roots).run("stdio")
