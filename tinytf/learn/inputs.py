"""Lessons from the text to the first block: tokens, embeddings, positions."""

import math
from collections.abc import Sequence
from itertools import zip_longest

from tinytf.learn.lesson import SEEN, Figure, Lesson, LiveTable, bracketed, figure
from tinytf.learn.live import Live
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
        [
            (len(text), "That counts characters, and the table has pieces."),
            (vocab, "That is the whole vocabulary, not this text."),
            (len(text) + count, "That counts the characters too, and the model never sees them."),
            (count + 1, f"The table has {count} rows, and nothing is added to them."),
            (3 * count, "That counts where each piece begins and ends too; only the ids go in."),
        ],
        f"{count}: an id for each token and nothing else, {figure(len(text) / count)} characters an id here.",
    )
    rows = tuple(
        (position, token.shown, token.id, "added" if token.special else f"{token.start}:{token.end}")
        for position, token in enumerate(live.encoding.tokens)
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
        [
            *((other, "That is d0 of another token, which has a row of its own.") for other in column[:1]),
            (value / (here + 1), "That divides by a position, and the table knows none."),
            (value * (here + 1), "That multiplies by a position, and the table knows none."),
            *((other, "That is d0 of another token, which has a row of its own.") for other in column[1:]),
        ],
        f"{figure(value)} again. The table has one row for each token, {vocab:,} × {width:,} = {vocab * width:,} "
        "numbers, and a row is looked up by its id alone: not by its position, and not by the other tokens.",
    )
    scaled, times, root = "", "", ""
    if scale != 1:
        is_root = math.isclose(scale, math.sqrt(width), rel_tol=1e-3)
        root, times = (f"√{width}", f"math.sqrt({width})") if is_root else (f"{scale:.4g}", f"{scale:.4g}")
        factor = f"{root} = {scale:.4g}" if is_root else root
        reason = "" if config.positions == "rotary" else ", so that the positions to be added do not drown it"
        scaled, root, times = f" This model multiplies the vector by {factor}{reason}.", f" · {root}", f" * {times}"
    return live.lesson("embeddings", question, id=live.encoding.ids[here], scaled=scaled, root=root, times=times)


def neighbours(live: Live) -> Lesson:
    """The embeddings nearest to that of a word of the text: among the words of the text, and among all tokens."""
    encoding, vocab, width = live.encoding, live.config.vocab_size, live.config.embed_width
    words = [
        i for i, token in enumerate(encoding.tokens) if not token.special and token.id != live.model.tokenizer.mask_id
    ]
    position = words[-1] if words else live.here
    token_id = encoding.ids[position]
    ids = list(dict.fromkeys([token_id, *(encoding.ids[i] for i in words)]))
    space = nearest_tokens(live.model, [f"#{token}" for token in ids], top=_NEAREST).spaces[0]
    text_matches = sorted(zip(space.similarity[0, 1:].tolist(), ids[1:], strict=True), reverse=True)
    all_matches = list(zip(space.cosines[0].tolist(), space.ids[0].tolist(), strict=True))
    best, nearest_id = all_matches[0]
    others = {token: cosine for cosine, token in [*text_matches, *all_matches[1:]] if token != nearest_id}
    others = dict(list(others.items())[:3])
    word, nearest_word = live.piece(token_id), live.piece(nearest_id)
    question = live.ask("neighbours").words(
        f"Which of these tokens is used most like {word}, so that the two vectors point most nearly the same way?",
        nearest_word,
        [
            (live.piece(token), f"Its cosine is {figure(cosine)}, not {figure(best)}.")
            for token, cosine in others.items()
        ],
        f"{nearest_word}, with a cosine of {figure(best)}: of all {vocab:,} tokens it is the nearest.",
        (best,),
    )
    rows = _first_numbers(live, [token_id, *sorted([nearest_id, *others])])
    text_rows, all_rows = (
        [(live.piece(token), cosine) for cosine, token in matches] for matches in (text_matches, all_matches)
    )
    revealed = [(*a, *b) for a, b in zip_longest(text_rows[:_NEAREST], all_rows, fillvalue=("", ""))]
    return live.lesson(
        "neighbours",
        question,
        LiveTable(("token", *(f"d{i}" for i in range(SEEN))), rows),
        LiveTable(("in this text", "cosine", f"of all {vocab:,}", "cosine"), tuple(revealed)),
        position=position,
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
    """The lesson on learned and sinusoidal positions, which are added to the embeddings; it asks for one such sum."""
    here, learned = live.here, live.config.positions == "learned"
    name = "embed.sum" if "embed.sum" in live.steps else "embed.out"
    token = live.steps[name].inputs[0]  # projected where embeddings are narrower than the stream
    words = {token: "the token", "embed.types": "its type", "embed.positions": "its position"}
    values = {part: float(live.at(f"{step}[{here},0]")) for step, part in words.items() if step in live.steps}
    row = here + live.config.position_offset
    first, *rest = values.values()
    position_value, total = rest[-1], math.fsum(values.values())
    reveal = (
        "One vector now holds both what the token is and where it stands."
        if learned
        else f"The wave of dimension 0 is sin({row}) = {figure(math.sin(row))}."
    )
    question = live.ask("positions").number(
        f"In dimension 0 of token {here}, {live.token(here)}: "
        f"{', '.join(f'{part} has {figure(value)}' for part, value in values.items())}. What is {name} there?",
        total,
        [
            (first - position_value, "That subtracts the position."),
            (first * position_value, "That multiplies the token by the position."),
            (position_value - first, "That subtracts the token from the position."),
            (first, "That is the token without its position."),
            (position_value, "That is the position without the token."),
        ],
        f"They are added: {figure(first)} + {' + '.join(map(bracketed, rest))} = {figure(total)}. {reveal}",
    )
    return live.lesson(
        "positions",
        question,
        variant=live.config.positions.partition("_")[0],
        also=[f"{step}[{here}]" for step in words if step in live.steps and step != "embed.positions"],
        sum=name,
        waves=live.config.summed_width // 2,
    )


def _rotary(live: Live) -> Lesson:
    rope = live.config.at(live.config.rotary_layers[0]).rope.of_text(len(live.encoding.ids))
    frequencies = rotary_frequencies(rope).double().tolist()
    half, pair = len(frequencies), min(1, len(frequencies) - 1)
    position, frequency, back = live.here, frequencies[pair], min(2, live.here)
    question = live.ask("positions").number(
        f"RoPE rotates pair {pair}, d{pair} with d{pair + half}, by {figure(frequency)} radians per position. By how "
        f"many radians does it rotate that pair of token {position}, {live.token(position)}?",
        position * frequency,
        [
            (frequency, "That is the angle of a single position."),
            (position + frequency, "That adds the position to the frequency, and the angle is their product."),
            (position * frequency / 2, "That is half of the angle."),
            ((position + 1) * frequency, "That counts positions from 1, and they are counted from 0."),
            (frequency / max(1, position), "That divides by the position, and each position adds to the angle."),
        ],
        f"{position} × {figure(frequency)} = {figure(position * frequency)}. {back} positions earlier the pair is "
        f"rotated by {figure((position - back) * frequency)}: how two tokens match depends only on the difference of "
        "their positions.",
    )
    rows = [
        (i, f"d{i}, d{i + half}", frequencies[i], 2 * math.pi / frequencies[i]) for i in sorted({0, pair, half - 1})
    ]
    titles = ("pair", "rotates", "radians per position", "positions per turn")
    return live.lesson(
        "positions",
        question,
        LiveTable(titles, tuple(rows)),
        LiveTable((*titles, f"radians at {position}"), tuple((*row, position * row[2]) for row in rows)),
        variant="rotary",
        half=half,
        pair=pair,
        width=rope.width,
        last=half - 1,
        partner=2 * half - 1,
    )


def _by_distance(live: Live) -> Lesson:
    """The lesson on embeddings of distances: a score with a key up to 3 tokens back, and what their distance adds."""
    row, key = live.row, max(0, live.row - 3)
    step = next(step for step in live.steps.values() if isinstance(step.operation, ByDistance))
    source, content, table = step.inputs
    score, total = (float(live.at(f"L0H0.{name}")[row, key]) for name in (source, step.name))
    distance_part = total - score
    question = live.ask("positions").number(
        f"Query {row}, {live.token(row)}, has score {figure(score)} with key {key}, {live.token(key)}, from the "
        f"tokens alone. For their distance, {row - key}, {content}·{table} is {figure(distance_part)}. What is "
        f"{step.name}?",
        total,
        [
            (score - distance_part, "That subtracts the part for the distance."),
            (score * distance_part, "That multiplies the two parts."),
            (distance_part, "That is the part for the distance alone."),
            (score, "That is the part of the tokens alone."),
            (distance_part - score, "That subtracts the part of the tokens."),
        ],
        f"The parts are added: {figure(score)} + {bracketed(distance_part)} = {figure(total)}.",
    )
    return live.lesson(
        "positions", question, variant="none", key=key, step=step, source=source, content=content, table=table
    )


def _alibi(live: Live) -> Lesson:
    """The lesson on ALiBi: a score with a key up to 3 tokens back, less the slope of the head for each token."""
    row, key, step = live.row, max(0, live.row - 3), live.steps["biased"]
    operation = step.operation
    assert isinstance(operation, Alibi)
    slope, back = operation.slopes()[live.head] * operation.scale, row - key
    score = float(live.at(f"L0H0.{step.inputs[0]}[{row},{key}]"))
    question = live.ask("positions").number(
        f"Query {row}, {live.token(row)}, has score {figure(score)} with key {key}, {live.token(key)}. Head "
        f"{live.head} takes {figure(slope)} off for each token of distance. What remains?",
        score - slope * back,
        [
            (score + slope * back, "That adds something for the distance, and ALiBi takes it off."),
            (score - slope, f"That takes the slope off once, and the distance is {back}."),
            (score * slope, "That multiplies by the slope, and it is taken off."),
            (score - back, "That takes off the distance without the slope."),
            (score - slope * (back + 1), f"That takes the distance to be {back + 1}."),
        ],
        f"The distance is {back}: {figure(score)} − {back} × {figure(slope)} = {figure(score - slope * back)}.",
    )
    return live.lesson("positions", question, variant="alibi", key=key, source=step.inputs[0])
