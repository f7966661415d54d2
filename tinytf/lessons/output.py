"""Lessons about what comes out: logits, the choice of a token, and the cache that makes the next one cheap."""

import math
from collections.abc import Callable

import torch

from tinytf.config import ModelConfig
from tinytf.generate.samplers import with_temperature
from tinytf.lessons.asking import bracketed, figure
from tinytf.lessons.data import Figures, Lesson
from tinytf.lessons.live import Live, Numbers
from tinytf.lessons.titles import TITLES
from tinytf.steps.work import cache_bytes_per_token, step_work

_COLD, _WARM = 0.5, 2.0


def _asks(live: Live) -> str:
    return "the next token" if live.config.causal else "the token that belongs there"


def _by_torch(config: ModelConfig) -> str:
    product = f"x @ {'E.T' if config.tied_head else 'W_U.T'}{' + b' if config.head_bias else ''}"
    return f"{config.logit_cap:g} * torch.tanh(({product}) / {config.logit_cap:g})" if config.logit_cap else product


def logits(live: Live, number: int) -> Lesson:
    if not live.has_head:
        return _no_logits(live, number)
    place, first, second = live.open, live.likeliest[0], live.likeliest[-1]
    larger, smaller = float(live.logits[first]), float(live.logits[second])
    gap = larger - smaller
    question = live.asked("logits").number(
        f"At token {place}, {live.token(place)}, the logit of {live.piece(first)} is {figure(larger)}, that of "
        f"{live.piece(second)} {figure(smaller)}. How many times as probable is {live.piece(first)}?",
        math.exp(min(gap, 700.0)),
        [gap, larger / smaller if smaller else 0.0, 2**gap if gap < 900 else 0.0, math.exp(min(gap, 700.0)) + gap],
        f"Softmax makes a factor of a difference: e^({figure(larger)} − {bracketed(smaller)}) = e^{figure(gap)} = "
        f"{figure(math.exp(min(gap, 700.0)))}.",
    )
    steps, width = live.trace.steps.by_name, live.config.d_model
    tied = " It is the table of embeddings again, read the other way round." if live.config.tied_head else ""
    last = (
        "the mask's last vector, bent and normed once more," if live.config.head == "mlm" else "a token's last vector"
    )
    chosen = live.likeliest
    table = tuple((live.piece(i), i, float(live.logits[i])) for i in chosen)
    told = tuple((live.piece(i), i, float(live.logits[i]), float(live.probabilities[i])) for i in chosen)
    return Lesson(
        number, "logits", TITLES["logits"],
        f"To foresee {_asks(live)}, {last} is multiplied with a vector of {width} numbers for each of the "
        f"{live.config.vocab_size:,} tokens. What points the same way gets a large number.{tied}",
        "logits = " + steps["logits"].formula,
        f"logits = {_by_torch(live.config)}  # (B, T, {live.config.vocab_size})",
        f"logits[{place},{first}]",
        question,
        role="output",
        figures=Figures(("token", "id", "logit"), table),
        revealed_figures=Figures(("token", "id", "logit", "probability"), told, share=3),
    )  # fmt: skip


def _no_logits(live: Live, number: int) -> Lesson:
    count, vocab, width = live.length, live.config.vocab_size, live.config.d_model
    question = live.asked("logits").number(
        f"If a head were put on, with a vector for each of {vocab:,} tokens: how many logits would this text of "
        f"{count} tokens have?",
        count * vocab,
        [vocab, count * width, width * vocab, count + vocab],
        f"One for each token of the vocabulary at each of {count} places: {count} × {vocab:,} = {count * vocab:,}.",
    )
    return Lesson(
        number, "logits", TITLES["logits"],
        "This model has no head, so it gives no logits: what comes out are the last vectors themselves, to compare "
        "texts or to train a head upon. A head would multiply each with a vector for every token of the vocabulary.",
        f"x = {live.final}" + (", pooled = tanh(W·x[0] + b)" if live.config.pooler else ""),
        "x = model.hidden(ids)  # (B, T, d_model)",
        f"{live.final}[{live.here},0]",
        question,
        role="output",
        focus=live.here,
        shown=(live.final,),
    )  # fmt: skip


def _at_temperature(live: Live, temperature: float) -> Numbers:
    found: Numbers = with_temperature(torch.from_numpy(live.logits), temperature).softmax(-1).numpy()
    return found


def sampling(live: Live, number: int) -> Lesson:
    if not live.has_head:
        return _nothing_drawn(live, number)
    plain, cold, warm = live.probabilities, _at_temperature(live, _COLD), _at_temperature(live, _WARM)
    first = live.likeliest[0]
    p = float(plain[first])
    question = live.asked("sampling").number(
        f"{'After' if live.config.causal else 'At'} token {live.open}, {live.token(live.open)}, {live.piece(first)} is "
        f"the likeliest, with {figure(p)}. How probable is it at temperature {_COLD:g}?",
        float(cold[first]),
        [value for value in (float(warm[first]), p, p * _COLD, min(1.0, p / _COLD), 1 - p) if value < 1],
        f"The logits are divided by {_COLD:g}, so probabilities are squared and made to sum to 1 again: "
        f"{figure(p)}² / {figure(float((plain**2).sum()))} = {figure(float(cold[first]))}. "
        f"At {_WARM:g} it is {figure(float(warm[first]))}.",
    )
    rows = tuple((live.piece(i), float(plain[i])) for i in live.likeliest)
    told = tuple((live.piece(i), float(cold[i]), float(plain[i]), float(warm[i])) for i in live.likeliest)
    if live.config.causal:
        why = (
            "The probabilities are there; one token has to be taken. The likeliest each time soon goes in circles, a "
            "draw from all of them wanders off, so the temperature sharpens or flattens them first. What was taken is "
            "appended, and the model asked again."
        )
        line = f"next = torch.multinomial((logits[-1] / {_COLD}).softmax(-1), 1)"
    else:
        why = (
            "An encoder does not write on, it fills in: at a mask the likeliest token is taken, and nothing is "
            "appended. A temperature would sharpen or flatten the choice in the same way."
        )
        line = f"fill = logits[0, {live.here}].argmax()  # or of (logits / temperature).softmax(-1)"
    return Lesson(
        number, "sampling", TITLES["sampling"], why, "p = softmax(logits / temperature)", line,
        f"probs[{live.open},{first}]",
        question,
        role="output",
        figures=Figures(("token", "probability"), rows, share=1),
        revealed_figures=Figures(("token", f"at {_COLD:g}", "at 1", f"at {_WARM:g}"), told, share=1),
    )  # fmt: skip


def _nothing_drawn(live: Live, number: int) -> Lesson:
    vocab = live.config.vocab_size
    question = live.asked("sampling").number(
        f"Without a head every one of the {vocab:,} tokens is as good as another. What is the probability of a blind "
        "guess?",
        1 / vocab,
        [1 / live.config.d_model, 2 / vocab, 1 / math.sqrt(vocab), 1 / live.length],
        f"1 / {vocab:,} = {figure(1 / vocab)}. Any head that is worth its weights does better.",
    )
    return Lesson(
        number, "sampling", TITLES["sampling"],
        "There are no logits here, so there is nothing to draw from: this model reads texts and writes none. Those "
        "with a head turn logits into probabilities, and take the likeliest token or draw one.",
        "p = softmax(logits / temperature), where there are logits",
        "probs = (logits / temperature).softmax(-1)",
        f"{live.final}[{live.here},0]",
        question,
        role="output",
        focus=live.here,
        shown=(live.final,),
    )  # fmt: skip


def cache(live: Live, number: int) -> Lesson:
    if not live.config.causal:
        return _no_cache(live, number)
    config, transformer, count = live.config, live.model.transformer, live.length
    layers, groups, width = config.n_layers, config.n_kv_heads, config.d_head
    room = transformer.cache(count)
    ids = torch.tensor([live.encoding.ids], device=next(transformer.parameters()).device)
    training = transformer.training
    transformer.eval()
    with torch.no_grad():
        for part in (ids[:, :-1], ids[:, -1:]):
            if part.shape[1]:
                last = transformer.hidden(part, cache=room)
    transformer.train(training)
    whole = live.trace.last_hidden[-1]
    apart = float((last[0, -1] - whole).abs().max())
    size = next(transformer.parameters()).itemsize
    each = cache_bytes_per_token(config, 1)
    question = live.asked("cache").number(
        f"Of each token the cache keeps what later tokens need: {layers} layers, {groups} key-value "
        f"head{'s' if groups > 1 else ''} of {width}. How many numbers is that?",
        each,
        [each // 2, 3 * each // 2, each // layers, layers * config.d_model * config.d_model, each * count],
        f"Keys and values: 2 × {layers} × {groups} × {width} = {each:,} numbers, {each * size:,} bytes a token. The "
        f"last token computed with the cache differs from the whole pass by at most {apart:.1e}.",
    )
    rows = []
    for tokens in (count + 1, 2 * count, config.context):
        without, kept = (
            step_work(config, min(tokens, config.context), cached=cached).whole for cached in (False, True)
        )
        rows.append((min(tokens, config.context), without, kept, f"{without / kept:.1f} ×"))
    return Lesson(
        number, "cache", TITLES["cache"],
        "No token sees a later one, so the keys and values of the tokens that are there never change. They are kept, "
        "and each new token sends only itself through the model; no query is ever needed twice.",
        "K = [K_cache | k_new],  V = [V_cache | v_new]",
        "keys[:, :, start:end] = k; values[:, :, start:end] = v",
        f"L0H0.k[{live.here},0]",
        question,
        role="k",
        figures=Figures(("tokens", "multiply-adds without", "with the cache", "saved"), tuple(dict.fromkeys(rows))),
    )  # fmt: skip


def _no_cache(live: Live, number: int) -> Lesson:
    count, config = live.length, live.config
    question = live.asked("cache").number(
        f"One more word makes this text of {count} tokens one of {count + 1}. How many tokens go through this encoder "
        "again?",
        count + 1,
        [1, count, 2 * count + 1, (count + 1) ** 2],
        f"All {count + 1}: each of the {count} sees the new one, so what the first block makes of it comes out "
        "otherwise, and all that is made of that.",
    )
    rows = tuple(
        (n, step_work(config, n, cached=False).whole)
        for n in dict.fromkeys((count, count + 1, min(2 * count, config.context)))
    )
    return Lesson(
        number, "cache", TITLES["cache"],
        "There is no cache in an encoder: its tokens look both ways, so a new word changes the vectors of all the "
        "others. A decoder can keep its keys and values, since what comes later changes nothing before.",
        "K, V of all tokens, computed anew for every text",
        "x = model.hidden(ids)  # the whole text, in one pass",
        f"L0H0.k[{live.here},0]",
        question,
        role="k",
        figures=Figures(("tokens", "multiply-adds of a pass"), rows),
    )  # fmt: skip


LESSONS: dict[str, Callable[[Live, int], Lesson]] = {"logits": logits, "sampling": sampling, "cache": cache}
