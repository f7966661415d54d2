"""``tinytf generate``: text that goes on from a prompt, as it is made."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from tinytf_cli.interrupt import current
from tinytf_cli.options import decoding_options, model_options, output_options, text_options
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.generate.decoder import Kind
    from tinytf.generate.loop import Looking, Step
    from tinytf.loading import Model
    from tinytf.model.cache import KVCache
    from tinytf.text.tokenizer import Encoding
    from tinytf_cli.views.beams import BeamView
    from tinytf_cli.views.cached import CachedView
    from tinytf_cli.views.generate import GenerateView

    View = GenerateView | BeamView | CachedView


@click.command("generate")
@text_options
@model_options
@click.option("--max-tokens", type=int, default=50, show_default=True, help="New tokens at most.")
@click.option(
    "--temperature",
    type=float,
    help="0 takes the most probable token, and is the default where nothing else asks for draws; else 1.",
)
@click.option("--top-k", type=int, help="Draw from the K most probable tokens.")
@click.option("--top-p", type=float, default=1.0, help="Draw from the fewest tokens whose mass reaches P.")
@click.option("--min-p", type=float, default=0.0, help="Draw from tokens at least P times as probable as the best.")
@click.option("--repetition-penalty", type=float, default=1.0, help="Above 1, what was there becomes less probable.")
@click.option("--n", "samples", type=int, default=1, metavar="N", help="So many texts, drawn side by side.")
@click.option("--beams", type=int, metavar="N", help="Search for the most probable text, N hypotheses side by side.")
@click.option("--length-penalty", type=float, default=1.0, help="Of beams: above 0 longer texts win more easily.")
@click.option(
    "--stop", "stops", multiple=True, metavar="TEXT", help=r"End before this text; \n is a new line. Repeatable."
)
@click.option(
    "--on-overflow",
    type=click.Choice(["stop", "slide", "error"]),
    default="stop",
    show_default=True,
    help="Where the context is full; slide goes on without the older half.",
)
@click.option("--watch", is_flag=True, help="Show what each token was chosen from, what it saw, and the cache.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Candidates of a step.")
@click.option("--head", metavar="L3H5", help="Watch the attention of this head, or of one layer such as L3.")
@click.option("--explain-cache", is_flag=True, help="Time and work of every step, with the cache and without.")
@decoding_options
@output_options
def command(
    texts: list[str],
    lines: bool,
    truncate: bool,
    open_model: Callable[[], "Model"],
    max_tokens: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    samples: int,
    beams: int | None,
    length_penalty: float,
    stops: tuple[str, ...],
    on_overflow: str,
    watch: bool,
    top: int,
    head: str | None,
    explain_cache: bool,
    kind: "Kind",
    use_cache: bool,
    chunk: int,
    output: Output,
) -> int:
    """Go on from the prompt TEXT; an empty one begins with the model's start token.

    --seed makes the draws. In a pipe the new text alone is on stdout. Ctrl-C leaves what was made.
    """
    from tinytf.errors import UsageError
    from tinytf.generate.compared import compare_cache
    from tinytf.generate.samplers import Sampling
    from tinytf_cli.several import show_all
    from tinytf_cli.views.beams import BeamView
    from tinytf_cli.views.cached import CachedView
    from tinytf_cli.views.generate import GenerateView, Settings

    if top_k is not None and top_k < 1:
        raise UsageError(f"top-k {top_k} is below 1", "leave it out for no limit")
    if temperature is None:
        temperature = 1.0 if top_k or top_p < 1 or min_p or (samples > 1 and beams is None) else 0.0
    sampling = Sampling(temperature, top_k or 0, top_p, min_p, repetition_penalty)
    context = click.get_current_context()
    if explain_cache:
        _require_alone(context)
    _require_one_way(
        draws=not sampling.greedy,
        samples=samples,
        beams=beams,
        stops=stops,
        on_overflow=on_overflow,
        head=head,
        use_cache=use_cache,
    )
    seed: int = context.params["seed"]
    model = open_model()
    watch = watch or (head is not None and not output.wants_data)
    looking = _looking(model, head) if (watch or head is not None) and use_cache and beams is None else None

    def start(encoding: "Encoding") -> "tuple[Iterator[Step], KVCache | None]":
        """The steps of one text, and its cache, which is taken when its turn comes."""
        ids, cache = encoding.ids, None
        if use_cache and model.config.causal and max_tokens > 0:
            cache = model.transformer.cache(min(model.config.context, len(ids) + max_tokens))
        steps = model.stream(
            encoding,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=seed,
            samples=samples,
            stops=[_unescaped(stop) for stop in stops],
            use_cache=use_cache,
            cache=cache,
            on_overflow=on_overflow,
            top=top if watch or output.wants_data else 0,
            looking=looking,
            chunk=chunk,
            kind=kind,
        )
        return steps, cache

    def view_of(encoding: "Encoding") -> "View":
        if explain_cache:
            return CachedView(model, encoding, lambda: compare_cache(model.transformer, encoding.ids, max_tokens))
        if beams is None:
            settings = Settings(sampling, seed, samples, kind, head)
            return GenerateView(model, encoding, lambda: start(encoding), settings, watch)
        found = model.beams(
            encoding,
            beams=beams,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            repetition_penalty=repetition_penalty,
            on_overflow=on_overflow,
            use_cache=use_cache,
            chunk=chunk,
            kind=kind,
        )
        return BeamView(model, encoding, found, beams, length_penalty, samples, watch, kind)

    views = [view_of(model.prompt(text, truncate=truncate)) for text in texts]

    def results() -> Iterator[Result]:
        for view in views:
            if any(earlier.interrupted for earlier in views):
                return
            yield Result(view.blocks, view.data, view.events, text=None if watch else view.text, live=True)

    with current().held():
        show_all(output, results(), "comparisons" if explain_cache else "generations", lines)
    for view in views:
        for note in view.notes():
            output.note(note)
    return 130 if any(view.interrupted for view in views) else 0


def _require_alone(context: click.Context) -> None:
    """Raise UsageError for a setting of generation beside --explain-cache, which goes on greedily in its own way."""
    from click.core import ParameterSource

    from tinytf.errors import UsageError

    for parameter in context.command.params:
        name = parameter.name or ""
        asked = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if asked and name in _SETTINGS:
            raise UsageError(
                f"--explain-cache goes on greedily, with a cache and without, and {parameter.opts[0]} asks for more",
                "leave one of them out",
            )


_SETTINGS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "samples", "beams", "length_penalty", "stops",
    "on_overflow", "watch", "top", "head", "no_cache", "chunk", "compile", "quantize",
)  # fmt: skip


def _require_one_way(
    *,
    draws: bool,
    samples: int,
    beams: int | None,
    stops: tuple[str, ...],
    on_overflow: str,
    head: str | None,
    use_cache: bool,
) -> None:
    """Raise UsageError for settings that contradict each other."""
    from tinytf.errors import UsageError

    if samples < 1:
        raise UsageError(f"{samples} samples are fewer than 1", "leave --n out for one")
    if head is not None and (beams is not None or not use_cache):
        raise UsageError(
            "--head shows what the newest token saw in the cache",
            "leave out --no-cache and --beams",
        )
    if beams is not None and beams < 1:
        raise UsageError(f"{beams} beams are fewer than 1", "leave --beams out for one text")
    if beams is None:
        if samples > 1 and not draws:
            raise UsageError(f"{samples} greedy texts are the same one", "raise --temperature, or search with --beams")
        return
    if draws:
        raise UsageError(
            "beam search takes what is most probable and draws nothing",
            "leave out --beams, or --temperature, --top-k, --top-p and --min-p",
        )
    if stops:
        raise UsageError("beam search ends at end tokens, not at --stop", "leave one of them out")
    if on_overflow == "slide":
        raise UsageError("beam search cannot go on without the older half of a text", "--on-overflow stop or error")
    if samples > beams:
        raise UsageError(f"{samples} texts are more than {beams} beams", f"--n up to {beams}, or more --beams")


def _unescaped(stop: str) -> str:
    r"""``\n``, ``\t`` and ``\\`` as what they stand for: a shell passes them on as they are written."""
    signs = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    found, rest = "", stop
    while "\\" in rest:
        before, _, rest = rest.partition("\\")
        sign = signs.get(rest[:1])
        found += before + ("\\" if sign is None else sign)
        rest = rest if sign is None else rest[1:]
    return found + rest


def _looking(model: "Model", head: str | None) -> "Looking":
    from tinytf.errors import AddressError
    from tinytf.generate.loop import Looking
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address

    if head is None:
        return Looking()
    try:
        where = parse_address(head, StepTable(model.config))
    except AddressError as error:
        raise AddressError(error.message, error.hint or "such as --head L0H1 or --head L0") from None
    one_layer = where.layers is not None and len(where.layers) == 1
    one_head = where.heads is None or len(where.heads) == 1
    if not one_layer or not one_head or where.step is not None or where.cell:
        raise AddressError(f"{head} is not one head or one layer", "such as --head L0H1 or --head L0")
    assert where.layers is not None
    return Looking(where.layers[0], None if where.heads is None else where.heads[0])
