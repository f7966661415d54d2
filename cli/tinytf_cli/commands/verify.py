"""``tinytf verify``: worked examples against the truth."""

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result


@click.command("verify")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--full", is_flag=True, help="Show the numbers of claims that hold too.")
@click.option("--wrong", is_flag=True, help="Only what does not hold.")
@click.option(
    "--tokenizer",
    metavar="MODEL",
    help="Whose token ids to hold claims against: a model's folder, a tokenizer.json, or any name that --model takes.",
)
@output_options
def command(files: tuple[str, ...], full: bool, wrong: bool, tokenizer: str | None, output: Output) -> int:
    """Recompute the worked examples in FILE, and hold every claimed number against the true one.

    A FILE is TOML (see samples/worked/README.md), or the name of an example that comes with tinytf; without one these
    are listed with their scores. The status is 1 where a claim is off by more than its printed digits allow.
    """
    from tinytf.sources import open_tokenizer
    from tinytf.worked import open_example, shipped, verify
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.verify import ScoresView, VerifyView

    words = open_tokenizer(tokenizer) if tokenizer is not None else None
    found = [verify(example, words) for example in [open_example(name) for name in files or shipped()]]
    if not files:
        scores = ScoresView(found)
        output.show(Result(scores.blocks, scores.data, scores.events))
        return 0
    views = [VerifyView(one, full=full, wrong=wrong) for one in found]
    return show_views(output, views, "verifications", len(views) > 1)
