"""``tinytf verify``: check the numbers of worked examples."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.command import FloatRange, argument, command, option
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    files: tuple[str, ...] = argument(nargs=-1, metavar="[FILE]...")
    full: bool = option(is_flag=True, help="Show every number of every step.")
    wrong: bool = option(is_flag=True, help="Show every number of the wrong steps only.")
    tokenizer: str | None = option(
        metavar="MODEL",
        help="Check token ids with this tokenizer: a folder, a tokenizer.json, or any name that --model takes.",
    )
    budget: int = option(
        type=click.IntRange(1),
        shown=2_000_000_000,
        help="Most numbers to compute per example.",
    )
    edit: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="EDIT",
        help="Compute the example with the numbers of this TOML file too, such as d_k = 16.",
    )
    seconds: float = option(type=FloatRange(0, min_open=True), shown=60.0, help="Time limit per example.")


@command("verify")
def verify(options: Options, output: Output) -> int:
    """FILE is a TOML file (see samples/worked/README.md) or the name of an example that comes with tinytf. Without a
    FILE, lists those examples and their scores. A claimed number holds, is carried (it follows from the author's own
    earlier numbers, but they were wrong), or is wrong. Exits with 1 if a number is off by more than its printed digits
    allow. With --edit, every step is also computed with other numbers, and shows which of its own move.
    """
    from tinytf.sources import open_tokenizer
    from tinytf.worked import ExampleScores, edited, open_example, shipped
    from tinytf.worked import verify as verify_example
    from tinytf_cli.views.verify import VerificationDisplay

    tokenizer = open_tokenizer(options.tokenizer) if options.tokenizer is not None else None
    if options.edit is not None and len(options.files) != 1:
        count = f"{len(options.files)} are" if options.files else "none is"
        raise UsageError(
            f"--edit changes one example, and {count} named", "such as: tinytf verify cat-sat --edit my.toml"
        )
    examples = [open_example(name) for name in options.files or shipped()]  # open all before the first slow check
    reports = []
    for example in examples:
        # In the list, an example of another vocabulary is checked without ids; named explicitly, it is refused.
        fits = tokenizer is None or options.files or example.vocabulary is None or example.vocabulary.fits(tokenizer)
        edit = None if options.edit is None else edited(example, options.edit)
        known = tokenizer if fits else None
        reports.append(verify_example(example, known, seconds=options.seconds, budget=options.budget, edit=edit))
    if not options.files:
        output.draw(ExampleScores(tuple(reports)))
        return 0
    return output.draw_all(reports, "verifications", len(reports) > 1, VerificationDisplay(options.full, options.wrong))
