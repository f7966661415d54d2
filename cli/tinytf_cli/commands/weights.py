"""``tinytf weights``: heads as circuits, read from their weights alone."""

from dataclasses import dataclass

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import FoldOptions, ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    head: str | None = argument(required=False, metavar="[HEAD]")
    compose: str | None = option(metavar="HEAD", help="Show which heads of later layers read this one.")
    into: str | None = option(metavar="HEAD", help="Show which heads of earlier layers this one reads.")
    tokens: tuple[str, ...] = option(
        "--token", multiple=True, metavar="TOKEN",
        help="With HEAD: read this token, by text or #ID, instead of the strongest ones. Repeatable.",
    )  # fmt: skip
    top: int = option(type=Whole(1), shown=5, help="With HEAD: tokens at each end, and directions.")
    feed_forwards: bool = option("--ffn", is_flag=True, help="Also measure the matrices of every feed-forward.")


@command("weights")
def weights(options: Options, fold: FoldOptions, model_options: ModelOptions, output: Output) -> int:
    """Reads heads without any text. Of all heads: whether they copy, and how large and wide their matrices are. Of one
    HEAD, such as L1H2: what attending to a token promotes (W_V·W_O), which tokens a token looks for (W_Q·W_Kᵀ), and
    its singular directions.
    """
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.weights import WeightsDisplay

    questions = {"HEAD": options.head, "--compose": options.compose, "--into": options.into}
    asked = [name for name, head in questions.items() if head is not None]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} are two questions", "leave one of them out")
    if is_typed("tokens", "top") and options.head is None:
        raise UsageError("--token and --top are about one head", "name it, such as tinytf weights L1H2")
    if options.feed_forwards and asked:
        raise UsageError(
            f"--ffn goes with the table of all heads, and {asked[0]} is about one", "leave one of them out"
        )
    model, seed, display = model_options.open(two_stacks=True), model_options.seed, WeightsDisplay(fold.all)
    if options.head is not None:
        output.draw(model.head_weights(options.head, tokens=options.tokens, top=options.top, seed=seed), display)
    elif asked:
        head = options.compose or options.into or ""
        output.draw(model.composition(head, into=options.into is not None, seed=seed), display)
    else:
        with progress_line(output.stderr, "heads:") as on_progress:
            report = model.weights(feed_forwards=options.feed_forwards, seed=seed, on_progress=on_progress)
        output.draw(report, display)
    return 0
