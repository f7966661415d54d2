"""``tinytf circuit``: the few edges between heads and feed-forwards that a task needs."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import is_typed
from tinytf_cli.inputs import with_session_text
from tinytf_cli.options import FoldOptions, ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import Real, Whole
from tinytf_cli.text_options import PairsOptions, metric_option


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    clean: str | None = argument(required=False)
    corrupt: str | None = argument(required=False)
    answer: str | None = option(
        metavar="A", help="With CLEAN and CORRUPT: the token that continues CLEAN.  [default: the predicted one]"
    )
    metric: str | None = metric_option()
    keep: float = option(
        type=Real(0, 1, above=True), shown=0.9, help="The share of the effect that the circuit has to keep."
    )
    method: str = option(
        type=click.Choice(["gradient", "integrated", "exact"]), shown="integrated",
        help="Score edges by one gradient, by several on the way to the clean text, or by a run each.",
    )  # fmt: skip
    steps: int = option(type=Whole(1, 1000), shown=5, help="Gradients that integrated averages over.")
    level: str = option(
        type=click.Choice(["edges", "nodes"]), shown="edges", help="Choose single edges, or nodes with all their edges."
    )
    stored: Path | None = option(
        "--from", type=click.Path(path_type=Path), metavar="FILE",
        help="Measure the circuit of FILE, written by -o circuit.json, instead of finding one.",
    )  # fmt: skip
    versus: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Compare with the circuit of FILE, run on these pairs too.",
    )
    left_out: int = option(
        type=Whole(0),
        shown=24,
        help="Run the circuit without each of its N nodes and N edges with the largest scores.",
    )
    top: int | None = option(type=Whole(1), help="Edges and nodes shown.  [default: 5, and up to 8]")


@command("circuit")
def circuit(
    options: Options, over: PairsOptions, fold: FoldOptions, model_options: ModelOptions, output: Output
) -> int:
    """\b
    Find a circuit          tinytf circuit --pairs FILE -m MODEL -o circuit.json
    Of one pair of texts    tinytf circuit CLEAN CORRUPT -m MODEL
    Run it on other pairs   tinytf circuit --pairs FILE --from circuit.json

    Each edge leads from the embeddings, a head or a feed-forward to an input of a later one. The effect is the mean
    lead of answer over versus with the clean texts, less that with the corrupt ones. Outside the circuit every edge
    carries its value in the corrupt run. Ctrl-C after the scores shows the circuit so far. -o FILE.svg draws a graph.
    """
    from tinytf.pairs.pair import one_pair
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.circuit import CircuitDisplay

    words = with_session_text(tuple(text for text in (options.clean, options.corrupt) if text is not None), 2)
    texts = () if over.pairs is not None and not options.clean else words
    if over.pairs is None and len(texts) != 2:
        missing = "CORRUPT, the second text, is missing" if texts else "there are no pairs to find a circuit for"
        raise UsageError(missing, "give two texts, CLEAN CORRUPT, or a file of pairs: --pairs FILE.jsonl")
    if over.pairs is not None and texts:
        raise UsageError("--pairs takes the texts and answers of a file", "leave out CLEAN and CORRUPT")
    answers = over.followed(options.metric, options.answer)["answer"] if over.pairs is not None else None
    if options.stored is not None and is_typed("keep", "method", "steps", "level"):
        raise UsageError(
            "--from measures a circuit that is found already", "leave out --keep, --method, --steps, --level"
        )
    if is_typed("steps") and options.method != "integrated":
        raise UsageError("--steps goes with --method integrated", f"{options.method} averages over nothing")
    model = model_options.open(because="its pairs are of prompts that one stack continues")
    pairs = over.items if over.pairs is not None else one_pair(model, *map(str, texts), answer=options.answer)
    with progress_line(output.stderr, "runs:") as on_progress:
        report = model.circuit(
            pairs, metric=options.metric, answer=answers, keep=options.keep, method=options.method,
            level=options.level, steps=options.steps, stored=options.stored,
            versus=options.versus, left_out=options.left_out, seed=model_options.seed, on_progress=on_progress,
        )  # fmt: skip
    return output.draw_checked(report, CircuitDisplay(options.top, fold.all))
