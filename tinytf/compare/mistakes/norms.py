"""Mistakes of norms: their formula and their position."""

from collections.abc import Iterator

from torch import Tensor

from tinytf.compare.mistakes.mistake import Mistake, has
from tinytf.steps.operations import (
    Add,
    Norm,
)
from tinytf.steps.operations.norm import gain_of
from tinytf.trace.site import Site


def normed(
    site: Site,
    *,
    centred: bool | None = None,
    eps: float | None = None,
    outside: bool = False,
    correction: int = 0,
    power: float = 0.5,
    mean: bool = True,
    gain: float | None = 0.0,
    bias: bool = True,
    axis: int = -1,
    x: Tensor | None = None,
) -> Tensor:
    """A norm by its formula, with some settings changed. ``gain`` is added to the weight; None leaves the gain out."""
    operation, module = site.operation, site.module
    assert isinstance(operation, Norm)
    x = site.input() if x is None else x
    eps = operation.eps if eps is None else eps
    centred = operation.centred if centred is None else centred
    deviation = x - x.mean(axis, keepdim=True) if centred else x
    variance = deviation.square().sum(axis, keepdim=True) / (x.shape[axis] - correction if mean else 1)
    sigma = variance.sqrt() + eps if outside else (variance + eps) ** power
    scaled = deviation / sigma
    weight, bias_vector = getattr(module, "weight", None), getattr(module, "bias", None)
    scaled = scaled if weight is None or gain is None else scaled * (weight + gain)
    return scaled if bias_vector is None or not bias else scaled + bias_vector


def norms() -> Iterator[Mistake]:
    yield Mistake("the norm is left out", Norm, lambda site: site.input())
    yield Mistake("the mean is not subtracted (RMSNorm)", Norm, lambda site: normed(site, centred=False))
    yield Mistake("the mean is subtracted (LayerNorm)", Norm, lambda site: normed(site, centred=True))
    yield Mistake("ε is left out, or below 1e-8", Norm, lambda site: normed(site, eps=0.0))
    for eps in (1e-6, 1e-5, 1e-3):
        yield Mistake(f"ε is {eps:g}", Norm, lambda site, eps=eps: normed(site, eps=eps))  # type: ignore[misc]
    yield Mistake("it divides by σ and does not subtract the mean", Norm, _uncentred)
    yield Mistake("ε is added to σ, not to the variance", Norm, lambda site: normed(site, outside=True))
    yield Mistake("the variance divides by n − 1 (unbiased)", Norm, lambda site: normed(site, correction=1))
    yield Mistake(
        "the variance divides by n − 1, and ε is added to σ", Norm,
        lambda site: normed(site, correction=1, outside=True),
    )  # fmt: skip
    yield Mistake(
        "the variance divides by n − 1, and ε = 1e-6 is added to σ", Norm,
        lambda site: normed(site, correction=1, outside=True, eps=1e-6),
    )  # fmt: skip
    yield Mistake("it divides by the variance, without the root", Norm, lambda site: normed(site, power=1.0))
    yield Mistake("the squares are summed, not averaged", Norm, lambda site: normed(site, mean=False))
    yield Mistake("it has the parameters of the layer's first norm", Norm, _first_norm)
    yield Mistake("the gain is left out", Norm, has("weight", lambda site: normed(site, gain=None)))
    yield Mistake("the gain is 1 + weight", Norm, has("weight", lambda site: normed(site, gain=1.0)))
    yield Mistake("the bias is left out", Norm, has("bias", lambda site: normed(site, bias=False)))
    yield Mistake("it norms over the tokens, not over d_model", Norm, lambda site: normed(site, axis=0))
    yield Mistake(
        "the norm comes after the residual sum, not before", Norm, lambda site: site.input(), ((Add, _norm_after),)
    )
    yield Mistake(
        "what is added is normed, not what attention or the feed-forward reads", Norm, lambda site: site.input(),
        ((Add, _norm_added),),
    )  # fmt: skip
    yield Mistake(
        "the feed-forward comes before attention", Norm, _norm_in_turn, ((Add, _sum_in_turn),)
    )  # fmt: skip
    yield Mistake("it reads the block's input, as in a parallel block", Norm, _norm_of_input)
    yield Mistake("the residual stream goes on from the normed vector, x = norm(x)", Add, _from_normed)


def _uncentred(site: Site) -> Tensor:
    x, module = site.input(), site.module
    scaled = x / (x.var(-1, keepdim=True, correction=0) + site.operation.eps).sqrt() * gain_of(module)  # type: ignore[attr-defined]
    bias_vector = getattr(module, "bias", None)
    return scaled if bias_vector is None else scaled + bias_vector


def _first_norm(site: Site) -> Tensor:
    norms = [step for step in site.trace.steps.in_layer(site.layer or 0) if type(step.operation) is Norm]
    if site.layer is None or site.step is norms[0]:
        raise RuntimeError("no norm before it in the layer")
    return Site(site.trace, norms[0], site.layer).module(site.input())


def _own_norm(site: Site) -> Site:
    """The norm before the branch that a residual sum adds."""
    trace = site.trace
    norms = [step for step in trace.steps.stream_norms if isinstance(step.operation, Norm)]
    norms = norms or [
        step for step in trace.steps.layer_steps
        if isinstance(step.operation, Norm) and not step.has_heads and step.role == "residual"
    ]  # fmt: skip
    if site.layer is None:
        raise RuntimeError("no norm")
    before = [step for step in norms if step.inputs and step.inputs[0] == site.sources[0][0]]
    if not before:
        raise RuntimeError("no norm")
    return Site(trace, before[0], site.layer)


def _norm_after(site: Site) -> Tensor:
    norm = _own_norm(site)
    return normed(norm, x=site.derive())


def _norm_added(site: Site) -> Tensor:
    first, *others = site.inputs()
    norm = _own_norm(site)
    added = others[0]
    for summand in others[1:]:
        added = added + summand
    return first + normed(norm, x=added)


def _from_normed(site: Site) -> Tensor:
    _, *others = site.inputs()
    total = normed(_own_norm(site))
    for summand in others:
        total = total + summand
    return total


def _norm_of_input(site: Site) -> Tensor:
    trace = site.trace
    if site.layer is None or site.sources == ((trace.steps.input, site.layer),):
        raise RuntimeError("it does")
    return normed(site, x=trace.step(trace.steps.input, site.layer))


def _in_turn(site: Site) -> tuple[Tensor, Site, Site]:
    """The input of a block with two residual sums one after the other, and the two sums."""
    steps, layer = site.trace.steps, site.layer
    sums = [
        Site(site.trace, step, layer) for step in steps.in_layer(layer or 0)
        if type(step.operation) is Add and not step.from_stream
    ]  # fmt: skip
    if (
        layer is None
        or len(sums) != 2
        or [site_of_sum.sources[0][0] for site_of_sum in sums] != [steps.input, sums[0].step.name]
    ):
        raise RuntimeError("not two sums, one after the other")
    return site.trace.step(steps.input, layer), sums[0], sums[1]


def _norm_in_turn(site: Site) -> Tensor:
    x, attended, fed = _in_turn(site)
    before_attention = site.sources[0] == attended.sources[0]
    if not before_attention and site.sources[0] != fed.sources[0]:
        raise RuntimeError("it norms something else")
    return normed(site, x=x + fed.input(1) if before_attention else x)


def _sum_in_turn(site: Site) -> Tensor:
    x, attended, fed = _in_turn(site)
    return x + fed.input(1) if site.step is attended.step else fed.input() + attended.input(1)
