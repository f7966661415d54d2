"""Write the man page from the help of the commands: ``python samples/make_man.py`` writes ``docs/tinytf.1``."""

import re
from pathlib import Path

import click

from tinytf import __version__
from tinytf_cli.command import WITH_FORMS
from tinytf_cli.help_page import SHARED_OPTIONS
from tinytf_cli.main import cli
from tinytf_cli.text_options import shared_options

PAGE = Path(__file__).parent.parent / "docs" / "tinytf.1"


def escaped(text: str) -> str:
    """Text in roff: no escape, no request at the beginning of a line, hyphens that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def options_of(command: click.Command, context: click.Context, shared: bool) -> list[str]:
    lines = []
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option) or "--help" in parameter.opts:
            continue
        record = parameter.get_help_record(context)
        if record is not None and getattr(parameter, "shared", False) == shared:
            name, about = record
            lines += [".TP", f".B {escaped(name)}", escaped(about)]
    return lines


def paragraphs(command: click.Command) -> list[str]:
    """The description; a part that begins with a backspace keeps its lines."""
    lines = []
    for paragraph in (command.help or "").split("\n\n"):
        if paragraph.lstrip().startswith("\b\n"):
            lines += [".PP", ".nf", escaped(paragraph.lstrip().removeprefix("\b\n")), ".fi"]
        else:
            lines += [".PP", escaped(" ".join(paragraph.split()))]
    return lines


def man_page() -> str:
    lines = [
        f'.TH TINYTF 1 "" "tinytf {__version__}" "User commands"',
        ".SH NAME",
        "tinytf \\- see every number inside a transformer",
        ".SH SYNOPSIS",
        ".B tinytf",
        "[COMMAND] [OPTION ...] [TEXT]",
        ".SH DESCRIPTION",
        *paragraphs(cli)[2:],
        ".SH COMMANDS",
    ]
    for title, summaries in WITH_FORMS.items():
        lines += [f".SS {title}"]
        for name in summaries:
            with click.Context(cli, info_name="tinytf") as outer:
                command = cli.get_command(outer, name)
                assert command is not None
                context = click.Context(command, info_name=name, parent=outer)
                usage = " ".join(command.collect_usage_pieces(context))
                lines += [".PP", f".B tinytf {name}", escaped(usage)]
                lines += [".RS", *paragraphs(command), *options_of(command, context, shared=False), ".RE"]
    shared = shared_options()
    lines += [f".SH SHARED OPTIONS\nCommands name those that they take; tinytf help {SHARED_OPTIONS} lists them."]
    lines += options_of(shared, click.Context(shared), shared=True)
    lines += [".SH EXIT STATUS", "0 done; 1 it failed, or a check did not hold; 2 wrong usage; 130 interrupted."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(man_page(), "utf-8")
