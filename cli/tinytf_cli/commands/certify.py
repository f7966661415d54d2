"""``tinytf certify``: a model beside the same one of transformers."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import FloatRange, argument, command, option
from tinytf_cli.inputs import line_texts
from tinytf_cli.options import DEVICES, DTYPES, FoldOptions, complete_model
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """What this command alone takes."""

    model: str = argument(shell_complete=complete_model)
    texts: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take the lines of this file, or of - (a pipe), instead of the hard texts.",
    )
    versus: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR",
        help="Open this directory with transformers; of a .gguf file, its original.",
    )  # fmt: skip
    dtype: str = option(type=click.Choice(DTYPES), shown="float32", help="Compare in this number format too.")
    device: str = option(type=click.Choice(DEVICES), shown="auto", help="Where to compute.")
    tolerance: float | None = option(
        type=FloatRange(0), metavar="TOL",
        help="Most that a number may differ, relative to the largest of its token.  [default: by the dtype]",
    )  # fmt: skip
    longest: int = option(type=click.IntRange(2), shown=512, help="Most tokens of a text.")
    adapter: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR", help="Merge this LoRA adapter of PEFT into the weights."
    )


@command("certify")
def certify(options: Options, extent: FoldOptions, output: Output) -> int:
    """Opens MODEL with tinytf and with transformers, in eager attention, and compares token ids, what every layer gives
    and logits: text by text, padded in a batch, token by token with a cache, and in pieces. The status is 1 where a
    difference is beyond the tolerance. Needs transformers (pip install "tinytf[certify]"); no code of a model is run.
    """
    from tinytf.certification.certify import certify as compare
    from tinytf.certification.texts import HARD_TEXTS, HardText
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.certify import CertificateDisplay

    texts: tuple[HardText, ...] = HARD_TEXTS
    if options.texts is not None:
        texts = tuple(HardText(f"text {number}", line) for number, line in enumerate(line_texts(options.texts), 1))
    with progress_line(output.stderr, "texts") as progress:
        report = compare(
            options.model, versus=options.versus, texts=texts, dtype=options.dtype, device=options.device,
            tolerance=options.tolerance, longest=options.longest, adapter=options.adapter, progress=progress,
        )  # fmt: skip
    output.draw(report, CertificateDisplay(extent.rows()))
    return 0 if report.holds else 1
