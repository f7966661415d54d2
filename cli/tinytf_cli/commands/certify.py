"""``tinytf certify``: a model compared with transformers."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import line_texts
from tinytf_cli.options import DEVICES, DTYPES, FoldOptions, complete_model
from tinytf_cli.output import Output
from tinytf_cli.ranges import Real, Whole


@dataclass(frozen=True)
class Options:
    """The argument and options of this command alone."""

    model: str = argument(shell_complete=complete_model)
    texts: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Use the lines of this file, or of - (a pipe), instead of the built-in hard texts.",
    )
    versus: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR",
        help="Directory that transformers opens; for a .gguf file, its original.",
    )  # fmt: skip
    dtype: str = option(type=click.Choice(DTYPES), shown="float32", help="Also compare in this number format.")
    device: str = option(type=click.Choice(DEVICES), shown="auto", help="Where to compute.")
    tolerance: float | None = option(
        type=Real(0), metavar="TOL",
        help="Largest difference allowed, relative to the largest number of its token.  [default: by the dtype]",
    )  # fmt: skip
    longest: int = option(type=Whole(2), shown=512, help="Cut texts to N tokens.")
    adapter: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR", help="Merge this PEFT LoRA adapter into the weights."
    )


@command("certify")
def certify(options: Options, fold: FoldOptions, output: Output) -> int:
    """Opens MODEL with tinytf and with transformers (eager attention), and compares token ids, the output of every
    layer and the logits: text by text, in a padded batch, token by token with a cache, and in chunks. Exits with 1 if a
    difference exceeds the tolerance. Needs transformers: pip install "tinytf[hf]". Runs no code from the model.
    """
    from tinytf.certification.certify import certify as certify_model
    from tinytf.certification.texts import HARD_TEXTS, HardText
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.certify import CertificateDisplay

    texts: tuple[HardText, ...] = HARD_TEXTS
    if options.texts is not None:
        texts = tuple(HardText(f"text {number}", line) for number, line in enumerate(line_texts(options.texts), 1))
    with progress_line(output.stderr, "texts") as progress:
        report = certify_model(
            options.model, versus=options.versus, texts=texts, dtype=options.dtype, device=options.device,
            tolerance=options.tolerance, longest=options.longest, adapter=options.adapter, progress=progress,
        )  # fmt: skip
    return output.draw_checked(report, CertificateDisplay(fold.rows()))
