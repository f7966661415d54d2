"""``tinytf heads``: the pattern of every head."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import is_typed
from tinytf_cli.inputs import read_texts
from tinytf_cli.options import FoldOptions, ModelOptions, require_only
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import PairsOptions, versus_pairs_option

_BY = ("induction", "duplicate", "previous", "first", "self", "offset", "entropy", "entropy-share", "distance",
       "agreement")  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    corpus: Path | None = argument(required=False, type=click.Path(path_type=Path))
    by: str | None = option(
        type=click.Choice(_BY),
        help="Score to map and to sort the table by.  [default: induction; in an encoder previous]",
    )  # fmt: skip
    top: int | None = option(type=Whole(1), help="Heads in the table and in JSON.  [default: all; 8 on a screen]")
    length: int | None = option(
        type=Whole(1), help="Random tokens before they repeat.  [default: 50, or as many as fit]"
    )
    count: int = option(type=Whole(1, 100_000), shown=16, help="Random sequences, and at most as many windows of text.")
    grammar: bool = option(
        is_flag=True, help="Find heads that lead from a noun to its article and from a verb to its subject instead."
    )
    versus: Path | None = versus_pairs_option()
    random: bool = option(is_flag=True, help="Score on random tokens only, without the model's own text.")


@command("heads")
def heads(options: Options, fold: FoldOptions, over: PairsOptions, model_options: ModelOptions, output: Output) -> int:
    """Measures scores on repeated random tokens and on the text of CORPUS. Labels each head as induction, duplicate,
    previous, self, offset, first or broad, with the evidence. CORPUS is a text file, a folder of them, or - for
    standard input; the default is the text that the model was trained on, if that is known. Without any text, all
    scores come from random tokens. With --pairs, measures attention on the clean text of each pair instead, --by
    entropy, distance, previous, first or self.

    Of two stacks the heads are the decoder's own, on random targets that repeat their source. Those of cross-attention
    have other scores: how they follow the source, and whether they rest at its ends. CORPUS is then a table of source
    and target.
    """
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.heads import CensusDisplay

    over.require_beside(options.versus)
    if over.pairs is not None:
        from tinytf.cause.over_pairs import heads_over

        require_only(("by", "top", "versus"), (Options,), "--pairs")
        by = options.by or "previous"
        return over.draw(heads_over, model_options, output, fold, options.top, versus=options.versus, by=by)
    if options.random and options.corpus is not None:
        raise UsageError("--random uses no text, and CORPUS is one", "leave one of them out")
    if options.grammar:
        names = ("corpus", "by", "top", "length", "count", "random")
        if typed := [name for name in names if is_typed(name)]:
            raise UsageError(f"--grammar reads pairs of words of its own, without {typed[0]}", "leave it out")
        from tinytf_cli.views import grammar as _  # noqa: F401 - registers its view

        output.draw(model_options.open(because="its words stand in one text").grammar())
        return 0
    text = read_texts(("-",), lines=False)[0] if options.corpus == Path("-") else None
    model = model_options.open(two_stacks=True)
    with progress_line(output.stderr, "sequences", at_most=True) as progress:
        report = model.heads(
            options.corpus if text is None else None, text=text, random_only=options.random, length=options.length,
            count=options.count, seed=model_options.seed, by=options.by, top=options.top, progress=progress,
        )  # fmt: skip
    if text is not None:
        report = replace(report, corpus="standard input")
    output.draw(report, CensusDisplay(options.by is not None, fold.all))
    return 0
