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
    keep: float | None = option(
        type=Real(0, 1, above=True),
        help="The share of the effect to keep; with --features, of the influence.  [default: 0.9, or 0.8]",
    )
    method: str = option(
        type=click.Choice(["gradient", "integrated", "exact"]), shown="integrated",
        help="Score edges by one gradient, by several on the way to the clean text, or by a run each.",
    )  # fmt: skip
    steps: int = option(type=Whole(1, 1000), shown=5, help="Gradients that integrated averages over.")
    level: str = option(
        type=click.Choice(["edges", "positions", "nodes"]),
        shown="edges",
        help="Choose single edges, edges at single tokens of equally long texts, or nodes with all their edges.",
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
    features: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR",
        help="Trace the answer to CLEAN alone, over the features of these transcoders: of train-sae --into, or others.",
    )  # fmt: skip
    node: str | None = option(metavar="NAME", help="With --features: one node and its edges, such as L2F85@cat.")
    top: int | None = option(type=Whole(1), help="Edges and nodes shown.  [default: 5, and up to 8]")


@command("circuit")
def circuit(
    options: Options, over: PairsOptions, fold: FoldOptions, model_options: ModelOptions, output: Output
) -> int:
    """\b
    Find a circuit          tinytf circuit --pairs FILE -m MODEL -o circuit.json
    Of one pair of texts    tinytf circuit CLEAN CORRUPT -m MODEL
    Run it on other pairs   tinytf circuit --pairs FILE --from circuit.json
    Over features           tinytf circuit TEXT --features DIR -m MODEL

    Each edge leads from the embeddings, a head or a feed-forward to an input of a later one. The effect is the mean
    lead of answer over versus with the clean texts, less that with the corrupt ones. Outside the circuit every edge
    carries its value in the corrupt run. Ctrl-C after the scores shows the circuit so far. -o FILE.svg draws a graph.
    With --features, each edge is what a feature, an error of a transcoder or a token adds to a later feature or logit.
    """
    if options.features is not None:
        return _over_features(options, over, fold, model_options, output)
    if options.node is not None:
        raise UsageError("--node is of a circuit over features", "give --features DIR")
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
            pairs, metric=options.metric, answer=answers, keep=0.9 if options.keep is None else options.keep,
            method=options.method, level=options.level, steps=options.steps, stored=options.stored,
            versus=options.versus, left_out=options.left_out, seed=model_options.seed, on_progress=on_progress,
        )  # fmt: skip
    return output.draw_checked(report, CircuitDisplay(options.top, fold.all))


def _over_features(
    options: Options, over: PairsOptions, fold: FoldOptions, model_options: ModelOptions, output: Output
) -> int:
    """The answer to one text, traced back over the features of transcoders."""
    from tinytf.features.transcoders import open_transcoders
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.feature_circuit import FeatureCircuitDisplay

    if over.pairs is not None or options.corrupt is not None:
        raise UsageError("--features explains the answer to one text", "leave out CORRUPT and --pairs")
    if is_typed("stored", "versus", "method", "steps", "level", "metric"):
        raise UsageError("--features takes no --from, --versus, --method, --steps, --level, --metric", "leave it out")
    texts = with_session_text(() if options.clean is None else (options.clean,), 1)
    if not texts:
        raise UsageError("the text is missing", 'such as: tinytf circuit "The cat sat" --features DIR')
    assert options.features is not None
    transcoders = open_transcoders(options.features)
    model = model_options.open(because="its answer continues one text")
    with progress_line(output.stderr, "layers:") as on_progress:
        report = model.feature_circuit(
            texts[0], transcoders, answer=options.answer, node_share=0.8 if options.keep is None else options.keep,
            left_out=options.left_out, paths=options.top or 5, seed=model_options.seed, on_progress=on_progress,
        )  # fmt: skip
    if options.node is not None:
        report.node(options.node)
    return output.draw_checked(report, FeatureCircuitDisplay(options.top, fold.all, options.node))
