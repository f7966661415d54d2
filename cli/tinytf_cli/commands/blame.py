"""``tinytf blame``: which tensors of another model change its predictions."""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf.outputs import expect_output
from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import line_texts
from tinytf_cli.options import FoldOptions, ModelOptions, ResumeOptions
from tinytf_cli.output import Output, require_place, write_file
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import ChatOptions

if TYPE_CHECKING:
    from tinytf.text.chat import Written


class Size(click.ParamType[int]):
    """A number of bytes, such as ``110MB`` or ``1.5GiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?:([KMGT]?)(i?)B)?", value.strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a size such as 110MB or 1.5GiB", param, ctx)
        power = " KMGT".index((match[2] or " ").upper())
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    chat: ChatOptions
    words: tuple[str, ...] = argument(nargs=-1, metavar="TEXT")
    versus: str | None = option(metavar="MODEL", help="The model whose tensors to blame; it must have the same shape.")
    texts: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE", help="Measure on every line of FILE, or of - (a pipe)."
    )
    tokens: int | None = option(type=Whole(2), help="Use the first N tokens of each text.")
    truncate: bool = option(is_flag=True, help="Cut texts that are longer than the model's context.")
    top: int | None = option(
        type=Whole(1), help="Measure only the N tensors with the largest predicted damage.  [default: all]"
    )
    restore: int = option(type=Whole(1), shown=32, help="Also restore up to N of the worst tensors, from A into B.")
    token: str | None = option(
        metavar="A", help="Measure logit A − B at the end of each text.  [default: the two most probable]"
    )
    versus_token: str | None = option(metavar="B", help="The other token: a word or #ID.")
    budget: int | None = option(
        type=Size(),
        metavar="SIZE",
        help="Choose a GGUF type for each tensor of A to fit SIZE, such as 110MB or 1.5GiB.",
    )
    imatrix: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="With --versus: compare with this importance matrix of llama-imatrix, .gguf or .dat.",
    )  # fmt: skip
    tensor_types: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="With --budget: write the types to FILE, for llama-quantize --tensor-type-file.",
    )  # fmt: skip
    rows: int | None = option(type=Whole(0), help="Tensors in the table; 0 for all.  [default: 6]")


@command("blame")
def blame(
    options: Options, resume_options: ResumeOptions, fold: FoldOptions, model_options: ModelOptions, output: Output
) -> int:
    """\b
    On a text        tinytf blame "The cat sat" -m A --versus B
    On many texts    tinytf blame --texts FILE -m A --versus B
    Types in a size  tinytf blame --texts FILE -m A --budget 110MB

    Puts each tensor of B into A, one at a time, then the worst from A into B. Ctrl-C ends early and shows the
    measurements so far.
    """
    from tinytf.cause.budget import gguf_names
    from tinytf.cause.model_pair import Texts
    from tinytf.loading import load
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.blame import BlameDisplay
    from tinytf_cli.views.budget import BudgetDisplay

    if (options.versus is None) == (options.budget is None):
        message = (
            "there is no other model to blame" if options.versus is None else "--budget is about the first model alone"
        )
        raise UsageError(message, "tinytf blame TEXT -m A --versus B, or tinytf blame TEXT -m A --budget 110MB")
    resume = resume_options.checked_file("")
    if options.imatrix is not None and options.versus is None:
        raise UsageError("--imatrix goes with --versus", "it weighs how the tensors of two models differ")
    if options.tensor_types is not None:
        if options.budget is None:
            raise UsageError("--tensor-types goes with --budget", "it writes the types that --budget chooses")
        require_place(options.tensor_types)
        expect_output(options.tensor_types)
    if options.texts is not None and options.words:
        raise UsageError("TEXT and --texts are two sets of texts", "leave one of them out")
    if options.texts is not None:
        words: Written | list[Written] = [options.chat.of(line) for line in line_texts(options.texts)]
    else:
        words = options.chat.read(options.words)[0]
    texts = Texts(words, options.tokens, options.truncate, options.token, options.versus_token)
    model = model_options.open(because="a tensor of the encoder changes the source of every layer")
    if options.versus is None:
        if options.tensor_types is not None and gguf_names(model.transformer) is None:
            raise UsageError("there are no GGUF names for the tensors of this model", "leave out --tensor-types")
        with progress_line(output.stderr, "text") as on_progress:
            plan = model.budget(
                texts, options.budget or 0, seed=model_options.seed, resume=resume, on_progress=on_progress
            )
        if options.tensor_types is not None:
            size = write_file(options.tensor_types, "".join(f"{line}\n" for line in plan.options).encode("ascii"))
            output.note(f"wrote {options.tensor_types} ({size:,} bytes)")
        output.draw(plan, BudgetDisplay(fold.rows(options.rows)))
        return 0
    other = load(options.versus, device=model_options.device, dtype=model_options.dtype, seed=model_options.seed)
    if options.imatrix is not None:
        model.importance(other, options.imatrix)  # refuses a wrong file before the long measurement
    with progress_line(output.stderr, "text") as on_progress:
        report = model.blame(
            texts, other, top=options.top, restore=options.restore, seed=model_options.seed, resume=resume,
            on_progress=on_progress,
        )  # fmt: skip
    if options.imatrix is not None:
        report = replace(report, importance=model.importance(other, options.imatrix, report.damages))
    if not report.interrupted:
        with suppress(KeyboardInterrupt), progress_line(output.stderr, "restored", at_most=True) as on_progress:
            report = replace(report, steps=model.step_errors(texts, other))
            sets = model.restoring(
                texts, other, report.gains, seed=model_options.seed, resume=resume, on_progress=on_progress
            )
            report = replace(report, sets=sets)
    output.draw(report, BlameDisplay(fold.rows(options.rows), fold.all))
    return 0
