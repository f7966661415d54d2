"""``tinytf probe``: at which layer a label of texts can be read off, beyond what their words give away."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions, ModelOptions, complete_address
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    labels: Path = option(
        required=True, type=click.Path(path_type=Path), metavar="FILE",
        help="Rows with text and label, as .jsonl, .csv, .tsv or .parquet.",
    )  # fmt: skip
    at: tuple[str, ...] = option(
        multiple=True, metavar="ADDRESS", shell_complete=complete_address,
        help="Steps to read, such as L2.out, 'L*.mid' or L2H1.head_out. Repeatable.  [default: L*.out]",
    )  # fmt: skip
    position: str | None = option(
        metavar="WORD", help="Where to read a text: -1, a token that each text has, or mean, over all tokens.  "
        "[default: -1; in an encoder mean]",
    )  # fmt: skip
    recording: Path | None = option(
        "--from", type=click.Path(path_type=Path), metavar="DIR",
        help="Read the activations from a folder of tinytf record, made of FILE with --field text.",
    )  # fmt: skip
    toward: str | None = option(
        metavar="LABEL", help="Label that the written directions lead to.  [default: the second of two]"
    )


@command("probe")
def probe(options: Options, fold: FoldOptions, model_options: ModelOptions, output: Output) -> int:
    """Trains a linear classifier (logistic regression) at each step, and counts how many texts left out of its training
    it gets right. Compares it with a bag of words, with the most frequent label, and with a classifier of shuffled
    labels, on the same texts. With -o FILE.safetensors, writes a direction for each step, which generate can add.
    """
    from tinytf.bulk.folder import recorded
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.probe import ProbeDisplay

    recording = None if options.recording is None else recorded(options.recording)
    model = model_options.open(because="each label is of one text")
    with progress_line(output.stderr, "texts and steps:") as on_progress:
        report = model.probe(
            options.labels, at=options.at or ("L*.out",), position=options.position, toward=options.toward,
            seed=model_options.seed, recording=recording, on_progress=on_progress,
        )  # fmt: skip
    if output.file is not None:
        output.note(report.sentence)
    output.draw(report, ProbeDisplay(fold.all))
    return 0
