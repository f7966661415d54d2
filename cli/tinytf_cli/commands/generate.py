"""``tinytf generate``: text that goes on from a prompt, as it is made."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import AddressError, UsageError
from tinytf_cli.host import given
from tinytf_cli.interrupt import current
from tinytf_cli.options import (
    Decoding,
    Opening,
    Texts,
    asks,
    decoding_options,
    model_options,
    option,
    output_options,
    text_options,
)
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.generate.loop import Looking, Step
    from tinytf.loading import Model
    from tinytf.model.cache import KVCache
    from tinytf.text.tokenizer import Encoding
    from tinytf_cli.views.beams import BeamView
    from tinytf_cli.views.cached import CachedView
    from tinytf_cli.views.generate import GenerateView

    View = GenerateView | BeamView | CachedView


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    max_tokens: int = option(type=int, shown=50, help="New tokens at most.")
    temperature: float | None = option(
        type=float,
        help="0 takes the most probable token, and is the default where nothing else asks for draws; else 1.",
    )  # fmt: skip
    top_k: int | None = option(type=int, help="Draw from the K most probable tokens.")
    top_p: float = option(type=float, default=1.0, help="Draw from the fewest tokens whose mass reaches P.")
    min_p: float = option(type=float, default=0.0, help="Draw from tokens at least P times as probable as the best.")
    repetition_penalty: float = option(type=float, default=1.0, help="Above 1, what was there becomes less probable.")
    samples: int = option("--n", type=int, default=1, metavar="N", help="So many texts, drawn side by side.")
    beams: int | None = option(
        type=int, metavar="N", help="Search for the most probable text, N hypotheses side by side."
    )
    length_penalty: float = option(type=float, default=1.0, help="Of beams: above 0 longer texts win more easily.")
    stops: tuple[str, ...] = option(
        "--stop", multiple=True, metavar="TEXT", help=r"End before this text; \n is a new line. Repeatable."
    )
    on_overflow: str = option(
        type=click.Choice(["stop", "slide", "error"]), shown="stop",
        help="Where the context is full; slide goes on without the older half.",
    )  # fmt: skip
    watch: bool = option(is_flag=True, help="Show what each token was chosen from, what it saw, and the cache.")
    top: int = option(type=click.IntRange(1), shown=5, help="Candidates of a step.")
    head: str | None = option(metavar="L3H5", help="Watch the attention of this head, or of one layer such as L3.")
    explain_cache: bool = option(is_flag=True, help="Time and work of every step, with the cache and without.")


@click.command("generate")
@text_options
@model_options
@asks(Asked)
@decoding_options
@output_options
def command(texts: Texts, opening: Opening, asked: Asked, decoding: Decoding, output: Output) -> int:
    """Go on from the prompt TEXT; an empty one begins with the model's start token.

    --seed makes the draws. In a pipe the new text alone is on stdout. Ctrl-C leaves what was made.
    """
    from tinytf.generate.compared import compare_cache
    from tinytf.generate.samplers import Sampling
    from tinytf_cli.joining import show_all
    from tinytf_cli.views.beams import BeamView
    from tinytf_cli.views.cached import CachedView
    from tinytf_cli.views.generate import GenerateView, Settings

    if asked.top_k is not None and asked.top_k < 1:
        raise UsageError(f"top-k {asked.top_k} is below 1", "leave it out for no limit")
    draws = asked.top_k or asked.top_p < 1 or asked.min_p or (asked.samples > 1 and asked.beams is None)
    temperature = asked.temperature if asked.temperature is not None else 1.0 if draws else 0.0
    sampling = Sampling(temperature, asked.top_k or 0, asked.top_p, asked.min_p, asked.repetition_penalty)
    if asked.explain_cache:
        _require_alone()
    _require_one_way(asked, draws=not sampling.greedy, use_cache=decoding.use_cache)
    model = opening.open()
    watch = asked.watch or (asked.head is not None and not output.wants_data)
    looks = (watch or asked.head is not None) and decoding.use_cache and asked.beams is None
    looking = _looking(model, asked.head) if looks else None
    decoded: dict[str, Any] = {
        "max_tokens": asked.max_tokens, "on_overflow": asked.on_overflow, "use_cache": decoding.use_cache,
        "chunk": decoding.chunk or 0, "kind": decoding.kind,
    }  # fmt: skip

    def start(encoding: "Encoding") -> "tuple[Iterator[Step], KVCache | None]":
        """The steps of one text, and its cache, which is taken when its turn comes."""
        ids, cache = encoding.ids, None
        if decoding.use_cache and model.config.causal and asked.max_tokens > 0:
            cache = model.transformer.cache(min(model.config.context, len(ids) + asked.max_tokens))
        steps = model.stream(
            encoding,
            sampling=sampling,
            seed=opening.seed,
            samples=asked.samples,
            stops=[_unescaped(stop) for stop in asked.stops],
            cache=cache,
            top=asked.top if watch or output.wants_data else 0,
            looking=looking,
            **decoded,
        )
        return steps, cache

    def view_of(encoding: "Encoding") -> "View":
        if asked.explain_cache:
            return CachedView(model, encoding, lambda: compare_cache(model.transformer, encoding.ids, asked.max_tokens))
        if asked.beams is None:
            settings = Settings(sampling, opening.seed, asked.samples, decoding.kind, asked.head)
            return GenerateView(model, encoding, lambda: start(encoding), settings, watch)
        found = model.beams(
            encoding,
            beams=asked.beams,
            length_penalty=asked.length_penalty,
            repetition_penalty=asked.repetition_penalty,
            **decoded,
        )
        return BeamView(model, encoding, found, asked.beams, asked.length_penalty, asked.samples, watch, decoding.kind)

    views = [view_of(model.prompt(text, truncate=texts.truncate)) for text in texts]

    def results() -> Iterator[Result]:
        for view in views:
            if any(earlier.interrupted for earlier in views):
                return
            yield Result(view.blocks, view.data, view.events, text=None if watch else view.text, live=True)

    with current().held():
        show_all(output, results(), "comparisons" if asked.explain_cache else "generations", texts.lines)
    for view in views:
        for note in view.notes():
            output.note(note)
    return 130 if any(view.interrupted for view in views) else 0


def _require_alone() -> None:
    """Raise UsageError for a setting of generation beside --explain-cache, which goes on greedily in its own way."""
    settings = {field.name for field in (*fields(Asked), *fields(Decoding))} - {"max_tokens", "explain_cache"}
    for parameter in click.get_current_context().command.params:
        if parameter.name in settings and given(parameter.name):
            raise UsageError(
                f"--explain-cache goes on greedily, with a cache and without, and {parameter.opts[0]} asks for more",
                "leave one of them out",
            )


def _require_one_way(asked: Asked, *, draws: bool, use_cache: bool) -> None:
    """Raise UsageError for settings that contradict each other."""
    samples, beams = asked.samples, asked.beams
    if samples < 1:
        raise UsageError(f"{samples} samples are fewer than 1", "leave --n out for one")
    if asked.head is not None and (beams is not None or not use_cache):
        raise UsageError("--head shows what the newest token saw in the cache", "leave out --no-cache and --beams")
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
    if asked.stops:
        raise UsageError("beam search ends at end tokens, not at --stop", "leave one of them out")
    if asked.on_overflow == "slide":
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
