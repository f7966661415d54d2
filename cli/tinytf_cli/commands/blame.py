"""``tinytf blame``: which tensors of another model make it predict otherwise."""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import line_texts
from tinytf_cli.options import ChatOptions, FoldOptions, ModelOptions, ResumeOptions
from tinytf_cli.output import Output

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
            self.fail(f"{value!r} is no size; one is 110MB or 1.5GiB", param, ctx)
        power = " KMGT".index((match[2] or " ").upper())
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    chat: ChatOptions
    words: tuple[str, ...] = argument(nargs=-1, metavar="TEXT")
    versus: str | None = option(metavar="MODEL", help="The model whose tensors are blamed; of the same shape.")
    texts: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE", help="Measure on every line of FILE, or of - (a pipe)."
    )
    tokens: int | None = option(type=click.IntRange(2), help="Take the first N tokens of each text.")
    truncate: bool = option(is_flag=True, help="Cut texts that are longer than the model's context.")
    top: int | None = option(
        type=click.IntRange(1), help="Measure the N tensors that are expected to do most damage.  [default: all]"
    )
    restore: int = option(type=click.IntRange(1), shown=32, help="Put so many of the worst from A into B as well.")
    token: str | None = option(
        metavar="A", help="Measure logit A − B at the end of each text.  [default: the two most probable]"
    )
    versus_token: str | None = option(metavar="B", help="The other of the two: a word or #ID.")
    budget: int | None = option(
        type=Size(), metavar="SIZE", help="Say which GGUF types the tensors of A should have within 110MB, or 1.5GiB."
    )
    rows: int | None = option(type=click.IntRange(0), help="Tensors in the table; 0 for all.  [default: 6]")


@command("blame")
def blame(options: Options, keeping: ResumeOptions, extent: FoldOptions, opening: ModelOptions, output: Output) -> int:
    """\b
    On a text        tinytf blame "The cat sat" -m A --versus B
    On many texts    tinytf blame --texts FILE -m A --versus B
    Types in a size  tinytf blame --texts FILE -m A --budget 110MB

    Puts each tensor of B into A alone, and each of A into B. Ctrl-C shows what was measured so far.
    """
    from tinytf.cause.model_pair import Texts
    from tinytf.loading import load
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.blame import BlameDisplay
    from tinytf_cli.views.budget import BudgetDisplay

    if (options.versus is None) == (options.budget is None):
        said = (
            "there is no other model to blame" if options.versus is None else "--budget is about the first model alone"
        )
        raise UsageError(said, "tinytf blame TEXT -m A --versus B, or tinytf blame TEXT -m A --budget 110MB")
    resume = keeping.place("--versus" if options.versus is None else "")
    if options.texts is not None and options.words:
        raise UsageError("TEXT and --texts are two sets of texts", "leave one of them out")
    if options.texts is not None:
        words: Written | list[Written] = [options.chat.of(line) for line in line_texts(options.texts)]
    else:
        words = options.chat.read(options.words)[0]
    texts = Texts(words, options.tokens, options.truncate, options.token, options.versus_token)
    model = opening.open()
    if options.versus is None:
        with progress_line(output.stderr, "text") as on_progress:
            plan = model.budget(texts, options.budget or 0, seed=opening.seed, on_progress=on_progress)
        output.draw(plan, BudgetDisplay(extent.rows(options.rows)))
        return 0
    other = load(options.versus, device=opening.device, dtype=opening.dtype, seed=opening.seed)
    with progress_line(output.stderr, "text") as on_progress:
        report = model.blame(
            texts, other, top=options.top, restore=options.restore, seed=opening.seed, resume=resume,
            on_progress=on_progress,
        )  # fmt: skip
    if not report.interrupted:
        with suppress(KeyboardInterrupt), progress_line(output.stderr, "restored", at_most=True) as on_progress:
            report = replace(report, steps=model.step_errors(texts, other))
            sets = model.restoring(texts, other, report.gains, seed=opening.seed, on_progress=on_progress)
            report = replace(report, sets=sets)
    output.draw(report, BlameDisplay(extent.rows(options.rows), extent.all))
    return 0
