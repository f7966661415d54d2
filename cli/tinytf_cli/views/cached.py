"""What a cache saves: time and work of every step, with it and without."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from tinytf.analysis.size import StepWork, cache_bytes_per_token, step_work
from tinytf.generate.compared import CachedStep
from tinytf.loading import Model
from tinytf.report import SCHEMA_VERSION, text_data
from tinytf.text.tokenizer import Encoding
from tinytf_cli.numbers import in_bytes
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.streamed import Streamed

_ROWS = 16


class CachedView:
    """One comparison in every form."""

    text = None
    """There is nothing of it but the view."""

    def __init__(self, model: Model, encoding: Encoding, start: Callable[[], Iterator[CachedStep]]) -> None:
        self.model, self.encoding = model, encoding
        self.coming = Streamed(start)

    @property
    def steps(self) -> list[CachedStep]:
        return self.coming.there

    @property
    def interrupted(self) -> bool:
        return self.coming.interrupted

    def notes(self) -> Sequence[str]:
        """Nothing has to be said beside it."""
        return ()

    def _works(self, step: CachedStep) -> tuple[StepWork, StepWork]:
        """With the cache and without; the first step computes the whole prompt in both."""
        without = step_work(self.model.config, step.tokens, cached=False)
        return (without if step.number == 1 else step_work(self.model.config, step.tokens, cached=True)), without

    @property
    def _bytes_per_token(self) -> int:
        return cache_bytes_per_token(self.model.config, next(self.model.transformer.parameters()).itemsize)

    def _chosen(self) -> list[CachedStep]:
        count = len(self.steps)
        places = (
            range(count) if count <= _ROWS else sorted({round(i * (count - 1) / (_ROWS - 1)) for i in range(_ROWS)})
        )
        return [self.steps[place] for place in places]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """Measured times beside the counts of the formulas, what the last step is made of, and the price in memory."""
        config = self.model.config
        yield from banner(self.model, self.encoding)
        if not self.coming.all():
            return
        rows = self._chosen()
        works = [self._works(step) for step in rows]
        left = "" if len(rows) == len(self.steps) else f", {len(rows)} of {len(self.steps)} steps"
        yield Heading("a step", f"measured ms and multiply-adds (ops), with the cache and without{left}", "k")
        yield Table(
            [
                Column("step", [str(step.number) for step in rows], "right"),
                Column("token", [self.model.tokenizer.shown(step.id) for step in rows], shrink=2, drop=2),
                Column("tokens t", [f"{step.tokens:,}" for step in rows], "right"),
                Column("with ms", [f"{step.with_cache * 1e3:.2f}" for step in rows], "right"),
                Column("without", [f"{step.without_cache * 1e3:.2f}" for step in rows], "right"),
                Column("ratio", [f"{step.without_cache / step.with_cache:.1f}" for step in rows], "right"),
                Column("ops with", [_short(cached.whole) for cached, _ in works], "right", said="multiply-adds with"),
                Column("without", [_short(plain.whole) for _, plain in works], "right", said="multiply-adds without"),
                Column("ratio", [f"{plain.whole / cached.whole:.1f}" for cached, plain in works], "right", drop=1),
            ]
        )
        last = self.steps[-1]
        yield from self._formulas(last)
        later = self.steps[1:] or self.steps
        typical = [median(getattr(step, name) for step in later) for name in ("with_cache", "without_cache")]
        yield Heading("median of the steps after the prompt", "", "k")
        longest = max(typical)
        yield Bars(
            [
                Bar(name, seconds, f"{seconds * 1e3:.2f} ms", role)
                for name, seconds, role in zip(("with", "without"), typical, ("k", "dim"), strict=True)
            ],
            full=longest,
        )
        apart = max(step.apart for step in self.steps)
        yield Line(
            [
                Span("checked", "strong"),
                Span(f": the logits of both differ by at most {apart:.1e} · "),
                Span(f"the cache holds {in_bytes(self._bytes_per_token * last.tokens)} after {last.tokens:,} tokens, "),
                Span(f"2 · {config.n_layers} layers · {config.n_kv_heads} heads · {config.d_head} numbers a token"),
            ]
        )

    def _formulas(self, step: CachedStep) -> Iterator[Block]:
        """The orders of the textbook, evaluated for this model at the last step."""
        config, t = self.model.config, step.tokens
        c, layers = config.d_model, config.n_layers
        (cached, plain) = step_work(config, t, cached=True), step_work(config, t, cached=False)
        yield Heading(f"the formulas at t = {t:,}", f"{layers} layers, d_model {c}", "k")
        keys, scores = "L·d_model·2·G·d_head", "L·2·H·d_head"
        numbers = 2 * layers * config.n_kv_heads * config.d_head * t
        rows = [
            ("keys and values", f"t·{keys}", plain.keys_values, keys, cached.keys_values),
            ("scores and values", f"t²·{scores}", plain.attention, f"t·{scores}", cached.attention),
            ("whole step", "", plain.whole, "", cached.whole),
            ("order of attention", "L·t²·d_model", layers * t * t * c, "L·t·d_model", layers * t * c),
            ("numbers kept", "", 0, "t·L·2·G·d_head", numbers),
        ]
        counts = [[f"{row[place]:,}" for row in rows] for place in (2, 4)]
        formulas = [[f"{row[place]} = " if row[place] else "" for row in rows] for place in (1, 3)]
        with_formulas = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(formulas, counts, strict=True)]
        yield Table(
            [
                Column("", [row[0] for row in rows], said="part"),
                Column("without the cache", with_formulas[0], narrow=counts[0]),
                Column("with it", with_formulas[1], narrow=counts[1]),
            ]
        )
        share = f"{plain.attention / plain.whole:.1%}"
        yield Line(
            Span(f"attention is {share} of the uncached step; the rest are its matrices, which grow with t", "dim"),
            indent=2,
        )

    def data(self) -> dict[str, Any]:
        """The comparison as one JSON object."""
        steps = [self._step_data(step) for step in self.coming]
        return {**self._head(), "steps": steps}

    def _head(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "cache_comparison",
            "model": self.model.to_dict(),
            "prompt": text_data(self.encoding),
            "bytes_per_token": self._bytes_per_token,
        }

    def _step_data(self, step: CachedStep) -> dict[str, Any]:
        cached, plain = self._works(step)
        return {
            "number": step.number,
            "id": step.id,
            "token": self.model.tokenizer.shown(step.id),
            "tokens": step.tokens,
            "apart": step.apart,
            "with_cache": {"seconds": step.with_cache, **_work_data(cached)},
            "without_cache": {"seconds": step.without_cache, **_work_data(plain)},
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same, one event a step."""
        head = self._head()
        yield {"type": head.pop("kind"), **head}
        for step in self.coming:
            yield {"type": "step", **self._step_data(step)}


def _work_data(work: StepWork) -> dict[str, int]:
    return {"keys_values": work.keys_values, "attention": work.attention, "multiply_adds": work.whole}


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
