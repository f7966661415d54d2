"""``tinytf config --completion``: the script that completes commands, options, models and addresses in a shell."""

import os
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from tinytf.errors import UsageError
from tinytf.outputs import make_folder, require_place
from tinytf_cli.command import argument, command, option
from tinytf_cli.output import write_file

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    shell: str = argument(type=click.Choice(SHELLS))
    install: bool = option(is_flag=True, help="Write it to the place where SHELL looks for it.")


@command("config --completion")
def config_completion(options: Options) -> None:
    """Prints the script for SHELL, or writes it with --install. Completes commands, options, models and addresses."""
    script = _script(options.shell)
    if not options.install:
        click.echo(script)
        return
    path, remark = _place(options.shell)
    require_place(path)
    make_folder(path.parent)
    write_file(path, script.encode())
    click.echo(f"wrote {path}; {remark}")


def _script(shell: str) -> str:
    from tinytf_cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(cli, {}, "tinytf", "_TINYTF_COMPLETE").source().strip()


def _place(shell: str) -> tuple[Path, str]:
    """The file that the shell reads, and what is left to do. Raises UsageError without a home folder."""
    try:
        home = Path.home()
    except RuntimeError:
        raise UsageError("there is no home folder to write to", f"tinytf config --completion {shell} > FILE") from None
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = {
        "bash": (data / "bash-completion" / "completions" / "tinytf", "a new bash reads it, with bash-completion 2"),
        "zsh": (data / "zsh" / "site-functions" / "_tinytf", "add its folder to fpath before compinit in ~/.zshrc"),
        "fish": (config / "fish" / "completions" / "tinytf.fish", "a new fish reads it"),
    }
    return places[shell]
