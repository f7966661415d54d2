"""One token after the other, each with what the model thought of it."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.pieces import Pieces
from tinytf.generate.samplers import Sampling, choose, warp
from tinytf.model.cache import KVCache, require_decoder
from tinytf.model.transformer import Transformer

ON_OVERFLOW = ("stop", "error")
END_TOKEN, STOP_STRING, MAX_TOKENS, CONTEXT_FULL = "end token", "stop string", "max tokens", "context full"


@dataclass(frozen=True)
class Candidate:
    """A token that could come next: its ``probability`` by the model, and that with which it could be ``drawn``."""

    id: int
    probability: float
    drawn: float


@dataclass(frozen=True)
class Step:
    """One token that was made.

    ``text`` are the whole characters that it completes; what could still become a stop string is held back, and
    comes with a later step. ``log_probability`` (in nats), ``rank`` (1 is the most probable), ``surprise``
    (−log₂ of its probability) and ``entropy`` (of the whole distribution), both in bits, are the model's own, before
    temperature and truncation. ``ended`` says of the last step why it is that.
    """

    number: int
    id: int
    text: str
    log_probability: float
    rank: int
    surprise: float
    entropy: float
    candidates: tuple[Candidate, ...] = ()
    ended: str = ""


def entropy_bits(log_probabilities: Tensor) -> Tensor:
    """−Σ p·log₂ p over the last axis; what cannot come adds nothing."""
    return -(log_probabilities.exp() * log_probabilities.clamp_min(-1e30)).sum(-1) / math.log(2)


def stream(
    model: Transformer,
    ids: Sequence[int],
    *,
    max_tokens: int = 50,
    sampling: Sampling | None = None,
    seed: int = 0,
    use_cache: bool = True,
    cache: KVCache | None = None,
    ends: Collection[int] = (),
    decode: Callable[[list[int]], str] | None = None,
    stops: Sequence[str] = (),
    on_overflow: str = "stop",
    top: int = 0,
) -> Iterator[Step]:
    """Go on from ``ids``; every token is a Step as soon as it is there.

    It ends at a token of ``ends``, when the text has one of ``stops`` in it (the text ends before it), after
    ``max_tokens``, or where the context is full: ``on_overflow`` "error" raises GenerationError there. The same
    ``seed`` gives the same tokens, on every device. ``decode`` makes text of ids; without it steps have none. ``top``
    candidates come with every step, and the chosen one. A ``cache`` of the caller's may already hold the beginning of
    ``ids``; without one, and with ``use_cache``, one of the right size is made.

    Raises UsageError at once for an encoder, for ids that are none or too many, for a wrong number; GenerationError
    for logits that are NaN.
    """
    require_decoder(model.config)
    sampling = sampling or Sampling()
    if model.head is None:
        raise UsageError("this model has no language-model head, so it predicts no next token")
    if not ids:
        raise UsageError("there is nothing to go on from", "give at least one token")
    if len(ids) > model.config.context:
        raise UsageError(
            f"{len(ids):,} tokens are more than the model's context of {model.config.context:,}", "shorten the text"
        )
    if max_tokens < 1:
        raise UsageError(f"{max_tokens} new tokens are fewer than 1")
    if on_overflow not in ON_OVERFLOW:
        raise UsageError(f"on_overflow {on_overflow!r} is not one of {', '.join(ON_OVERFLOW)}")
    if any(not stop for stop in stops):
        raise UsageError("a stop string is empty, and every text has that in it")
    if stops and decode is None:
        raise UsageError("stop strings need a tokenizer's decode")
    if cache is None and use_cache:
        cache = model.cache(min(model.config.context, len(ids) + max_tokens))
    if cache is not None and cache.position >= len(ids):
        raise UsageError(f"the cache holds {cache.position:,} tokens, and the text has {len(ids):,}")
    pieces = Pieces(decode, ids, stops)
    return _steps(model, list(ids), max_tokens, sampling, seed, cache, frozenset(ends), pieces, on_overflow, top)


def _steps(
    model: Transformer,
    ids: list[int],
    max_tokens: int,
    sampling: Sampling,
    seed: int,
    cache: KVCache | None,
    ends: frozenset[int],
    pieces: Pieces,
    on_overflow: str,
    top: int,
) -> Iterator[Step]:
    generator = torch.Generator().manual_seed(seed)
    for number in range(1, max_tokens + 1):
        if len(ids) > model.config.context:
            raise GenerationError(
                f"the context of {model.config.context:,} tokens is full after {number - 1:,} new ones, "
                f"and {max_tokens:,} were asked for",
                "ask for fewer, or let it end there with --on-overflow stop",
            )
        logits = _next_logits(model, ids, cache)
        if not math.isfinite(float(logits.max())):
            raise GenerationError(
                f"the logits of new token {number:,} are not finite (largest: {float(logits.max())})",
                "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32",
            )
        warped = warp(logits, sampling, ids)
        chosen = choose(warped, sampling, generator)
        ids.append(chosen)
        text = pieces.add(chosen)
        ended = ""
        if chosen in ends:
            ended = END_TOKEN
        elif pieces.stopped:
            ended = STOP_STRING
        elif number == max_tokens:
            ended = MAX_TOKENS
        elif len(ids) > model.config.context and on_overflow == "stop":
            ended = CONTEXT_FULL
        if ended or len(ids) > model.config.context:
            text += pieces.rest()
        yield _step(number, chosen, text, logits, warped, top, ended)
        if ended:
            return


@torch.no_grad()
def _next_logits(model: Transformer, ids: list[int], cache: KVCache | None) -> Tensor:
    """The logits (V,) after ``ids``, on the processor in float32, so that a seed draws the same everywhere."""
    device, training = next(model.parameters()).device, model.training
    new = ids if cache is None else ids[cache.position :]
    if training:
        model.eval()
    try:
        hidden = model.hidden(torch.tensor([new], device=device), cache=cache)
        return model.unembed(hidden[0, -1]).float().cpu()
    finally:
        if training:
            model.train()


def _step(number: int, chosen: int, text: str, logits: Tensor, warped: Tensor, top: int, ended: str) -> Step:
    log_probabilities = logits.double().log_softmax(-1)
    own = float(log_probabilities[chosen])
    candidates: tuple[Candidate, ...] = ()
    if top:
        best = logits.topk(min(top, len(logits))).indices.tolist()
        listed = best if chosen in best else [*best, chosen]
        drawn = warped.double().softmax(-1)[listed].tolist()
        before = log_probabilities[listed].exp().tolist()
        candidates = tuple(Candidate(*one) for one in zip(listed, before, drawn, strict=True))
    return Step(
        number=number,
        id=chosen,
        text=text,
        log_probability=own,
        rank=int((logits > logits[chosen]).sum()) + 1,
        surprise=-own / math.log(2),
        entropy=float(entropy_bits(log_probabilities)),
        candidates=candidates,
        ended=ended,
    )
