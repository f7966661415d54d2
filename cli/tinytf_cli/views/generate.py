"""Texts as they are made, and with --watch what each token was chosen from."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from tinytf.errors import TinytfError
from tinytf.generate.loop import END_TOKEN, GeneratedToken
from tinytf.generate.report import INTERRUPTED, Generation
from tinytf.loading import Model
from tinytf.model.cache import KVCache, LayerUse
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Heading, Line, Span
from tinytf_cli.views.continuation import continuation, safe_piece
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.live import LiveView
from tinytf_cli.views.watch import cache_blocks, sampling_in_words, scale_blocks, step_blocks


class GenerateView(LiveView[Generation]):
    """The texts that follow one prompt; with ``watch`` every step."""

    def __init__(
        self,
        model: Model,
        begun: Generation,
        start: Callable[[], tuple[Iterator[GeneratedToken], KVCache | None]],
        watch: bool = False,
    ) -> None:
        super().__init__(model, begun, lambda: self._made(start))
        self.watch = watch
        self.numbers = range(1, begun.samples + 1)
        self.cache: tuple[LayerUse, ...] | None = None

    def _made(self, start: Callable[[], tuple[Iterator[GeneratedToken], KVCache | None]]) -> Iterator[GeneratedToken]:
        """The steps; the cache is freed after the last one, and what it held is kept."""
        steps, cache = start()
        try:
            yield from steps
        finally:
            self.cache = None if cache is None else tuple(cache.use())

    @property
    def found(self) -> Generation:
        return replace(super().found, times=tuple(self.times), cache=self.cache)

    def text(self, terminal: Terminal) -> Iterator[Block | Span]:
        """The new text alone; on a screen after the banner and the prompt, with a last line about its end.

        Of several samples the first is seen as it is made, the others after it.
        """
        screen, several = terminal.cuts, len(self.numbers) > 1
        if screen:
            yield from banner(self.model, self.encoding)
            if several:
                yield Heading("sample 1", "", "output")
            yield Span("" if several else "\n")
            yield Span(safe_piece("", self.encoding.text), "dim")
        before, open_line = self.encoding.text, screen
        try:
            for step in self.coming():
                safe = safe_piece(before, step.text) if step.sample == 1 else ""
                before = (before + step.text)[-32:] if step.sample == 1 else before
                if safe:
                    open_line = not safe.endswith("\n")
                    yield Span(safe, "output" if screen else "")
        except TinytfError:
            yield Span("\n" if open_line else "")
            if self.steps:
                yield from self._other_samples(terminal)
            raise
        yield Span("\n" if open_line else "")
        yield from self._other_samples(terminal)
        if screen:
            yield Span("\n")
            yield Line(Span(self._end_in_words(), "dim"))

    def _other_samples(self, terminal: Terminal) -> Iterator[Block | Span]:
        """The samples that were made beside the first, each after its heading; in a pipe after an empty line."""
        for sample in self.numbers[1:]:
            if terminal.cuts:
                yield Heading(f"sample {sample}", "", "output")
                yield Span(safe_piece("", self.encoding.text), "dim")
            text = safe_piece(self.encoding.text, self.found.text(sample))
            yield Span("" if terminal.cuts else "\n")
            yield Span(text, "output" if terminal.cuts else "")
            yield Span("" if text.endswith("\n") else "\n")

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The texts; with ``watch`` every step with its candidates as bars, and what the cache holds."""
        yield from banner(self.model, self.encoding)
        several = len(self.numbers) > 1
        ids = {sample: list(self.encoding.ids) for sample in self.numbers}
        if self.watch:
            yield from scale_blocks(self.begun.sampling, self._whose())
        for step in self.coming():
            if self.watch:
                seen = ids[step.sample][step.dropped :]
                yield from step_blocks(step, self.model.tokenizer, self.begun.sampling, several, seen)
            ids[step.sample].append(step.id)
        for sample in self.numbers:
            title = (f"sample {sample}", self._how(sample)) if several else ("text", self._end_in_words())
            yield Heading(*title, "output")
            yield from continuation(self.encoding.text, self.found.text(sample))
        if several:
            yield Line("")
            yield Line(Span(self._end_in_words(), "dim"))
        if self.watch and self.cache is not None:
            yield from cache_blocks(self.cache)

    def notes(self) -> Iterator[str]:
        """Also a start token too many, and a model for conversations that has nothing to add to a bare text."""
        found = self.whole
        if self.encoding.starts_twice:
            yield f"there are two start tokens: {self.encoding.added}"
        steps = found.of(1)
        at_once = len(steps) == 1 and steps[0].ended == END_TOKEN
        if at_once and self.model.tokenizer.chat and self.encoding.said is None:
            end = f"{self.model.tokenizer.shown(steps[0].id)} (p {math.exp(steps[0].log_probability):.3f})"
            yield f"the model answers with {end} at once: a bare text is no question to it; ask with --chat"
        yield from super().notes()

    def _whose(self) -> str:
        """Whose attention is shown, if any."""
        looking, config = self.begun.looking, self.model.config
        if looking is None:
            return ""
        if looking.head is not None:
            return f"L{looking.layer}H{looking.head}"
        if looking.layer is not None:
            return f"mean of the {config.n_heads} heads of L{looking.layer}"
        return f"mean of all {config.n_layers * config.n_heads} heads"

    def _how(self, sample: int) -> str:
        ended = self.found.ended(sample)
        why = ended if ended == INTERRUPTED else f"ended by {ended}" if ended else "not ended"
        return f"{plural(len(self.found.of(sample)), 'token')} · {why}"

    def _end_in_words(self) -> str:
        found = self.found
        how = sampling_in_words(found.sampling)
        dropped = f" · {plural(found.dropped, 'token')} dropped" if found.dropped else ""
        if found.samples == 1:
            return f"{self._how(1)}{dropped} · {how}, seed {found.seed}"
        return f"{found.samples} samples{dropped} · {how}, seeds {found.seed} to {found.seed + found.samples - 1}"


@draws(Generation)
def generation(report: Generation, terminal: Terminal, display: Display) -> Iterator[Block]:
    """A report whose steps are all there."""
    return GenerateView(model_of(report), report, lambda: (iter(report.steps), None)).blocks(terminal)
