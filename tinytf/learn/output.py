"""Lessons about what comes out: logits, the choice of a token, and the cache that makes the next one cheap."""

import math
from collections import Counter

import torch

from tinytf.config import ModelConfig
from tinytf.learn.lesson import Lesson, LiveTable, bracketed, figure
from tinytf.learn.live import Live
from tinytf.steps.work import cache_bytes_per_token, step_work

_COLD, _WARM = 0.5, 2.0


def logits(live: Live) -> Lesson:
    if not live.has_head:
        return _no_logits(live)
    config, position, token_ids = live.config, live.predicted_at, live.likeliest
    first, second = live.piece(token_ids[0]), live.piece(token_ids[1])
    larger, smaller = float(live.logits[token_ids[0]]), float(live.logits[token_ids[1]])
    difference = larger - smaller
    ratio = math.exp(min(difference, 700.0))
    question = live.ask("logits").number(
        f"At token {position}, {live.token(position)}, the logit of {first} is {figure(larger)}, that of {second} "
        f"{figure(smaller)}. How many times as probable is {first}?",
        ratio,
        [
            (difference, "That is the difference of the logits, and softmax takes e to its power."),
            *([(larger / smaller, "That is the ratio of the logits, not of the probabilities.")] if smaller else []),
            (2**difference if difference < 900 else math.inf, "That is a power of 2, and softmax takes powers of e."),
            (ratio + difference, "That adds the difference of the logits to the right number."),
        ],
        f"Softmax turns a difference into a factor: e^({figure(larger)} − {bracketed(smaller)}) = "
        f"e^{figure(difference)} = {figure(ratio)}.",
    )
    rows = tuple((live.piece(i), i, float(live.logits[i])) for i in token_ids)
    probabilities = live.probabilities()
    revealed = tuple((*row, float(probabilities[row[1]])) for row in rows)
    code = f"x @ {'E.T' if config.tied_head else 'W_U.T'}{' + b' if config.head_bias else ''}"
    if config.logit_scale != 1:
        code = f"{config.logit_scale:.4g} * ({code})"
    if config.logit_cap:
        code = f"{config.logit_cap:g} * torch.tanh(({code}) / {config.logit_cap:g})"
    masked_head = config.head.kind == "mlm"
    return live.lesson(
        "logits",
        question,
        LiveTable(("token", "id", "logit"), rows),
        LiveTable(("token", "id", "logit", "probability"), revealed, share=3),
        target="the next token" if config.causal else "the token that belongs there",
        vector="the mask's last vector, after one more layer and norm," if masked_head else "a token's last vector",
        tied=" These vectors are the embedding table again." if config.tied_head else "",
        code=code,
    )


def _no_logits(live: Live) -> Lesson:
    count, vocab, width = live.length, live.config.vocab_size, live.config.d_model
    question = live.ask("logits").number(
        f"If a head were added, with a vector for each of {vocab:,} tokens: how many logits would this text of "
        f"{count} tokens have?",
        count * vocab,
        [
            (vocab, f"That is one position, and there are {count}."),
            (count * width, "That counts the numbers of the vectors that the head would read."),
            (width * vocab, "That is the size of the head's matrix."),
            (count + vocab, f"That adds, and each position would have {vocab:,}."),
        ],
        f"One for each token of the vocabulary at each of {count} positions: {count} × {vocab:,} = {count * vocab:,}.",
    )
    pooled = ", pooled = tanh(W·x[0] + b)" if live.config.pooler else ""
    return live.lesson("logits", question, variant="headless", pooled=pooled)


def sampling(live: Live) -> Lesson:
    if not live.has_head:
        return _nothing_drawn(live)
    causal, position, first = live.config.causal, live.predicted_at, live.likeliest[0]
    plain, cold, warm = (live.probabilities(temperature) for temperature in (1.0, _COLD, _WARM))
    p, sharp, flat = float(plain[first]), float(cold[first]), float(warm[first])
    question = live.ask("sampling").number(
        f"{'After' if causal else 'At'} token {position}, {live.token(position)}, {live.piece(first)} is the "
        f"likeliest, with {figure(p)}. How probable is it at temperature {_COLD:g}?",
        sharp,
        [
            (value, reason)
            for value, reason in (
                (flat, f"That is at temperature {_WARM:g}, which flattens."),
                (p, "That is at temperature 1."),
                (p * _COLD, "That multiplies the probability; a temperature divides the logits."),
                (p / _COLD, "That divides the probability; a temperature divides the logits."),
                (1 - p, "That is all other tokens together, at temperature 1."),
            )
            if value < 1
        ],
        f"The logits are divided by {_COLD:g}, so probabilities are squared and made to sum to 1 again: "
        f"{figure(p)}² / {figure(float((plain**2).sum()))} = {figure(sharp)}. At temperature {_WARM:g} it is "
        f"{figure(flat)}.",
    )
    rows = tuple((live.piece(i), float(plain[i])) for i in live.likeliest)
    revealed = tuple((live.piece(i), float(cold[i]), float(plain[i]), float(warm[i])) for i in live.likeliest)
    return live.lesson(
        "sampling",
        question,
        LiveTable(("token", "probability"), rows, share=1),
        LiveTable(("token", f"at {_COLD:g}", "at 1", f"at {_WARM:g}"), revealed, share=1),
        variant="" if causal else "encoder",
        cold=_COLD,
    )


def _nothing_drawn(live: Live) -> Lesson:
    vocab = live.config.vocab_size
    question = live.ask("sampling").number(
        f"Without a head every one of the {vocab:,} tokens is as good as another. What is the probability of a blind "
        "guess?",
        1 / vocab,
        [
            (1 / live.config.d_model, "That divides by d_model, and there are as many choices as tokens."),
            (2 / vocab, "That is two guesses."),
            (1 / math.sqrt(vocab), "That divides by the root of the vocabulary."),
            (1 / live.length, "That is a guess among the tokens of the text."),
        ],
        f"1 / {vocab:,} = {figure(1 / vocab)}. Any head that is worth its weights does better.",
    )
    return live.lesson("sampling", question, variant="headless")


def cache(live: Live) -> Lesson:
    if not live.config.causal:
        return _no_cache(live)
    config, transformer, count = live.config, live.model.transformer, live.length
    layers = len(live.trace.steps.attention_layers)
    kinds = Counter(_kept_by(config.at(layer)) for layer in live.trace.steps.attention_layers)
    layer_note = f"{layers} layers"
    if layers < config.n_layers:
        layer_note = f"{layers} layer{'s' * (layers > 1)} with attention (the others keep a state that does not grow)"
    product = " + ".join(
        f"2 × {of} × {heads} × {key}" if key == value else f"{of} × {heads} × ({key} + {value})"
        for (heads, key, value), of in kinds.items()
    )
    kept = " and ".join(
        f"{f'in {of} of them ' if len(kinds) > 1 else ''}{heads} key-value head{'s' if heads > 1 else ''} of "
        + (f"{key}" if key == value else f"{key} for its keys and {value} for its values")
        for (heads, key, value), of in kinds.items()
    )
    per_token = cache_bytes_per_token(config, 1)
    size, read = next(transformer.parameters()).itemsize, transformer.tokens_read
    kept_once = read * cache_bytes_per_token(config, 1, of_source=True)
    of_source = f" Those of the {read} tokens of the source, {kept_once:,} numbers, are computed once." * (read > 0)
    question = live.ask("cache").number(
        f"For each token the cache keeps what later tokens need: {layer_note}, {kept}. How many numbers is that?",
        per_token,
        [
            (per_token // 2, "That is half of it: keys and values are both kept."),
            (3 * per_token // 2, "That is half as much again: queries are not kept."),
            (per_token // layers, f"That is the mean of one layer, and there are {layers}."),
            (layers * config.d_model**2, f"That is {layers} × d_model², and a token has no matrix of its own."),
            (per_token * count, f"That is all {count} tokens together."),
        ],
        f"Keys and values: {product} = {per_token:,} numbers, {per_token * size:,} bytes per token. The "
        f"last token computed with the cache differs from the whole pass by at most {_cached_difference(live):.1e}."
        + of_source,
    )
    rows = []
    for tokens in dict.fromkeys(min(tokens, config.context) for tokens in (count + 1, 2 * count, config.context)):
        uncached, cached_work = (step_work(config, tokens, read, cached=cached).whole for cached in (False, True))
        rows.append((tokens, uncached, cached_work, f"{uncached / cached_work:.1f} ×"))
    return live.lesson(
        "cache", question, LiveTable(("tokens", "multiply-adds without", "with the cache", "saved"), tuple(rows))
    )


def _kept_by(config: ModelConfig) -> tuple[int, int, int]:
    """The heads of keys and values of a layer, and the numbers of a key and of a value."""
    return config.n_kv_heads, config.d_head, config.value_width


def _cached_difference(live: Live) -> float:
    """The largest difference in the last token's final vector between a pass with a cache and one without."""
    transformer = live.model.transformer
    ids = torch.tensor([live.encoding.ids], device=next(transformer.parameters()).device)
    cache, training = transformer.cache(live.length), transformer.training
    transformer.eval()
    with torch.no_grad():
        for part in (ids[:, :-1], ids[:, -1:]):
            if part.shape[1]:
                last = transformer.hidden(part, cache=cache)  # (1, T, C)
    transformer.train(training)
    return float((last[0, -1] - live.trace.last_hidden[-1]).abs().max())


def _no_cache(live: Live) -> Lesson:
    count, config = live.length, live.config
    question = live.ask("cache").number(
        f"One more token is appended to this text of {count} tokens. How many tokens go through this encoder again?",
        count + 1,
        [
            (1, "That would be a decoder with a cache."),
            (count, "The new token goes through it too."),
            (2 * count + 1, f"That counts the {count} earlier tokens twice."),
            ((count + 1) ** 2, "That counts pairs of tokens."),
        ],
        f"All {count + 1}: each of the {count} sees the new one, so the first block computes another vector for it, "
        "and so does every later block.",
    )
    lengths = dict.fromkeys((count, count + 1, min(2 * count, config.context)))
    rows = tuple((tokens, step_work(config, tokens, cached=False).whole) for tokens in lengths)
    return live.lesson("cache", question, LiveTable(("tokens", "multiply-adds of a pass"), rows), variant="encoder")
