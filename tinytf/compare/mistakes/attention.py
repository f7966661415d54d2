"""Mistakes of attention: the divisor of the scores, the mask, the axis of the softmax, heads."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tinytf.compare.mistakes.mistake import Mistake, Wrong
from tinytf.steps.operations import (
    Concat,
    Linear,
    Mask,
    Mix,
    Scale,
    Scores,
    Softmax,
)
from tinytf.steps.operations.mask import mask_scores
from tinytf.steps.operations.operation import repeat_groups, side_by_side
from tinytf.trace.site import Site


def _divided(by: Callable[[Site], float]) -> Wrong:
    return lambda site: site.input() / by(site)


def scales() -> Iterator[Mistake]:
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


def masks() -> Iterator[Mistake]:
    yield Mistake("there is no mask: every token sees the future", Mask, lambda site: site.input())
    yield Mistake("the mask is upside down: it hides the past", Mask, _masked(lambda site: _ones(site).triu()))
    yield Mistake(
        "the mask is upside down, and hides the token itself too", Mask, _masked(lambda site: _ones(site).triu(1))
    )
    yield Mistake("a token sees the next one: the mask starts too late", Mask, _masked(lambda s: _ones(s).tril(1)))
    yield Mistake("the mask hides the token itself", Mask, _masked(lambda site: _ones(site).tril(-1)))
    yield Mistake(
        "the mask hides the token itself, by a large number instead of −∞", Mask,
        lambda site: site.input().masked_fill(~_ones(site).tril(-1), -1e30),
    )  # fmt: skip
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


def softmaxes() -> Iterator[Mistake]:
    yield Mistake("softmax over the queries (dim=-2), not over the keys", Softmax, lambda s: s.input().softmax(-2))
    yield Mistake("softmax over the heads (dim=1), not over the keys", Softmax, lambda s: s.input().softmax(0))
    yield Mistake(
        "softmax over the batch (dim=0), not over the keys: every weight is 1", Softmax,
        lambda site: site.input()[None].softmax(0)[0], across_texts=True,
    )  # fmt: skip
    yield Mistake("there is no softmax", Softmax, lambda site: site.input().nan_to_num(neginf=0.0))
    yield Mistake(
        "softmax runs before the scores are divided", Softmax,
        lambda site: (site.input() * site.config.score_divisor).softmax(-1) / site.config.score_divisor,
    )  # fmt: skip


def _tiled(x: Tensor, heads: int) -> Tensor:
    """Repeat key heads in turns, 0 1 0 1, where each should serve neighbours, 0 0 1 1."""
    if len(x) == heads:
        raise RuntimeError("every query head has its own key head")
    return x.repeat(heads // len(x), 1, 1)


def _split(into_heads: Callable[[Tensor], Tensor]) -> Wrong:
    """Split queries, keys or values, (T, H·D), into heads in another way."""

    def split(site: Site) -> Tensor:
        flat = side_by_side(site.derive())
        heads = site.config.n_kv_heads if "kv head" in site.step.axes else site.config.n_heads
        return into_heads(flat.unflatten(-1, (heads, -1)))  # (T, H, D)

    return split


def _joint_order(order: str) -> Wrong:
    """Read queries, keys and values from a joint matrix in another ``order``."""

    def exchanged(site: Site) -> Tensor:
        if site.step.role not in order:
            raise RuntimeError("no queries, keys or values")
        role = "qkv"[order.index(site.step.role)]
        steps = [step for step in site.trace.steps.in_layer(site.layer or 0) if type(step.operation) is Linear]
        linear = next(step for step in steps if step.has_heads and step.role == role)
        if linear.axes != site.step.axes:
            raise RuntimeError("their sizes differ")
        return Site(site.trace, linear, site.layer).derive()

    return exchanged


def _with_heads(count: Callable[[int], int]) -> Wrong:
    """Compute scores, their division and the mix of values with another number of heads."""

    def with_heads(site: Site) -> Tensor:
        heads = count(site.config.n_heads)
        if site.config.n_kv_heads != site.config.n_heads or heads in (0, site.config.n_heads):
            raise RuntimeError("they cannot be split so")
        if isinstance(site.operation, Scale):
            return site.input() / math.sqrt(site.config.d_model / heads)
        right = side_by_side(site.input(1)).unflatten(-1, (heads, -1)).transpose(0, 1)  # (H', T, D')
        if isinstance(site.operation, Mix):
            return site.input(0) @ right
        return side_by_side(site.input(0)).unflatten(-1, (heads, -1)).transpose(0, 1) @ right.mT

    return with_heads


def _seen_as(x: Tensor) -> Tensor:
    """(T, H, D) read as (H, T, D), without a transpose."""
    return x.contiguous().view(x.shape[1], x.shape[0], x.shape[2])


def _inner(x: Tensor) -> Tensor:
    """(T, H, D) read as (T, D, H): heads are every H-th number."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1]).permute(2, 0, 1)


def heads() -> Iterator[Mistake]:
    flat_back = lambda site: site.input().contiguous().view(site.input().shape[1], -1)  # noqa: E731
    yield Mistake(
        "heads are split by view(B, H, T, D) without a transpose, which mixes tokens", Linear, _split(_seen_as),
        in_heads=True,
    )  # fmt: skip
    yield Mistake(
        "heads are split and joined by view alone, without a transpose, which mixes tokens", Linear, _split(_seen_as),
        ((Concat, flat_back),), in_heads=True,
    )  # fmt: skip
    yield Mistake(
        "heads are split as (d_head, n_heads), not (n_heads, d_head)", Linear, _split(_inner), in_heads=True
    )  # fmt: skip
    yield Mistake(
        "heads are split and joined as (d_head, n_heads), not (n_heads, d_head)", Linear, _split(_inner),
        ((Concat, lambda site: site.input().permute(1, 2, 0).flatten(1)),), in_heads=True,
    )  # fmt: skip
    for order in ("qvk", "vqk", "kvq", "vkq"):
        yield Mistake(
            f"q, k and v are taken in the order {', '.join(order)}", Linear, _joint_order(order), in_heads=True
        )
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
        "shared value heads go to query heads in turns (repeat), not to neighbours (repeat_interleave)", Mix,
        lambda site: site.input(0) @ _tiled(site.input(1), site.config.n_heads),
    )  # fmt: skip
    for words, count in (("heads are not split: there is one", lambda n: 1), ("twice as many heads", lambda n: 2 * n),
                         ("half as many heads", lambda n: n // 2)):  # fmt: skip
        yield Mistake(words, Scores, _with_heads(count), ((Scale, _with_heads(count)), (Mix, _with_heads(count))))
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
    """The queries (0) or keys (1) of a layer's scores."""
    scores = next(step for step in site.trace.steps.in_layer(site.layer or 0) if isinstance(step.operation, Scores))
    return repeat_groups(Site(site.trace, scores, site.layer).input(number), site.config.n_heads)
