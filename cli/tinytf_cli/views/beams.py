"""Beam search: the hypotheses of every step, and the best of those that ended."""

from collections.abc import Iterator, Sequence
from typing import Any

from tinytf.generate.beam import BeamStep, Hypothesis
from tinytf.generate.decoder import PLAIN, Kind
from tinytf.generate.score import QuantizationCost, quantization_cost
from tinytf.loading import Model
from tinytf.report import SCHEMA_VERSION, text_data
from tinytf.text.tokenizer import Encoding
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner, exchanged
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.continuation import continuation, safe_piece
from tinytf_cli.views.int8 import cost_in_words
from tinytf_cli.views.streamed import Streamed

_SHOWN = 6


class BeamView:
    """One search in every form; nothing is certain of its text before the search is over."""

    def __init__(
        self,
        model: Model,
        encoding: Encoding,
        steps: Iterator[BeamStep],
        beams: int,
        length_penalty: float,
        count: int = 1,
        watch: bool = False,
        kind: Kind = PLAIN,
    ) -> None:
        self.model, self.encoding, self.kind = model, encoding, kind
        self._cost: QuantizationCost | None = None
        self.beams, self.length_penalty, self.count, self.watch = beams, length_penalty, count, watch
        self.made = Streamed(lambda: steps)

    @property
    def interrupted(self) -> bool:
        return self.made.interrupted

    def _best(self) -> tuple[Hypothesis, ...]:
        """What ended, the best first; of an interrupted search what there was."""
        last = self.made.there[-1] if self.made.there else None
        if last is None:
            return ()
        return (last.finished or last.running)[: self.count]

    def _text_of(self, hypothesis: Hypothesis) -> str:
        ids = hypothesis.ids
        kept = ids[:-1] if hypothesis.ended else ids
        return self.model.text_after(self.encoding.ids, kept)

    def text(self, terminal: Terminal) -> Iterator[Block | Span]:
        """The best texts alone; on a screen behind banner and prompt."""
        if terminal.cuts:
            yield from banner(self.model, self.encoding)
        self.made.all()
        for place, hypothesis in enumerate(self._best()):
            yield Span("\n" if place or terminal.cuts else "")
            if terminal.cuts:
                yield Span(safe_piece("", self.encoding.text), "dim")
            text = safe_piece(self.encoding.text, self._text_of(hypothesis))
            yield Span(text + "\n", "output" if terminal.cuts else "")
            if terminal.cuts:
                yield Line(Span(_in_words(hypothesis), "dim"))
        if terminal.cuts:
            yield Span("\n")
            yield Line(Span(self._end_in_words(), "dim"))

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """Where it is watched the hypotheses of every step, then the best texts."""
        yield from banner(self.model, self.encoding)
        for step in self.made:
            if self.watch:
                count = sum(one.ended for one in step.finished)
                over = f"{count} ended" if count else ""
                yield Heading(f"{step.number}", over, "output")
                yield self._table(step)
        for hypothesis in self._best():
            yield Heading("text", _in_words(hypothesis), "output")
            yield from continuation(self.encoding.text, self._text_of(hypothesis))
        yield Line("")
        yield Line(Span(self._end_in_words(), "dim"))

    def _table(self, step: BeamStep) -> Table:
        shown = self.model.tokenizer.shown
        rows = [("goes on", one) for one in step.running]
        rows += [("ended" if one.ended else "cut off", one) for one in step.finished]
        return Table(
            [
                Column("", [Span(state, "dim" if state == "goes on" else "output") for state, _ in rows], said="state"),
                Column("log p", [f"{one.log_probability:.3f}" for _, one in rows], "right"),
                Column("score", [f"{one.score:.3f}" for _, one in rows], "right"),
                Column("tokens", [_last_tokens([shown(token_id) for token_id in one.ids]) for _, one in rows]),
            ]
        )

    def _end_in_words(self) -> str:
        count = len(self.made.there)
        why = "interrupted" if self.interrupted else f"ended by {self.made.there[-1].ended}"
        words = f"{self.beams} beam{'' if self.beams == 1 else 's'}, length penalty {self.length_penalty:g}"
        return f"{count} token{'' if count == 1 else 's'} · {why} · {words}"

    def notes(self) -> Iterator[str]:
        """What a reader of the text has to know beside it."""
        yield from exchanged(self.model)
        if self._note():
            yield self._note()
        if self.kind != PLAIN and not self.interrupted:
            cost = self._cost_of_int8()
            words = ["compiled"] if self.kind.compile else []
            words += [f"int8 costs {cost_in_words(cost)}"] if cost else []
            yield ", ".join(words)

    def _note(self) -> str:
        return self.made.there[-1].note if self.made.there else ""

    def _cost_of_int8(self) -> QuantizationCost | None:
        """The difference that int8 weights make on the best text, with its prompt."""
        best = self._best()
        ids = [*self.encoding.ids, *(best[0].ids if best else ())][-self.model.config.context :]
        if self._cost is None and self.kind.quantize and len(ids) > 1 and not self.interrupted:
            self._cost = quantization_cost(self.model.transformer, ids, compile=self.kind.compile)
        return self._cost

    def data(self) -> dict[str, Any]:
        """Prompt, hypotheses of every step and the best as one JSON object."""
        steps = [self._step_data(step) for step in self.made]
        return {**self._head(), **self._end(), "steps": steps}

    def events(self) -> Iterator[dict[str, Any]]:
        """The same, one event a step."""
        head = self._head()
        yield {"type": head.pop("kind"), **head}
        for step in self.made:
            yield {"type": "step", **self._step_data(step)}
        yield {"type": "end", **self._end()}

    def _head(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "beam_search",
            "model": self.model.to_dict(),
            "prompt": text_data(self.encoding),
            "beams": self.beams,
            "length_penalty": self.length_penalty,
        }

    def _end(self) -> dict[str, Any]:
        ended = "interrupted" if self.interrupted else self.made.there[-1].ended if self.made.there else ""
        best = [{"text": self._text_of(one), **self._hypothesis(one)} for one in self._best()]
        data = {"text": best[0]["text"] if best else "", "ended": ended, "hypotheses": best}
        data |= {"note": self._note()} if self._note() else {}
        cost = self._cost_of_int8()
        return {**data, "int8_cost": cost.to_dict()} if cost else data

    def _step_data(self, step: BeamStep) -> dict[str, Any]:
        return {
            "number": step.number,
            "running": [self._hypothesis(one) for one in step.running],
            "finished": [self._hypothesis(one) for one in step.finished],
        }

    def _hypothesis(self, one: Hypothesis) -> dict[str, Any]:
        return {
            "ids": list(one.ids),
            "log_probability": one.log_probability,
            "score": one.score,
            "ended": one.ended,
        }


def _last_tokens(shown: Sequence[str]) -> str:
    """The last few, where hypotheses differ."""
    return ("… " if len(shown) > _SHOWN else "") + " ".join(shown[-_SHOWN:])


def _in_words(hypothesis: Hypothesis) -> str:
    count = len(hypothesis.ids)
    end = ", its end token among them" if hypothesis.ended else ""
    return (
        f"score {hypothesis.score:.4f} · log p {hypothesis.log_probability:.3f} of {count} token"
        f"{'' if count == 1 else 's'}{end}"
    )
