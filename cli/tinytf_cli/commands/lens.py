"""``tinytf lens``: what the model would predict after each layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.host import is_typed
from tinytf_cli.inputs import read_texts
from tinytf_cli.options import FoldOptions, require_only
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import AddressOptions, PairsOptions, TextOptions, versus_pairs_option

if TYPE_CHECKING:
    from tinytf.look.lens import Lens
    from tinytf.text.chat import Written
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    position: str | None = option(
        metavar="LIST", help="Read these positions only: 2, 0-3,7, -1, a token of the text, or all.  "
        "[default: all; in an encoder [MASK]]",
    )  # fmt: skip
    top: int = option(type=Whole(1), shown=5, help="Tokens shown per position.")
    track: tuple[str, ...] = option(
        multiple=True, metavar="TOKEN", help="Track the rank and probability of this word or #ID. Repeatable."
    )
    sublayers: bool = option(is_flag=True, help="Also read the stream after each attention.")
    tuned: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Read by a tuned lens: a file of --train, or a folder or params.pt of the tuned-lens package.",
    )  # fmt: skip
    train: Path | None = option(
        type=click.Path(path_type=Path), metavar="CORPUS",
        help="Train a tuned lens on this file or folder of text, on - (a pipe), or on a folder of tinytf record, "
        "instead of reading TEXT; -o lens.safetensors keeps it.",
    )  # fmt: skip
    steps: int = option(type=Whole(0, 1_000_000), shown=100, help="With --train: steps of training.")
    versus: Path | None = versus_pairs_option()


@command("lens")
def lens(options: Options, over: PairsOptions, fold: FoldOptions, tracing: AddressOptions) -> int:
    """Passes the residual stream after each layer through the model's own final norm and head. The last row therefore
    equals the model's output, to the last bit. With --stack encoder, the decoder's head reads the encoder. A
    tuned lens translates the stream of each layer first, by a map that is trained to predict what the last layer will
    (Belrose et al. 2023). With --pairs, shows after which layer each answer overtakes versus.
    """
    from tinytf.look.lens import reader_of
    from tinytf.look.translators import read_translators
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.lens import LensDisplay

    over.require_beside(options.versus)
    if over.pairs is not None:
        from tinytf.cause.over_pairs import lens_over

        require_only(("versus",), (Options, TextOptions), "--pairs")
        return over.draw(lens_over, tracing.model_options, tracing.output, fold, versus=options.versus)
    if options.train is not None:
        return _train(options.train, options.steps, tracing)
    if is_typed("steps"):
        raise UsageError("--steps goes with --train", "leave it out")
    tracing.texts.items  # noqa: B018 - report a missing text before opening a model
    display = LensDisplay(options.position is not None, is_typed("top"), fold.all)
    through = tracing.model_options.through_model(tracing.output)
    if through is not None:
        from tinytf.through.reading import lens_through

        require_only(("position", "top", "track"), (Options,))
        chosen: dict[str, Any] = {"position": options.position, "top": options.top, "track": options.track}
        truncate = tracing.texts.truncate

        def read_each(texts: "Sequence[Written]") -> "Iterator[Lens]":
            return (lens_through(through, text, truncate=truncate, **chosen) for text in texts)

        return tracing.texts.answer(read_each, tracing.output, "lenses", display, of=through.transformer)
    reader_of(tracing.model)
    tuned = None if options.tuned is None else read_translators(options.tuned, tracing.model.config)

    def question(trace: "Trace") -> "Lens":
        with progress_line(tracing.output.stderr, "lens: layer") as on_progress:
            return tracing.model.lens(
                trace, position=options.position, top=options.top, track=options.track, sublayers=options.sublayers,
                tuned=tuned,
                on_progress=on_progress, force=tracing.force,
            )  # fmt: skip

    return tracing.show(question, "lenses", display)


def _train(corpus: Path, steps: int, tracing: AddressOptions) -> int:
    """Train a tuned lens, and measure it."""
    from tinytf.bulk.folder import is_recorded, recorded
    from tinytf_cli.progress_line import progress_line

    require_only(("train", "steps"), (Options,), beside="--train")
    text = read_texts(("-",), lines=False)[0] if corpus == Path("-") else None
    if text is None and tracing.texts.words:
        raise UsageError("--train reads a corpus, and TEXT is another question", "leave TEXT out")
    with progress_line(tracing.output.stderr, "training: step") as on_progress:
        source = recorded(corpus) if is_recorded(corpus) else corpus
        model = tracing.model_options.open(
            two_stacks=not isinstance(source, Path), because="--train takes a tinytf record of pairs"
        )
        report = model.train_lens(
            source, text=text, steps=steps, seed=tracing.model_options.seed, on_progress=on_progress
        )
    if tracing.output.file is not None:
        tracing.output.note(report.sentence)
    tracing.output.draw(replace(report, corpus="standard input") if text is not None else report)
    return 0
