"""``tinytf same``: one text alone, padded, in a batch, with a cache and after another text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host
from tinytf_cli.inputs import read_texts, with_session_text
from tinytf_cli.options import ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import Real
from tinytf_cli.text_options import asked_of, target_option

if TYPE_CHECKING:
    from tinytf.loading import Model


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    texts: tuple[str, ...] = argument(nargs=-1, metavar="[TEXT [OTHER]]")
    module: str | None = option(
        metavar="FILE.py:NAME", help="Run this module of yours instead, with the sizes and weights of the model."
    )
    args: str = option(metavar="K=V,…", default="", help="Constructor arguments of it that cannot be guessed.")
    timeout: float = option(
        type=Real(0, 86_400, above=True), default=30.0, metavar="SECONDS",
        help="Time limit for a run of its code.",
    )  # fmt: skip
    truncate: bool = option(is_flag=True, help="Cut texts that are longer than the model's context.")
    target_text: str | None = target_option()


@command("same")
def same(options: Options, model_options: ModelOptions, output: Output) -> int:
    """Runs a text alone, padded on either side, in a batch, after another text, with a cache token by token and in
    chunks, and compares every step. Names the first step and token that change, and why: the padding is read, positions
    count it, texts of a batch are mixed, something of the text before is kept. OTHER is the text beside it. Exits with
    1 if anything changes. Works on models through transformers too, and with --module on a module of yours, whose code
    it runs.
    """
    from tinytf.through.model import ThroughModel
    from tinytf.through.same import TEXT
    from tinytf.through.same import same as same_text

    words = [text for text in with_session_text(options.texts or (TEXT,), 2) if isinstance(text, str)]
    texts = [read_texts((word,), lines=False)[0] for word in words]
    if not 1 <= len(texts) <= 2:
        raise UsageError(f"this takes a text and one beside it, not {len(texts)}", 'tinytf same "A text." "Another."')
    if options.module is not None:
        reference = model_options.open(because="a module of yours is run on one text")
        return _of_module(options, reference, texts, output)
    through = model_options.through_model(output)
    model: Model | ThroughModel = through if through is not None else model_options.open(two_stacks=True)
    if not isinstance(model, ThroughModel):
        (model,), (asked,) = asked_of(model, texts[:1], options.target_text, output, truncate=options.truncate)
        texts[0] = str(asked)
    report = same_text(model, *texts, truncate=options.truncate)
    return output.draw_checked(report)


def _of_module(options: Options, model: "Model", texts: list[str], output: Output) -> int:
    if (session := host()) is not None:
        session.require_own("run a module")
    from tinytf.check.opened import parse_args
    from tinytf.check.same import same_of_module

    args = parse_args(options.args)
    assert options.module is not None
    report = same_of_module(
        model, options.module, *texts, args=args, truncate=options.truncate, seconds=options.timeout
    )
    return output.draw_checked(report)
