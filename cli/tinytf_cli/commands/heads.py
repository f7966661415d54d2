"""``tinytf heads``: what every head does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.options import model_options, output_options
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.loading import Model

_BY = ("induction", "duplicate", "previous", "first", "self", "offset", "entropy", "entropy-share", "distance",
       "agreement")  # fmt: skip


@click.command("heads")
@click.argument("corpus", required=False, type=click.Path(path_type=Path))
@model_options
@click.option(
    "--by",
    type=click.Choice(_BY),
    help="The score that is mapped, and that the table is sorted by: induction, of an encoder previous.",
)
@click.option(
    "--top", type=click.IntRange(1), metavar="N", help="Heads in the table and in JSON (else all; on a screen 16)."
)
@click.option(
    "--length", type=click.IntRange(1), metavar="N", help="Tokens that are said twice (else 50, or what fits)."
)
@click.option(
    "--count",
    type=click.IntRange(1, 100_000),
    default=16,
    show_default=True,
    help="Random sequences, and windows of text at most.",
)
@click.option("--random", is_flag=True, help="Random tokens alone, without the model's own text.")
@output_options
def command(
    corpus: Path | None,
    open_model: Callable[[], "Model"],
    by: str | None,
    top: int | None,
    length: int | None,
    count: int,
    random: bool,
    output: Output,
) -> int:
    """Score every head on random tokens said twice, and on the text of CORPUS.

    Says of each what it is: induction, duplicate, previous, self, offset, first or broad, and why. CORPUS is a text
    file, a folder of them, or - for standard input. Without it the text is what the model was trained on, where that
    is known, and all scores are from random tokens where it is not.
    """
    from tinytf_cli.counted import counted
    from tinytf_cli.inputs import read_texts
    from tinytf_cli.output import Result
    from tinytf_cli.views.heads import HeadsView

    if random and corpus is not None:
        raise UsageError("--random is without a text, and there is one", "leave one of them out")
    text = read_texts(("-",), lines=False)[0] if corpus == Path("-") else None
    model = open_model()
    seed = click.get_current_context().params["seed"]
    file = None if text is not None else corpus
    with counted(output.stderr, "sequences", at_most=True) as progress:
        found = model.heads(
            file,
            text=text,
            random_only=random,
            length=length,
            count=count,
            seed=seed,
            by=by,
            top=top,
            progress=progress,
        )
    if text is not None:
        found = replace(found, corpus="standard input")
    output.show(Result.of(HeadsView(model, found)))
    return 0
