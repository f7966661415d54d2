"""Lessons from the text to the first block: tokens, embeddings, positions."""

import math
from collections.abc import Sequence
from itertools import zip_longest

from tinytf.lessons.lesson import SEEN, Figure, Lesson, LiveTable, bracketed, figure
from tinytf.lessons.live import Live
from tinytf.look.neighbours import neighbours as nearest_tokens
from tinytf.steps.operations import Alibi, ByDistance
from tinytf.steps.operations.rotate import rotary_frequencies

_NEAREST = 5


def tokens(live: Live) -> Lesson:
    count, text, vocab = live.length, live.encoding.text, live.model.tokenizer.vocab_size
    question = live.ask("tokens").number(
        f"This text has {len(text):,} characters, and the vocabulary {vocab:,} pieces. How many numbers of this table "
        "go into the model?",
        count,
        [len(text), vocab, len(text) + count, count + 1, 3 * count],
        f"{count}: an id for each token and nothing else, {figure(len(text) / count)} characters an id here.",
    )
    rows = tuple(
        (place, token.shown, token.id, "added" if token.special else f"{token.start}:{token.end}")
        for place, token in enumerate(live.encoding.tokens)
    )
    return live.lesson("tokens", question, LiveTable(("#", "token", "id", "characters"), rows))


def embeddings(live: Live) -> Lesson:
    config, here = live.config, live.here
    vocab, width, scale = config.vocab_size, config.embed_width, config.embed_scale
    column = live.at("embed.tokens")[:, 0].tolist()
    value = column.pop(here)
    question = live.ask("embeddings").number(
        f"d0 of token {here}, {live.token(here)}, is {figure(value)}. What would it be if this token came first in "
        "another text?",
        value,
        [column[0] if here and column else 0.0, value / (here + 1), value * (here + 1), *column],
        f"{figure(value)} again. The table has one row for each token, {vocab:,} × {width:,} = {vocab * width:,} "
        "numbers, and asks for the id alone: not for the place, and not for the other tokens.",
    )
    scaled, times, root = "", "", ""
    if scale != 1:
        is_root = math.isclose(scale, math.sqrt(width), rel_tol=1e-3)
        root, times = (f"√{width}", f"math.sqrt({width})") if is_root else (f"{scale:.4g}", f"{scale:.4g}")
        said = f"{root} = {scale:.4g}" if is_root else root
        why = "" if config.positions == "rotary" else ", so that the positions to be added do not drown it"
        scaled, root, times = f" This model multiplies the vector by {said}{why}.", f" · {root}", f" * {times}"
    return live.lesson("embeddings", question, id=live.encoding.ids[here], scaled=scaled, root=root, times=times)


def neighbours(live: Live) -> Lesson:
    """The nearest embeddings of a word of the text, among the words beside it and among all."""
    encoding, vocab, width = live.encoding, live.config.vocab_size, live.config.embed_width
    words = [i for i, one in enumerate(encoding.tokens) if not one.special and one.id != live.model.tokenizer.mask_id]
    place = words[-1] if words else live.here
    own = encoding.ids[place]
    ids = list(dict.fromkeys([own, *(encoding.ids[i] for i in words)]))
    found = nearest_tokens(live.model, [f"#{token}" for token in ids], top=_NEAREST).spaces[0]
    beside = sorted(zip(found.similarity[0, 1:].tolist(), ids[1:], strict=True), reverse=True)
    near = list(zip(found.cosines[0].tolist(), found.ids[0].tolist(), strict=True))
    best, nearest = near[0]
    others = [token for _, token in [*beside, *near[1:]] if token != nearest][:3]
    word, right = live.piece(own), live.piece(nearest)
    question = live.ask("neighbours").words(
        f"Which of these tokens is used most like {word}, so that its vector points most like that one?",
        right,
        map(live.piece, others),
        f"{right}, with a cosine of {figure(best)}: of all {vocab:,} tokens it is the nearest.",
        (best,),
    )
    rows = _first_numbers(live, [own, *sorted([nearest, *others])])
    beside_it, of_all = ([(live.piece(token), cosine) for cosine, token in part] for part in (beside, near))
    told = [(*a, *b) for a, b in zip_longest(beside_it[:_NEAREST], of_all, fillvalue=("", ""))]
    return live.lesson(
        "neighbours",
        question,
        LiveTable(("token", *(f"d{i}" for i in range(SEEN))), rows),
        LiveTable(("in this text", "cosine", f"of all {vocab:,}", "cosine"), tuple(told)),
        place=place,
        width=width,
        chance=f"{width**-0.5:.2g}",
    )


def _first_numbers(live: Live, ids: Sequence[int]) -> tuple[tuple[Figure, ...], ...]:
    """The first numbers of some embeddings."""
    table = live.model.transformer.embed.tokens.weight.detach()[list(ids), :SEEN].double().tolist()
    return tuple((live.piece(token), *row) for token, row in zip(ids, table, strict=True))


def positions(live: Live) -> Lesson:
    kinds = {"rotary": _rotary, "alibi": _alibi, "none": _by_distance}
    return kinds.get(live.config.positions, _added)(live)


def _added(live: Live) -> Lesson:
    """Learned and sinusoidal positions are added to the embeddings; the question is about one such sum."""
    here, learned = live.here, live.config.positions == "learned"
    name = "embed.sum" if live.config.embed_norm else "embed.out"
    token = live.steps[name].inputs[0]  # projected where embeddings are narrower than the stream
    words = {token: "the token", "embed.types": "its type", "embed.positions": "its position"}
    values = {said: float(live.at(f"{step}[{here},0]")) for step, said in words.items() if step in live.steps}
    row = here + live.config.position_offset
    first, *others = values.values()
    place, total = others[-1], math.fsum(values.values())
    reveal = (
        "One vector now holds both what the token is and where it stands."
        if learned
        else f"The wave of dimension 0 is sin({row}) = {figure(math.sin(row))}."
    )
    question = live.ask("positions").number(
        f"In dimension 0 of token {here}, {live.token(here)}: "
        f"{', '.join(f'{said} has {figure(value)}' for said, value in values.items())}. What is {name} there?",
        total,
        [first - place, first * place, place - first, first, place],
        f"They are added: {figure(first)} + {' + '.join(map(bracketed, others))} = {figure(total)}. {reveal}",
    )
    return live.lesson(
        "positions",
        question,
        variant=live.config.positions.removesuffix("_halves"),
        also=[f"{step}[{here}]" for step in words if step in live.steps and step != "embed.positions"],
        sum=name,
        waves=live.config.summed_width // 2,
    )


def _rotary(live: Live) -> Lesson:
    rope = live.config.at(live.config.rotary_layers[0]).rope.of_text(len(live.encoding.ids))
    turns = rotary_frequencies(rope).double().tolist()
    half, pair = len(turns), min(1, len(turns) - 1)
    place, turn, before = live.here, turns[pair], min(2, live.here)
    question = live.ask("positions").number(
        f"RoPE rotates pair {pair}, d{pair} with d{pair + half}, by {figure(turn)} radians per position. By how many "
        f"radians does it rotate that pair of token {place}, {live.token(place)}?",
        place * turn,
        [turn, place + turn, place * turn / 2, (place + 1) * turn, turn / max(1, place)],
        f"{place} × {figure(turn)} = {figure(place * turn)}. {before} positions earlier the pair is rotated by "
        f"{figure((place - before) * turn)}: what two tokens make of each other depends only on the difference.",
    )
    told = [(i, f"d{i}, d{i + half}", turns[i], 2 * math.pi / turns[i]) for i in sorted({0, pair, half - 1})]
    titles = ("pair", "rotates", "radians per position", "positions per turn")
    return live.lesson(
        "positions",
        question,
        LiveTable(titles, tuple(told)),
        LiveTable((*titles, f"radians at {place}"), tuple((*row, place * row[2]) for row in told)),
        variant="rotary",
        half=half,
        pair=pair,
        width=rope.width,
        last=half - 1,
        partner=2 * half - 1,
    )


def _by_distance(live: Live) -> Lesson:
    """The score of the query with a key some tokens back, and what their distance adds."""
    row, key = live.row, max(0, live.row - 3)
    step = next(step for step in live.steps.values() if isinstance(step.operation, ByDistance))
    source, content, table = step.inputs
    score, total = (float(live.at(f"L0H0.{name}")[row, key]) for name in (source, step.name))
    part = total - score
    question = live.ask("positions").number(
        f"Query {row}, {live.token(row)}, has score {figure(score)} with key {key}, {live.token(key)}, by what both "
        f"are. {content}·{table} of their distance, {row - key}, is {figure(part)}. What is {step.name}?",
        total,
        [score - part, score * part, part, score, part - score],
        f"The parts are added: {figure(score)} + {bracketed(part)} = {figure(total)}.",
    )
    return live.lesson(
        "positions", question, variant="none", key=key, step=step, source=source, content=content, table=table
    )


def _alibi(live: Live) -> Lesson:
    """The score of the query with a key some tokens back, less the slope of head 0 for each."""
    row, key, step = live.row, max(0, live.row - 3), live.steps["biased"]
    operation = step.operation
    assert isinstance(operation, Alibi)
    slope, back = operation.slopes()[0] * operation.scale, row - key
    score = float(live.at(f"L0H0.{step.inputs[0]}[{row},{key}]"))
    question = live.ask("positions").number(
        f"Query {row}, {live.token(row)}, has score {figure(score)} with key {key}, {live.token(key)}. Head 0 takes "
        f"{figure(slope)} off for each token of distance. What remains?",
        score - slope * back,
        [score + slope * back, score - slope, score * slope, score - back, score - slope * (back + 1)],
        f"The distance is {back}: {figure(score)} − {back} × {figure(slope)} = {figure(score - slope * back)}.",
    )
    return live.lesson("positions", question, variant="alibi", key=key, source=step.inputs[0])
