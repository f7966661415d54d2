"""``tinytf verify``: check the numbers of worked examples, and the claims of papers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host, is_typed
from tinytf_cli.options import ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import CORPUS, Real, Whole

if TYPE_CHECKING:
    from tinytf.verify.paper import Paper, PaperCheck


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    files: tuple[str, ...] = argument(nargs=-1, metavar="[FILE]...")
    full: bool = option(is_flag=True, help="Show every number of every step, or all about a claim.")
    wrong: bool = option(is_flag=True, help="Show every number of the wrong steps only.")
    homework: bool = option(is_flag=True, help="Print a sheet for students: the example with blanks for its numbers.")
    solution: bool = option(is_flag=True, help="Print that sheet with the true numbers.")
    steps: tuple[str, ...] = option(
        "--step", multiple=True, metavar="NAME",
        help="Ask the sheet for this step only, and give what its formula reads; repeatable.",
    )  # fmt: skip
    budget: int = option(
        type=Whole(1, CORPUS),
        shown=2_000_000_000,
        help="Most numbers to compute per example.",
    )
    edit: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="EDIT",
        help="Compute the example with the numbers of this TOML file too, such as d_k = 16.",
    )
    seconds: float = option(type=Real(0, above=True), shown=60.0, help="Time limit per example.")


@command("verify")
def verify(options: Options, model_options: ModelOptions, output: Output) -> int:
    """FILE is a TOML file (see samples/worked/README.md) or the name of an example that comes with tinytf. Without a
    FILE, lists those examples and their scores. A claimed number holds, is carried (it follows from the author's own
    earlier numbers, but they were wrong), or is wrong. Exits with 1 if a number is off by more than its printed digits
    allow. With --edit, every step is also computed with other numbers, and shows which of its own move. --tokenizer
    checks token ids with that tokenizer: a folder, a tokenizer.json, or any name that --model takes.

    paper:NAME, or a file with claims of a paper, measures them on a model, by default the one that the paper names.
    """
    papers = _papers(options)
    if papers is not None:
        return _recompute(papers, options, model_options, output)
    if unused := next((name for name in ("model", "device", "dtype", "through", "adapter") if is_typed(name)), None):
        raise UsageError(f"--{unused} is for papers, and a worked example has numbers of its own", "leave it out")
    from tinytf.sources import open_tokenizer
    from tinytf.verify import ExampleScores, edited, open_example, shipped
    from tinytf.verify import verify as verify_example
    from tinytf.verify.paper import shipped_papers
    from tinytf_cli.views.verify import VerificationDisplay

    tokenizer = open_tokenizer(model_options.tokenizer) if model_options.tokenizer is not None else None
    if options.edit is not None and len(options.files) != 1:
        count = f"{len(options.files)} are" if options.files else "none is"
        raise UsageError(
            f"--edit changes one example, and {count} named", "such as: tinytf verify cat-sat --edit my.toml"
        )
    sheet = "solution" if options.solution else "homework" if options.homework else ""
    if sheet and options.edit is not None:
        raise UsageError(
            f"--{sheet} is of the numbers as they are, and --edit changes them",
            f"such as: tinytf verify cat-sat --{sheet}",
        )
    if options.steps and not sheet:
        raise UsageError("--step chooses the steps of a sheet", "add --homework or --solution")
    if sheet and not options.files:
        first, *others = shipped()
        output.note(f"this is of {first}; there are {', '.join(others)} too")
        options = replace(options, files=(first,))
    examples = [open_example(name) for name in options.files or shipped()]  # open all before the first slow check
    for example in examples:
        example.read_by(options.steps)  # refuse an unknown step before the first slow check
    reports = []
    for example in examples:
        # In the list, an example of another vocabulary is checked without ids; named explicitly, it is refused.
        fits = tokenizer is None or options.files or example.vocabulary is None or example.vocabulary.fits(tokenizer)
        edit = None if options.edit is None else edited(example, options.edit)
        known = tokenizer if fits else None
        reports.append(verify_example(example, known, seconds=options.seconds, budget=options.budget, edit=edit))
    if not options.files:
        output.draw(ExampleScores(tuple(reports), shipped_papers()))
        return 0
    display = VerificationDisplay(options.full, options.wrong, sheet, options.steps)
    status = output.draw_all(reports, "verifications", len(reports) > 1, display)
    return 0 if sheet else status  # a sheet says nothing of the author's claims


def _papers(options: Options) -> "list[Paper] | None":
    """The papers that are named; None if worked examples are. Raises UsageError for both."""
    from tinytf.verify.paper import find_paper

    found = [find_paper(name) for name in options.files]
    papers = [paper for paper in found if paper is not None]
    if not papers:
        return None
    if len(papers) < len(found):
        raise UsageError("papers and worked examples are verified in different ways", "name one kind at a time")
    return papers


def _recompute(papers: "list[Paper]", options: Options, model_options: ModelOptions, output: Output) -> int:
    from tinytf.verify.paper import recompute
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.paper import PaperDisplay

    if unused := next(
        (name for name in ("wrong", "homework", "solution", "steps", "budget", "edit", "seconds") if is_typed(name)),
        None,
    ):
        raise UsageError(
            f"--{'step' if unused == 'steps' else unused} is for worked examples, and {papers[0].name} is a paper",
            "leave it out",
        )
    for paper in papers:
        if not paper.model and not (is_typed("model") or host() is not None):
            raise UsageError(f"{paper.name} is about {paper.needs or 'a model of your own'}", "name its folder with -m")

    def reports() -> "Iterator[PaperCheck]":
        for paper in papers:
            own = model_options if is_typed("model") or not paper.model else replace(model_options, model=paper.model)
            with progress_line(output.stderr, "claims measured:") as on_progress:
                yield recompute(paper, own.open(because="its claims are of one stack"), on_progress)

    return output.draw_all(reports(), "papers", len(papers) > 1, PaperDisplay(options.full))
