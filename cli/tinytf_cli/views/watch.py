"""The choice of a token: its candidates, what the model looked at, and what its cache holds."""

from collections.abc import Iterator, Sequence

from tinytf.generate.loop import GeneratedToken
from tinytf.generate.samplers import Sampling
from tinytf.model.cache import LayerUse
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.numbers import in_bytes
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Scale, Span, Table
from tinytf_cli.views.parts import note, share_column

_LARGEST, _LAST = 4, 24
"""How many of the largest shares are written as numbers; how many of the last tokens are always shown."""


def sampling_in_words(sampling: Sampling) -> str:
    """``temperature 0.8, top-k 40``."""
    words = ["greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"]
    if not sampling.greedy:
        words += [f"top-k {sampling.top_k}"] if sampling.top_k else []
        words += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
        words += [f"min-p {sampling.min_p:g}"] if sampling.min_p else []
    words += [f"repetition penalty {sampling.repetition_penalty:g}"] if sampling.repetition_penalty != 1 else []
    return ", ".join(words)


def scale_blocks(sampling: Sampling, whose: str) -> Iterator[Block]:
    """The legend of all step tables; ``whose`` attention is shown, if any."""
    legend = ["p: the model's own probability"]
    legend += [f"as drawn: after {sampling_in_words(sampling)}"] if _draws(sampling) else []
    legend += [f"saw: attention, {whose}"] if whose else []
    yield note(" · ".join(legend))
    if whose:
        yield Scale("unit", 1.0)


def step_blocks(
    step: GeneratedToken, tokenizer: Tokenizer, sampling: Sampling, several: bool, seen: Sequence[int]
) -> Iterator[Block]:
    """One step: its candidates, and the tokens ``seen`` (their ids) coloured by the attention that they got."""
    summary = f"rank {step.rank:,} · surprise {step.surprise:.2f} bits · entropy {step.entropy:.2f} bits"
    sample = f"sample {step.sample}, " if several else ""
    yield Heading(f"{sample}{step.number}  {tokenizer.shown(step.id)}", summary, "output")
    if step.dropped:
        yield note(f"the context was full: the first {step.dropped:,} tokens are no longer seen")
    names = [Span(tokenizer.shown(c.id), "output" if c.id == step.id else "") for c in step.candidates]
    columns = [
        Column("candidate", names),
        share_column("p", [c.probability for c in step.candidates], "output"),
    ]
    if _draws(sampling):
        columns.append(share_column("p as drawn", [c.drawn for c in step.candidates], "attention"))
    chosen = "taken" if sampling.greedy else "drawn"
    marks = [Span(chosen if c.id == step.id else "", "output") for c in step.candidates]
    yield Table([*columns, Column("", marks)])
    if step.saw is not None:
        yield _seen([tokenizer.shown(token_id) for token_id in seen], step.saw.tolist())


def _draws(sampling: Sampling) -> bool:
    """Whether tokens are drawn from a distribution other than the model's own."""
    return sampling.changes and not (sampling.greedy and sampling.repetition_penalty == 1)


def _seen(names: Sequence[str], shares: Sequence[float]) -> Line:
    """The text coloured by attention, with the largest shares in numbers; of a long text only these and its end."""
    largest = sorted(range(len(names)), key=lambda index: -shares[index])[:_LARGEST]
    words = [Span(f"{names[-1]} saw", "dim")]
    skipped, spoken = 0.0, []
    for index, (name, share) in enumerate(zip(names, shares, strict=True)):
        if index < len(names) - _LAST and index not in largest:
            skipped += share
            continue
        if skipped:
            words.append(Span(f"  … {skipped:.2f}", "dim"))
            skipped = 0.0
        words += [Span("  "), Span(name, f"unit:{round(255 * min(1.0, share))}")]
        if index in largest:
            words.append(Span(f" {share:.2f}"))
            spoken.append(f"{name} {share:.2f}")
    return Line(words, indent=2, said=f"{names[-1]} saw {', '.join(spoken)}.")


_SHAPE = "batch {} × head {} × token {} × d_head {}"


def cache_blocks(layers: Sequence[LayerUse]) -> Iterator[Block]:
    """How much of each layer's cache is used, and what one more token takes."""
    used, allocated = (sum(getattr(use, name) for use in layers) for name in ("used_bytes", "allocated_bytes"))
    growth = sum(use.bytes_per_token for use in layers)
    yield Heading(
        "cache", f"{in_bytes(used)} of {in_bytes(allocated)} used, {in_bytes(growth)} more with every token", "k"
    )
    yield Table(
        [
            Column("layer", [f"L{use.layer}" for use in layers]),
            Column("keys and values, each", [_SHAPE.format(*use.shape) if use.shape else "a state" for use in layers]),
            Column("tokens", [f"{use.used} of {use.shape[2]}" if use.shape else "" for use in layers], "right"),
            Column("bytes", [f"{use.used_bytes:,} of {use.allocated_bytes:,}" for use in layers], "right"),
            Column("a token", [f"{use.bytes_per_token:,}" for use in layers], "right", drop=1),
        ]
    )
