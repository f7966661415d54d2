"""Wrong formulas that people write, each tried: a reference that makes the mistake, computed by the step table.

A mistake says which steps it gives other values, from those before them. Everything after follows by the rows of the
table, so a mistake is confirmed by numbers: with it, the reference has the tensors that the student's code has.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations import (
    Activate,
    Add,
    Concat,
    Linear,
    Lookup,
    Mask,
    Mix,
    Norm,
    Operation,
    Positions,
    Rotate,
    Scale,
    Scores,
    Softmax,
    Unembed,
)
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.operations.mask import mask_scores
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.operations.operation import into_heads, repeat_groups, side_by_side
from tinytf.steps.operations.rotate import rotary_frequencies, rotary_table, rotate
from tinytf.steps.table import ACTIVATION_NAMES, Place, Step, StepTable
from tinytf.trace.site import Site
from tinytf.trace.trace import Recording, Trace

Wrong = Callable[[Site], Tensor]
"""A step of a trace as a wrong formula makes it. Raises RuntimeError where the formula does not fit its shapes."""


@dataclass(frozen=True)
class Mistake:
    """``words`` say what is done; ``at`` is the operation whose steps it changes, ``also`` others, changed with it.

    A mistake of one slot is tried at the step alone; else at all steps of that operation first.
    """

    words: str
    at: type[Operation]
    wrong: Wrong
    also: tuple[tuple[type[Operation], Wrong], ...] = ()


class Mistaken(Trace):
    """A trace in which some steps are computed by wrong formulas; those before the first of them are as recorded."""

    def __init__(self, base: Trace, wrong: Mapping[Place, Wrong]) -> None:
        kept: dict[str, Tensor] = {}
        for step, layer in base.steps.rows:
            if (step.name, layer) in wrong:
                break
            if step.operation is not None and step.to_loss:
                kept[step.full_name(layer)] = base.step(step.name, layer)
        else:
            kept = dict(base.recording.tensors)
        own = [step for step, _ in base.steps.rows if step.operation is not None and not step.inputs]
        for step in own:
            if not step.from_stream and step.in_layer is False and (step.name, None) not in wrong:
                kept[step.full_name(None)] = base.step(step.name)
        super().__init__(base.model, base.encoding, Recording(kept, (), base.recording.layers))
        self.wrong = {**getattr(base, "wrong", {}), **wrong}
        self._derived = OrderedDict()

    def _derived_step(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> Tensor:
        found = self.wrong.get((step.name, layer))
        if found is None:
            return super()._derived_step(step, layer, heads)
        made = found(Site(self, step, layer))
        if heads is None:
            return made
        shared = self.config.heads_per_kv if "kv head" in step.axes else 1
        return made[[head // shared for head in heads]]


def normed(
    site: Site,
    *,
    centred: bool | None = None,
    eps: float | None = None,
    outside: bool = False,
    correction: int = 0,
    gain: float | None = 0.0,
    bias: bool = True,
    axis: int = -1,
    x: Tensor | None = None,
) -> Tensor:
    """A norm by its formula, with one thing changed. ``gain`` is what is added to it, None for no gain at all."""
    operation, module = site.operation, site.module
    assert isinstance(operation, Norm)
    x = site.input() if x is None else x
    eps = operation.eps if eps is None else eps
    centred = operation.centred if centred is None else centred
    above = x - x.mean(axis, keepdim=True) if centred else x
    variance = above.square().sum(axis, keepdim=True) / (x.shape[axis] - correction)
    sigma = variance.sqrt() + eps if outside else (variance + eps).sqrt()
    made = above / sigma
    weight, added = getattr(module, "weight", None), getattr(module, "bias", None)
    made = made if weight is None or gain is None else made * (weight + gain)
    return made if added is None or not bias else made + added


def _has(attribute: str, wrong: Wrong) -> Wrong:
    """A mistake of modules that have a parameter."""

    def made(site: Site) -> Tensor:
        if getattr(site.module, attribute, None) is None:
            raise RuntimeError(f"no {attribute}")
        return wrong(site)

    return made


def _unlike(value: Callable[[Site], object], wrong: Wrong) -> Wrong:
    """A mistake only where the reference does not do that itself."""

    def made(site: Site) -> Tensor:
        if value(site):
            raise RuntimeError("the reference does this")
        return wrong(site)

    return made


def _norms() -> Iterator[Mistake]:
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
    yield Mistake("the gain is left out", Norm, _has("weight", lambda site: normed(site, gain=None)))
    yield Mistake("the gain is 1 + weight", Norm, _has("weight", lambda site: normed(site, gain=1.0)))
    yield Mistake("the bias is left out", Norm, _has("bias", lambda site: normed(site, bias=False)))
    yield Mistake("it norms over the tokens, not over d_model", Norm, lambda site: normed(site, axis=0))
    yield Mistake(
        "the norm comes after the residual sum, not before", Norm, lambda site: site.input(), ((Add, _norm_after),)
    )
    yield Mistake(
        "what is added is normed, not what attention or the feed-forward reads", Norm, lambda site: site.input(),
        ((Add, _norm_added),),
    )  # fmt: skip
    yield Mistake("it reads the block's input, as in a parallel block", Norm, _norm_of_input)
    yield Mistake("the residual stream goes on from the normed vector, x = norm(x)", Add, _from_normed)


def _uncentred(site: Site) -> Tensor:
    x, module = site.input(), site.module
    made = x / (x.var(-1, keepdim=True, correction=0) + site.operation.eps).sqrt() * gain_of(module)  # type: ignore[attr-defined]
    added = getattr(module, "bias", None)
    return made if added is None else made + added


def _own_norm(site: Site) -> Site:
    """The norm before what a residual sum adds."""
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
    for one in others[1:]:
        added = added + one
    return first + normed(norm, x=added)


def _from_normed(site: Site) -> Tensor:
    _, *others = site.inputs()
    total = normed(_own_norm(site))
    for one in others:
        total = total + one
    return total


def _norm_of_input(site: Site) -> Tensor:
    trace = site.trace
    if site.layer is None or site.sources == ((trace.steps.input, site.layer),):
        raise RuntimeError("it does")
    return normed(site, x=trace.step(trace.steps.input, site.layer))


def _divided(by: Callable[[Site], float]) -> Wrong:
    return lambda site: site.input() / by(site)


def _scales() -> Iterator[Mistake]:
    yield Mistake("scores are not divided", Scale, lambda site: site.input())
    yield Mistake("divided by √d_model, not √d_head", Scale, _divided(lambda site: math.sqrt(site.config.d_model)))
    yield Mistake("divided by d_head: without the root, or twice", Scale, _divided(lambda site: site.config.d_head))
    yield Mistake("divided by √n_heads", Scale, _divided(lambda site: math.sqrt(site.config.n_heads)))
    yield Mistake("divided by √T, the length of the text", Scale, _divided(lambda site: math.sqrt(len(site.ids))))
    yield Mistake("multiplied by √d_head, not divided", Scale, _divided(lambda site: 1 / site.config.score_divisor))


def _ones(site: Site) -> Tensor:
    return torch.ones(len(site.ids), len(site.ids), dtype=torch.bool)


def _masked(allowed: Callable[[Site], Tensor]) -> Wrong:
    return lambda site: mask_scores(site.input(), allowed(site))


def _masks() -> Iterator[Mistake]:
    yield Mistake("there is no mask: every token sees the future", Mask, lambda site: site.input())
    yield Mistake("the mask is upside down: it hides the past", Mask, _masked(lambda site: _ones(site).triu()))
    yield Mistake(
        "the mask is upside down, and hides the token itself too", Mask, _masked(lambda site: _ones(site).triu(1))
    )
    yield Mistake("a token sees the next one: the mask starts too late", Mask, _masked(lambda s: _ones(s).tril(1)))
    yield Mistake("the mask hides the token itself", Mask, _masked(lambda site: _ones(site).tril(-1)))
    yield Mistake(
        "hidden scores become 0, or a small number, not −∞: softmax still gives them a share", Mask,
        lambda site: site.input().masked_fill(~_ones(site).tril(), 0.0),
    )  # fmt: skip
    yield Mistake(
        "the mask is added as 1 and 0, not as 0 and −∞", Mask, lambda site: site.input() + _ones(site).tril().float()
    )
    yield Mistake(
        "masked after the softmax: rows no longer sum to 1", Mask, lambda site: site.input(),
        ((Softmax, lambda site: site.input().softmax(-1).masked_fill(~_ones(site).tril(), 0.0)),),
    )  # fmt: skip


def _softmaxes() -> Iterator[Mistake]:
    yield Mistake("softmax over the queries (dim=-2), not over the keys", Softmax, lambda s: s.input().softmax(-2))
    yield Mistake("softmax over the heads (dim=1), not over the keys", Softmax, lambda s: s.input().softmax(0))
    yield Mistake("there is no softmax", Softmax, lambda site: site.input().nan_to_num(neginf=0.0))
    yield Mistake(
        "softmax runs before the scores are divided", Softmax,
        lambda site: (site.input() * site.config.score_divisor).softmax(-1) / site.config.score_divisor,
    )  # fmt: skip


def _tiled(x: Tensor, heads: int) -> Tensor:
    """Key heads in turns, 0 1 0 1, where each should serve neighbours, 0 0 1 1."""
    if len(x) == heads:
        raise RuntimeError("every query head has its own")
    return x.repeat(heads // len(x), 1, 1)


def _by(remade: Callable[[Tensor], Tensor]) -> Wrong:
    """Queries, keys or values, (T, H·D), split into heads in another way."""

    def made(site: Site) -> Tensor:
        if not site.step.has_heads or type(site.operation) is not Linear:
            return site.derive()
        flat = side_by_side(site.derive())
        heads = site.config.n_kv_heads if "kv head" in site.step.axes else site.config.n_heads
        return remade(flat.unflatten(-1, (heads, -1)))  # (T, H, D)

    return made


def _seen_as(x: Tensor) -> Tensor:
    """(T, H, D) read as (H, T, D), without a transpose."""
    return x.contiguous().view(x.shape[1], x.shape[0], x.shape[2])


def _inner(x: Tensor) -> Tensor:
    """(T, H, D) read as (T, D, H): heads are every H-th number."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1]).permute(2, 0, 1)


def _heads() -> Iterator[Mistake]:
    flat_back = lambda site: site.input().contiguous().view(site.input().shape[1], -1)  # noqa: E731
    yield Mistake("heads are split by view(B, H, T, D) without a transpose, which mixes tokens", Linear, _by(_seen_as))
    yield Mistake(
        "heads are split and joined by view alone, without a transpose, which mixes tokens", Linear, _by(_seen_as),
        ((Concat, flat_back),),
    )  # fmt: skip
    yield Mistake("heads are split as (d_head, n_heads), not (n_heads, d_head)", Linear, _by(_inner))
    yield Mistake(
        "heads are split and joined as (d_head, n_heads), not (n_heads, d_head)", Linear, _by(_inner),
        ((Concat, lambda site: site.input().permute(1, 2, 0).flatten(1)),),
    )  # fmt: skip
    yield Mistake("heads are joined without a transpose back, which mixes tokens", Concat, flat_back)
    yield Mistake(
        "heads are joined as (d_head, n_heads), not (n_heads, d_head)", Concat,
        lambda site: site.input().permute(1, 2, 0).flatten(1),
    )  # fmt: skip
    yield Mistake(
        "shared key heads go to query heads in turns (repeat), not to neighbours (repeat_interleave)", Scores,
        lambda site: site.input(0) @ _tiled(site.input(1), site.config.n_heads).mT,
        ((Mix, lambda site: site.input(0) @ _tiled(site.input(1), site.config.n_heads)),),
    )  # fmt: skip
    yield Mistake(
        "k·qᵀ: queries and keys are exchanged", Scores,
        lambda site: repeat_groups(site.input(1), site.config.n_heads) @ site.input(0).mT,
    )  # fmt: skip
    yield Mistake("queries with queries, q·qᵀ", Scores, lambda site: site.input(0) @ site.input(0).mT)
    yield Mistake(
        "the weights are transposed before they meet the values", Mix,
        lambda site: site.input(0).mT @ repeat_groups(site.input(1), site.config.n_heads),
    )  # fmt: skip
    yield Mistake("weights with keys, not with values", Mix, lambda s: s.input(0) @ _attended(s, 1))
    yield Mistake("weights with queries, not with values", Mix, lambda s: s.input(0) @ _attended(s, 0))


def _attended(site: Site, number: int) -> Tensor:
    """The queries (0) or keys (1) that the scores of a layer are made of."""
    scores = next(step for step in site.trace.steps.in_layer(site.layer or 0) if isinstance(step.operation, Scores))
    return repeat_groups(Site(site.trace, scores, site.layer).input(number), site.config.n_heads)


def _linear(site: Site, weight: Tensor, bias: bool = True) -> Tensor:
    added = getattr(site.module, "bias", None)
    made = site.input() @ weight.T
    made = made if added is None or not bias else made + added
    return into_heads(made, site.config.d_head) if site.step.has_heads else made


def _without_norm(site: Site) -> Tensor:
    """A linear map of what the norm before it read."""
    (name, layer), *_ = site.sources
    norm = Site(site.trace, site.trace.steps.at(name, layer), layer)
    if not isinstance(norm.operation, Norm):
        raise RuntimeError("no norm before it")
    made = site.module(norm.input())
    return into_heads(made, site.config.d_head) if site.step.has_heads else made


def _linears() -> Iterator[Mistake]:
    yield Mistake("the bias is left out", Linear, _has("bias", lambda s: _linear(s, s.module.weight, bias=False)))
    yield Mistake("the matrix is transposed", Linear, lambda site: _linear(site, site.module.weight.T))
    yield Mistake("the map is left out", Linear, lambda site: site.input() + 0 * site.derive())
    yield Mistake("it reads the stream before its norm", Linear, _without_norm)


def _activations() -> Iterator[Mistake]:
    for name, act in ACTIVATIONS.items():
        yield Mistake(
            f"the activation is {'GELU(erf)' if name == 'gelu' else ACTIVATION_NAMES[name]}", Activate,
            _unlike(lambda s, name=name: s.operation.name == name, lambda s, act=act: _act(s, act)),  # type: ignore[misc]
        )  # fmt: skip
    yield Mistake("the activation is σ(x)", Activate, lambda site: _act(site, torch.sigmoid))
    yield Mistake("the activation is left out", Activate, lambda site: _act(site, lambda x: x))
    yield Mistake(
        "gate and up are exchanged: the activation is on up", Activate,
        lambda site: ACTIVATIONS[_named(site)](site.input(1)) * site.input(0),
    )  # fmt: skip
    yield Mistake("up is not multiplied", Activate, lambda s: ACTIVATIONS[_named(s)](s.input(0)) + 0 * s.input(1))
    yield Mistake(
        "the gate is added, not multiplied", Activate, lambda s: ACTIVATIONS[_named(s)](s.input(0)) + s.input(1)
    )
    yield Mistake(
        "the activation is on the product of gate and up", Activate,
        lambda site: ACTIVATIONS[_named(site)](site.input(0) * site.input(1)),
    )  # fmt: skip


def _named(site: Site) -> str:
    assert isinstance(site.operation, Activate)
    if len(site.sources) < 2:
        raise RuntimeError("no gate")
    return site.operation.name


def _act(site: Site, act: Callable[[Tensor], Tensor]) -> Tensor:
    first, *gated = site.inputs()
    return act(first) * gated[0] if gated else act(first)


def _sums() -> Iterator[Mistake]:
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
    def made(site: Site) -> Tensor:
        table, first = getattr(site.module, "weight", None), site.module.offset + shift
        if table is None:
            raise RuntimeError("positions are computed")
        return table[first : first + len(site.ids)]

    return made


def _embeddings() -> Iterator[Mistake]:
    yield Mistake(
        "token embeddings are not multiplied by √d_model", Lookup,
        _unlike(lambda s: s.module.scale == 1.0, lambda s: s.derive() / s.module.scale),
    )  # fmt: skip
    yield Mistake(
        "token embeddings are multiplied by √d_model", Lookup,
        _unlike(lambda s: s.module.scale != 1.0, lambda s: s.derive() * math.sqrt(s.config.d_model)),
    )  # fmt: skip
    yield Mistake("positions start at 1, not at 0", Positions, _positions(1))
    yield Mistake("every token has position 0", Positions, lambda s: _positions(0)(s)[:1].expand(len(s.ids), -1))


def _turned(
    site: Site, *, theta: float | None = None, shift: int = 0, back: bool = False, width: int | None = None
) -> Tensor:
    operation = site.operation
    assert isinstance(operation, Rotate)
    x, rope = site.input(), operation.rope
    rope = rope if theta is None else rope._replace(theta=theta)
    cosine, sine = rotary_table(len(site.ids) + shift, rope, x.device, x.dtype)
    if width is not None:
        angle = torch.arange(len(site.ids)).float()[:, None] * rope.theta ** (
            -torch.arange(0, x.shape[-1], 2).float() / width
        )
        cosine, sine = (torch.cat((wave, wave), -1) for wave in (angle.cos(), angle.sin()))
    return rotate(x, cosine[shift:], -sine[shift:] if back else sine[shift:])


def _neighbours(site: Site) -> Tensor:
    """Dimensions 2i and 2i + 1 as a pair, where the reference pairs i and i + D/2."""
    operation = site.operation
    assert isinstance(operation, Rotate)
    x = site.input()
    angle = torch.arange(len(site.ids)).float()[:, None] * rotary_frequencies(operation.rope)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).flatten(-2)


def _mixed(site: Site) -> Tensor:
    """Neighbours as a pair, by cosines and sines that are laid out for halves."""
    operation, x = site.operation, site.input()
    assert isinstance(operation, Rotate)
    cosine, sine = rotary_table(len(site.ids), operation.rope, x.device, x.dtype)
    return x * cosine + torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2) * sine


def _rotations() -> Iterator[Mistake]:
    yield Mistake("nothing is rotated: RoPE is left out", Rotate, lambda site: site.input())
    yield Mistake("RoPE turns neighbours (2i, 2i+1), not halves (i, i + d/2)", Rotate, _neighbours)
    yield Mistake("RoPE pairs neighbours (2i, 2i+1), and takes the angles of halves (i, i + d/2)", Rotate, _mixed)
    yield Mistake("RoPE turns the other way", Rotate, lambda site: _turned(site, back=True))
    yield Mistake("positions start at 1, not at 0", Rotate, lambda site: _turned(site, shift=1))
    yield Mistake(
        "the frequencies divide by d_model, not d_head", Rotate, lambda site: _turned(site, width=site.config.d_model)
    )
    for theta in (100.0, 1e3, 1e4, 1e5, 5e5, 1e6):
        made: Wrong = lambda site, theta=theta: _turned(site, theta=theta)  # type: ignore[misc]  # noqa: E731
        yield Mistake(
            f"RoPE's base is {theta:,.0f}", Rotate,
            _unlike(lambda site, theta=theta: site.operation.rope.theta == theta, made),  # type: ignore[misc]
        )  # fmt: skip
    yield Mistake(
        "values are rotated too", Mix,
        lambda site: site.input(0) @ repeat_groups(_turned_values(site), site.config.n_heads),
    )  # fmt: skip


def _turned_values(site: Site) -> Tensor:
    if site.config.positions != "rotary":
        raise RuntimeError("nothing is rotated")
    values = site.input(1)
    return rotate(values, *rotary_table(len(site.ids), site.config.rope, values.device, values.dtype))


def _logits() -> Iterator[Mistake]:
    yield Mistake(
        "the head is tied to the embeddings, x·Eᵀ", Unembed,
        _unlike(lambda s: s.config.tied_head, lambda s: s.input() @ s.trace.model.embed.tokens.weight.T),
    )  # fmt: skip
    yield Mistake("probabilities are returned, not logits", Unembed, lambda site: site.derive().softmax(-1))
    yield Mistake("log-probabilities are returned, not logits", Unembed, lambda s: s.derive().log_softmax(-1))
    yield Mistake("the bias is left out", Unembed, _has("bias", lambda s: s.derive() - s.module.bias))
    yield Mistake("the final norm is passed over", Unembed, lambda site: _unnormed(site))


def _unnormed(site: Site) -> Tensor:
    (name, layer), *_ = site.sources
    before = Site(site.trace, site.trace.steps.at(name, layer), layer)
    if not isinstance(before.operation, Norm):
        raise RuntimeError("no norm before it")
    return site.module(before.input(), site.weight)


MISTAKES: tuple[Mistake, ...] = (
    *_scales(), *_masks(), *_softmaxes(), *_heads(), *_rotations(), *_norms(), *_activations(), *_sums(),
    *_linears(), *_embeddings(), *_logits(),
)  # fmt: skip
"""Every mistake that is tried."""


def places(mistake: Mistake, table: StepTable, at: Place, scope: str) -> dict[Place, Wrong]:
    """The steps that a mistake changes, from the layer of ``at`` on: ``all`` of that operation, of that ``name``, or
    ``one`` step alone; those that it changes as well go with them."""
    found: dict[Place, Wrong] = {}
    first = at[1] or 0
    for step, layer in table.rows:
        if (layer is not None and at[1] is not None and layer < first) or (step.from_stream and layer is not None):
            continue
        named = scope == "all" or step.name == at[0]
        alone = scope != "one" or layer == at[1]
        inside = layer is not None or not mistake.also  # what changes several kinds of steps is the form of a block
        if type(step.operation) is mistake.at and named and alone and inside:
            found[step.name, layer] = mistake.wrong
        for operation, wrong in mistake.also:
            if type(step.operation) is operation and alone and layer is not None:
                found[step.name, layer] = wrong
    return found
