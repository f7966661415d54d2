"""Weights that are solved for from another program's numbers: heads or experts in another order, a low rank added.

Shapes: T tokens, H heads, D head width, C columns of the output, E experts.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from tinytf.compare.altered import Altered, Change, with_parameter
from tinytf.compare.attempts import Attempt, order_in_words
from tinytf.compare.constants import plain, shown
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.norms import normed
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.sentences import first_of
from tinytf.steps.operations import ExpertLinear, Linear, Norm
from tinytf.steps.operations.weigh import SumExperts
from tinytf.steps.table import StepKey
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_MOST_HEADS, _MOST_EXPERTS = 32, 64
_NEAR = 0.05
"""How far a share that was solved for may be from 0 or 1."""
Solved = tuple[str, dict[StepKey, Attempt]]


def solved_weights(trace: Trace, differing: StepKey, theirs: Tensor, unseen: Sequence[StepKey]) -> Iterator[Solved]:
    """Mistakes in the weights of the step that differs, or of experts before it, with the steps in which they are."""
    site = Site(trace, trace.steps.at(*differing), differing[1])
    if type(site.operation) is Linear and theirs.shape == site.value.shape:
        of_rank = () if unseen else _of_rank(site, theirs)  # a fault in the input may be of a low rank
        yield from ((one.words, {differing: one}) for one in (*_of_heads(site, theirs), *of_rank))
    if isinstance(site.operation, Norm) and not site.step.has_heads and theirs.shape == site.value.shape:
        yield from ((one.words, {differing: one}) for one in _of_gain(site, theirs))
    yield from _of_experts(trace, differing, theirs, unseen)


def _of_gain(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """The gain and bias of a norm, by least squares for each column."""
    own = {
        name: vector.detach() for name in ("weight", "bias") if (vector := getattr(site.module, name, None)) is not None
    }
    if "weight" not in own or len(theirs) < 4 or not bool(theirs.isfinite().all()):
        return
    scaled = normed(site, gain=None, bias=False).double().T  # (C, T)
    terms = torch.stack((scaled, torch.ones_like(scaled)), -1)[..., : len(own)]  # (C, T, 1 or 2)
    solution = torch.linalg.lstsq(terms, theirs.double().T[..., None]).solution[..., 0].T  # (1 or 2, C)
    words, changes = [], {}
    for (name, vector), wanted in zip(own.items(), solution, strict=True):
        if float((wanted - vector).abs().max()) > 1e-4 * float(vector.abs().max().clamp(min=1e-3)):
            said, changes[name] = _vector(vector, wanted.to(vector))
            words.append(f"its {'gain' if name == 'weight' else name} {said}")
    if changes:
        yield Attempt(" and ".join(words), partial(_with_parameters, changes), vague=True)


def _vector(own: Tensor, wanted: Tensor) -> tuple[str, Change]:
    """What another vector is beside a parameter: a constant, its numbers in another order, larger by one number."""
    off = 1e-4 * float(wanted.abs().max().clamp(min=1e-3))
    if float((wanted - wanted.mean()).abs().max()) <= off:
        constant = plain(float(wanted.mean()), 1e-3)
        return f"is {constant:g} everywhere", lambda vector: torch.full_like(vector, constant)
    order = torch.empty(len(own), dtype=torch.long)
    order[wanted.argsort()] = own.argsort()
    if float((own[order] - wanted).abs().max()) <= off:
        rolled = order_in_words(order, 0).partition("are rolled")[2]
        return f"is rolled{rolled}" if rolled else "has its numbers in another order", lambda vector: vector[order]
    added = wanted - own
    if float((added - added.mean()).abs().max()) <= off:
        constant = plain(float(added.mean()), 1e-3)
        return f"is larger by {constant:g}", lambda vector: vector + constant
    return "is another", lambda vector: wanted


def _with_parameters(changes: dict[str, Change], site: Site) -> Tensor:
    parameters = {name: change(getattr(site.module, name).detach()) for name, change in changes.items()}
    return Altered(site.trace, site.step, site.layer, parameters=parameters).derive()


def _of_heads(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """Heads that the columns of an output matrix are for: each in the place of another, or a factor of its own."""
    heads = site.config.n_heads
    if not site.step.reads.startswith("n_heads") or not 1 < heads <= _MOST_HEADS:
        return
    x, weight = site.input().double().unflatten(-1, (heads, -1)), site.weight.double().unflatten(-1, (heads, -1))
    added = theirs.double() - (0.0 if site.module.bias is None else site.module.bias.double())
    step = max(1, len(weight) * len(x) // (8 * heads**2 + 64))
    terms = torch.einsum("thd,cgd->tchg", x, weight[::step]).flatten(2).flatten(0, 1)  # (T·C, H·H)
    shares = torch.linalg.lstsq(terms, added[:, ::step].reshape(-1, 1)).solution.view(heads, heads)
    if not bool(shares.isfinite().all()):
        return
    order, own = shares.argmax(-1), shares.diagonal()
    if float((shares - torch.diag(own)).abs().max()) < _NEAR:
        changed = ((own - 1).abs() > _NEAR / 10).nonzero().flatten().tolist()
        for head in changed if len(changed) == 1 else ():
            factor = 0.0 if abs(float(own[head])) < _NEAR else float(own[head])
            words = f"{shown(factor, site.config)} times as large" if factor else "left out"
            scale = torch.ones(heads).index_fill(0, torch.tensor([head]), factor)
            yield Attempt(f"head {head} is {words}", with_parameter("weight", partial(_scaled, scale)), local=True)
    elif float((shares - torch.eye(heads, dtype=shares.dtype)[order]).abs().max()) < _NEAR:
        words = f"its heads in another order: {' '.join(map(str, order.tolist()))}"
        yield Attempt(words, with_parameter("weight", partial(_in_order, order)), local=True)


def _scaled(scale: Tensor, weight: Tensor) -> Tensor:
    """Columns of heads, (C, H·D), times a number for each head."""
    return weight * scale.to(weight).repeat_interleave(weight.shape[-1] // len(scale))


def _in_order(order: Tensor, weight: Tensor) -> Tensor:
    """Columns of heads, (C, H·D), in another order."""
    return weight.unflatten(-1, (len(order), -1))[..., order, :].flatten(-2)


def _of_rank(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """A matrix of low rank that is added to the weight, as adapters are; rows of the weight that are others."""
    ours = site.value
    if site.step.token_axis is None or not bool(theirs.isfinite().all() & ours.isfinite().all()):
        return
    added = (theirs - ours).double()
    flat = added.transpose(0, 1).flatten(1) if added.dim() == 3 else added  # (T, C)
    noise = 2e-5 * float(theirs.abs().max())
    sizes = torch.linalg.svdvals(flat)
    rank, seen = int((sizes > noise * len(flat) ** 0.5).sum()), int(torch.linalg.matrix_rank(site.input().double()))
    everywhere = bool(((flat.abs() > noise).any(-1)).double().mean() > 0.8)
    rows = (flat.abs() > noise).any(0).nonzero().flatten().tolist()
    constant = bool((flat - flat[0]).abs().max() <= noise)
    if constant or not everywhere or not rank:
        return
    wrong = _added(added.to(ours.dtype))
    if len(rows) <= flat.shape[1] // 8:
        words = first_of([str(row) for row in rows], 6)
        yield Attempt(f"row{'s' * (len(rows) > 1)} {words} of its weight are others", wrong, local=True, vague=True)
    elif 4 * rank <= min(seen, flat.shape[1]):
        words = f"a matrix of rank {rank} is added to its weight, as by an adapter"
        yield Attempt(words, wrong, local=True, vague=True)


def _added(numbers: Tensor) -> Wrong:
    return lambda site: site.derive() + numbers


def _of_experts(trace: Trace, differing: StepKey, theirs: Tensor, unseen: Sequence[StepKey]) -> Iterator[Solved]:
    """Experts in another order: for each token, how much of each expert's output is in the sum, solved for."""
    layer = differing[1]
    steps = {type(trace.steps.at(*place).operation): place for place in (*unseen, differing) if place[1] == layer}
    last = [place for place in unseen if type(trace.steps.at(*place).operation) is ExpertLinear][-1:]
    if SumExperts not in steps or not last or trace.config.at(layer).experts > _MOST_EXPERTS:
        return
    total = steps[SumExperts]
    added = trace.steps.sources(trace.steps.at(*total), layer)[0]
    places = trace.steps.sources(trace.steps.at(*added), layer)
    routes = trace.step(*places[1]).double()  # (T, E)
    chosen = trace.steps.sources(trace.steps.at(*last[0]), layer)[1]
    outputs = WrongTrace(trace, {chosen: lambda site: torch.ones_like(site.derive())}).step(*last[0]).double()
    wanted = theirs.double() - trace.step(*differing).double() + trace.step(*total).double()  # (T, C)
    shares = torch.linalg.lstsq(outputs.permute(1, 2, 0), wanted[..., None]).solution[..., 0]  # (T, E)
    apart = torch.cdist(routes.T, shares.T)  # (E, E)
    order = apart.argmin(-1)
    used = routes.any(0)
    missing = [expert for expert in range(len(order)) if expert not in {*order[used].tolist()}]
    order[~used] = torch.tensor(missing[: int((~used).sum())], dtype=order.dtype)
    if sorted(order.tolist()) != list(range(len(order))) or sorted(order.tolist()) == order.tolist():
        return
    words = f"its experts in another order: {first_of([str(expert) for expert in order.tolist()], 8)}"
    maps = [place for place in unseen if type(trace.steps.at(*place).operation) is ExpertLinear]
    yield words, {place: Attempt(words, _reordered(order), local=True) for place in maps}


def _reordered(order: Tensor) -> Wrong:
    """A map of experts whose matrices and biases are in another order."""

    def wrong(site: Site) -> Tensor:
        changed = {name: getattr(site.module, name) for name in ("weight", "bias")}
        parameters = {name: numbers.detach()[order] for name, numbers in changed.items() if numbers is not None}
        return Altered(site.trace, site.step, site.layer, parameters=parameters).derive()

    return wrong
