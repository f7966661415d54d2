"""What attention reads, solved for from its output: which keys a query sees, and what is added to the scores of a head.

The output is a sum of the values of all heads, each turned by the matrix of the output; so what is unknown of the
shares follows by Gauss and Newton's method. Shapes: H heads, Q queries, K keys, C numbers of the output.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor

from tinytf.compare.attempts import Attempt
from tinytf.compare.constants import plain, shown
from tinytf.compare.masks import hides, mask_of, seen_by, sights, windows
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.config import ModelConfig
from tinytf.sentences import first_of, listed
from tinytf.steps.operations import Alibi, Mask, Mix, Softmax
from tinytf.steps.operations.alibi import alibi_slopes
from tinytf.steps.table import StepKey
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_MOST_TOKENS, _MOST_HEADS = 64, 32
_ROUNDS = 30
_SAME = 1e-4
"""How near the sum of all heads comes to the run's own output, relative to its largest number; else it is no sum."""
_NEAR = 1e-2
"""How far a solved slope may be from a known one, relative to the largest."""
_GIVES = 1e-6
"""What share of the square of the output may be off where numbers that are solved for give it."""
_HIDDEN = -1e4
"""Scores below this are hidden by a mask."""
Solved = tuple[str, dict[StepKey, Attempt]]


@dataclass(frozen=True)
class Attended:
    """An attention whose output is seen: its ``scores`` (H, Q, K) before the mask, which keys are seen (Q, K), what of
    a key each head adds to the output, ``values`` (H, K, C), what is added beside, ``rest`` (Q, C), and what another
    program has there, ``wanted`` (Q, C).
    """

    scores: Tensor
    seen: Tensor
    values: Tensor
    rest: Tensor
    wanted: Tensor

    def shares(self, added: Tensor, times: Tensor) -> Tensor:
        """The weights (H, Q, K), with numbers added to the scores, and a factor of each key before they are divided."""
        scores = (self.scores + added).masked_fill(times == 0, -torch.inf)
        powers = (scores - scores.amax(-1, keepdim=True)).exp() * times
        return powers / powers.sum(-1, keepdim=True)

    def output(self, shares: Tensor) -> Tensor:
        return torch.einsum("hqk,hkc->qc", shares, self.values) + self.rest

    def off(self, shares: Tensor) -> float:
        return float((self.output(shares) - self.wanted).square().sum())


def solved_attention(trace: Trace, differing: StepKey, theirs: Tensor, unseen: Sequence[StepKey]) -> Iterator[Solved]:
    """Masks and slopes by distance that give another program's output of attention, with the step that has them."""
    places = {type(trace.steps.at(*place).operation): place for place in (*unseen, differing)}
    yield from _slopes_of_scores(trace, differing, theirs, places)
    if Softmax not in places or Mix not in places or theirs.shape != trace.step(*differing).shape:
        return
    softmax = Site(trace, trace.steps.at(*places[Softmax]), differing[1])
    before = softmax.sources[0]
    mask = softmax if hides(softmax) else Site(trace, trace.steps.at(*before), before[1])
    attended = _attended(trace, differing, theirs, places[Mix], mask)
    if attended is None:
        return
    at = (mask.step.name, mask.layer)
    if (seen := _solved_sight(attended)) is not None:
        yield _sight_in_words(seen, attended.seen), {at: Attempt(_sight_in_words(seen, attended.seen), mask_of(seen))}
    alibi = Site(trace, trace.steps.at(*places[Alibi]), differing[1]) if Alibi in places else None
    times = _solved_slopes(attended, attended.scores)
    if times is not None and float(times.max() - times.min()) > _NEAR:  # else it is the divisor of all
        words = _times_in_words(1 + times, trace.config)
        yield words, {at: Attempt(words, _scaled(1 + times))}
    if (added := _solved_slopes(attended, _distances(attended.scores))) is not None:
        own = torch.zeros_like(added)
        if alibi is not None:
            operation: Any = alibi.operation
            own, at = operation.scale * torch.tensor(operation.slopes(), dtype=own.dtype), places[Alibi]
        slopes = own + added
        words = _slopes_in_words(slopes, own, trace.config)
        yield words, {at: Attempt(words, _with_slopes(slopes, alibi is not None))}


def _slopes_of_scores(
    trace: Trace, differing: StepKey, theirs: Tensor, places: Mapping[type, StepKey]
) -> Iterator[Solved]:
    """Slopes by distance that give another program's scores, where it saved those, in a model with ALiBi."""
    if Alibi not in places or type(trace.steps.at(*differing).operation) not in (Alibi, Mask):
        return
    alibi = Site(trace, trace.steps.at(*places[Alibi]), differing[1])
    scores, operation = alibi.input().double(), cast(Alibi, alibi.operation)
    if theirs.shape != scores.shape:
        return
    at = torch.arange(scores.shape[-1], dtype=scores.dtype)
    distance = torch.where(theirs > _HIDDEN, at - at[:, None], 0.0)  # (H, Q, K)
    added = (theirs.double() - scores).masked_fill(distance == 0, 0.0)
    slopes = (added * distance).sum((1, 2)) / distance.square().sum((1, 2))
    words = _slopes_in_words(slopes, operation.scale * torch.tensor(operation.slopes()).to(slopes), trace.config)
    yield words, {places[Alibi]: Attempt(words, _with_slopes(slopes, True))}


def _attended(trace: Trace, differing: StepKey, theirs: Tensor, mix: StepKey, mask: Site) -> Attended | None:
    """The attention before a step; None where the step is no sum over its heads and keys."""
    scores = mask.input().double()
    heads, count, keys = scores.shape
    axis = trace.steps.at(*differing).token_axis
    known = bool(theirs.isfinite().all() & scores.isfinite().all())
    if axis is None or heads > _MOST_HEADS or not 3 <= count <= _MOST_TOKENS or count != keys or not known:
        return None

    def flat(x: Tensor) -> Tensor:
        return x.double().movedim(axis, 0).flatten(1)

    def of(heads_out: Tensor) -> Tensor:
        return flat(WrongTrace(trace, {mix: lambda _: heads_out}).step(*differing))

    values = Site(trace, trace.steps.at(*mix), differing[1]).input(1)
    values = values.repeat_interleave(heads // len(values), 0)
    rest = of(torch.zeros_like(values))
    alone = [
        torch.zeros_like(values).index_add(0, torch.tensor([head]), values[head : head + 1]) for head in range(heads)
    ]
    read = Attended(scores, seen_by(mask), torch.stack([of(one) - rest for one in alone]), rest, flat(theirs))
    own = read.output(read.shares(torch.zeros_like(scores), read.seen.double()))
    ours = flat(trace.step(*differing))
    return read if float((own - ours).abs().max()) <= _SAME * float(ours.abs().max()) else None


def _solved_sight(read: Attended) -> Tensor | None:
    """Which keys each query sees, (Q, K), whatever the model hides; None where no mask gives the output."""
    own, every = read.seen.double(), torch.ones_like(read.scores[0])
    found = [_solved_times(read, *of) for of in ((own, own), (own, every), (every, every))]
    best = torch.stack([off for _, off in found]).argmin(0)
    solved = torch.stack([times for times, _ in found])[best, torch.arange(len(best))] > 0.5
    least = _GIVES * float((read.wanted - read.rest).square().sum())
    rows = [_one_by_one(read, query, (solved[query], read.seen[query]), least) for query in range(len(own))]
    seen = torch.stack(rows)
    gives = read.off(read.shares(torch.zeros_like(read.scores), seen.double()))
    return seen if gives <= least and not torch.equal(seen, read.seen) else None


def _one_by_one(read: Attended, query: int, starts: Sequence[Tensor], least: float) -> Tensor:
    """The keys (K,) that a query sees: from a start on, hiding or showing one at a time while that comes nearer."""
    powers = (read.scores[:, query] - read.scores[:, query].amax(-1, keepdim=True)).exp()  # (H, K)

    def off(seen: Tensor) -> Tensor:  # (N, K) -> (N,)
        shares = powers * seen[:, None]  # (N, H, K)
        shares = shares / shares.sum(-1, keepdim=True)
        apart = torch.einsum("nhk,hkc->nc", shares, read.values) + read.rest[query] - read.wanted[query]
        return apart.square().sum(-1).nan_to_num(torch.inf)

    ends = []
    for seen in starts:
        now = float(off(seen[None])[0])
        while now > least / len(read.wanted):
            others = seen ^ torch.eye(len(seen), dtype=torch.bool)
            apart = off(others)
            if not float(apart.min()) < now:
                break
            seen, now = others[int(apart.argmin())], float(apart.min())
        if now <= least / len(read.wanted):
            return seen
        ends.append((now, seen))
    return min(ends, key=lambda end: end[0])[1]


def _solved_times(read: Attended, times: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """A factor of each key in the shares of a query, (Q, K), of those that are ``free`` to change, and what is off."""
    powers = (read.scores - read.scores.amax(-1, keepdim=True)).exp()  # (H, Q, K)

    def at(times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = (powers * times).sum(-1, keepdim=True)
        by_head = torch.einsum("hqk,hkc->hqc", powers * times / total, read.values)
        return total, by_head, read.wanted - read.rest - by_head.sum(0)

    damping = torch.full((len(times),), 1e-3, dtype=times.dtype)
    total, by_head, off = at(times)
    for _ in range(_ROUNDS):
        slope = torch.einsum("hqk,hkc->qck", powers / total, read.values)
        slope = (slope - torch.einsum("hqk,hqc->qck", powers / total, by_head)) * free[:, None]
        square = slope.mT @ slope
        ridge = (damping * square.diagonal(dim1=-2, dim2=-1).amax(-1)).clamp(min=1e-30)
        damped = square + ridge[:, None, None] * torch.eye(len(times), dtype=times.dtype)
        moved = (times + torch.linalg.solve(damped, slope.mT @ off[..., None])[..., 0]).clamp(0.0, 8.0)
        found = at(moved)
        better = found[2].square().sum(-1) < off.square().sum(-1)
        times = torch.where(better[:, None], moved, times)
        damping = torch.where(better, damping / 5, damping * 5).clamp(1e-12, 1e3)
        total, by_head, off = at(times)
    return times, off.square().sum(-1)


def _sight_in_words(seen: Tensor, right: Tensor) -> str:
    """A mask as one that is known, or the first query that sees other keys."""
    places = torch.arange(len(seen))
    causal = places <= places[:, None]
    whole = torch.ones_like(right) if bool((right & ~causal).any()) else causal
    for mask, beside in ((right, ""), (whole, ", in place of the model's own")):
        starts = (sights(mask, places[:, None], places, range(start, start)) for start in range(len(seen)))
        for words, known in chain(windows(right), *starts):
            if torch.equal(known, seen):
                return words + beside * (not torch.equal(whole, right))
    other = (seen != right).nonzero().tolist()
    query, _ = other[0]
    keys = {
        added: [str(key) for at, key in other if at == query and bool(seen[at, key]) == added]
        for added in (True, False)
    }
    said = [
        f"{'sees' if added else 'does not see'} token{'s' * (len(tokens) > 1)} {first_of(tokens, 6)}"
        for added, tokens in keys.items()
        if tokens
    ]
    return f"queries see other keys: token {query} {' and '.join(said)}"


def _distances(scores: Tensor) -> Tensor:
    """How many tokens after the query a key is, (H, Q, K)."""
    places = torch.arange(scores.shape[-1], dtype=scores.dtype)
    return (places - places[:, None]).expand(scores.shape)


def _solved_slopes(read: Attended, added: Tensor) -> Tensor | None:
    """How many times ``added`` (H, Q, K) is added to the scores of each head, (H,); None where that is not so."""
    slopes, times = torch.zeros(len(read.scores), dtype=read.scores.dtype), read.seen.double()
    damping = 1e-3
    for _ in range(_ROUNDS):
        shares = read.shares(slopes[:, None, None] * added, times)
        apart = added - (shares * added).sum(-1, keepdim=True)
        slope = torch.einsum("hqk,hkc->hqc", shares * apart, read.values).flatten(1)  # (H, Q·C)
        off = (read.wanted - read.output(shares)).flatten()
        square = slope @ slope.T
        damped = square + damping * square.diagonal().max() * torch.eye(len(slopes), dtype=square.dtype)
        moved = slopes + torch.linalg.solve(damped, slope @ off)
        better = read.off(read.shares(moved[:, None, None] * added, times)) < float(off.square().sum())
        slopes, damping = (moved, max(damping / 5, 1e-12)) if better else (slopes, min(damping * 5, 1e3))
    gives = read.off(read.shares(slopes[:, None, None] * added, times))
    return slopes if gives <= _GIVES * float((read.wanted - read.rest).square().sum()) else None


def _times_in_words(times: Tensor, config: ModelConfig) -> str:
    """A factor of the scores of each head: of those whose is not 1, if they are few."""
    others = ((times - 1).abs() > _NEAR).nonzero().flatten().tolist()
    if len(others) == len(times):
        return f"scores are {_numbers(times)} times as large, by head"
    named = [f"{head} are {shown(float(times[head]), config, 1e-3)} times as large" for head in others]
    return f"scores of head {listed(named)}"


def _scaled(times: Tensor) -> Wrong:
    """Scores of every head times a number of its own, and the mask behind them."""

    def scaled(site: Site) -> Tensor:
        scores = site.input()
        return mask_of(seen_by(site), scores * (times.to(scores)[:, None, None] - 1))(site)

    return scaled


def _slopes_in_words(slopes: Tensor, own: Tensor, config: ModelConfig) -> str:
    if not own.any():
        return f"scores fall with distance, as by ALiBi, by {_numbers(slopes)} a token"
    factor, size = float((slopes * own).sum() / own.square().sum()), float(slopes.abs().max())
    if float((slopes - factor * own).abs().max()) <= _NEAR * size:
        if abs(factor + 1) <= _NEAR:
            return "ALiBi's slopes have the other sign: scores rise with distance"
        return f"ALiBi's slopes are {shown(factor, config, 1e-3)} times as large"
    heads, most = len(own), config.alibi_max_bias
    series = {f"one series, 2^(−{most:g}·h/{heads})": [2 ** (-most * head / heads) for head in range(1, heads + 1)]}
    for count in (one for one in (2**power for power in range(1, 8)) if one >= heads):
        series[f"the first of those of {count} heads"] = alibi_slopes(count, most)[:heads]
    series["in the opposite order of heads"] = own.flip(0).tolist()
    for words, known in series.items():
        if float((slopes - torch.tensor(known)).abs().max()) <= _NEAR * size:
            return f"ALiBi's slopes are {words}"
    return f"ALiBi's slopes are {_numbers(slopes)} instead of {_numbers(own)}"


def _numbers(slopes: Tensor) -> str:
    return first_of([f"{plain(float(one), 1e-3):.4g}" for one in slopes], 6)


def _with_slopes(slopes: Tensor, of_alibi: bool) -> Wrong:
    """Scores with a number for every token of distance; in the place of the model's, or ahead of its mask."""

    def sloped(site: Site) -> Tensor:
        scores = site.input()
        places = torch.arange(scores.shape[-1], dtype=scores.dtype)
        biased = scores + slopes.to(scores)[:, None, None] * (places - places[:, None])
        return biased if of_alibi else mask_of(seen_by(site), biased - scores)(site)

    return sloped
