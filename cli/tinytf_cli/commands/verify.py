"""``tinytf verify``: worked examples against the truth."""

from dataclasses import dataclass

from tinytf_cli.command import argument, command, option
from tinytf_cli.output import Output, Result


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    files: tuple[str, ...] = argument(nargs=-1, metavar="[FILE]...")
    full: bool = option(is_flag=True, help="Show the numbers of claims that hold too.")
    wrong: bool = option(is_flag=True, help="Only what does not hold.")
    tokenizer: str | None = option(
        metavar="MODEL",
        help="Check token ids with the tokenizer of a folder, a tokenizer.json, or any name that --model takes.",
    )


@command("verify")
def verify(asked: Asked, output: Output) -> int:
    """A FILE is TOML (see samples/worked/README.md), or the name of an example that comes with tinytf; without a FILE
    these are listed with their scores. The status is 1 where a claim is off by more than its printed digits allow.
    """
    from tinytf.sources import open_tokenizer
    from tinytf.worked import ExampleScores, open_example, shipped
    from tinytf.worked import verify as checked
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.verify import ScoresView, VerifyView

    words = open_tokenizer(asked.tokenizer) if asked.tokenizer is not None else None
    examples = [open_example(name) for name in asked.files or shipped()]  # all of them before the first takes its time
    found = [checked(example, words) for example in examples]
    if not asked.files:
        output.show(Result.of(ScoresView(ExampleScores(tuple(found)))))
        return 0
    views = [VerifyView(one, full=asked.full, wrong=asked.wrong) for one in found]
    return show_views(output, views, "verifications", len(views) > 1)
