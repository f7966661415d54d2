"""``tinytf check``: a module of one's own against a reference."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import FloatRange, argument, command, option
from tinytf_cli.host import host
from tinytf_cli.options import complete_model
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    target: str = argument(metavar="FILE.py:NAME")
    like: str = option(
        metavar="MODEL", shown="tiny", shell_complete=complete_model, help="The reference whose weights it gets."
    )
    text: str = option(metavar="TEXT", shown="The cat sat on the mat.", help="The text that both run.")
    args: str = option(metavar="K=V,…", default="", help="Arguments of the constructor that are not guessed.")
    names: Path | None = option(
        metavar="FILE.toml", type=click.Path(path_type=Path), help="Parameters that are not guessed: yours = ours."
    )
    with_: str = option("--with", metavar="K=V,…", default="", help="Other fields of the reference, of a preset.")
    seed: int = option(type=click.IntRange(0, 2**63 - 1), shown=0, help="Random seed of a preset.")
    tolerance: float | None = option(
        type=FloatRange(0), help="Relative difference up to which numbers count as equal.  [default: 2e-05]"
    )
    timeout: float = option(
        type=click.FloatRange(0, 86_400, min_open=True), default=30.0, metavar="SECONDS",
        help="How long a run of the code may take.",
    )  # fmt: skip
    full: bool = option(is_flag=True, help="Show every parameter and every step.")


@command("check")
def check(options: Options, output: Output) -> int:
    """This runs the code of FILE.py. NAME is a class of it, or a function that makes a module. Its parameters get the
    reference's weights by names and shapes, its forward pass is compared with the reference's, step by step, and the
    mistakes that people make are tried until one gives the same wrong numbers. The status is 0 where all is right, 1
    where something is wrong.
    """
    if (session := host()) is not None:
        session.require_own("run a module")
    from tinytf.compare.dumps.names import read_names
    from tinytf.student.checked import check as checked
    from tinytf.student.opened import parse_args
    from tinytf.student.reference import reference
    from tinytf_cli.views.check import CheckDisplay

    model = reference(options.like, parse_args(options.with_), options.seed)
    report = checked(
        model,
        options.target,
        text=options.text,
        args=parse_args(options.args),
        names=read_names(options.names),
        tolerance=options.tolerance,
        seconds=options.timeout,
    )
    output.draw(report, CheckDisplay(options.full))
    return 0 if report.holds else 1
