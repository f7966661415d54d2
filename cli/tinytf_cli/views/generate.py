"""Texts as they are generated, and with --watch the candidates for each token."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Any, TypeVar

from tinytf.errors import TinytfError
from tinytf.generate.loop import END_TOKEN
from tinytf.generate.report import INTERRUPTED, Continued, Generation
from tinytf.generate.underway import Underway
from tinytf.loading import Model
from tinytf.sentences import first_of, listed
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Heading, Line, Running, Span
from tinytf_cli.views.continuation import continuation, safe_piece, sentence_after
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.watch import cache_blocks, sampling_in_words, scale_blocks, step_blocks

AnyGeneration = TypeVar("AnyGeneration", bound=Generation)
_NAMED = 4
"""The most tokens that a note on tokens without text names."""


@dataclass(frozen=True)
class GenerationDisplay(Display):
    """``watch`` shows the candidates for each token; otherwise ``running`` shows only the text, as it is generated."""

    watch: bool = False
    running: bool = False


@draws(Generation, GenerationDisplay)
def generation(
    report: Generation | Underway[AnyGeneration], terminal: Terminal, display: GenerationDisplay
) -> Iterator[Block]:
    """The texts that follow a prompt."""
    if display.running and not display.watch and not terminal.picture:
        return _running(report, terminal)
    return _in_full(report, display.watch)


def _running(report: Generation | Underway[AnyGeneration], terminal: Terminal) -> Iterator[Block]:
    """The new text only. A screen also shows the banner and prompt before it, and a last line about its end.

    The first of several samples appears as it is generated, the others after it.
    """
    screen, several, prompt = terminal.cuts, report.now.samples > 1, report.prompt.text
    if screen:
        yield from banner(model_of(report), report.prompt)
        if several:
            yield Heading("sample 1", "", "output")
        yield Running("" if several else "\n")
        yield Running(safe_piece("", prompt), "dim")
    context, open_line = prompt, screen
    try:
        for step in report.coming():
            safe = safe_piece(context, step.text) if step.sample == 1 else ""
            context = (context + step.text)[-32:] if step.sample == 1 else context
            if safe:
                open_line = not safe.endswith("\n")
                yield Running(safe, "output" if screen else "")
    except TinytfError:
        yield Running("\n" if open_line else "")
        if report.now.steps:
            yield from _other_samples(report.now, terminal)
        raise
    yield Running("\n" if open_line else "")
    yield from _other_samples(report.now, terminal)
    if screen:
        yield Running("\n")
        yield from sentence_after(report)
        yield Line(Span(_ending(report.now), "dim"))


def _other_samples(report: Generation, terminal: Terminal) -> Iterator[Block]:
    """The samples after the first, each under its heading; in a pipe, after an empty line."""
    for sample in range(2, report.samples + 1):
        if terminal.cuts:
            yield Heading(f"sample {sample}", "", "output")
            yield Running(safe_piece("", report.prompt.text), "dim")
        text = safe_piece(report.prompt.text, report.text(sample))
        yield Running("" if terminal.cuts else "\n")
        yield Running(text, "output" if terminal.cuts else "")
        yield Running("" if text.endswith("\n") else "\n")


def _in_full(report: Generation | Underway[AnyGeneration], watch: bool) -> Iterator[Block]:
    """The texts; with ``watch``, every step with its candidates as bars, and the contents of the cache."""
    model, begun, prompt = model_of(report), report.now, report.prompt
    yield from banner(model, prompt)
    samples = range(1, begun.samples + 1)
    several = begun.samples > 1
    ids = {sample: list(prompt.ids) for sample in samples}
    if watch:
        yield from scale_blocks(begun.sampling, _observed_heads(begun, model))
    for step in report.coming():
        if watch:
            context_ids = ids[step.sample][step.dropped :]
            yield from step_blocks(step, model.tokenizer, begun.sampling, several, context_ids)
        ids[step.sample].append(step.id)
    complete = report.now
    for sample in samples:
        title = (f"sample {sample}", _length(complete, sample)) if several else ("text", _ending(complete))
        yield Heading(*title, "output")
        yield from continuation(prompt.text, complete.text(sample))
    yield from sentence_after(report)
    if several:
        yield Line("")
        yield Line(Span(_ending(complete), "dim"))
    if watch and complete.cache is not None:
        yield from cache_blocks(complete.cache)


def generation_notes(report: Generation, model: Model) -> Iterator[str]:
    """Warn of a doubled start token, and of a chat model that ends a bare text at once."""
    if report.prompt.starts_twice:
        yield f"there are two start tokens: {report.prompt.added}; --rendered adds none"
    steps = report.of(1)
    at_once = len(steps) == 1 and steps[0].ended == END_TOKEN
    if at_once and model.tokenizer.chat and report.prompt.said is None:
        end = f"{model.tokenizer.shown(steps[0].id)} (p {math.exp(steps[0].log_probability):.3f})"
        yield f"the model answers with {end} at once: a bare text is no question to it; ask with --chat"


def not_shown_notes(report: Continued[Any], tokenizer: Tokenizer) -> Iterator[str]:
    """Say which tokens were generated and not shown, and how an end of turn that is no end token ends the text."""
    if not report.not_shown:
        return
    counted = [f"{tokenizer.shown(token_id)} × {count:,}" for token_id, count in report.not_shown.items()]
    yield f"{plural(report.not_shown.total(), 'token')} not shown: {first_of(counted, _NAMED)}"
    templates = "".join(tokenizer.chat.templates.values()) if tokenizer.chat else ""
    marks = [name for token_id in report.not_shown if (name := tokenizer.library.id_to_token(token_id) or "")]
    turn = next((name for name in marks if name in templates), None)
    if turn is not None:
        ends = listed([tokenizer.shown(token_id) for token_id in tokenizer.end_ids]) or "no token"
        stop = quote(printable(turn, spaces=False))
        yield f"texts of this model end at {ends}; add --stop {stop} to end them there too"


def _observed_heads(report: Generation, model: Model) -> str:
    """The heads whose attention is shown, in words; empty if none."""
    looking, config = report.looking, model.config
    if looking is None:
        return ""
    if looking.head is not None:
        return f"L{looking.layer}H{looking.head}"
    if looking.layer is not None:
        return f"mean of the {config.at(looking.layer).n_heads} heads of L{looking.layer}"
    return f"mean of all {sum(config.at(layer).n_heads for layer in range(config.n_layers))} heads"


def _length(report: Generation, sample: int) -> str:
    """The length of a sample, and why it ended."""
    ended = report.ended(sample)
    reason = ended if ended == INTERRUPTED else f"ended by {ended}" if ended else "not ended"
    hidden = report.hidden_in(report.of(sample)).total()
    shown = f", {hidden:,} not shown" if hidden else ""
    return f"{plural(len(report.of(sample)), 'token')}{shown} · {reason}"


def _ending(report: Generation) -> str:
    """How the texts ended, and how they were sampled."""
    sampling = sampling_in_words(report.sampling)
    dropped = f" · {plural(report.dropped, 'token')} dropped" if report.dropped else ""
    if report.samples == 1:
        return f"{_length(report, 1)}{dropped} · {sampling}, seed {report.seed}"
    return f"{report.samples} samples{dropped} · {sampling}, seeds {report.seed} to {report.seed + report.samples - 1}"
