"""Where two runs through transformers differ: a line a module."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.through.diff import ModuleDifferences
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Heading
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, note
from tinytf_cli.views.records import record_table

_MODULES = 24


@dataclass(frozen=True)
class ModuleDifferencesDisplay(Display):
    """``all`` shows every module."""

    all: bool = False


@draws(ModuleDifferences, ModuleDifferencesDisplay)
def module_differences(
    report: ModuleDifferences, terminal: Terminal, display: ModuleDifferencesDisplay
) -> Iterator[Block]:
    """The modules that differ; if none does, all."""
    yield from banner(model_of(report), report.encoding)
    differing = [row for row in report.modules if not row.relative <= report.tolerance]
    rows = report.modules if display.all or not differing else differing
    yield Heading(
        "modules", f"{len(differing):,} of {plural(len(report.modules), 'module')} differ from {report.versus}"
    )
    yield from folded(record_table(rows), [row.module for row in rows], None if display.all else _MODULES, "modules")
    if report.unmatched:
        yield note(f"{report.unmatched:,} outputs are not in {report.versus}")
