"""``tinytf train-sae``: train a sparse autoencoder on a step of a model, or transcoders of its feed-forwards."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from tinytf.errors import UsageError
from tinytf.outputs import filling
from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import corpus_files, corpus_or_recorded, read_by
from tinytf_cli.options import ModelOptions, complete_address, require_only
from tinytf_cli.output import Output
from tinytf_cli.ranges import CORPUS, Real, Whole


@dataclass(frozen=True)
class Options:
    """The arguments and options of this command alone."""

    corpus: tuple[Path, ...] = argument(nargs=-1, type=click.Path(path_type=Path), required=True)
    at: str | None = option(
        metavar="ADDRESS",
        shell_complete=complete_address,
        help="The step to learn, such as L2.out; with --into, what is read.  [default: what the feed-forward reads]",
    )
    into: str | None = option(
        metavar="ADDRESS", shell_complete=complete_address,
        help="Train transcoders that write these steps, one a layer: 'L*.ffn'.",
    )  # fmt: skip
    cross_layer: bool = option(is_flag=True, help="With --into: features write to all layers above theirs too.")
    versus: str | None = option(
        metavar="MODEL",
        help="Train a crosscoder on this model's step too, such as an earlier checkpoint: what did training change?",
    )
    sparsity: float | None = option(
        type=Real(0), help="With --versus: the weight of activations × norms of decoders.  [default: 2]"
    )
    out: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A new folder, in the layout of SAELens; of circuit-tracer, with --into. None with --versus: -o keeps it.",
    )
    features: int = option(type=Whole(1), shown=1024, help="Features of the autoencoder.")
    k: int = option(type=Whole(1), shown=16, help="Active features of each token.")
    tokens: int = option(type=Whole(1, CORPUS), shown=1_000_000, help="Tokens to train on, in as many passes.")
    batch: int = option(type=Whole(1), shown=512, help="Tokens per step.")
    lr: float | None = option(
        type=Real(0, above=True), help="Peak learning rate.  [default: 0.001 × √(16384 / features)]"
    )
    dead_after: int | None = option(
        type=Whole(1, CORPUS), help="Tokens without activity after which a feature is dead.  [default: a tenth]"
    )
    window: int | None = option(type=Whole(2), help="Corpus tokens in one pass.  [default: at most 128]")


@command("train-sae")
def train_sae(options: Options, model_options: ModelOptions, output: Output) -> None:
    """CORPUS is files or folders, - (a pipe), or a folder of tinytf record. The autoencoder keeps the K largest
    features of each token (Gao et al. 2024). The last 5 % of the documents are held out, and show how much it keeps of
    the step and of the loss. Ctrl-C ends the training and writes what was learned. tinytf features and SAELens open the
    folder. With --into, a transcoder of each layer learns what its feed-forward makes of its input, with K active
    features on average (Bussmann et al. 2024); tinytf circuit --features and circuit-tracer open that folder. With
    --versus, a crosscoder learns the step of both models at once (Lindsey et al. 2024), and shows the features that one
    of them has alone; -o FILE.safetensors keeps it, and tinytf features --sae FILE --versus MODEL opens the file.
    """
    from tinytf.bulk.folder import RecordedCorpus
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.train_sae import SaeTrainingDisplay

    if options.versus is not None:
        _crosscoder(options, model_options, output)
        return
    if options.sparsity is not None:
        raise UsageError("--sparsity goes with --versus", "an autoencoder keeps the --k largest features")
    if options.out is None:
        raise UsageError("--out is missing: the folder to write", "such as --out my-sae")
    if options.into is None and (options.at is None or options.cross_layer):
        raise UsageError("--at is missing: which step to learn", "such as --at L2.out, or --into 'L*.ffn'")
    model = model_options.open(two_stacks=options.into is None, because="a corpus has no sources and targets")
    files = corpus_or_recorded(options.corpus, ("TEXT",), model)
    window = files.index["window"] if isinstance(files, RecordedCorpus) else options.window or 128
    if options.into is not None:
        if isinstance(files, RecordedCorpus) or options.dead_after is not None:
            raise UsageError("--into takes texts, and no --dead-after", "give files or folders of text")
        with filling(options.out), progress_line(output.stderr, "training: token") as on_progress:
            training = model.train_transcoders(
                files, options.into, at=options.at, across=options.cross_layer, features=options.features, k=options.k,
                tokens=options.tokens, batch=options.batch, lr=options.lr, window=options.window,
                seed=model_options.seed, on_progress=on_progress,
            )  # fmt: skip
            training.transcoders.write_into(options.out, model.name)
        output.draw(replace(training, folder=str(options.out)))
        return
    assert options.at is not None
    with filling(options.out), progress_line(output.stderr, "training: token") as on_progress:
        report = model.train_sae(
            files, options.at, features=options.features, k=options.k, tokens=options.tokens, batch=options.batch,
            lr=options.lr, dead_after=options.dead_after, window=options.window, seed=model_options.seed,
            on_progress=on_progress,
        )  # fmt: skip
        report.coder.write_into(options.out, {"model_name": model.name, "context_size": window})
    output.draw(replace(report, folder=str(options.out)), SaeTrainingDisplay(model_options.typed_again()))


def _crosscoder(options: Options, model_options: ModelOptions, output: Output) -> None:
    """Train one crosscoder on the step of two models."""
    from tinytf.loading import load
    from tinytf_cli.progress_line import progress_line

    taken = ("corpus", "at", "versus", "sparsity", "features", "tokens", "batch", "lr", "window")
    require_only(taken, (Options,), "--versus")
    if options.at is None:
        raise UsageError("--at is missing: which step of both models", "such as --at L2.out")
    model = model_options.open(because="a crosscoder is of two models of one stack")
    assert options.versus is not None
    files = corpus_files(options.corpus, ("TEXT",), read_by(model))
    other = load(options.versus, device=model_options.device, dtype=model_options.dtype, seed=model_options.seed)
    settings: dict[str, Any] = {} if options.sparsity is None else {"sparsity": options.sparsity}
    settings |= {} if options.lr is None else {"lr": options.lr}
    with progress_line(output.stderr, "training: token") as on_progress:
        report = model.train_crosscoder(
            other, files, options.at, features=options.features, tokens=options.tokens,
            batch=options.batch, window=options.window, seed=model_options.seed, on_progress=on_progress, **settings,
        )  # fmt: skip
    output.draw(report)
    if output.file is None or output.file.suffix.lower() != ".safetensors":
        output.note("the crosscoder is not kept; -o FILE.safetensors keeps it")
        return
    words = ["tinytf", "features", "TEXT", "--sae", str(output.file), "--versus", options.versus]
    output.note(f"to open it: {shlex.join([*words, *model_options.typed_again()])}")
