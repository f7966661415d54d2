"""Generation token by token, each with the model's own figures."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import GenerationError, UsageError
from tinytf.generate.decoder import PLAIN
from tinytf.generate.options import Options, by_keyword
from tinytf.generate.pieces import PieceDecoder
from tinytf.generate.runner import Runner
from tinytf.generate.samplers import Sampling, choose, penalise_repetition, warp
from tinytf.model.cache import KVCache, require_decoder
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.address import span

ON_OVERFLOW = ("stop", "slide", "error")
END_TOKEN, STOP_STRING, MAX_TOKENS, CONTEXT_FULL = "end token", "stop string", "max tokens", "context full"


@dataclass(frozen=True)
class Candidate:
    """A token that could come next: its ``probability`` by the model, and the one with which it is ``drawn``."""

    id: int
    probability: float
    drawn: float


@dataclass(frozen=True)
class GeneratedToken:
    """One generated token.

    ``text`` is the complete characters that it adds; a possible beginning of a stop string is held back for a later
    step. ``log_probability`` (in nats), ``rank`` (1 is the most probable), ``surprise`` (−log₂ of its probability, in
    bits) and ``entropy`` (of the whole distribution, in bits) are the model's own, before temperature and truncation.
    ``ended`` says why a sample ended, in its last step. ``sample`` counts from 1. ``dropped`` is how many of the oldest
    tokens the model no longer saw. ``attention`` (rows, K) belongs to the previous token, which predicts this one; its
    last column is that token itself. ``note`` says that fast decoding was wrong and was given up, from that step on.
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
    sample: int = 1
    dropped: int = 0
    attention: Tensor | None = None
    note: str = ""

    @property
    def saw(self) -> Tensor | None:
        """The mean over the rows of ``attention``, (K,): over all heads that were looked at."""
        return None if self.attention is None else self.attention.mean(0)


@dataclass(frozen=True)
class Looking:
    """Which attention comes with a step: of all layers or one ``layer``; averaged over heads or of one ``head``."""

    layer: int | None = None
    head: int | None = None


class _Sample:
    """One of the texts that continue the prompt, with its generator of random numbers."""

    def __init__(self, number: int, prompt: Sequence[int], seed: int, pieces: PieceDecoder) -> None:
        self.number, self.ids, self.pieces = number, list(prompt), pieces
        self.generator = torch.Generator().manual_seed((seed + number - 1) % 2**63)


def require_prompt(model: Transformer, ids: Sequence[int], max_tokens: int) -> None:
    """Raise UsageError where no token can follow: an encoder, no head, an empty or too long prompt, no max_tokens."""
    require_decoder(model.config)
    model.require_vocabulary("it predicts no next token")
    if not ids:
        raise UsageError("there is no token to continue", "give at least one token")
    if len(ids) > model.config.context:
        raise UsageError(
            f"{len(ids):,} tokens are more than the model's context of {model.config.context:,}", "shorten the text"
        )
    if max_tokens < 1:
        raise UsageError(f"{max_tokens} new tokens are fewer than 1", "ask for at least 1")


@dataclass(frozen=True, kw_only=True)
class StreamOptions(Options):
    """The settings of ``stream``, in addition to those explained at Options.

    A text also ends before one of ``stops``. ``on_overflow`` "slide" continues without the older half of a full
    context. ``samples`` texts are generated together, with the prompt computed once; sample i draws with ``seed`` + i −
    1, and the same seed gives the same tokens on every device. ``decode`` turns ids into text; without it steps have no
    text. Every step has its ``top`` candidates and the chosen one; ``looking`` adds attention. A ``cache`` of the
    caller may already hold the beginning of the text; without one, ``use_cache`` makes one of the right size.
    """

    sampling: Sampling | None = None
    seed: int = 0
    samples: int = 1
    cache: KVCache | None = None
    decode: Callable[[list[int]], str] | None = None
    stops: Sequence[str] = ()
    top: int = 0
    looking: Looking | None = None


def cache_for(model: Transformer, ids: Sequence[int], options: StreamOptions) -> KVCache | None:
    """The caller's cache, or a new one with room for the prompt and all new tokens; None with ``use_cache`` false.

    Also None for a decoder without its mask, where each new token changes the earlier ones, and for an edited model
    whose functions need the whole text. Raises UsageError for a cache of the caller that holds tokens with an edited
    model: it does not say what the edits made of these.
    """
    if options.cache is not None and model.has_functions and (options.cache.position or model.needs_whole_text):
        raise UsageError(
            "a model whose steps are edited does not continue a cache", "leave it out, or give an empty one"
        )
    if options.cache is not None or not options.use_cache or model.recomputes:
        return options.cache
    require_prompt(model, ids, options.max_tokens)
    return model.cache(min(model.config.context, len(ids) + options.max_tokens))


def stream_with(model: Transformer, ids: Sequence[int], options: StreamOptions) -> Iterator[GeneratedToken]:
    """Continue ``ids`` and yield every token as soon as it is computed. The settings are those of StreamOptions.

    Raises UsageError, before the first step, for an encoder, for no ids or too many, and for settings out of range;
    MemoryShortage for a cache that does not fit; GenerationError for logits that are not finite.
    """
    require_prompt(model, ids, options.max_tokens)
    cache, chunk, looking = options.cache, options.chunk, options.looking
    if options.samples < 1:
        raise UsageError(f"{options.samples} samples are fewer than 1", "1 is one text")
    if chunk < 0:
        raise UsageError(f"chunks of {chunk} tokens are fewer than 1", "leave it out to take the prompt in one pass")
    if options.on_overflow not in ON_OVERFLOW:
        raise UsageError(f"on_overflow {options.on_overflow!r} is not one of {', '.join(ON_OVERFLOW)}")
    if any(not stop for stop in options.stops):
        raise UsageError("a stop string is empty, but every text contains the empty string", "leave it out")
    if options.stops and options.decode is None:
        raise UsageError("stop strings need a tokenizer's decode")
    context = model.config.context
    cache = cache_for(model, ids, options)
    mask_hint = "a model without its mask has no cache" if model.config.looks_ahead else "leave out --no-cache"
    cache_hint = "a model whose steps are edited has no cache" if model.has_functions else mask_hint
    if options.kind != PLAIN and cache is None:
        raise UsageError("only decoding with a cache can be compiled or in int8", cache_hint)
    if cache is not None:
        _require_cache(cache, len(ids), min(context, len(ids) + options.max_tokens - 1), options.samples)
    if chunk and cache is None:
        raise UsageError("a prompt is computed in chunks only with a cache", cache_hint)
    if looking is not None and (cache is None or model.has_functions):
        raise UsageError("attention is read from the cache, but there is none", cache_hint)
    _require_looking(model.config, looking)
    attention = _Seen(looking) if looking else None

    def runner() -> Runner:
        return Runner(model, ids, cache, chunk=chunk, texts=options.samples, kind=options.kind, look=attention)

    return steps_of(runner, ids, options, attention)


stream = by_keyword(StreamOptions)(stream_with)


def _require_cache(cache: KVCache, prompt: int, tokens: int, samples: int) -> None:
    if cache.position >= prompt:
        raise UsageError(f"the cache holds {cache.position:,} tokens, but the text has only {prompt:,}")
    if cache.capacity < tokens:
        raise UsageError(
            f"the cache has room for {cache.capacity:,} tokens, but up to {tokens:,} will come", "make a larger one"
        )
    cache.require_memory(samples)


def _require_looking(config: ModelConfig, looking: Looking | None) -> None:
    if looking is None:
        return
    layers, layer, attending = config.n_layers, looking.layer, table_of(config).attention_layers
    if not attending:
        raise UsageError("no layer of this model has attention weights", "generate without --watch and --head")
    if layer is not None and layer not in range(layers):
        raise UsageError(f"there is no layer {layer}", f"the model has {layers}: 0 to {layers - 1}")
    if layer is not None and layer not in attending:
        raise UsageError(f"layer {layer} has no attention weights", f"layers {span(attending)} have")
    heads = config.at(layer).n_heads
    if looking.head is not None and looking.head not in range(heads):
        raise UsageError(f"there is no head {looking.head}", f"the model has {heads}: 0 to {heads - 1}")


class _Seen:
    """Collects the rows of every layer's attention weights (B, H, K) that are looked at."""

    def __init__(self, looking: Looking) -> None:
        self.looking = looking
        self.rows: list[Tensor] = []
        self.last = -1

    def __call__(self, layer: int, weights: Tensor) -> None:
        if layer <= self.last:
            self.rows = []
        self.last = layer
        if self.looking.layer in (None, layer):
            head = self.looking.head
            self.rows.append((weights.mean(1) if head is None else weights[:, head]).float().cpu())

    def of(self, row: int) -> Tensor:
        return torch.stack([layer_rows[row] for layer_rows in self.rows])


class Running(Protocol):
    """Gives the logits of texts that grow; explained at Runner."""

    @property
    def dropped(self) -> int: ...
    @property
    def note(self) -> str: ...
    @property
    def full(self) -> bool: ...
    @property
    def model(self) -> Any: ...
    def first(self) -> Tensor: ...
    def go_on(self, rows: Sequence[int], ids: Sequence[int]) -> Tensor: ...
    def undisturbed(self) -> AbstractContextManager[None]: ...


def steps_of(
    make_runner: Callable[[], Running], ids: Sequence[int], options: StreamOptions, seen: _Seen | None
) -> Iterator[GeneratedToken]:
    """The tokens that a runner's logits lead to, from the settings alone: which model it runs does not matter."""
    running = [
        _Sample(number, ids, options.seed, PieceDecoder(options.decode, ids, options.stops))
        for number in range(1, options.samples + 1)
    ]
    sampling, max_tokens, ends = options.sampling or Sampling(), options.max_tokens, frozenset(options.ends)
    runner = make_runner()
    logits = runner.first().expand(len(running), -1)  # (B, V)
    batch_rows = [0] * len(running)  # the row of each sample in the runner's batch
    context = runner.model.config.context
    for number in range(1, max_tokens + 1):
        rows, chosen_ids, ended_samples = [], [], set()
        for row, sample in enumerate(running):
            with runner.undisturbed():
                chosen, candidates = _choose(logits[row], sampling, sample, options.top)
                stats = figures(logits[row], chosen)
            sample.ids.append(chosen)
            text = sample.pieces.add(chosen)
            ended = ""
            if chosen in ends:
                ended = END_TOKEN
            elif sample.pieces.stopped:
                ended = STOP_STRING
            elif number == max_tokens:
                ended = MAX_TOKENS
            elif runner.full and options.on_overflow == "stop":
                ended = CONTEXT_FULL
            if ended or (runner.full and options.on_overflow == "error"):
                text += sample.pieces.rest()
            if ended:
                ended_samples.add(sample.number)
            else:
                rows.append(batch_rows[row])
                chosen_ids.append(chosen)
            attention = seen.of(batch_rows[row]) if seen else None
            yield GeneratedToken(
                number, chosen, text, *stats, candidates, ended, sample.number, runner.dropped, attention, runner.note
            )
        if not rows:
            return
        if runner.full and options.on_overflow == "error":
            raise GenerationError(
                f"the context of {context:,} tokens is full after {number:,} new ones, "
                f"but {max_tokens:,} were asked for",
                "ask for fewer, or choose --on-overflow stop or slide",
            )
        running = [sample for sample in running if sample.number not in ended_samples]
        logits = runner.go_on(rows, chosen_ids)
        batch_rows = list(range(len(running)))


def _choose(logits: Tensor, sampling: Sampling, sample: _Sample, top: int) -> tuple[int, tuple[Candidate, ...]]:
    if sampling.greedy and not top:  # warping does not change which is largest
        penalised = penalise_repetition(logits, sample.ids, sampling.repetition_penalty)
        return choose(penalised, sampling, sample.generator), ()
    warped = warp(logits, sampling, sample.ids)
    chosen = choose(warped, sampling, sample.generator)
    if not top:
        return chosen, ()
    best = logits.topk(min(top, len(logits))).indices.tolist()
    ids = best if chosen in best else [*best, chosen]
    drawn_shares = warped.double().softmax(-1)[ids].tolist()
    model_shares = logits.double().softmax(-1)[ids].tolist()
    return chosen, tuple(Candidate(*entry) for entry in zip(ids, model_shares, drawn_shares, strict=True))


def figures(logits: Tensor, chosen: int) -> tuple[float, int, float, float]:
    """Log-probability (nats), rank, surprise and entropy (bits) of a token, from float32 logits (V,)."""
    values: NDArray[np.float32] = logits.numpy()
    shifted = np.maximum(values - values.max(), np.float32(-1e4))  # exp is 0 there, so an impossible token adds nothing
    shares = np.exp(shifted)
    total = float(shares.sum(dtype=np.float64))
    log_probability = float(shifted[chosen]) - math.log(total)
    entropy = (math.log(total) - float(shares @ shifted) / total) / math.log(2)
    return log_probability, int(np.count_nonzero(values > values[chosen])) + 1, -log_probability / math.log(2), entropy
