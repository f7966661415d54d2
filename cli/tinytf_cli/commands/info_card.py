"""``tinytf info --card``: a model file on one page, beside its original."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import whole_text
from tinytf_cli.options import DEVICES, DTYPES, FoldOptions, complete_model
from tinytf_cli.output import Output
from tinytf_cli.ranges import Real, Whole


@dataclass(frozen=True)
class Options:
    """The argument and options of this command alone."""

    model: str = argument(shell_complete=complete_model, metavar="FILE")
    versus: str | None = option(
        metavar="MODEL", help="The original: a directory of transformers, another .gguf file, any model."
    )
    texts: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Predict the text of this file, or of - (a pipe), instead of the built-in one.",
    )
    context: int = option(type=Whole(4), shown=512, help="Cut the text into pieces of N tokens.")
    pieces: int | None = option(type=Whole(1), help="Predict the first N pieces.  [default: all]")
    top: int = option(
        type=Whole(0), shown=6, help="Measure the N tensors with the largest expected damage alone; 0: none."
    )
    fail_over: float | None = option(
        type=Real(0), metavar="TOL",
        help="Exit 1 if the mean KL is above TOL nats a token.",
    )  # fmt: skip
    device: str = option(type=click.Choice(DEVICES), shown="auto", help="Where to compute.")
    dtype: str = option(type=click.Choice(DTYPES), shown="float32", help="Number format of the weights.")
    rows: int | None = option(type=Whole(0), help="Tensors in the table; 0 for all.  [default: 6]")


@command("info --card")
def info_card(options: Options, fold: FoldOptions, output: Output) -> int:
    """What somebody wants to know who converts or downloads FILE, a .gguf file, on one page: -o card.md.

    Compares with --versus: ids of hard texts, the chat template on 54 conversations, special tokens, pooling and
    settings that such a file has a place for, which have to be the same (else the exit status is 1); the error of every
    tensor, the worst ones put alone into the original, as blame does; and predictions, in the lines of llama.cpp's
    llama-perplexity --kl-divergence.
    """
    from tinytf.certification.card import card as make_card
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.card import CardDisplay

    text = None if options.texts is None else whole_text(options.texts)
    with progress_line(output.stderr, "part") as progress:
        report = make_card(
            options.model, versus=options.versus, text=text, context=options.context, pieces=options.pieces,
            top=options.top, fail_over=options.fail_over, device=options.device, dtype=options.dtype, progress=progress,
        )  # fmt: skip
    return output.draw_checked(report, CardDisplay(fold.rows(options.rows)))
