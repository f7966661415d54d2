"""``tinytf verify``: worked examples against the truth."""

from dataclasses import dataclass

import click

from tinytf_cli.command import FloatRange, argument, command, option
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    files: tuple[str, ...] = argument(nargs=-1, metavar="[FILE]...")
    full: bool = option(is_flag=True, help="Show every number of every step, also of those that hold.")
    wrong: bool = option(is_flag=True, help="Show every number of the steps that do not hold.")
    tokenizer: str | None = option(
        metavar="MODEL",
        help="Check token ids with the tokenizer of a folder, a tokenizer.json, or any name that --model takes.",
    )
    budget: int = option(
        type=click.IntRange(1),
        shown=2_000_000_000,
        help="How many numbers each may compute, in all operations together.",
    )
    seconds: float = option(type=FloatRange(0, min_open=True), shown=60.0, help="How long each may take.")


@command("verify")
def verify(options: Options, output: Output) -> int:
    """A FILE is TOML (see samples/worked/README.md), or the name of an example that comes with tinytf; without a FILE
    these are listed with their scores. A claim holds, is carried (right of the author's own earlier numbers, wrong in
    the end), or is wrong; the status is 1 where one is off by more than its printed digits allow.
    """
    from tinytf.sources import open_tokenizer
    from tinytf.worked import ExampleScores, open_example, shipped
    from tinytf.worked import verify as checked
    from tinytf_cli.views.verify import VerificationDisplay

    words = open_tokenizer(options.tokenizer) if options.tokenizer is not None else None
    examples = [
        open_example(name) for name in options.files or shipped()
    ]  # all of them before the first takes its time
    reports = []
    for example in examples:
        # In the list, an example of another vocabulary goes without its ids; by its name it is refused.
        fits = words is None or options.files or example.vocabulary is None or example.vocabulary.fits(words)
        reports.append(checked(example, words if fits else None, seconds=options.seconds, budget=options.budget))
    if not options.files:
        output.draw(ExampleScores(tuple(reports)))
        return 0
    return output.draw_all(reports, "verifications", len(reports) > 1, VerificationDisplay(options.full, options.wrong))
