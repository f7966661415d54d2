"""``tinytf steer``: a steering vector from pairs of texts, and what it does to a prediction."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import ControlOptions, FoldOptions, ModelOptions
from tinytf_cli.output import CONTROL_VECTOR, Output
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import OptionalTextOptions, metric_option

if TYPE_CHECKING:
    from tinytf.cause.steer.applying import Vectors
    from tinytf.cause.steer.vector import SteeringVector
    from tinytf.loading import Model

_FILES = (".safetensors", CONTROL_VECTOR)
_CURVE = "such as --curve=-2:2:0.5, from −2 to 2 by 0.5"


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    source: Path = argument(type=click.Path(path_type=Path), metavar="FILE")
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS", help="The step, such as L12.out. Repeatable.  [default: L*.out]"
    )
    method: str = option(
        type=click.Choice(["mean", "pca", "probe"]), shown="mean",
        help="Difference of means, first component of the differences, or weights of a logistic regression.",
    )  # fmt: skip
    position: str = option(
        type=click.Choice(["last", "mean"]), shown="last", help="Take the last token of each text, or their mean."
    )
    top: int = option(type=Whole(1), shown=8, help="Tokens that a vector promotes, and demotes.")
    curve: str | None = option(
        metavar="LOW:HIGH:STEP", help="Add the vector at these strengths, and show the prediction after TEXT."
    )
    asked: tuple[str, ...] = option(
        "--ask", multiple=True, metavar="TOKEN",
        help="With --curve: follow this token. Repeatable.  [default: the most probable at either end and at 0]",
    )  # fmt: skip
    metric: str | None = metric_option("logit_diff of the first two asked for, or prob of one")
    reference: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="With --curve: other texts, to see how far they move.  [default: the model's own]",
    )  # fmt: skip


@command("steer")
def steer(options: Options, controls: ControlOptions, fold: FoldOptions, texts: OptionalTextOptions,
          model_options: ModelOptions, output: Output) -> int:  # fmt: skip
    """FILE is a table of pairs (.jsonl, .csv, .tsv, .parquet) with the columns positive and negative, or clean and
    corrupt; or a vector made before (.safetensors, or a control vector of llama.cpp in .gguf). -o writes the vector to
    such a file, and tinytf generate --add takes it. With --curve, the vector is added at several strengths to the run
    on TEXT; one from pairs goes where it tells them apart best, unless --at names the steps.
    """
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.steer import SteeringVectorDisplay
    from tinytf_cli.views.steer_curve import SteeringCurveDisplay

    is_file = options.source.suffix.lower() in _FILES
    if is_file and is_typed("method", "position"):
        raise UsageError(
            f"{options.source} is a vector already, and --method and --position make one", "leave them out"
        )
    controls.require(
        "--curve, or pairs instead of a vector", options.curve is not None or not is_file, "--curve=-2:2:0.5"
    )
    if options.curve is None:
        if texts.words or is_typed("asked", "reference", "metric"):
            raise UsageError("TEXT, --ask, --metric and --reference go with --curve", _CURVE)
        model = model_options.open(because="its pairs are of texts that one stack reads")
        vector = _vector(model, options, texts, controls.of(model_options.seed), is_file, output)
        if output.file is not None and output.file.suffix.lower() in _FILES:
            output.note(vector.sentence)
        file = str(options.source) if is_file else ""
        output.draw(vector, SteeringVectorDisplay(file, fold.all, model_options.typed_again()))
        return 0
    strengths = _strengths(options.curve)
    written = texts.items
    model = model_options.open(because="its pairs are of texts that one stack reads")
    vector = _vector(model, options, texts, controls.of(model_options.seed), is_file, output)
    add: Vectors = vector
    if is_file and options.addresses:
        add = dict.fromkeys(options.addresses, vector)
    elif not is_file and not options.addresses:
        add = vector.only(vector.best.at)
    reference = None
    if options.reference is not None or (model.corpus is not None and model.config.causal):
        reference = model.reference(options.reference)
    with progress_line(output.stderr, "strengths:") as on_progress:
        reports = (
            model.steer_curve(model.trace(text, truncate=texts.truncate), add, strengths=strengths, ask=options.asked,
                              metric=options.metric, reference=reference, on_progress=on_progress,
                              **controls.of(model_options.seed))
            for text in written
        )  # fmt: skip
        return output.draw_all(reports, "curves", texts.lines, SteeringCurveDisplay(fold.all))


def _vector(
    model: "Model", options: Options, texts: OptionalTextOptions, controls: dict[str, Any], is_file: bool,
    output: Output,
) -> "SteeringVector":  # fmt: skip
    """The vector of the file, or the one made from its pairs, which --chat makes messages."""
    from tinytf.cause.steer.contrasts import Contrasts
    from tinytf.cause.steer.vector import read_out, steering_vector
    from tinytf_cli.progress_line import progress_line

    if not is_file:
        with progress_line(output.stderr, "pairs:") as on_progress:
            return model.steer(
                Contrasts.of(options.source).read_as(texts.of), at=options.addresses or "L*.out",
                method=options.method, position=options.position, top=options.top, on_progress=on_progress,
                **controls,
            )  # fmt: skip
    vector = steering_vector(options.source)
    if vector.made_with not in ("", model.name):
        output.note(f"{options.source} was made with {vector.made_with}, and this is {model.name}")
    return vector if options.curve is not None else read_out(model, vector.only(*options.addresses), options.top)


def _strengths(words: str) -> tuple[float, ...]:
    """The strengths of LOW:HIGH:STEP. Raises UsageError for words of another form, and for too many."""
    from tinytf.cause.steer.curve import require_strengths

    try:
        low, high, step = (float(word) for word in words.split(":"))
    except ValueError:
        raise UsageError(f"--curve {words!r} is not LOW:HIGH:STEP", _CURVE) from None
    if not (step > 0 and low <= high and high - low < float("inf")):
        raise UsageError(f"--curve {words!r} does not rise by steps from LOW to HIGH", _CURVE)
    count = int((high - low) / step + 1e-9) + 1 if (high - low) / step < 1e6 else 10**6
    return require_strengths([round(low + number * step, 12) for number in range(count)])
