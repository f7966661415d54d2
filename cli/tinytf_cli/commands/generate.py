"""``tinytf generate``: text that continues a prompt, as it is made."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tinytf.errors import AddressError, UsageError
from tinytf_cli.command import command, option, parameters_of
from tinytf_cli.host import current_interrupt, given
from tinytf_cli.options import Decoding, Opening, Texts
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.generate.loop import GeneratedToken, Looking
    from tinytf.generate.samplers import Sampling
    from tinytf.loading import Model
    from tinytf.model.cache import KVCache
    from tinytf.tables import Sheet
    from tinytf.text.tokenizer import Encoding
    from tinytf_cli.views.beams import BeamView
    from tinytf_cli.views.cached import CachedView
    from tinytf_cli.views.generate import GenerateView

    View = GenerateView | BeamView | CachedView


@dataclass(frozen=True)
class Asked:
    """How far to go on."""

    max_tokens: int = option(type=int, shown=50, help="Most new tokens.")
    stops: tuple[str, ...] = option(
        "--stop", multiple=True, metavar="TEXT", help=r"End before this text; \n is a new line. Repeatable."
    )
    on_overflow: str = option(
        type=click.Choice(["stop", "slide", "error"]), shown="stop", metavar="WORD",
        help="When the context is full: stop, slide (drop its older half and go on) or error.",
    )  # fmt: skip


@dataclass(frozen=True)
class Draws:
    """How the next token is chosen."""

    GROUP: ClassVar = "Sampling"

    temperature: float | None = option(
        type=float, help="0 takes the most probable token.  [default: 1 with --top-k, --top-p, --min-p or --n, else 0]"
    )
    top_k: int | None = option(type=click.IntRange(1), help="Draw from the N most probable tokens.")
    top_p: float = option(type=float, default=1.0, help="Draw from the fewest tokens whose mass reaches N.")
    min_p: float = option(type=float, default=0.0, help="Draw from tokens at least N times as probable as the best.")
    repetition_penalty: float = option(
        type=float, default=1.0, help="Above 1, tokens of the text so far become less probable."
    )
    samples: int = option("--n", type=click.IntRange(1), default=1, help="Draw N texts, side by side.")

    def sampling(self, beams: int | None) -> "Sampling":
        """Draws at temperature 1 where an option asks for draws, else the most probable token."""
        from tinytf.generate.samplers import Sampling

        draws = self.top_k or self.top_p < 1 or self.min_p or (self.samples > 1 and beams is None)
        temperature = self.temperature if self.temperature is not None else 1.0 if draws else 0.0
        return Sampling(temperature, self.top_k or 0, self.top_p, self.min_p, self.repetition_penalty)


@dataclass(frozen=True)
class Search:
    """Beam search in place of draws."""

    GROUP: ClassVar = "Beam search"

    beams: int | None = option(
        type=click.IntRange(1), help="Search for the most probable text, N hypotheses side by side."
    )
    length_penalty: float = option(type=float, default=1.0, help="Above 0 favours longer texts.")


@dataclass(frozen=True)
class Watching:
    """What is shown beside the text."""

    GROUP: ClassVar = "Watching"

    watch: bool = option(is_flag=True, help="Show what each token was chosen from, what it saw, and the cache.")
    top: int = option(type=click.IntRange(1), shown=5, help="Candidates shown per step.")
    head: str | None = option(metavar="L3H5", help="Watch the attention of this head, or of one layer such as L3.")
    explain_cache: bool = option(is_flag=True, help="Show time and work of every step, with the cache and without.")


@command("generate")
def generate(
    asked: Asked,
    draws: Draws,
    search: Search,
    watching: Watching,
    texts: Texts,
    opening: Opening,
    decoding: Decoding,
    output: Output,
) -> int:
    """An empty TEXT begins with the model's start token. In a pipe the new text alone is on stdout. Ctrl-C keeps what
    was made.
    """
    from tinytf.generate.beam import BeamOptions
    from tinytf.generate.compared import cached_steps
    from tinytf.generate.loop import StreamOptions, cache_for, require_prompt
    from tinytf.generate.report import BeamSearch, CacheComparison, Generation
    from tinytf.report import About
    from tinytf_cli.results import show_all
    from tinytf_cli.views.beams import BeamView
    from tinytf_cli.views.cached import CachedView
    from tinytf_cli.views.generate import GenerateView

    sampling, beams, head = draws.sampling(search.beams), search.beams, watching.head
    if watching.explain_cache:
        _require_alone()
    _require_one_way(asked, draws, beams, head is not None, not sampling.greedy, decoding)
    model = opening.open()
    watch = watching.watch or (head is not None and not output.wants_data)
    looks = (watch or head is not None) and decoding.use_cache and beams is None
    decoded: dict[str, Any] = {
        "max_tokens": asked.max_tokens, "on_overflow": asked.on_overflow, "use_cache": decoding.use_cache,
        "chunk": decoding.chunk or 0, "kind": decoding.kind,
    }  # fmt: skip
    streaming = StreamOptions(
        **decoded, sampling=sampling, seed=opening.seed, samples=draws.samples,
        stops=[_unescaped(stop) for stop in asked.stops], top=watching.top if watch or output.wants_data else 0,
        looking=_looking(model, head) if looks else None,
    )  # fmt: skip

    def start(encoding: "Encoding") -> "tuple[Iterator[GeneratedToken], KVCache | None]":
        """The steps of one text, and its cache, which is made when its turn comes."""
        cache = cache_for(model.transformer, encoding.ids, streaming)
        return model.stream(encoding, **vars(replace(streaming, cache=cache))), cache

    def view_of(encoding: "Encoding") -> "View":
        about = About(model)
        if watching.explain_cache:
            comparison = CacheComparison.begin(about, encoding, model.transformer)
            return CachedView(
                model, comparison, lambda: cached_steps(model.transformer, encoding.ids, asked.max_tokens)
            )
        if beams is None:
            generation = Generation.begin(about, encoding, streaming)
            return GenerateView(model, generation, lambda: start(encoding), watch)
        searching = BeamOptions(
            **decoded, beams=beams, length_penalty=search.length_penalty,
            repetition_penalty=draws.repetition_penalty,
        )  # fmt: skip
        steps = model.beams(encoding, **vars(searching))
        return BeamView(model, BeamSearch.begin(about, encoding, searching, draws.samples), lambda: steps, watch)

    views = [view_of(model.prompt(text, truncate=texts.truncate)) for text in texts]
    shown: list[View] = []

    def results() -> Iterator[Result]:
        for view in views:
            if any(earlier.interrupted for earlier in shown):
                return
            require_prompt(model.transformer, view.encoding.ids, asked.max_tokens)  # before anything is shown
            shown.append(view)
            text = None if watch else view.text
            yield Result(view.blocks, view.data, view.events, text=text, live=True, sheet=partial(_sheet, view))

    with current_interrupt().held():
        show_all(output, results(), "comparisons" if watching.explain_cache else "generations", texts.lines)
    for view in shown:
        for note in view.notes():
            output.note(note)
    if any(view.interrupted for view in shown):
        return 130
    return 0 if all(view.found.holds for view in shown) else 1


def _sheet(view: "View", long: bool) -> "Sheet | None":
    return view.whole.sheet(long=long)


def _require_one_way(
    asked: Asked, draws: Draws, beams: int | None, head: bool, drawn: bool, decoding: Decoding
) -> None:
    """Raise UsageError for settings that contradict each other."""
    search, samples = beams is not None, draws.samples
    conflicts = [
        (head and (search or decoding.no_cache),
         "--head shows what the newest token saw in the cache", "leave out --no-cache and --beams"),
        (not search and samples > 1 and not drawn,
         f"{samples} greedy texts are the same one", "raise --temperature, or search with --beams"),
        (search and drawn, "beam search takes what is most probable and draws nothing",
         "leave out --beams, or --temperature, --top-k, --top-p and --min-p"),
        (search and asked.stops, "beam search ends at end tokens, not at --stop", "leave one of them out"),
        (search and asked.on_overflow == "slide",
         "beam search cannot go on without the older half of a text", "--on-overflow stop or error"),
        (beams is not None and samples > beams,
         f"{samples} texts are more than {beams} beams", f"--n up to {beams}, or more --beams"),
    ]  # fmt: skip
    for conflict, said, hint in conflicts:
        if conflict:
            raise UsageError(said, hint)


def _require_alone() -> None:
    """Raise UsageError for a setting of generation beside --explain-cache, which continues greedily in its own way."""
    settings = [one for made in (Asked, Draws, Search, Watching, Decoding) for one in parameters_of(made)]
    for one in settings:
        if one.name and one.name not in ("max_tokens", "explain_cache") and given(one.name):
            raise UsageError(
                f"--explain-cache continues greedily, with a cache and without, and {one.opts[0]} asks for more",
                "leave one of them out",
            )


def _unescaped(stop: str) -> str:
    r"""``\n``, ``\t``, ``\r`` and ``\\`` as what they stand for: a shell passes them on as they are written."""
    signs = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    return re.sub(r"\\(.)", lambda found: signs.get(found[1], found[0]), stop, flags=re.DOTALL)


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
    layers, heads = where.layers or (), where.heads or (None,)
    if len(layers) != 1 or len(heads) != 1 or where.step is not None or where.cell:
        raise AddressError(f"{head} is not one head or one layer", "such as --head L0H1 or --head L0")
    return Looking(layers[0], heads[0])
