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
    help="Check token ids with the tokenizer of a model's folder, a tokenizer.json, or any name that --model takes.",
)
@output_options
def command(files: tuple[str, ...], full: bool, wrong: bool, tokenizer: str | None, output: Output) -> int:
    """Recompute the worked examples in FILE, and compare every claimed number with the true one.

    A FILE is TOML (see samples/worked/README.md), or the name of an example that comes with tinytf; without a FILE
    these are listed with their scores. The status is 1 where a claim is off by more than its printed digits allow.
    """
    from tinytf.sources import open_tokenizer
    from tinytf.worked import Scores, open_example, shipped, verify
    from tinytf_cli.several import show_views
    from tinytf_cli.views.verify import ScoresView, VerifyView

    words = open_tokenizer(tokenizer) if tokenizer is not None else None
    examples = [open_example(name) for name in files or shipped()]  # all of them before the first takes its time
    found = [verify(example, words) for example in examples]
    if not files:
        output.show(Result.of(ScoresView(Scores(tuple(found)))))
        return 0
    views = [VerifyView(one, full=full, wrong=wrong) for one in found]
    return show_views(output, views, "verifications", len(views) > 1)
