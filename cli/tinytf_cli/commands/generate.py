"""``tinytf generate``: text that continues a prompt, as it is generated."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tinytf.errors import AddressError, UsageError
from tinytf_cli.command import command, option, parameters_of
from tinytf_cli.options import DecodingOptions, ModelOptions, ResumeOptions, require_only
from tinytf_cli.output import Output
from tinytf_cli.ranges import Real, Whole
from tinytf_cli.text_options import TextOptions
from tinytf_cli.views.draw import Display, Shown

if TYPE_CHECKING:
    from tinytf.generate.loop import Looking
    from tinytf.generate.report import Continued
    from tinytf.generate.samplers import Sampling
    from tinytf.generate.underway import Underway
    from tinytf.loading import Model
    from tinytf.text.tokenizer import Encoding
    from tinytf.through.model import ThroughModel


@dataclass(frozen=True)
class Options:
    """When to stop."""

    max_tokens: int = option(type=Whole(1), shown=50, help="New tokens, at most.")
    stops: tuple[str, ...] = option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        help=r"Stop before this text or special token; \n is a new line. Repeatable.",
    )
    on_overflow: str = option(
        type=click.Choice(["stop", "slide", "error"]), shown="stop", metavar="WORD",
        help="When the context is full: stop, slide (drop the older half and continue) or error.",
    )  # fmt: skip


@dataclass(frozen=True)
class SamplingOptions:
    """How to choose the next token."""

    GROUP: ClassVar = "Sampling"

    temperature: float | None = option(
        type=Real(0),
        help="0 takes the most probable token.  [default: 1 with --top-k, --top-p, --min-p or --n, else 0]",
    )
    top_k: int | None = option(type=Whole(1), help="Draw from the N most probable tokens.")
    top_p: float = option(
        type=Real(0, 1, above=True), default=1.0, help="Draw from the fewest tokens whose probabilities add up to N."
    )
    min_p: float = option(
        type=Real(0, 1), default=0.0, help="Draw from tokens at least N times as probable as the best."
    )
    repetition_penalty: float = option(
        type=Real(0.01, 100), default=1.0, help="Above 1, makes tokens of the text so far less probable."
    )
    samples: int = option("--n", type=Whole(1), default=1, help="Draw N texts in parallel.")

    def sampling(self, beams: int | None) -> "Sampling":
        """The sampling settings. The temperature defaults to 1 if an option asks for draws, otherwise to 0 (greedy)."""
        from tinytf.generate.samplers import Sampling

        draws = self.top_k or self.top_p < 1 or self.min_p or (self.samples > 1 and beams is None)
        temperature = self.temperature if self.temperature is not None else 1.0 if draws else 0.0
        return Sampling(temperature, self.top_k or 0, self.top_p, self.min_p, self.repetition_penalty)


@dataclass(frozen=True)
class BeamOptions:
    """Beam search instead of sampling."""

    GROUP: ClassVar = "Beam search"

    beams: int | None = option(type=Whole(1), help="Search for the most probable text with N hypotheses.")
    length_penalty: float = option(type=Real(-1000, 1000), default=1.0, help="Above 0, favours longer texts.")


@dataclass(frozen=True)
class WatchOptions:
    """What to show besides the text."""

    GROUP: ClassVar = "Watching"

    watch: bool = option(is_flag=True, help="Show the candidates for each token, what it attended to, and the cache.")
    top: int = option(type=Whole(1), shown=5, help="Candidates shown per step.")
    head: str | None = option(metavar="L3H5", help="Show the attention of this head, or of a layer such as L3.")
    explain_cache: bool = option(
        is_flag=True, help="Compare the time and work of every step with and without the cache."
    )


@dataclass(frozen=True)
class SteeringOptions:
    """Vectors that are added to the model's steps, or projected out."""

    GROUP: ClassVar = "Steering"

    added: tuple[str, ...] = option(
        "--add", multiple=True, metavar="[ADDRESS:]FILE[*N]",
        help="Add a vector of tinytf steer, N times as strong: 'L12.out:joy.safetensors*4'. Repeatable.",
    )  # fmt: skip
    removed: tuple[str, ...] = option(
        "--remove", multiple=True, metavar="[ADDRESS:]FILE",
        help="Project the direction of a vector out, such as 'L*.out:joy.safetensors'. Repeatable.",
    )  # fmt: skip
    compare: bool = option(
        is_flag=True, help="In a pipe too, show the text without them beside it, and how far each prediction moves."
    )

    @property
    def steers(self) -> bool:
        return bool(self.added or self.removed)


@command("generate")
def generate(
    options: Options,
    sampling_options: SamplingOptions,
    beam_options: BeamOptions,
    watch_options: WatchOptions,
    steering_options: SteeringOptions,
    texts: TextOptions,
    model_options: ModelOptions,
    decoding: DecodingOptions,
    output: Output,
) -> int:
    """With an empty TEXT, generation starts from the model's start token. In a pipe, stdout gets only the new text.
    Ctrl-C stops and keeps the text so far.
    """
    from tinytf.cause.steer.applying import read_steering
    from tinytf.cause.steer.steered_generation import begin_steered_generation
    from tinytf.generate.continuing import Searching, Streaming
    from tinytf.generate.loop import require_prompt
    from tinytf.generate.underway import begin_beam_search, begin_cache_comparison, begin_generation
    from tinytf_cli.views.beam_search import BeamDisplay
    from tinytf_cli.views.generate import GenerationDisplay

    if steering_options.compare and not steering_options.steers:
        raise UsageError("--compare shows the text with and without a vector", "name one with --add or --remove")
    if steering_options.steers:
        _require_steerable()
    ResumeOptions(texts.resume).checked_file("a command that measures")
    sampling, beams, head = sampling_options.sampling(beam_options.beams), beam_options.beams, watch_options.head
    if watch_options.explain_cache:
        groups = (Options, SamplingOptions, BeamOptions, WatchOptions, SteeringOptions, DecodingOptions)
        require_only(("max_tokens", "explain_cache"), groups, "--explain-cache, which decodes greedily")
    _require_consistent(options, sampling_options, beams, head is not None, not sampling.greedy, decoding)
    through = model_options.through_model(output)
    if through is not None:
        return _through(through, options, sampling_options, sampling, texts, model_options, output)
    model = texts.facing(model_options.open(two_stacks=True), output, generated=False)
    watch = watch_options.watch or (head is not None and not output.wants_data)
    looks = (watch or head is not None) and decoding.use_cache and beams is None and not steering_options.steers
    decoded: dict[str, Any] = {
        "max_tokens": options.max_tokens, "on_overflow": options.on_overflow, "use_cache": decoding.use_cache,
        "chunk": decoding.chunk or 0, "kind": decoding.kind,
    }  # fmt: skip
    streaming = Streaming(
        **decoded, sampling=sampling, seed=model_options.seed, samples=sampling_options.samples,
        stops=[_unescaped(stop) for stop in options.stops], top=watch_options.top if watch or output.wants_data else 0,
        looking=_looking(model, head) if looks else None,
    )  # fmt: skip
    added, removed = steering_options.added, steering_options.removed
    steering = read_steering(model, added, removed) if steering_options.steers else None
    compare = steering_options.compare or output.wants_data or output.terminal.cuts or output.file is not None
    display: Display | None = None
    if steering is not None:
        display = GenerationDisplay(watch, running=output.terminal.cuts or not compare)
    elif not watch_options.explain_cache:
        display = (GenerationDisplay if beams is None else BeamDisplay)(watch, running=True)

    def begin(encoding: "Encoding") -> "Underway[Any]":
        if watch_options.explain_cache:
            return begin_cache_comparison(model, encoding, options.max_tokens)
        if steering is not None:
            return begin_steered_generation(model, encoding, steering, streaming, compare=compare)
        if beams is None:
            return begin_generation(model, encoding, streaming)
        searching = Searching(
            **decoded, beams=beams, length_penalty=beam_options.length_penalty,
            repetition_penalty=sampling_options.repetition_penalty,
        )  # fmt: skip
        return begin_beam_search(model, encoding, searching, sampling_options.samples)

    interrupt = output.interrupt
    begun = [begin(model.prompt(text, truncate=texts.truncate)) for text in texts]
    reports: list[Underway[Any]] = []

    def parts() -> Iterator[Shown]:
        for report in begun:
            if any(earlier.interrupted for earlier in reports):
                return
            require_prompt(model.transformer, report.prompt.ids, options.max_tokens)  # before any output
            reports.append(replace(report, interruptible=interrupt.allowed))
            yield Shown(reports[-1], display)

    with interrupt.blocked():
        kind = "comparisons" if watch_options.explain_cache else "generations"
        replace(output, at_once=True).show_all(parts(), kind, texts.lines)
    for report in reports:
        for note in _notes(model, report.whole):
            output.note(note)
    if any(report.interrupted for report in reports):
        return 130
    return 0 if all(report.holds for report in reports) else 1


def _through(
    model: "ThroughModel",
    options: Options,
    sampling_options: SamplingOptions,
    sampling: "Sampling",
    texts: TextOptions,
    model_options: ModelOptions,
    output: Output,
) -> int:
    """Generate through transformers, without a cache."""
    from tinytf.generate.continuing import Streaming
    from tinytf.through.reading import generate_through
    from tinytf_cli.views.generate import GenerationDisplay, not_shown_notes

    require_only(("max_tokens", "stops"), (Options, BeamOptions, WatchOptions, SteeringOptions, DecodingOptions))
    streaming = Streaming(
        max_tokens=options.max_tokens, sampling=sampling, seed=model_options.seed, samples=sampling_options.samples,
        stops=[_unescaped(stop) for stop in options.stops], top=5 if output.wants_data else 0,
    )  # fmt: skip
    prompts = [model.prompt(text, truncate=texts.truncate) for text in texts]
    allowed = output.interrupt.allowed
    reports = [replace(generate_through(model, prompt, streaming), interruptible=allowed) for prompt in prompts]
    with output.interrupt.blocked():
        shown = (Shown(report, GenerationDisplay(running=True)) for report in reports)
        replace(output, at_once=True).show_all(shown, "generations", texts.lines)
    for report in reports:
        for note in not_shown_notes(report.whole, model.tokenizer):
            output.note(note)
    return 130 if any(report.interrupted for report in reports) else 0


def _notes(model: "Model", report: "Continued[Any]") -> Iterator[str]:
    """Notes on the generated text."""
    from tinytf.generate.decoder import PLAIN
    from tinytf.generate.report import Generation
    from tinytf_cli.views.banner import exchanged
    from tinytf_cli.views.continuation import cost_in_words
    from tinytf_cli.views.generate import generation_notes, not_shown_notes

    if isinstance(report, Generation):
        yield from generation_notes(report, model)
    yield from not_shown_notes(report, model.tokenizer)
    yield from exchanged(model)
    if report.dropped:
        yield f"the context was full: the first {report.dropped:,} tokens were dropped on the way"
    if report.note:
        yield report.note
    rate, cost = report.tokens_per_second, report.int8_cost
    words = ["compiled"] if report.kind.compile else []
    words += ["int8"] if report.kind.quantize and cost is None else []
    words += [f"{rate:,.1f} tokens/s after the first two"] if rate is not None else []
    words += [f"int8 costs {cost_in_words(cost)}"] if cost is not None else []
    if report.kind != PLAIN and not report.interrupted:
        yield ", ".join(words)


def _require_consistent(
    options: Options,
    sampling_options: SamplingOptions,
    beams: int | None,
    head: bool,
    is_sampled: bool,
    decoding: DecodingOptions,
) -> None:
    """Raise UsageError for settings that contradict each other."""
    is_beam_search, samples = beams is not None, sampling_options.samples
    conflicts = [
        (head and (is_beam_search or decoding.no_cache),
         "--head shows what the newest token saw in the cache", "leave out --no-cache and --beams"),
        (not is_beam_search and samples > 1 and not is_sampled,
         f"{samples} greedy texts are all the same", "raise --temperature, or search with --beams"),
        (is_beam_search and is_sampled, "beam search takes the most probable text and draws nothing",
         "leave out --beams, or --temperature, --top-k, --top-p and --min-p"),
        (is_beam_search and options.stops, "beam search ends at end tokens, not at --stop", "leave one of them out"),
        (is_beam_search and options.on_overflow == "slide",
         "beam search cannot go on without the older half of a text", "--on-overflow stop or error"),
        (beams is not None and samples > beams,
         f"{samples} texts are more than {beams} beams", f"--n up to {beams}, or more --beams"),
    ]  # fmt: skip
    for is_conflict, message, hint in conflicts:
        if is_conflict:
            raise UsageError(message, hint)


def _require_steerable() -> None:
    """Raise UsageError for a setting that --add and --remove do not take."""
    refused = ("beams", "length_penalty", "head", "explain_cache", "compile", "quantize")
    groups = (BeamOptions, WatchOptions, DecodingOptions)
    every = [setting.name for group in groups for setting in parameters_of(group)]
    require_only(tuple(name for name in every if name and name not in refused), groups, "--add and --remove")


def _unescaped(stop: str) -> str:
    r"""Replace the escapes ``\n``, ``\t``, ``\r`` and ``\\``, which a shell does not interpret."""
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[0]), stop, flags=re.DOTALL)


def _looking(model: "Model", head: str | None) -> "Looking":
    from tinytf.generate.loop import Looking
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_address

    if head is None:
        return Looking()
    try:
        address = parse_address(head, StepTable(model.config))
    except AddressError as error:
        raise AddressError(error.message, error.hint or "such as --head L0H1 or --head L0") from None
    layers, heads = address.layers or (), address.heads or (None,)
    if len(layers) != 1 or len(heads) != 1 or address.step is not None or address.cell:
        raise AddressError(f"{head} is not one head or one layer", "such as --head L0H1 or --head L0")
    return Looking(layers[0], heads[0])
