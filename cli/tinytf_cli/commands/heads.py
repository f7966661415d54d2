"""``tinytf heads``: what every head does."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.inputs import read_texts
from tinytf_cli.options import Opening, asks, model_options, option, output_options
from tinytf_cli.output import Output, Result

_BY = ("induction", "duplicate", "previous", "first", "self", "offset", "entropy", "entropy-share", "distance",
       "agreement")  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    by: str | None = option(
        type=click.Choice(_BY),
        help="The score that is mapped, and that the table is sorted by: induction, of an encoder previous.",
    )  # fmt: skip
    top: int | None = option(
        type=click.IntRange(1), metavar="N", help="Heads in the table and in JSON (else all; on a screen 16)."
    )
    length: int | None = option(
        type=click.IntRange(1), metavar="N", help="Tokens that are said twice (else 50, or what fits)."
    )
    count: int = option(
        type=click.IntRange(1, 100_000), shown=16, help="Random sequences, and windows of text at most."
    )
    random: bool = option(is_flag=True, help="Random tokens alone, without the model's own text.")


@click.command("heads")
@click.argument("corpus", required=False, type=click.Path(path_type=Path))
@model_options
@asks(Asked)
@output_options
def command(corpus: Path | None, opening: Opening, asked: Asked, output: Output) -> int:
    """Score every head on random tokens said twice, and on the text of CORPUS.

    Says of each what it is: induction, duplicate, previous, self, offset, first or broad, and why. CORPUS is a text
    file, a folder of them, or - for standard input. Without it the text is what the model was trained on, where that
    is known, and all scores are from random tokens where it is not.
    """
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.heads import HeadsView

    if asked.random and corpus is not None:
        raise UsageError("--random is without a text, and there is one", "leave one of them out")
    text = read_texts(("-",), lines=False)[0] if corpus == Path("-") else None
    model = opening.open()
    file = None if text is not None else corpus
    with progress_line(output.stderr, "sequences", at_most=True) as progress:
        found = model.heads(
            file,
            text=text,
            random_only=asked.random,
            length=asked.length,
            count=asked.count,
            seed=opening.seed,
            by=asked.by,
            top=asked.top,
            progress=progress,
        )
    if text is not None:
        found = replace(found, corpus="standard input")
    output.show(Result.of(HeadsView(model, found)))
    return 0
