"""``tinytf diff --sampling``: what two programs choose, by their settings."""

from dataclasses import dataclass
from typing import Any

from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host
from tinytf_cli.options import FoldOptions, ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import Real, Whole
from tinytf_cli.text_options import ChatOptions


@dataclass(frozen=True)
class Options:
    """The arguments and options of this command alone."""

    chat: ChatOptions
    texts: tuple[str, ...] = argument(nargs=-1, metavar="[TEXT]")
    sampling: tuple[str, str] = option(
        nargs=2, required=True, metavar="A B",
        help="The settings of two programs: transformers, vllm, llama.cpp, a .json, 'temperature=0.7,top_p=0.9' or "
        "'--temp 0.7 --top-k 40'; vllm:FILE reads it as vLLM does.",
    )  # fmt: skip
    max_tokens: int = option(type=Whole(1), shown=50, help="New tokens, at most.")
    tolerance: float | None = option(
        type=Real(0), help="Relative difference up to which probabilities count as equal.  [default: of the dtype]"
    )
    rows: int | None = option(type=Whole(0), help="Positions shown; 0 for all.  [default: 3]")
    truncate: bool = option(is_flag=True, help="Cut a text that is longer than the model's context.")


@command("diff --sampling")
def diff_sampling(options: Options, fold: FoldOptions, model_options: ModelOptions, output: Output) -> int:
    """Compares the settings, and with a TEXT also what each program chooses after it, token by token."""
    from tinytf.compare.sampling import diff_sampling as compare
    from tinytf.generate.programs import read_settings
    from tinytf_cli.views.diff_sampling import SamplingDisplay

    first, second = (read_settings(word) for word in options.sampling)
    settings: dict[str, Any] = {} if options.tolerance is None else {"tolerance": options.tolerance}
    text, model = None, None
    if options.texts or host() is not None:
        text, model = (
            options.chat.read(options.texts)[0],
            model_options.open(because="samplers are compared on a prompt that is continued"),
        )
    report = compare(
        first, second, model, text, max_tokens=options.max_tokens, seed=model_options.seed, truncate=options.truncate,
        **settings,
    )  # fmt: skip
    output.draw(report, SamplingDisplay(fold.rows(options.rows)))
    return 0
