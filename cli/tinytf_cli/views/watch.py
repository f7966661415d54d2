"""What a token was chosen from: candidates as bars, what the model looked at, and what its cache holds."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.generate.loop import Candidate, Step
from tinytf.generate.samplers import Sampling
from tinytf.model.cache import LayerUse
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.numbers import in_bytes
from tinytf_cli.views.blocks import Array, Bar, Bars, Block, Column, Heading, Heat, Line, RowBars, Span, Table

_CELL = 6
"""Columns of a weight with three digits."""
_LARGEST = 4


def sampling_in_words(sampling: Sampling) -> str:
    """``temperature 0.8, top-k 40``."""
    words = ["greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"]
    if not sampling.greedy:
        words += [f"top-k {sampling.top_k}"] if sampling.top_k else []
        words += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
        words += [f"min-p {sampling.min_p:g}"] if sampling.min_p else []
    words += [f"repetition penalty {sampling.repetition_penalty:g}"] if sampling.repetition_penalty != 1 else []
    return ", ".join(words)


def step_blocks(
    step: Step,
    tokenizer: Tokenizer,
    sampling: Sampling,
    several: bool,
    seen: Sequence[int],
    rows: Sequence[str],
    width: int,
) -> Iterator[Block]:
    """One step; ``seen`` are the ids of the columns of its attention, ``rows`` what its rows are called.

    Where not every token has room within ``width`` columns, each row has its largest weights.
    """
    note = f"rank {step.rank:,} · surprise {step.surprise:.2f} bits · entropy {step.entropy:.2f} bits"
    which = f"sample {step.sample}, " if several else ""
    yield Heading(f"{which}{step.number}  {tokenizer.shown(step.id)}", note, "output")
    if step.dropped:
        yield Line(Span(f"the context was full: the first {step.dropped:,} tokens are no longer seen", "dim"), indent=2)
    yield _bars(step, tokenizer, after=False)
    if sampling.changes and not (sampling.greedy and sampling.repetition_penalty == 1):
        yield Line(Span(f"after {sampling_in_words(sampling)}:", "dim"), indent=2)
        yield _bars(step, tokenizer, after=True)
    if step.attention is not None:
        shown = [tokenizer.shown(token_id) for token_id in seen]
        yield Line(
            Span(f"what {shown[-1]} looked at, {rows[0] if len(rows) == 1 else 'heads averaged'}:", "dim"), indent=2
        )
        weights = step.attention.numpy()
        if _CELL * len(shown) + _CELL <= width:
            yield Heat(weights, rows, shown, "unit")
        else:
            yield RowBars([(row, _largest(shares, shown)) for row, shares in zip(rows, weights, strict=True)], "saw")


def _largest(shares: Array, shown: Sequence[str]) -> list[tuple[str, float]]:
    """The tokens with the largest weights, each with its place among those that are seen."""
    places = np.argsort(-shares, kind="stable")[:_LARGEST]
    return [(f"{shown[place]} ({place})", float(shares[place])) for place in places]


def _bars(step: Step, tokenizer: Tokenizer, *, after: bool) -> Bars:
    def value(one: Candidate) -> float:
        return one.drawn if after else one.probability

    role = "attention" if after else "output"
    return Bars(
        [
            Bar(f"{'>' if one.id == step.id else ' '} {tokenizer.shown(one.id)}", value(one), f"{value(one):.3f}", role)
            for one in step.candidates
        ]
    )


def cache_blocks(layers: Sequence[LayerUse]) -> Iterator[Block]:
    """How much of every layer's room is taken, and what one more token takes."""
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
