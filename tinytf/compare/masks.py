"""Masks by construction: which keys a query sees, what hidden scores become, and what takes a share beside the keys.

The tokens that differ say where a window, a chunk or a document may end, so that of each kind a few are tried.
Shapes: T tokens, H heads, Q queries, K keys.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tinytf.compare.constants import plain
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.steps.operations import Mask, Sink, Softmax
from tinytf.steps.operations.mask import mask_scores
from tinytf.steps.operations.softmax import attention_weights
from tinytf.trace.site import Site

Solved = Callable[[float], tuple[str, Wrong]]
"""A mistake with a number that is solved for, in words, and its formula."""
_NEAR = (0, 1, 2)
"""How many tokens before the first that visibly differs a mask may begin to: a share of a far key is small."""
_PADDING = 8
"""The most tokens that are taken for padding."""
_WIDEST = 128
"""The widest window that is tried in a model that looks ahead."""
_KEPT = (1, 4)
"""How many of the first tokens stay in sight of a window: attention sinks, as in StreamingLLM."""


def masks(site: Site, tokens: range) -> Iterator[tuple[str, Wrong]]:
    """Other masks of the scores; ``tokens`` reach from the first that differs to the last."""
    if not hides(site):
        return
    right = seen_by(site)
    queries, keys = (torch.arange(size, device=right.device) for size in right.shape)
    for words, seen in sights(right, queries[:, None], keys, tokens):
        if not torch.equal(seen, right):
            yield words, mask_of(seen)
    if isinstance(site.operation, Mask) and (cap := site.config.attention_cap):
        words = f"the soft cap of {cap:g} is behind the mask: hidden scores become {-cap:g}"
        yield words, lambda one: one.input().masked_fill(~seen_by(one), -cap)


def hides(site: Site) -> bool:
    """Whether a mask is made at a step: at that of the mask, or at the softmax of a layer that has none."""
    if isinstance(site.operation, Mask):
        return True
    source, layer = site.sources[0] if site.sources else ("", None)
    return type(site.operation) is Softmax and not isinstance(site.trace.steps.at(source, layer).operation, Mask)


def seen_by(site: Site) -> Tensor:
    """Which keys a query sees in the model in some head, (Q, K)."""
    scores, operation = site.input(), site.operation
    allowed = operation.allowed(*site.inputs()) if isinstance(operation, Mask) else None
    if allowed is None:
        return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    return allowed.flatten(0, -3).any(0) if allowed.dim() > 2 else allowed


def mask_of(seen: Tensor, added: Tensor | float = 0.0) -> Wrong:
    """A mask that leaves those keys in sight, or the weights behind it, with numbers added to the scores."""

    def masked(site: Site) -> Tensor:
        scores = mask_scores(site.input() + added, _resized(seen, seen_by(site)))
        return scores if isinstance(site.operation, Mask) else attention_weights(scores)

    return masked


def _resized(seen: Tensor, right: Tensor) -> Tensor:
    """A mask for a text of another length: of its tokens, and as in the model for more; the future is seen on and on.

    ``seen`` and ``right`` (Q, K) may differ in size.
    """
    count, resized = min(len(seen), len(right)), right.clone()
    if seen.dim() == 2 and seen.shape[1] == right.shape[1]:  # of another target, the same source
        resized[:count] = seen[:count]
        return resized
    if seen.shape == right.shape or len(seen) != seen.shape[-1]:
        return seen
    resized[:count, :count] = seen[:count, :count]
    resized[: count - 1, count:] = seen[: count - 1, count - 1 : count]
    return resized


def sights(right: Tensor, query: Tensor, key: Tensor, tokens: range) -> Iterator[tuple[str, Tensor]]:
    """Which keys a query sees by other masks, in words."""
    count, causal = len(right), key <= query
    back = torch.where(causal, query - key, key - query)
    if not bool((right <= causal).all()):
        yield "the mask is causal: later tokens are hidden", right & causal
        yield "earlier tokens are hidden", right & (key >= query)
        # every token of a text that is read both ways may lose a key
        yield from ((words, right & seen) for words, seen in windows(right))
    for at in (tokens.start - by for by in _NEAR if tokens.start >= by):
        yield f"token {at} is hidden from the others", right & ((key != at) | (query == at))
        yield f"token {at} is hidden from later ones", right & ((key != at) | (query <= at))
        if at:
            yield f"a window of {at} tokens", right & (back < at)
            yield f"chunks of {at} tokens", right & (query // at == key // at)
            for kept in (kept for kept in _KEPT if kept < at):
                width = at - kept  # the first key that is lost is the one behind those
                yield f"a window of {width} tokens beside the first {kept}", right & ((back < width) | (key < kept))
        if at > 1:
            apart = (key >= at) == (query >= at)
            yield f"tokens from {at} on do not see those before", right & ((key >= at) | (query < at))
            yield f"tokens before {at} and those from there on do not see each other", right & apart
    if count > 1:
        yield "no token but the first sees itself", right & ((key != query) | (query == 0))
    for kept in _KEPT:
        yield f"the first {kept} tokens stay in sight of every window", right | (causal & (key < kept))
    for width in (tokens.stop, tokens.stop + 1):
        if width < count:
            yield f"the first {width} tokens see each other, as a prefix", right | ((key < width) & (query < width))
    for padding in range(1, min(_PADDING, count - 1) + 1):
        yield f"the first {_tokens(padding)} hidden, as padding", right & (key >= padding)
        yield f"the last {_tokens(padding)} hidden, as padding", right & (key < count - padding)


def windows(right: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Windows of every width, to one side or both as in the model."""
    queries, keys = (torch.arange(size, device=right.device) for size in right.shape)
    apart = (queries[:, None] - keys).abs()
    for width in range(1, min(len(right), _WIDEST)):
        seen = apart < width
        yield f"a window of {width} tokens", seen if bool(right.triu(1).any()) else seen.tril()


def _tokens(count: int) -> str:
    return "token is" if count == 1 else f"{count} tokens are"


def shares(site: Site) -> Iterator[tuple[str, Wrong]]:
    """Other sinks of the model: without a sign, of other heads, none of a size that is learned."""
    if isinstance(site.operation, Sink):
        yield "sinks have the other sign", _sunk(lambda logit: -logit)
        for by in range(1, site.config.n_heads):
            yield f"sinks of other heads, rolled by {by}", _sunk(lambda logit, by=by: logit.roll(by))  # type: ignore[misc]
        yield "sinks of other heads, in the opposite order", _sunk(lambda logit: logit.flip(0))


def _sunk(change: Callable[[Tensor], Tensor]) -> Wrong:
    return lambda site: site.operation.forward(site.input(), change(site.module.weight))


def mask_numbers(site: Site) -> Iterator[tuple[Solved, tuple[float, ...]]]:
    """Mistakes of a mask or a softmax with a number that is solved for, and where to begin."""
    operation = site.operation
    if isinstance(operation, Mask):
        yield _hidden_as, (0.0, math.log(10), math.log(100))
        yield _hidden_by, (0.0, math.log(10), math.log(100))
    elif isinstance(operation, Sink):
        yield _sinks_of, (0.0, 3.0, -3.0)
        yield _sinks_times, (1.0, 4.0)
    elif type(operation) is Softmax:
        yield _beside, (0.0, 4.0, -4.0)


def _shown(number: float) -> str:
    return "0" if abs(number) < 1e-4 else f"{plain(number, 1e-3):.6g}"


def _hidden_as(logarithm: float) -> tuple[str, Wrong]:
    number = -math.exp(logarithm)

    def hidden(site: Site) -> Tensor:
        return site.input().masked_fill(~seen_by(site), number)

    return f"the mask sets hidden scores to {_shown(number)}, not to −∞", hidden


def _hidden_by(logarithm: float) -> tuple[str, Wrong]:
    number = -math.exp(logarithm)

    def hidden(site: Site) -> Tensor:
        return site.input() + number * ~seen_by(site)

    return f"the mask adds {_shown(number)} to hidden scores, not −∞", hidden


def _sinks_of(number: float) -> tuple[str, Wrong]:
    return f"every sink is {_shown(number)}, not learned", _sunk(lambda logit: torch.full_like(logit, number))


def _sinks_times(number: float) -> tuple[str, Wrong]:
    return f"sinks are {_shown(number)} times as large", _sunk(lambda logit: logit * number)


def _beside(number: float) -> tuple[str, Wrong]:
    def softmax(site: Site) -> Tensor:
        scores = site.input()
        extra = torch.full_like(scores[..., :1], number)
        return torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]

    return f"an extra score of {_shown(number)} takes a share in every softmax, as a sink", softmax
