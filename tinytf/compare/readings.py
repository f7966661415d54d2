"""Steps that are right, and read wrong by those that take them: parts cut otherwise, the stream of another layer.

A module that another program saved is the same there; what it does with the output before the next one is not seen.
"""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from tinytf.compare.altered import Altered, cut_otherwise
from tinytf.compare.attempts import Attempt
from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.sentences import listed
from tinytf.steps.table import StepKey
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
