"""Mistakes of mixers with a state: decays, lengths of keys, writing strengths, gates."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.compare.mistakes.mistake import Mistake, Wrong, has
from tinytf.compare.mistakes.norms import normed
from tinytf.steps.operations import Activate, Decay, HeadNorm, Norm, ShortConv, Sigmoid, Softplus, Unit, Unroll
from tinytf.steps.operations.operation import into_heads, side_by_side
from tinytf.trace.site import Site


def _gate(site: Site) -> Tensor:
    """The gate of what a mixer reads."""
    if site.layer is None or not (site.trace.steps.has("gate", site.layer) and site.step.name.startswith("head_")):
        raise RuntimeError("nothing that is read from a state")
    return F.silu(site.trace.step("gate", site.layer))


def _ungated(site: Site) -> Tensor:
    _gate(site)
    return site.inputs()[-1]


def _gated_already(site: Site) -> Tensor:
    """What is gated before its norm is not gated after it; other activations are as they are."""
    return site.inputs()[-1] if site.step.name.startswith("head_") else site.derive()


def _strength(site: Site) -> Tensor:
    if site.step.name != "beta":
        raise RuntimeError("no writing strength")
    return torch.ones_like(site.derive())


def _convolved(site: Site, weight: Tensor, ahead: int = 0) -> Tensor:
    """A convolution with other taps, or one that sees so many tokens ``ahead``; it has its bias."""
    x, taps, bias = site.input(), weight.shape[-1], getattr(site.module, "bias", None)
    flat = side_by_side(x)  # (H, T, D) -> (T, H·D)
    padded = F.pad(flat, (0, 0, taps - 1 - ahead, ahead))
    total = sum((weight[:, tap] * padded[tap : tap + len(flat)] for tap in range(taps)), torch.zeros(()))
    return into_heads(total if bias is None else total + bias, x.shape[-1])


def _later(by: int) -> Wrong:
    """What a step gives ``by`` tokens further back, or further on."""
    return lambda site: F.pad(site.derive(), (0, 0, by, -by))


def _without_bias(operation: Any) -> Wrong:
    """A step without the learned vector that it adds, or multiplies the token itself by."""
    name = "weight" if operation is Unroll else "bias"

    def without(site: Site) -> Tensor:
        return site.operation.forward(*site.inputs(), torch.zeros_like(getattr(site.module, name)))

    return without


def _unbiased(site: Site) -> Tensor:
    bias = site.module.bias
    return site.derive() - bias.view(len(site.input()), 1, -1)


def _gated_after(site: Site) -> Tensor:
    """The norm of what is read, and then its gate; without it the step before is not gated."""
    if site.step.name != "head_norm":
        raise RuntimeError("nothing that is read from a state")
    read = site.module(side_by_side(site.trace.step("head_out", site.layer)))
    return _gate(site) * into_heads(read, site.input().shape[-1])


def _regrouped(one: bool) -> Wrong:
    """A norm over all heads, or over each, rather than over groups of them."""

    def regrouped(site: Site) -> Tensor:
        flat, width = side_by_side(site.input()), site.input().shape[-1]
        x = flat if one else flat.unflatten(-1, (-1, width))
        normed = (x / (x.square().mean(-1, keepdim=True) + site.module.eps).sqrt()).view_as(flat)
        return into_heads(normed * site.module.weight, width)

    return regrouped


def _plain(site: Site) -> Tensor:
    bias = getattr(site.module, "bias", None)
    return site.input() if bias is None else site.input() + bias.view(-1, 1, bias.numel() // len(site.input()))


def _plain_rate(site: Site) -> Tensor:
    assert isinstance(site.operation, Decay)
    return site.operation.at_rate(site.input(), site.module.weight[:, None, None])


def states() -> Iterator[Mistake]:
    yield Mistake("nothing decays: the state keeps all that is written", Decay, lambda s: torch.zeros_like(s.derive()))
    yield Mistake("the decay grows: its sign is wrong", Decay, lambda s: -s.derive())
    yield Mistake("the rate is A, not e^A", Decay, _plain_rate)
    yield Mistake("steps have no softplus", Softplus, _plain)
    yield Mistake("its vectors are not scaled to length 1", Unit, lambda s: s.input())
    yield Mistake("the writing strength β is left out, as if it were 1", Sigmoid, _strength)
    yield Mistake("the bias of steps is left out", Softplus, _without_bias(Softplus))
    yield Mistake("the values of the token itself, times D, are left out", Unroll, _without_bias(Unroll))
    yield Mistake("the convolution ends a token too early", ShortConv, _later(1))
    yield Mistake("the convolution sees the next token", ShortConv, lambda s: _convolved(s, s.module.weight, ahead=1))
    yield Mistake("the convolution is left out", ShortConv, lambda s: s.input())
    yield Mistake("the bias of the convolution is left out", ShortConv, has("bias", _unbiased))
    yield Mistake("what is read is normed before its gate, not after it", HeadNorm, _gated_after)
    yield Mistake("the norm of what is read is over all heads, not over groups", HeadNorm, _regrouped(one=True))
    yield Mistake("the norm of what is read is over each head, not over groups", HeadNorm, _regrouped(one=False))
    yield Mistake(
        "the taps of the convolution are in the other order",
        ShortConv,
        lambda s: _convolved(s, s.module.weight.flip(-1)),
    )
    yield Mistake(
        "what is read is gated before its norm, not after it", Norm,
        lambda s: normed(s, x=_gate(s) * s.input()), ((Activate, _gated_already),),
    )  # fmt: skip
    yield Mistake("what is read is not gated", Activate, _ungated)
