"""``tinytf pairs``: pairs of prompts for a task, made for the tokenizer of a model."""

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

    task: str | None = argument(required=False)
    count: int = option("-n", "--n", type=Whole(1, 100_000), shown=200, help="Pairs to make.")
    score: bool = option(is_flag=True, help="Run the model on them, and show how often it is right.")


@command("pairs")
def pairs(options: Options, fold: FoldOptions, model_options: ModelOptions, output: Output) -> None:
    """Makes pairs of a TASK, such as ioi or capitals; without one, lists the tasks. Both texts of a pair have as many
    tokens, and each answer is one token. -o FILE.jsonl, .csv or .tsv writes them for the commands that take --pairs.
    """
    from tinytf.pairs.tasks import tasks
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.pairs import PairSetDisplay

    if options.task is None:
        if is_typed("count", "score"):
            raise UsageError("no task is named to make pairs of", "such as: tinytf pairs ioi")
        output.draw(tasks())
        return
    model = model_options.open(because="its prompts are continued where they stand")
    with progress_line(output.stderr, "texts scored:") as on_progress:
        made = model.pairs(
            options.task, options.count, seed=model_options.seed, score=options.score, progress=on_progress
        )
    output.draw(made, PairSetDisplay(fold.all))
