"""Beam search: the hypotheses of every step, and the best of those that ended."""

from collections.abc import Callable, Iterator

from tinytf.generate.beam import BeamStep, Hypothesis
from tinytf.generate.report import INTERRUPTED, BeamSearch
from tinytf.loading import Model
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.continuation import continuation, safe_piece
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.live import LiveView

_SHOWN = 6


class BeamView(LiveView[BeamSearch]):
    """One search; nothing is certain of its text before the search is over."""

    def __init__(
        self, model: Model, begun: BeamSearch, start: Callable[[], Iterator[BeamStep]], watch: bool = False
    ) -> None:
        super().__init__(model, begun, start)
        self.watch = watch

    def text(self, terminal: Terminal) -> Iterator[Block | Span]:
        """The best texts alone; on a screen after banner and prompt."""
        if terminal.cuts:
            yield from banner(self.model, self.encoding)
        for _ in self.coming():
            pass
        for place, hypothesis in enumerate(self.found.best):
            yield Span("\n" if place or terminal.cuts else "")
            if terminal.cuts:
                yield Span(safe_piece("", self.encoding.text), "dim")
            text = safe_piece(self.encoding.text, self.found.text_of(hypothesis))
            yield Span(text, "output" if terminal.cuts else "")
            yield Span("\n")
            if terminal.cuts:
                yield Line(Span(_in_words(hypothesis), "dim"))
        if terminal.cuts:
            yield Span("\n")
            yield Line(Span(self._end_in_words(), "dim"))

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """With ``watch`` the hypotheses of every step, then the best texts."""
        yield from banner(self.model, self.encoding)
        for step in self.coming():
            if self.watch:
                count = sum(one.ended for one in step.finished)
                yield Heading(f"step {step.number}", f"{count} ended" if count else "", "output")
                yield self._table(step)
        for hypothesis in self.found.best:
            yield Heading("text", _in_words(hypothesis), "output")
            yield from continuation(self.encoding.text, self.found.text_of(hypothesis))
        yield Line("")
        yield Line(Span(self._end_in_words(), "dim"))

    def _table(self, step: BeamStep) -> Table:
        rows = [("goes on", one) for one in step.running]
        rows += [("ended" if one.ended else "cut off", one) for one in step.finished]
        return Table(
            [
                Column("", [Span(state, "dim" if state == "goes on" else "output") for state, _ in rows], said="state"),
                Column("log p", [f"{one.log_probability:.3f}" for _, one in rows], "right"),
                Column("score", [f"{one.score:.3f}" for _, one in rows], "right"),
                Column("tokens", [self._last_tokens(one) for _, one in rows]),
            ]
        )

    def _last_tokens(self, one: Hypothesis) -> str:
        """The last few, where hypotheses differ."""
        shown = " ".join(self.model.tokenizer.shown(token_id) for token_id in one.ids[-_SHOWN:])
        return ("… " if len(one.ids) > _SHOWN else "") + shown

    def _end_in_words(self) -> str:
        found = self.found
        why = INTERRUPTED if found.interrupted else f"ended by {found.ended}"
        words = f"{plural(found.beams, 'beam')}, length penalty {found.length_penalty:g}"
        return f"{plural(len(found.steps), 'token')} · {why} · {words}"


def _in_words(one: Hypothesis) -> str:
    end = ", its end token among them" if one.ended else ""
    return f"score {one.score:.4f} · log p {one.log_probability:.3f} of {plural(len(one.ids), 'token')}{end}"


@draws(BeamSearch)
def beam_search(report: BeamSearch, terminal: Terminal, display: Display) -> Iterator[Block]:
    """A report whose steps are all there."""
    return BeamView(model_of(report), report, lambda: iter(report.steps)).blocks(terminal)
