"""Steps that are right, and read wrong by those that take them: parts cut otherwise, the stream of another layer.

A module that another program saved is the same there; what it does with the output before the next one is not seen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from tinytf.compare.altered import Altered, cut_otherwise
from tinytf.compare.attempts import Attempt
from tinytf.compare.caches import Change, orders
from tinytf.compare.dumps.fit import distance, in_halves
from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.compare.positions import scaled_as, schemes
from tinytf.sentences import listed
from tinytf.steps.operations import Mix, Rotate, Scores
from tinytf.steps.table import StepKey
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

Read = tuple[str, dict[StepKey, Attempt]]


def read_otherwise(trace: Trace, differing: StepKey, unseen: Sequence[StepKey]) -> Iterator[Read]:
    """Other readings of the maps with heads that are seen before a step that differs, with the steps that take them."""
    takers = [place for place in (*unseen, differing) if trace.steps.at(*place).operation is not None]
    sources = {source: None for place in takers for source in trace.steps.sources(trace.steps.at(*place), place[1])}
    seen = [source for source in sources if source not in unseen and source[1] is not None]
    done = set[str]()
    for name, layer in seen:
        site = Site(trace, trace.steps.at(name, layer), layer)
        if not (site.step.has_heads and site.step.module):
            continue
        for words, formulas in _readings(site):
            if words in done:
                continue
            done.add(words)
            taken = [
                place
                for place in takers
                if any(source in formulas for source, _ in trace.steps.sources(trace.steps.at(*place), place[1]))
            ]
            if taken:
                yield words, {place: Attempt(words, _reading(formulas)) for place in taken}


_OF_EQUAL_SCORES = "all scores of a query are equal, as where keys are 0"
"""What is known of keys that are 0, where an attention shows its weights or what follows from them alone."""


def keys_otherwise(trace: Trace, unseen: Sequence[StepKey]) -> Iterator[Read]:
    """Keys or values, or both, of other tokens or heads, in an attention that is not seen."""
    places = {type(trace.steps.at(*place).operation): place for place in unseen}
    taken = {"keys": places.get(Scores), "values": places.get(Mix)}
    found = {what: place for what, place in taken.items() if place is not None}
    for place in list(found.values())[:1]:
        heads = len(Site(trace, trace.steps.at(*place), place[1]).input(1))
        for words, change in orders(heads):
            for what, at in found.items():
                said = _OF_EQUAL_SCORES if (what, words) == ("keys", "0") else f"{what} are {words}"
                yield said, _all_with(change, [at])
            if len(found) > 1:
                yield f"keys and values are {words}", _all_with(change, found.values())


def _all_with(change: Change, places: Iterable[StepKey]) -> dict[StepKey, Attempt]:
    def wrong(site: Site) -> Tensor:
        return Altered(site.trace, site.step, site.layer, taken={1: change(site, site.input(1))}).derive()

    return {place: Attempt("", wrong) for place in places}


def widths_otherwise(trace: Trace, unseen: Sequence[StepKey]) -> Iterator[Read]:
    """More or fewer dimensions of a head turned, where neighbours are turned: so that the rows lie otherwise too."""
    places = [place for place in unseen if type(trace.steps.at(*place).operation) is Rotate]
    own, d_head = trace.config.rope.width, trace.config.d_head
    for width in range(2, min(d_head, trace.config.index_width or d_head) + 1, 2) if places else ():
        if width != own and trace.config.rope.scaling == "none":
            words = f"a rotation of {width} dimensions of a head, of neighbours, instead of {own}"
            yield words, {place: Attempt(words, partial(_turned_of, width)) for place in places}


def scaled_otherwise(trace: Trace, differing: StepKey, theirs: Tensor, unseen: Sequence[StepKey]) -> Iterator[Read]:
    """Another scaling of RoPE's frequencies: of all that are usual, the one that comes nearest."""
    places = [place for place in unseen if isinstance(trace.steps.at(*place).operation, Rotate)]
    found = list[tuple[float, str, Wrong]]()
    for place in places[:1]:
        rope: Any = trace.steps.at(*place).operation.rope
        for words, made in (one for one in schemes(rope) if one[1].scaling != rope.scaling):
            wrong = scaled_as(made)
            with suppress(RuntimeError, ValueError, ZeroDivisionError):
                gives = WrongTrace(trace, dict.fromkeys(places, wrong)).step(*differing)
                found.append((distance(theirs, gives), words, wrong))
    for _, words, wrong in sorted(found, key=lambda one: one[0])[:1]:
        yield words, {place: Attempt(words, wrong) for place in places}


def _turned_of(width: int, site: Site) -> Tensor:
    """Heads with their rows in halves of another width, turned so far."""
    rope: Any = site.operation.rope  # type: ignore[attr-defined]
    if rope.width == width:
        return site.derive()
    x = in_halves(in_pairs(site.input(), site.config), site.config.but(rope_width=width))
    return replace(site.operation, rope=rope._replace(width=width)).forward(x)  # type: ignore[type-var]


def streams_of_others(trace: Trace, differing: StepKey, unseen: Sequence[StepKey]) -> Iterator[Read]:
    """The stream of another layer in place of a layer's own, or in the place of the last: layers left out, or twice."""
    steps, layer = trace.steps, differing[1]
    ends = {None: "embed.out"} | dict.fromkeys(range(trace.config.n_layers), "out")
    readers = [differing, *(source for at in (*unseen, differing) for source in steps.sources(steps.at(*at), at[1]))]
    for place in dict.fromkeys(one for one in readers if one not in unseen and one[1] == layer):
        reader = steps.at(*place)
        (own, *_) = steps.sources(reader, place[1]) or (None,)
        if not reader.from_stream or own is None or own[0] not in ends.values():
            continue
        before = own[1] if own[1] is not None else -1
        for other, name in ends.items():
            if (name, other) == own or (name, other) not in steps.by_key:
                continue
            number, taken = -1 if other is None else other, trace.step(name, other)
            full = steps.at(name, other).full_name(other)
            words = f"{reader.full_name(place[1]) if layer is None else f'L{layer}'} reads {full}"
            if number < before:
                left_out = [str(one) for one in range(number + 1, before + 1)]
                words = f"layer{'s' * (len(left_out) > 1)} {listed(left_out)} left out: {words}"
            elif number == layer:
                words = f"layer {layer} runs twice: it reads {full}"
            yield words, {place: Attempt(words, _taking(taken), local=True)}


def _taking(stream: Tensor) -> Wrong:
    """A step that takes the stream of another layer."""
    return lambda site: Altered(site.trace, site.step, site.layer, taken={0: stream}).derive()


def _readings(site: Site) -> Iterator[tuple[str, Mapping[str, Wrong]]]:
    """Other readings of a map and of those that are read with it, by the names of the steps."""
    together = [
        step.name for step in site.trace.steps.in_layer(site.layer or 0) if type(step.operation) is type(site.operation)
    ]
    for mistake in MISTAKES:
        if mistake.in_heads and mistake.fits(site.step) and not mistake.also:
            yield mistake.words, dict.fromkeys(together, mistake.wrong)
    yield from cut_otherwise(site)


def _reading(formulas: Mapping[str, Wrong]) -> Wrong:
    """A step that takes others read by the formulas of their names."""

    def wrong(site: Site) -> Tensor:
        taken = {
            number: formulas[name](Site(site.trace, site.trace.steps.at(name, layer), layer))
            for number, (name, layer) in enumerate(site.sources)
            if name in formulas
        }
        return Altered(site.trace, site.step, site.layer, taken=taken).derive()

    return wrong
