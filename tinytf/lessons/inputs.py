"""Lessons from the text to the first block: tokens, embeddings, positions."""

import math
from collections.abc import Callable

from tinytf.lessons.asking import bracketed, figure
from tinytf.lessons.data import Figures, Lesson
from tinytf.lessons.live import Live
from tinytf.lessons.titles import TITLES
from tinytf.steps.operations.rotate import rotary_frequencies


def tokens(live: Live, number: int) -> Lesson:
    encoding = live.encoding
    count = live.length
    text = (
        f"This text is {count} token{'s' if count > 1 else ''}, and each head compares each with each: "
        f"{count:,} × {count:,} = {count**2:,} scores. How many scores has a text of twice as many tokens?"
    )
    question = live.asked("tokens").number(
        text,
        4 * count**2,
        [2 * count**2, 8 * count**2, count**2 + 2 * count, 3 * count**2],
        f"{2 * count:,} × {2 * count:,} = {4 * count**2:,}: attention grows with the square of the length.",
    )
    rows = tuple(
        (place, token.shown, token.id, f"{token.start}:{token.end}" if not token.special else "added")
        for place, token in enumerate(encoding.tokens)
    )
    return Lesson(
        number, "tokens", TITLES["tokens"],
        f"A model computes with numbers, so a text is first cut into pieces from a fixed list of "
        f"{live.model.tokenizer.vocab_size:,}. Each piece is known by its place in that list. Common words are one "
        "piece; a rare one is spelled out in several.",
        "text → pieces → ids",
        "ids = torch.tensor([tokenizer.encode(text)])  # (1, T)",
        f"embed.tokens[{live.here},0]",
        question,
        role="embed",
        figures=Figures(("#", "token", "id", "characters"), rows),
    )  # fmt: skip


def embeddings(live: Live, number: int) -> Lesson:
    config = live.config
    vocab, width, count = config.vocab_size, config.d_model, live.length
    token = live.encoding.tokens[live.here]
    question = live.asked("embeddings").number(
        f"The table has a row of {width:,} numbers for each of {vocab:,} tokens, and this text looks up {count:,} of "
        "them. How many numbers does the table hold?",
        vocab * width,
        [count * width, vocab + width, width * width, vocab * vocab],
        f"{vocab:,} × {width:,} = {vocab * width:,}. A text reads only {count:,} × {width:,} = {count * width:,} "
        "of them.",
    )
    why = "" if config.positions == "rotary" else ", so that the positions to be added do not drown it"
    scaled = (
        f" This model multiplies what it finds by {config.embed_scale:.4g}{why}." if config.embed_scale != 1 else ""
    )
    return Lesson(
        number, "embeddings", TITLES["embeddings"],
        f"That {token.shown} is number {token.id:,} says nothing of its meaning. So every token of the vocabulary has "
        f"a vector of {width:,} numbers, which training moves to where it is of use.{scaled}",
        live.trace.steps.by_name["embed.tokens"].formula,
        "x = F.embedding(ids, E)" + (f" * {config.embed_scale:.4g}" if config.embed_scale != 1 else "")
        + f"  # ({count}, {width})",
        f"embed.tokens[{live.here},0]",
        question,
        role="embed", focus=live.here, shown=("embed.tokens",),
    )  # fmt: skip


def positions(live: Live, number: int) -> Lesson:
    return _POSITIONS[live.config.positions](live, number)


def _added(live: Live, number: int, why: str, pytorch: str, reveal: str) -> Lesson:
    """Learned and sinusoidal positions are added to the embeddings; asked for is a sum of the two."""
    here = live.here
    name = "embed.sum" if live.config.embed_norm else "embed.out"
    parts = [step for step in ("embed.tokens", "embed.types", "embed.positions") if step in live.trace.steps.by_name]
    values = [float(live.at(f"{step}[{here},0]")) for step in parts]
    token, place = values[0], values[-1]
    total = math.fsum(values)
    words = {"embed.tokens": "the token", "embed.types": "its type", "embed.positions": "its place"}
    listed = ", ".join(f"{words[step]} has {figure(value)}" for step, value in zip(parts, values, strict=True))
    question = live.asked("positions").number(
        f"In dimension 0 of token {here}, {live.token(here)}: {listed}. What is embed.{name[6:]} there?",
        total,
        [token - place, token * place, place - token, token, place],
        f"They are added: {figure(values[0])} + {' + '.join(map(bracketed, values[1:]))} = {figure(total)}. {reveal}",
    )
    return Lesson(
        number, "positions", TITLES["positions"], why, live.trace.steps.by_name["embed.positions"].formula, pytorch,
        f"{name}[{here},0]", question, role="embed", focus=live.here, shown=("embed.positions",), revealed=(name,),
    )  # fmt: skip


def _learned(live: Live, number: int) -> Lesson:
    context = live.config.context
    return _added(
        live,
        number,
        "Attention by itself does not know the order of the words: shuffled keys give the same sums. So each place has "
        f"a vector of its own, learned like a token's, and there are {context:,} of them: no text can be longer.",
        "x = x + P[torch.arange(T)]",
        "One vector now holds both what the token is and where it stands.",
    )


def _sinusoidal(live: Live, number: int) -> Lesson:
    width = live.config.d_model
    return _added(
        live,
        number,
        "Attention by itself does not know the order of the words: shuffled keys give the same sums. So each place is "
        f"given waves of {width // 2} lengths, sines and cosines, fixed and never learned.",
        "P[:, 0::2], P[:, 1::2] = angle.sin(), angle.cos()  # angle of each pair",
        f"The wave of dimension 0 is sin({live.here}) = {figure(math.sin(live.here))}.",
    )


def _rotary(live: Live, number: int) -> Lesson:
    turns = rotary_frequencies(live.config.at(0).rope).double()
    pair = min(1, len(turns) - 1)
    place, turn, half = live.here, float(turns[pair]), live.config.rope.width // 2
    question = live.asked("positions").number(
        f"Pair {pair} of every query and key turns by {figure(turn)} radians a position. "
        f"By how many radians is the query of token {place}, {live.token(place)}, turned?",
        place * turn,
        [turn, place + turn, place * turn / 2, (place + 1) * turn, turn / max(1, place)],
        f"{place} × {figure(turn)} = {figure(place * turn)}. The key {min(2, place)} places before is turned by "
        f"{figure((place - min(2, place)) * turn)}: a score sees only the difference of the two angles.",
    )
    bare = "q_norm" if live.config.qk_norm else "q"
    return Lesson(
        number, "positions", TITLES["positions"],
        "Attention by itself does not know the order of the words. This model adds nothing to the embeddings: in every "
        f"layer it turns each of the {half} pairs of a query or key by an angle that grows with its place.",
        "(a, b) → (a·cos − b·sin, b·cos + a·sin), angle = position × frequency",
        "q = q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin",
        f"L0H0.q_rot[{place},{pair}]",
        question,
        role="q", focus=live.here, shown=(f"L0H0.{bare}",),
        revealed=("L0H0.q_rot",),
        figures=Figures(
            ("pair", "radians a position", "positions for one turn"),
            tuple((i, float(turns[i]), 2 * math.pi / float(turns[i])) for i in _some(len(turns))),
        ),
    )  # fmt: skip


def _some(count: int) -> list[int]:
    """Three places, from the first to the last."""
    return sorted({0, min(1, count - 1), count - 1}) if count else []


_POSITIONS: dict[str, Callable[[Live, int], Lesson]] = {
    "learned": _learned,
    "sinusoidal": _sinusoidal,
    "rotary": _rotary,
}

LESSONS: dict[str, Callable[[Live, int], Lesson]] = {
    "tokens": tokens,
    "embeddings": embeddings,
    "positions": positions,
}
