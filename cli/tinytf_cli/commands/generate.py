"""``tinytf generate``: text that goes on from a prompt, as it is made."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import model_options, output_options, text_options
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.loading import Model


@click.command("generate")
@text_options
@model_options
@click.option("--max-tokens", type=int, default=50, show_default=True, help="New tokens at most.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the most probable token.")
@click.option("--top-k", type=int, help="Draw from the K most probable tokens.")
@click.option("--top-p", type=float, default=1.0, help="Draw from the fewest tokens whose mass reaches P.")
@click.option("--min-p", type=float, default=0.0, help="Draw from tokens at least P times as probable as the best.")
@click.option("--repetition-penalty", type=float, default=1.0, help="Above 1, what was there becomes less probable.")
@click.option("--stop", "stops", multiple=True, metavar="TEXT", help="End before this text. Repeatable.")
@click.option("--no-cache", is_flag=True, help="Compute every token again for each new one.")
@click.option("--watch", is_flag=True, help="Show the candidates of every step, and the cache at the end.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Candidates of a step.")
@click.option(
    "--on-overflow",
    type=click.Choice(["stop", "error"]),
    default="stop",
    show_default=True,
    help="Where the context is full.",
)
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    open_model: Callable[[], "Model"],
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    stops: tuple[str, ...],
    no_cache: bool,
    watch: bool,
    top: int,
    on_overflow: str,
    output: Output,
) -> int:
    """Go on from the prompt TEXT; --seed makes the draws.

    In a pipe the new text alone is on stdout. Ctrl-C leaves what was made.
    """
    from tinytf.errors import UsageError
    from tinytf.generate.samplers import Sampling
    from tinytf_cli.several import show_all
    from tinytf_cli.views.generate import GenerateView

    if top_k is not None and top_k < 1:
        raise UsageError(f"top-k {top_k} is below 1", "leave it out for no limit")
    sampling = Sampling(temperature, top_k or 0, top_p, min_p, repetition_penalty)
    seed: int = click.get_current_context().params["seed"]
    model = open_model()
    views = []
    for text in texts:
        encoding = model.encode(text, truncate=truncate)
        cache = None
        if not no_cache and model.config.causal and max_tokens > 0:
            cache = model.transformer.cache(min(model.config.context, len(encoding.ids) + max_tokens))
        steps = model.stream(
            text,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=seed,
            stops=stops,
            truncate=truncate,
            use_cache=not no_cache,
            cache=cache,
            on_overflow=on_overflow,
            top=top if watch or output.wants_data else 0,
        )
        views.append(GenerateView(model, encoding, steps, sampling, seed, cache, watch))

    def results() -> Iterator[Result]:
        for view in views:
            if not any(earlier.interrupted for earlier in views):
                yield Result(view.blocks, view.data, view.events, text=None if watch else view.text, live=True)

    show_all(output, results(), "generations", lines)
    return 130 if any(view.interrupted for view in views) else 0
