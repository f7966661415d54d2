"""The options on a help page: in groups, shared ones by name only, and of many those that matter first."""

import sys
from collections.abc import Iterator, Sequence

import click
from click.core import Context
from click.formatting import HelpFormatter

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.pager import is_screen, page

UNGROUPED = 10
"""Above this many options, help shows them in groups."""
FOLDED = 40
"""Above this many options of its own, help explains the first options of a command and names the others."""
BESIDE = 28
"""The most columns of a name, with its choices, that stands beside its help; click leaves 30."""
SHARED_OPTIONS = "options"
"""The word after ``help`` that shows the shared options."""
Records = list[tuple[str, str]]


def write_options(command: click.Command, ctx: Context, formatter: HelpFormatter, first: Sequence[str]) -> None:
    """Write the options of a command by group; with ``first``, only those in full and the others by name."""
    own: dict[str, list[click.Option]] = {}
    shared: dict[str, list[click.Option]] = {}
    for option in _visible(command, ctx):
        is_shared = getattr(option, "shared", False) and command.name != SHARED_OPTIONS
        (shared if is_shared else own).setdefault(_group(option), []).append(option)
    if first:
        found = {name: option for options in own.values() for option in options for name in option.opts}
        _write(ctx, formatter, {"First": [found[name] for name in first]})
        with formatter.section(f"More (tinytf help {ctx.info_name} GROUP explains a group, --help-all all)"):
            rest = {title: [one for one in options if not {*one.opts} & {*first}] for title, options in own.items()}
            formatter.write_dl([(title.lower(), _names(options)) for title, options in rest.items() if options])
    elif sum(map(len, own.values())) <= UNGROUPED:
        _write(ctx, formatter, {"Options": [option for options in own.values() for option in options]})
    else:
        _write(ctx, formatter, own)
    if shared:
        with formatter.section(f"Shared by commands (tinytf help {SHARED_OPTIONS} explains them)"):
            formatter.write_dl([(group, _names(options)) for group, options in shared.items()])


def write_group(command: click.Command, ctx: Context, formatter: HelpFormatter, title: str) -> None:
    """Write the options of one group."""
    _write(ctx, formatter, {title: [option for option in _visible(command, ctx) if _group(option) == title]})


def group_named(command: click.Command, ctx: Context, word: str) -> str:
    """The group of a command that a word begins, or that has an option of this name. Raises UsageError for others."""
    options = list(_visible(command, ctx))
    titles = list(dict.fromkeys(map(_group, options)))
    for title in titles:
        if title.casefold().startswith(word.casefold()):
            return title
    for option in options:
        if word.lstrip("-") in [name.lstrip("-") for name in option.opts]:
            return _group(option)
    known = [title.lower() for title in titles]
    raise UsageError(f"{command.name} has no group of options {word!r}", did_you_mean(word, known))


def show_help(ctx: Context, _: click.Parameter, asked: bool) -> None:
    """Show the help page, in the pager where it is longer than the screen."""
    if asked and not ctx.resilient_parsing:
        text = ctx.get_help()
        if is_screen(sys.stdout):
            page(f"{text}\n")
        else:
            click.echo(text)
        ctx.exit()


def _visible(command: click.Command, ctx: Context) -> Iterator[click.Option]:
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield parameter


def _group(option: click.Option) -> str:
    return str(getattr(option, "group", "Other"))


def _names(options: Sequence[click.Option]) -> str:
    return " ".join("/".join(option.opts) for option in options)


def _write(ctx: Context, formatter: HelpFormatter, groups: dict[str, list[click.Option]]) -> None:
    """Write groups of options with their help, in columns as wide in every group."""
    records = {
        title: [record for option in options if (record := option.get_help_record(ctx))]
        for title, options in groups.items()
    }
    names = (name for group in records.values() for name, _ in group)
    wide = max((len(name) for name in names if len(name) <= BESIDE), default=0)  # longer ones stand above the text
    for title, group in records.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(wide), about) for name, about in group])
