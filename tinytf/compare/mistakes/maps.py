"""Mistakes outside attention: linear maps, activations, sums, embeddings, logits."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from tinytf.compare.mistakes.mistake import Mistake, Wrong, has, unlike
from tinytf.parts.feed_forward import ACTIVATION_NAMES
from tinytf.steps.operations import (
    Activate,
    Add,
    ClampedGlu,
    Linear,
    Lookup,
    Norm,
    Positions,
    Route,
    Unembed,
)
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.operations.operation import into_heads
from tinytf.trace.site import Site


def _linear(site: Site, weight: Tensor, bias: bool = True) -> Tensor:
    bias_vector = getattr(site.module, "bias", None)
    product = site.input() @ weight.T
    product = product if bias_vector is None or not bias else product + bias_vector
    return into_heads(product, site.config.d_head) if site.step.has_heads else product


def _without_norm(site: Site) -> Tensor:
    """The linear map applied to the input of the norm before it."""
    (name, layer), *_ = site.sources
    norm = Site(site.trace, site.trace.steps.at(name, layer), layer)
    if not isinstance(norm.operation, Norm):
        raise RuntimeError("no norm before it")
    product = site.module(norm.input())
    return into_heads(product, site.config.d_head) if site.step.has_heads else product


def linears() -> Iterator[Mistake]:
    yield Mistake("the bias is left out", Linear, has("bias", lambda s: _linear(s, s.module.weight, bias=False)))
    yield Mistake(
        "the biases of q, k and v are left out", Linear,
        has("bias", lambda s: _linear(s, s.module.weight, bias=False)), in_heads=True,
    )  # fmt: skip
    yield Mistake("the matrix is transposed", Linear, lambda site: _linear(site, site.module.weight.T))
    yield Mistake("the map is left out", Linear, lambda site: site.input() + 0 * site.derive())
    yield Mistake("it reads the stream before its norm", Linear, _without_norm)


_USUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "LeakyReLU": functional.leaky_relu, "Softplus": functional.softplus, "ELU": functional.elu,
    "SELU": functional.selu, "Mish": functional.mish, "Hardswish": functional.hardswish,
    "Softsign": functional.softsign,
}  # fmt: skip
"""Functions of torch that no family has."""


def activations() -> Iterator[Mistake]:
    for name in (name for name in ACTIVATIONS if name in ACTIVATION_NAMES):
        act = ACTIVATIONS[name]
        yield Mistake(
            f"the activation is {'GELU(erf)' if name == 'gelu' else ACTIVATION_NAMES[name]}", Activate,
            unlike(lambda s, name=name: s.operation.name == name, lambda s, act=act: _act(s, act)),  # type: ignore[misc]
        )  # fmt: skip
    yield Mistake(
        "the activation is x·σ(1.702x)", Activate, lambda site: _act(site, lambda x: x * (1.702 * x).sigmoid())
    )
    for name, act in _USUAL.items():
        yield Mistake(f"the activation is {name}", Activate, lambda site, act=act: _act(site, act))  # type: ignore[misc]
    yield Mistake("the activation is σ(x)", Activate, lambda site: _act(site, torch.sigmoid))
    yield Mistake("the activation is left out", Activate, lambda site: _act(site, lambda x: x))
    yield Mistake(
        "gate and up are exchanged: the activation is on up", Activate,
        lambda site: ACTIVATIONS[_gated_activation(site)](site.input(1)) * site.input(0),
    )  # fmt: skip
    yield Mistake(
        "up is not multiplied", Activate, lambda s: ACTIVATIONS[_gated_activation(s)](s.input(0)) + 0 * s.input(1)
    )
    yield Mistake(
        "the gate is added, not multiplied",
        Activate,
        lambda s: ACTIVATIONS[_gated_activation(s)](s.input(0)) + s.input(1),
    )
    yield Mistake(
        "the activation is on the product of gate and up", Activate,
        lambda site: ACTIVATIONS[_gated_activation(site)](site.input(0) * site.input(1)),
    )  # fmt: skip
    yield Mistake(
        "1 is added to up before it is multiplied", Activate,
        lambda site: ACTIVATIONS[_gated_activation(site)](site.input(0)) * (site.input(1) + 1),
    )  # fmt: skip
    yield Mistake("up is multiplied without the 1 that is added to it", ClampedGlu, _without_one)
    yield Mistake(
        "activated gate and hidden units are not limited", Activate,
        unlike(
            lambda site: not getattr(site.operation, "limit", 0.0),
            lambda site: ACTIVATIONS[_gated_activation(site)](site.input(0)) * site.input(1),
        ),
    )  # fmt: skip


def experts() -> Iterator[Mistake]:
    yield Mistake(
        "the experts' outputs are added without their weights", Route, lambda s: (s.input(1) != 0).to(s.input().dtype)
    )


def _without_one(site: Site) -> Tensor:
    gate, up = site.inputs()
    return site.derive() - site.operation.forward(gate, 0 * up)


def _gated_activation(site: Site) -> str:
    assert isinstance(site.operation, Activate)
    if len(site.sources) < 2:
        raise RuntimeError("no gate")
    return site.operation.name


def _act(site: Site, act: Callable[[Tensor], Tensor]) -> Tensor:
    assert isinstance(site.operation, Activate)
    first, *gated = site.inputs()
    return site.operation.product(act(first), *gated)


def sums() -> Iterator[Mistake]:
    yield Mistake("positions are not added", Add, lambda site: _embedded(site, 0.0))
    yield Mistake("positions are added twice", Add, lambda site: _embedded(site, 2.0))
    yield Mistake("the residual is missing: x is not added", Add, lambda site: site.inputs()[-1] + 0 * site.input())
    yield Mistake("what is computed is not added to x", Add, lambda site: site.input())
    yield Mistake("x is added twice", Add, lambda site: site.derive() + site.input())
    yield Mistake("what is computed is added twice", Add, lambda site: site.derive() + site.inputs()[-1])


def _embedded(site: Site, times: float) -> Tensor:
    if site.layer is not None or len(site.sources) < 2:
        raise RuntimeError("no positions")
    return site.input(0) + times * site.input(1)


def _positions(shift: int) -> Wrong:
    def shifted(site: Site) -> Tensor:
        table, first = getattr(site.module, "weight", None), site.module.offset + shift
        if table is None:
            raise RuntimeError("positions are computed")
        return table[first : first + len(site.ids)]

    return shifted


def embeddings() -> Iterator[Mistake]:
    yield Mistake(
        "token embeddings are not multiplied by √d_model", Lookup,
        unlike(lambda s: s.module.scale == 1.0, lambda s: s.derive() / s.module.scale),
    )  # fmt: skip
    yield Mistake(
        "token embeddings are multiplied by √d_model", Lookup,
        unlike(lambda s: s.module.scale != 1.0, lambda s: s.derive() * math.sqrt(s.config.d_model)),
    )  # fmt: skip
    yield Mistake("positions start at 1, not at 0", Positions, _positions(1))
    yield Mistake("positions run backwards", Positions, lambda s: _positions(0)(s).flip(0))
    yield Mistake("every token has position 0", Positions, lambda s: _positions(0)(s)[:1].expand(len(s.ids), -1))


def logits() -> Iterator[Mistake]:
    yield Mistake(
        "the head is tied to the embeddings, x·Eᵀ", Unembed,
        unlike(lambda s: s.config.tied_head, lambda s: s.input() @ s.trace.model.embed.tokens.weight.T),
    )  # fmt: skip
    yield Mistake("probabilities are returned, not logits", Unembed, lambda site: site.derive().softmax(-1))
    yield Mistake("log-probabilities are returned, not logits", Unembed, lambda s: s.derive().log_softmax(-1))
    yield Mistake("the bias is left out", Unembed, has("bias", lambda s: s.derive() - s.module.bias))
    yield Mistake("the final norm is passed over", Unembed, lambda site: _unnormed(site))


def _unnormed(site: Site) -> Tensor:
    (name, layer), *_ = site.sources
    norm = Site(site.trace, site.trace.steps.at(name, layer), layer)
    if not isinstance(norm.operation, Norm):
        raise RuntimeError("no norm before it")
    return site.module(norm.input(), site.weight)
