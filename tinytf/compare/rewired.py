"""Wrong programs by construction: a step of a layer that reads another tensor of it, a sum of two, or a norm of these.

A block's norms and residual sums may be moved, missing, doubled or exchanged; each such program differs from the right
one in what a few steps read. All are run by the model's own operations on the other program's numbers.
"""

import itertools
from collections.abc import Iterator
from functools import partial

from torch import Tensor

from tinytf.compare.altered import Altered, Altering
from tinytf.parts.row import WIDE
from tinytf.steps.operations import Add, Norm
from tinytf.steps.table import StepKey, StepTable
from tinytf.trace.site import Site


def rewired(site: Site) -> Iterator[Altering]:
    """A step that reads other tensors of its layer in place of one of its inputs; in words."""
    if site.layer is None:
        return
    steps = site.trace.steps
    after = _depending(steps, (site.step.name, site.layer))
    free = [step for step in steps.in_layer(site.layer) if step.is_tensor and (step.name, site.layer) not in after]
    for number, (name, layer) in enumerate(site.sources):
        source = steps.at(name, layer)
        likes = [step for step in free if step.axes == source.axes and not step.is_choice]
        if source.is_choice:
            continue
        for step in likes:
            if step.name != name:
                yield f"it reads {step.name}, not {name}", partial(_reading, number, name, (step.name,), "")
        if source.axes != WIDE:
            continue
        taken = {step.name: tuple(one for one, _ in steps.sources(step, site.layer)) for step in likes}
        streams = [step.name for step in likes if isinstance(step.operation, Add)]
        norms = [step.name for step in steps.in_layer(site.layer) if type(step.operation) is Norm and step.axes == WIDE]
        branches = [step.name for step in likes if step.name not in (*streams, *norms)]
        sums = [(one, other) for one in streams for other in branches if (one, other) not in taken.values()]
        for pair in sums:
            yield f"it reads {' + '.join(pair)}, not {name}", partial(_reading, number, name, pair, "")
        for norm, parts in itertools.product(norms, (*((one,) for one in (*streams, *branches)), *sums)):
            if taken.get(norm) != parts:
                words = f"it reads {norm} of {' + '.join(parts)}, not {name}"
                yield words, partial(_reading, number, name, parts, norm)
    inputs = site.sources
    for first in range(len(inputs)):
        for second in range(first + 1, len(inputs)):
            if site.source_steps[first].axes == site.source_steps[second].axes and not isinstance(site.operation, Add):
                words = f"{inputs[first][0]} and {inputs[second][0]} are exchanged in it"
                yield words, partial(_exchanged, first, second)


def _depending(steps: StepTable, place: StepKey) -> set[StepKey]:
    """A step and those of its layer that depend on it."""
    found = {place}
    for step in steps.in_layer(place[1]) if place[1] is not None else ():
        if any(source in found for source in steps.sources(step, place[1])):
            found.add((step.name, place[1]))
    return found


def _reading(number: int, name: str, parts: tuple[str, ...], norm: str, site: Site) -> Tensor:
    """The step with a sum of tensors of its layer, or a norm of it, in place of the input ``name``."""
    if len(site.sources) <= number or site.sources[number][0] != name:
        raise RuntimeError("it reads another step")
    first, *others = (site.trace.step(part, site.layer) for part in parts)
    numbers = sum(others, first)
    if norm:
        step = site.trace.steps.at(norm, site.layer)
        numbers = Altered(site.trace, step, site.layer, taken={0: numbers}).derive()
    return Altered(site.trace, site.step, site.layer, taken={number: numbers}).derive()


def _exchanged(first: int, second: int, site: Site) -> Tensor:
    taken = {first: site.input(second), second: site.input(first)}
    return Altered(site.trace, site.step, site.layer, taken=taken).derive()
