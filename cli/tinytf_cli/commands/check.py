"""``tinytf check``: your own module against a reference."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host
from tinytf_cli.options import complete_model, of_stack, stack_option
from tinytf_cli.output import Output
from tinytf_cli.ranges import SEEDS, Real, Whole
from tinytf_cli.text_options import asked_of, target_option


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    target: str = argument(metavar="FILE.py:NAME")
    like: str = option(
        metavar="MODEL",
        shown="tiny",
        shell_complete=complete_model,
        help="The reference model, whose weights your module gets.",
    )
    text: str = option(metavar="TEXT", shown="The cat sat on the mat.", help="The text to run both on.")
    target_text: str | None = target_option()
    stack: str | None = stack_option("check a module that is an encoder, or a decoder that gets the encoder's states.")
    args: str = option(metavar="K=V,…", default="", help="Constructor arguments that cannot be guessed.")
    names: Path | None = option(
        metavar="FILE.toml",
        type=click.Path(path_type=Path),
        help="Parameter names that cannot be guessed: yours = ours.",
    )
    with_: str = option(
        "--with", metavar="K=V,…", default="", help="Change fields of the reference, if it is a preset."
    )
    seed: int = option(type=Whole(0, SEEDS), shown=0, help="Random seed of a preset.")
    tolerance: float | None = option(
        type=Real(0), help="Relative difference up to which numbers count as equal.  [default: 2e-05]"
    )
    timeout: float = option(
        type=Real(0, 86_400, above=True), default=30.0, metavar="SECONDS",
        help="Time limit for a run of the code.",
    )  # fmt: skip
    full: bool = option(is_flag=True, help="Show every parameter and every step.")


@command("check")
def check(options: Options, output: Output) -> int:
    """This runs the code in FILE.py. NAME is a class in it, or a function that returns a module. The module gets the
    reference's weights, matched by name and shape, and its forward pass is compared with the reference step by step.
    Then common mistakes are tried, until one gives the same wrong numbers. Exits with 0 if all is right, 1 if not.
    """
    if (session := host()) is not None:
        session.require_own("run a module")
    from tinytf.check.checked import check as check_module
    from tinytf.check.opened import parse_args
    from tinytf.check.reference import reference
    from tinytf.compare.dumps.names import read_names
    from tinytf_cli.views.check import CheckDisplay

    model = of_stack(reference(options.like, parse_args(options.with_), options.seed), options.stack)
    (model,), (text,) = asked_of(model, [options.text], options.target_text, output)
    report = check_module(
        model,
        options.target,
        text=str(text),
        args=parse_args(options.args),
        names=read_names(options.names),
        tolerance=options.tolerance,
        seconds=options.timeout,
    )
    return output.draw_checked(report, CheckDisplay(options.full))
