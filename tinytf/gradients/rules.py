"""For each operation, the gradients of its inputs and of its parameters, at one step of a recorded forward pass."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tinytf.gradients import formulas
from tinytf.model.attention import Sight
from tinytf.model.parts import ACTIVATIONS, LearnedPositions, rotary_table
from tinytf.trace.graph import OPERATIONS, Site

TOKEN_TABLE = "embed.tokens.weight"


def _weight(site: Site) -> Tensor:
    return site.trace.model.unembedding if site.step.name == "logits" else site.module.weight


def _rotated_back(site: Site, g: Tensor) -> tuple[Tensor, ...]:
    return (formulas.rotation(g, *rotary_table(g.shape[-2], site.trace.config.rope, g.device, g.dtype)),)


def _unmasked(site: Site, g: Tensor) -> tuple[Tensor, ...]:
    return (formulas.mask(g, Sight.of(site.trace.config).allowed(g.shape[-1], None, g.device)),)


def _normed(site: Site, g: Tensor) -> tuple[Tensor, ...]:
    norm = formulas.NORM_INPUTS[site.trace.config.norm]
    return (norm(g, site.input(), site.module.weight, site.module.eps),)


def _activated(site: Site, g: Tensor) -> tuple[Tensor, ...]:
    name = site.activation
    if len(site.sources) == 1:
        return (formulas.activation(g, site.input(), name),)
    gate, hidden = site.input(0), site.input(1)
    return formulas.gated(g, gate, hidden, ACTIVATIONS[name](gate), name)


INPUTS: dict[str, Callable[[Site, Tensor], tuple[Tensor, ...]]] = {
    "sum": lambda site, g: (g,) * len(site.sources),
    "norm": _normed,
    "linear": lambda site, g: (formulas.linear_input(g, _weight(site)),),
    "project": lambda site, g: (formulas.linear_input(formulas.side_by_side(g), _weight(site)),),
    "rotate": _rotated_back,
    "scores": lambda site, g: formulas.scores(g, site.input(0), site.input(1)),
    "scale": lambda site, g: (formulas.scale(g, site.trace.config.d_head),),
    "mask": _unmasked,
    "softmax": lambda site, g: (formulas.softmax_rows(g, site.value),),
    "mix": lambda site, g: formulas.weighted_values(g, site.input(0), site.input(1)),
    "concat": lambda site, g: (formulas.into_heads(g, site.trace.config.d_head),),
    "activate": _activated,
    "lookup": lambda site, g: (),
    "positions": lambda site, g: (),
    "types": lambda site, g: (),
}
"""From the gradient of a step to those of its sources, in their order."""


def _linear_parameters(site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
    name = TOKEN_TABLE if site.module.weight is None else f"{site.path}.weight"
    yield name, formulas.linear_weight(g, site.input())
    if site.module.bias is not None:
        yield f"{site.path}.bias", formulas.summed(g)


def _norm_parameters(site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
    normed, _ = formulas.NORMED[site.trace.config.norm](site.input(), site.module.eps)
    yield f"{site.path}.weight", formulas.summed(g * normed).to(g.dtype)
    if site.trace.config.norm == "layernorm":
        yield f"{site.path}.bias", formulas.summed(g)


def _token_table(site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
    ids = torch.tensor(site.trace.encoding.ids, device=g.device)
    yield TOKEN_TABLE, formulas.embedding(g, ids, len(site.module.weight), site.module.scale)


def _position_table(site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
    if isinstance(site.module, LearnedPositions):
        yield f"{site.path}.weight", formulas.position_rows(g, len(site.module.weight), site.module.offset)


def _type_table(site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
    first = torch.zeros(len(g), dtype=torch.long, device=g.device)  # a trace is of one text: every type is 0
    yield f"{site.path}.weight", formulas.embedding(g, first, len(site.module.weight))


PARAMETERS: dict[str, Callable[[Site, Tensor], Iterator[tuple[str, Tensor]]]] = {
    "linear": _linear_parameters,
    "project": lambda site, g: _linear_parameters(site, formulas.side_by_side(g)),
    "norm": _norm_parameters,
    "lookup": _token_table,
    "positions": _position_table,
    "types": _type_table,
}


def input_gradients(site: Site, g: Tensor) -> tuple[Tensor, ...]:
    """The gradients of what a step was computed from, one for each of ``site.sources``."""
    return INPUTS[OPERATIONS[site.step.name]](site, g)


def parameter_gradients(site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The gradients of the parameters that a step was computed with, by their names in the model."""
    rule = PARAMETERS.get(OPERATIONS.get(site.step.name, ""))
    return iter(()) if rule is None else rule(site, g)
