"""Text as it is made, and with --watch what each token was chosen from."""

from collections.abc import Iterator
from typing import Any

from rich.segment import Segment

from tinytf.errors import TinytfError
from tinytf.generate.loop import Candidate, Step
from tinytf.generate.samplers import Sampling
from tinytf.loading import Model
from tinytf.model.cache import KVCache
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding
from tinytf_cli.numbers import in_bytes
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.banner import banner, model_data, text_data
from tinytf_cli.views.blocks import Bar, Bars, Block, Column, Heading, Line, Span, Table

INTERRUPTED = "interrupted"


class GenerateView:
    """One text that is being made, in every form; each form reads the steps as they come, and keeps them."""

    def __init__(
        self,
        model: Model,
        encoding: Encoding,
        steps: Iterator[Step],
        sampling: Sampling,
        seed: int,
        cache: KVCache | None,
        watch: bool = False,
    ) -> None:
        self.model, self.encoding, self.sampling, self.seed, self.cache = model, encoding, sampling, seed, cache
        self.watch = watch
        self.made: list[Step] = []
        self.ended = ""
        self._coming = steps

    @property
    def interrupted(self) -> bool:
        return self.ended == INTERRUPTED

    def _steps(self) -> Iterator[Step]:
        """Those that are there, then those that come; Ctrl-C ends them, and what was made stays."""
        yield from self.made
        while not self.ended:
            try:
                step = next(self._coming)
            except KeyboardInterrupt:
                self.ended = INTERRUPTED
                return
            self.made.append(step)
            self.ended = step.ended
            yield step

    def text(self, terminal: Terminal) -> Iterator[str]:
        """The new text alone; on a screen behind the banner and the prompt, with a last line about its end."""
        screen = terminal.cuts
        if screen:
            yield from self._painted(banner(self.model, self.encoding), terminal)
            yield "\n" + self._segment(_lines_of("", self.encoding.text), "dim", terminal)
        before, open_line = self.encoding.text, screen
        try:
            for step in self._steps():
                safe = _lines_of(before, step.text)
                before = (before + step.text)[-32:]
                if safe:
                    open_line = not safe.endswith("\n")
                    yield self._segment(safe, "output" if screen else "", terminal)
        except TinytfError:
            yield "\n" if open_line else ""
            raise
        yield "\n" if open_line else ""
        if screen:
            yield "\n"
            yield from self._painted([Line(Span(self._end_in_words(), "dim"))], terminal)

    def _painted(self, blocks: Any, terminal: Terminal) -> Iterator[str]:
        from tinytf_cli.paint.painter import paint

        for line in paint(blocks, terminal):
            yield line + "\n"

    def _segment(self, text: str, role: str, terminal: Terminal) -> str:
        """Text as it is, in a colour; blanks at the end of a piece belong to it."""
        from tinytf_cli.paint.colour import role_style
        from tinytf_cli.paint.text import render, shown

        text = shown(text, terminal)
        if terminal.depth == "none" or not role:
            return text
        core = text.rstrip()
        lines = [render([Segment(line, role_style(role))], terminal.depth) if line else "" for line in core.split("\n")]
        return "\n".join(lines) + text[len(core) :]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The text, and where it is watched every step with its candidates as bars, and what the cache holds."""
        yield from banner(self.model, self.encoding)
        for step in self._steps():
            yield from self._step_blocks(step) if self.watch else ()
        new = "".join(step.text for step in self.made)
        yield Heading("text", self._end_in_words(), "output")
        *whole, last = _lines_of("", self.encoding.text).split("\n")
        first, *more = _lines_of(self.encoding.text, new).split("\n")
        yield from (Line(Span(line, "dim")) for line in whole)
        yield Line([Span(last, "dim"), Span(first, "output")])
        yield from (Line(Span(line, "output")) for line in more)
        if self.watch and self.cache is not None:
            yield from _cache_blocks(self.cache)

    def _step_blocks(self, step: Step) -> Iterator[Block]:
        tokenizer = self.model.tokenizer
        note = f"rank {step.rank} · surprise {step.surprise:.2f} bits · entropy {step.entropy:.2f} bits"
        yield Heading(f"{step.number}  {tokenizer.shown(step.id)}", note, "output")

        def bars(after: bool) -> Bars:
            def value(one: Candidate) -> float:
                return one.drawn if after else one.probability

            return Bars(
                [
                    Bar(
                        f"{'>' if one.id == step.id else ' '} {tokenizer.shown(one.id)}",
                        value(one),
                        f"{value(one):.3f}",
                        "attention" if after else "output",
                    )
                    for one in step.candidates
                ]
            )

        yield bars(after=False)
        if not self.sampling.greedy and self.sampling.changes:
            yield Line(Span(f"after {_in_words(self.sampling)}:", "dim"), indent=2)
            yield bars(after=True)

    def _end_in_words(self) -> str:
        count = len(self.made)
        why = INTERRUPTED if self.interrupted else f"ended by {self.ended}" if self.ended else "not ended"
        return f"{count} token{'' if count == 1 else 's'} · {why} · {_in_words(self.sampling)}, seed {self.seed}"

    def data(self) -> dict[str, Any]:
        """Prompt, text, steps and cache as one JSON object."""
        steps = [self._step_data(step) for step in self._steps()]
        return {**self._head(), **self._end(), "steps": steps}

    def events(self) -> Iterator[dict[str, Any]]:
        """The same, one event a token as it is made."""
        head = self._head()
        yield {"type": head.pop("kind"), **head}
        for step in self._steps():
            yield {"type": "step", **self._step_data(step)}
        yield {"type": "end", **self._end()}

    def _head(self) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "generation",
            "model": model_data(self.model),
            "prompt": text_data(self.encoding),
            "sampling": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repetition_penalty": sampling.repetition_penalty,
                "seed": self.seed,
            },
        }

    def _end(self) -> dict[str, Any]:
        cache = None
        if self.cache is not None:
            cache = [
                {
                    "layer": one.layer,
                    "shape": list(one.shape),
                    "used": one.used,
                    "used_bytes": one.used_bytes,
                    "allocated_bytes": one.allocated_bytes,
                    "bytes_per_token": one.bytes_per_token,
                }
                for one in self.cache.use()
            ]
        return {"text": "".join(step.text for step in self.made), "ended": self.ended, "cache": cache}

    def _step_data(self, step: Step) -> dict[str, Any]:
        shown = self.model.tokenizer.shown
        return {
            "number": step.number,
            "id": step.id,
            "token": shown(step.id),
            "text": step.text,
            "log_probability": step.log_probability,
            "rank": step.rank,
            "surprise_bits": step.surprise,
            "entropy_bits": step.entropy,
            "candidates": [
                {"id": one.id, "token": shown(one.id), "probability": one.probability, "drawn": one.drawn}
                for one in step.candidates
            ],
        }


def _lines_of(before: str, text: str) -> str:
    """``text`` safe to write, its newlines real ones; ``before`` is what a combining mark may stand on."""
    base = before[-1:] if before[-1:].isprintable() else ""
    lines = (base + text).split("\n")
    return "\n".join(printable(line, spaces=False) for line in lines)[len(printable(base, spaces=False)) :]


def _in_words(sampling: Sampling) -> str:
    words = ["greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"]
    if not sampling.greedy:
        words += [f"top-k {sampling.top_k}"] if sampling.top_k else []
        words += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
        words += [f"min-p {sampling.min_p:g}"] if sampling.min_p else []
    words += [f"repetition penalty {sampling.repetition_penalty:g}"] if sampling.repetition_penalty != 1 else []
    return ", ".join(words)


def _cache_blocks(cache: KVCache) -> Iterator[Block]:
    layers = cache.use()
    used, allocated = (sum(getattr(one, name) for one in layers) for name in ("used_bytes", "allocated_bytes"))
    growth = sum(one.bytes_per_token for one in layers)
    yield Heading(
        "cache", f"{in_bytes(used)} of {in_bytes(allocated)} used, {in_bytes(growth)} more with every token", "k"
    )
    yield Table(
        [
            Column("layer", [f"L{one.layer}" for one in layers]),
            Column(
                "keys and values, each",
                ["batch {} × head {} × token {} × d_head {}".format(*one.shape) for one in layers],
            ),
            Column("tokens", [f"{one.used} of {one.shape[2]}" for one in layers], "right"),
            Column("bytes", [f"{one.used_bytes:,} of {one.allocated_bytes:,}" for one in layers], "right"),
            Column("a token", [f"{one.bytes_per_token:,}" for one in layers], "right", drop=1),
        ]
    )
