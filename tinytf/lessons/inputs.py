"""Lessons from the text to the first block: tokens, embeddings, positions."""

import math

from tinytf.lessons.lesson import Figures, Lesson, bracketed, figure
from tinytf.lessons.live import Live
from tinytf.steps.operations.rotate import rotary_frequencies


def tokens(live: Live) -> Lesson:
    count = live.length
    question = live.ask("tokens").number(
        f"This text has {count} token{'s' if count > 1 else ''}, and each head compares each token with each: "
        f"{count:,} × {count:,} = {count**2:,} scores. How many scores does a text with twice as many tokens have?",
        4 * count**2,
        [2 * count**2, 8 * count**2, count**2 + 2 * count, 3 * count**2],
        f"{2 * count:,} × {2 * count:,} = {4 * count**2:,}: attention grows with the square of the length.",
    )
    rows = tuple(
        (place, token.shown, token.id, "added" if token.special else f"{token.start}:{token.end}")
        for place, token in enumerate(live.encoding.tokens)
    )
    return live.lesson("tokens", question, Figures(("#", "token", "id", "characters"), rows))


def embeddings(live: Live) -> Lesson:
    config, count = live.config, live.length
    vocab, width, scale = config.vocab_size, config.d_model, config.embed_scale
    question = live.ask("embeddings").number(
        f"The table has a row of {width:,} numbers for each of {vocab:,} tokens, and this text looks up {count:,} of "
        "them. How many numbers does the table hold?",
        vocab * width,
        [count * width, vocab + width, width * width, vocab * vocab],
        f"{vocab:,} × {width:,} = {vocab * width:,}. A text reads only {count:,} × {width:,} = {count * width:,} "
        "of them.",
    )
    scaled = ""
    if scale != 1:
        root = f"√{width} = " if math.isclose(scale, math.sqrt(width), rel_tol=1e-3) else ""
        why = "" if config.positions == "rotary" else ", so that the positions to be added do not drown it"
        scaled = f" This model multiplies the vector by {root}{scale:.4g}{why}."
    times = f" * {scale:.4g}" if scale != 1 else ""
    return live.lesson("embeddings", question, id=live.encoding.ids[live.here], scaled=scaled, times=times)


def positions(live: Live) -> Lesson:
    return _rotary(live) if live.config.positions == "rotary" else _added(live)


def _added(live: Live) -> Lesson:
    """Learned and sinusoidal positions are added to the embeddings; the question is about one such sum."""
    here, learned = live.here, live.config.positions == "learned"
    name = "embed.sum" if live.config.embed_norm else "embed.out"
    words = {"embed.tokens": "the token", "embed.types": "its type", "embed.positions": "its position"}
    values = {said: float(live.at(f"{step}[{here},0]")) for step, said in words.items() if step in live.steps}
    first, *others = values.values()
    place, total = others[-1], math.fsum(values.values())
    reveal = (
        "One vector now holds both what the token is and where it stands."
        if learned
        else f"The wave of dimension 0 is sin({here}) = {figure(math.sin(here))}."
    )
    question = live.ask("positions").number(
        f"In dimension 0 of token {here}, {live.token(here)}: "
        f"{', '.join(f'{said} has {figure(value)}' for said, value in values.items())}. What is {name} there?",
        total,
        [first - place, first * place, place - first, first, place],
        f"They are added: {figure(first)} + {' + '.join(map(bracketed, others))} = {figure(total)}. {reveal}",
    )
    return live.lesson("positions", question, variant=live.config.positions, sum=name, waves=live.config.d_model // 2)


def _rotary(live: Live) -> Lesson:
    rope = live.config.at(0).rope
    turns = rotary_frequencies(rope).double().tolist()
    half, pair = len(turns), min(1, len(turns) - 1)
    place, turn, before = live.here, turns[pair], min(2, live.here)
    question = live.ask("positions").number(
        f"RoPE rotates pair {pair} of every query and key, d{pair} with d{pair + half}, by {figure(turn)} radians per "
        f"position. By how many radians is the query of token {place}, {live.token(place)}, rotated?",
        place * turn,
        [turn, place + turn, place * turn / 2, (place + 1) * turn, turn / max(1, place)],
        f"{place} × {figure(turn)} = {figure(place * turn)}. The key {before} positions earlier is rotated by "
        f"{figure((place - before) * turn)}: a score depends only on the difference of the two angles.",
    )
    rows = tuple((i, f"d{i}, d{i + half}", turns[i], 2 * math.pi / turns[i]) for i in sorted({0, pair, half - 1}))
    return live.lesson(
        "positions",
        question,
        Figures(("pair", "rotates", "radians per position", "positions per turn"), rows),
        variant="rotary",
        half=half,
        pair=pair,
        bare="q_norm" if live.config.qk_norm else "q",
    )
