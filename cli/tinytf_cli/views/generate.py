"""Texts as they are made, and with --watch what each token was chosen from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tinytf.errors import TinytfError
from tinytf.generate.decoder import PLAIN, Kind
from tinytf.generate.loop import Step
from tinytf.generate.samplers import Sampling
from tinytf.generate.score import QuantizationCost, quantization_cost
from tinytf.loading import Model
from tinytf.model.cache import KVCache, LayerUse
from tinytf.report import SCHEMA_VERSION, text_data
from tinytf.text.tokenizer import Encoding
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner, exchanged
from tinytf_cli.views.blocks import Block, Heading, Line, Span
from tinytf_cli.views.continuation import continuation, safe_piece
from tinytf_cli.views.int8 import cost_in_words
from tinytf_cli.views.streamed import Streamed
from tinytf_cli.views.watch import cache_blocks, cache_data, sampling_in_words, step_blocks, step_data

INTERRUPTED = "interrupted"
_COST_TOKENS = 512
"""The cost of int8 weights is measured on so many tokens of the text, the last ones."""


@dataclass(frozen=True)
class Settings:
    """How a text is made, as far as a view tells it."""

    sampling: Sampling
    seed: int
    samples: int = 1
    kind: Kind = PLAIN
    head: str | None = None


class GenerateView:
    """What follows one prompt, in every form; each form reads the steps as they come, and keeps them."""

    def __init__(
        self,
        model: Model,
        encoding: Encoding,
        start: Callable[[], tuple[Iterator[Step], KVCache | None]],
        settings: Settings,
        watch: bool = False,
    ) -> None:
        self.model, self.encoding, self.settings, self.watch = model, encoding, settings, watch
        self.cache: list[LayerUse] | None = None
        self.made = Streamed(lambda: self._made(start))
        self._cost: QuantizationCost | None = None

    def _made(self, start: Callable[[], tuple[Iterator[Step], KVCache | None]]) -> Iterator[Step]:
        """The steps as they come; the cache goes when the last is there, and what it held is kept."""
        steps, cache = start()
        try:
            yield from steps
        finally:
            self.cache = None if cache is None else cache.use()

    @property
    def interrupted(self) -> bool:
        return self.made.interrupted

    def _of(self, sample: int) -> list[Step]:
        if self.settings.samples == 1:
            return self.made.there
        return [step for step in self.made.there if step.sample == sample]

    def _text_of(self, sample: int) -> str:
        return "".join(step.text for step in self._of(sample))

    def _ended(self, sample: int) -> str:
        steps = self._of(sample)
        ended = steps[-1].ended if steps else ""
        return ended or (INTERRUPTED if self.interrupted else "")

    def text(self, terminal: Terminal) -> Iterator[Block | Span]:
        """The new text alone; on a screen behind the banner and the prompt, with a last line about its end.

        Of several samples the first is seen as it is made, the others after it.
        """
        screen, several = terminal.cuts, self.settings.samples > 1
        if screen:
            yield from banner(self.model, self.encoding)
            if several:
                yield Heading("sample 1", "", "output")
            yield Span("" if several else "\n")
            yield Span(safe_piece("", self.encoding.text), "dim")
        before, open_line = self.encoding.text, screen
        try:
            for step in self.made:
                safe = safe_piece(before, step.text) if step.sample == 1 else ""
                before = (before + step.text)[-32:] if step.sample == 1 else before
                if safe:
                    open_line = not safe.endswith("\n")
                    yield Span(safe, "output" if screen else "")
        except TinytfError:
            yield Span("\n" if open_line else "")
            for sample in range(2, self.settings.samples + 1) if self.made.there else ():
                yield from self._finished_sample(sample, terminal)
            raise
        yield Span("\n" if open_line else "")
        for sample in range(2, self.settings.samples + 1):
            yield from self._finished_sample(sample, terminal)
        if screen:
            yield Span("\n")
            yield Line(Span(self._end_in_words(), "dim"))

    def _finished_sample(self, sample: int, terminal: Terminal) -> Iterator[Block | Span]:
        """A sample that was made beside the first; in a pipe behind an empty line."""
        if terminal.cuts:
            yield Heading(f"sample {sample}", "", "output")
            yield Span(safe_piece("", self.encoding.text), "dim")
        text = safe_piece(self.encoding.text, self._text_of(sample))
        yield Span("" if terminal.cuts else "\n")
        yield Span(text, "output" if terminal.cuts else "")
        yield Span("" if text.endswith("\n") else "\n")

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The texts, and where it is watched every step with its candidates as bars, and what the cache holds."""
        yield from banner(self.model, self.encoding)
        several = self.settings.samples > 1
        ids = {sample: list(self.encoding.ids) for sample in range(1, self.settings.samples + 1)}
        for step in self.made:
            if self.watch:
                seen = ids[step.sample][step.dropped :]
                yield from step_blocks(
                    step, self.model.tokenizer, self.settings.sampling, several, seen, self._rows(step), terminal.width
                )
            ids[step.sample].append(step.id)
        if not several:
            yield Heading("text", self._end_in_words(), "output")
            yield from continuation(self.encoding.text, self._text_of(1))
        for sample in range(1, self.settings.samples + 1) if several else ():
            yield Heading(f"sample {sample}", self._how(sample), "output")
            yield from continuation(self.encoding.text, self._text_of(sample))
        if several:
            yield Line("")
            yield Line(Span(self._end_in_words(), "dim"))
        if self.watch and self.cache is not None:
            yield from cache_blocks(self.cache)

    def _rows(self, step: Step) -> list[str]:
        if step.attention is None:
            return []
        return [self.settings.head] if self.settings.head else [f"L{layer}" for layer in range(len(step.attention))]

    def _how(self, sample: int) -> str:
        count, ended = len(self._of(sample)), self._ended(sample)
        why = ended if ended == INTERRUPTED else f"ended by {ended}" if ended else "not ended"
        return f"{count} token{'' if count == 1 else 's'} · {why}"

    def _end_in_words(self) -> str:
        settings = self.settings
        how = sampling_in_words(settings.sampling)
        dropped = max((step.dropped for step in self.made.there), default=0)
        slid = f" · {dropped:,} tokens let go" if dropped else ""
        if settings.samples == 1:
            return f"{self._how(1)}{slid} · {how}, seed {settings.seed}"
        last = settings.seed + settings.samples - 1
        return f"{settings.samples} samples{slid} · {how}, seeds {settings.seed} to {last}"

    def notes(self) -> Iterator[str]:
        """What a reader of the text has to know beside it."""
        yield from exchanged(self.model)
        dropped = max((step.dropped for step in self.made.there), default=0)
        if dropped:
            yield f"the context was full: the first {dropped:,} tokens were let go on the way"
        if self._note():
            yield self._note()
        if self.settings.kind == PLAIN or self.interrupted:
            return
        kind, rate = self.settings.kind, self._tokens_per_second()
        words = ["compiled"] if kind.compile else []
        words += ["int8"] if kind.quantize else []
        words += [f"{rate:,.1f} tokens/s after the first two"] if rate is not None else []
        cost = self._cost_of_int8()
        if cost is not None:
            words.append(f"int8 costs {cost_in_words(cost)}")
        yield ", ".join(words)

    def _note(self) -> str:
        return self.made.there[-1].note if self.made.there else ""

    def _tokens_per_second(self) -> float | None:
        """Of all samples together; the first two steps prepare what the others use."""
        start = 2 * self.settings.samples
        if len(self.made.times) <= start + 1:
            return None
        return (len(self.made.times) - start) / (self.made.times[-1] - self.made.times[start - 1])

    def _cost_of_int8(self) -> QuantizationCost | None:
        """The difference that int8 weights make on the first text, with its prompt."""
        ids = [*self.encoding.ids, *(step.id for step in self._of(1))][-min(_COST_TOKENS, self.model.config.context) :]
        if self._cost is None and self.settings.kind.quantize and len(ids) > 1 and not self.interrupted:
            self._cost = quantization_cost(self.model.transformer, ids, compile=self.settings.kind.compile)
        return self._cost

    def data(self) -> dict[str, Any]:
        """Prompt, texts, steps and cache as one JSON object."""
        steps = [step_data(step, self.model.tokenizer) for step in self.made]
        return {**self._head(), **self._end(), "steps": steps}

    def events(self) -> Iterator[dict[str, Any]]:
        """The same, one event a token as it is made."""
        head = self._head()
        yield {"type": head.pop("kind"), **head}
        for step in self.made:
            yield {"type": "step", **step_data(step, self.model.tokenizer)}
        yield {"type": "end", **self._end()}

    def _head(self) -> dict[str, Any]:
        sampling = self.settings.sampling
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "generation",
            "model": self.model.to_dict(),
            "prompt": text_data(self.encoding),
            "sampling": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
                "seed": self.settings.seed,
            },
        }

    def _end(self) -> dict[str, Any]:
        samples = [
            {"sample": sample, "text": self._text_of(sample), "ended": self._ended(sample)}
            for sample in range(1, self.settings.samples + 1)
        ]
        data: dict[str, Any] = {
            "text": self._text_of(1),
            "ended": self._ended(1),
            "samples": samples,
            "cache": cache_data(self.cache),
        }
        if self.settings.kind != PLAIN:
            cost = self._cost_of_int8()
            data["decoding"] = {
                "compiled": self.settings.kind.compile,
                "int8": self.settings.kind.quantize,
                "tokens_per_second": self._tokens_per_second(),
                "int8_cost": None if cost is None else cost.to_dict(),
            }
        return {**data, "note": self._note()} if self._note() else data
