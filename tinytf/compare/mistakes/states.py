"""Mistakes of mixers with a state: decays, lengths of keys, writing strengths, gates."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.compare.mistakes.mistake import Mistake
from tinytf.compare.mistakes.norms import normed
from tinytf.steps.operations import Activate, Decay, Norm, ShortConv, Sigmoid, Softplus, Unit
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


def _last_tap(site: Site) -> Tensor:
    """A convolution whose taps are in the other order: the first is for the token itself."""
    weight = site.module.weight
    x, taps = site.input(), weight.shape[-1]
    flat = x.transpose(0, 1).flatten(1)  # (H, T, D) -> (T, H·D)
    padded = F.pad(flat, (0, 0, taps - 1, 0))
    total = sum((weight.flip(-1)[:, tap] * padded[tap : tap + len(flat)] for tap in range(taps)), torch.zeros(()))
    return total.unflatten(-1, (x.shape[0], -1)).transpose(0, 1)


def _plain(site: Site) -> Tensor:
    bias = getattr(site.module, "bias", None)
    return site.input() if bias is None else site.input() + bias.view(-1, 1, bias.numel() // len(site.input()))


def states() -> Iterator[Mistake]:
    yield Mistake("nothing decays: the state keeps all that is written", Decay, lambda s: torch.zeros_like(s.derive()))
    yield Mistake("the decay grows: its sign is wrong", Decay, lambda s: -s.derive())
    yield Mistake("the rate is A, not e^A", Decay, lambda s: -s.module.weight[:, None, None] * s.input())
    yield Mistake("steps have no softplus", Softplus, _plain)
    yield Mistake("its vectors are not scaled to length 1", Unit, lambda s: s.input())
    yield Mistake("the writing strength β is left out, as if it were 1", Sigmoid, _strength)
    yield Mistake("the taps of the convolution are in the other order", ShortConv, _last_tap)
    yield Mistake(
        "what is read is gated before its norm, not after it", Norm,
        lambda s: normed(s, x=_gate(s) * s.input()), ((Activate, _gated_already),),
    )  # fmt: skip
    yield Mistake("what is read is not gated", Activate, _ungated)
