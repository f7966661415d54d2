"""Lessons about two stacks: what one gives the other, what training gives the decoder, and cross-attention."""

from collections.abc import Sequence

import numpy as np

from tinytf.learn.lesson import Figure, Lesson, LiveTable, figure
from tinytf.learn.live import Live
from tinytf.steps.operations.softmax import probabilities

SOURCE = "the third of May 1994"
"""What the lessons read unless a text is given."""


def encoder_decoder(live: Live) -> Lesson:
    encoder, (size, width) = live.model.encoder, live.at("source").shape
    count = size * width
    question = live.ask("encoder-decoder").number(
        f"The source has {size} tokens and the target {live.length}, and the encoder is {width} wide. "
        "How many numbers does the decoder get from the encoder?",
        count,
        [
            (width, "That is one vector for the whole source, and each of its tokens has one."),
            (live.length * width, "That is a vector for each token of the target, and the encoder reads the source."),
            (size * live.length, "That is the size of a map, every token of the target with every one of the source."),
            (size, f"That is one number for each token of the source, and each has {width}."),
        ],
        f"{size} × {width} = {count:,}: a vector for each token of the source. They are computed once, and every "
        "layer of the decoder reads them for each token that it writes.",
    )
    rows = (
        ("encoder", "source", size, encoder.config.n_layers, "tokens before and after it"),
        ("decoder", "target", live.length, live.config.n_layers, "tokens before it, and the source"),
    )
    source = live.trace.source
    return live.lesson(
        "encoder-decoder",
        question,
        LiveTable(("stack", "reads", "tokens", "layers", "a token sees"), rows),
        maps=[
            live.map(f"{name} H0", said, trace, 0, next(iter(trace.steps.attention_layers)))
            for name, said, trace in (("encoder", "both ways", source), ("decoder", "back", live.trace))
            if trace is not None
        ],
        size=size,
    )


def teacher_forcing(live: Live) -> Lesson:
    encoding, targets, _ = live.prediction_task
    rows: list[tuple[Figure, ...]] = []
    for position, asked_for in zip(targets.positions, targets.ids, strict=True):
        shares = probabilities(live.trace.logits_at(position).double())
        given = f"{position} {encoding.tokens[position].shown}"
        rows.append((given, live.piece(asked_for), float(shares[asked_for]), live.piece(int(shares.argmax()))))
    asked = _asked(encoding.ids, targets.ids)
    position, right = targets.positions[asked], live.piece(targets.ids[asked])
    wrong = [(live.token(position), "That is what it is given there; the one after it is asked for.")]
    if position > 0:
        wrong.append((live.token(position - 1), "That comes before, and the one after is asked for."))
    if position + 2 < live.length:
        wrong.append((live.token(position + 2), "That is one token too far."))
    wrong += [
        (live.piece(int(token)), "The model may find that likely, and the right target has another.")
        for token in probabilities(live.trace.logits_at(position)).argsort(descending=True)[:4]
    ]
    count = len(rows)
    question = live.ask("teacher-forcing").words(
        f"At position {position} the decoder is given {live.token(position)}. Which token does training ask it for?",
        right,
        wrong,
        f"{right}, the next of the right target, whatever the model would have written. Training asks for "
        f"{_tokens(count)} in one pass; writing takes a pass for each.",
        (targets.ids[asked],),
    )
    return live.lesson(
        "teacher-forcing",
        question,
        LiveTable(("given",), tuple(row[:1] for row in rows)),
        LiveTable(("given", "asked for", "probability", "the model's choice"), tuple(rows), share=2),
        position=position,
        id=targets.ids[asked],
        count=_tokens(count),
    )


def _asked(ids: Sequence[int], right: Sequence[int]) -> int:
    """An early place whose right token is neither that before it nor that which is given there; else the first."""
    apart = [place for place, token in enumerate(right) if token not in ids[max(0, place - 1) : place + 1]]
    return next((place for place in apart if place > 1), apart[0] if apart else 0)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def cross_attention(live: Live) -> Lesson:
    layer, head, query = _clearest(live)
    weights = live.trace[f"L{layer}H{head}.cross.weights"].double().cpu().numpy()[query]
    order, named = np.argsort(-weights, kind="stable").tolist(), live.trace.tokens_on("source")
    best = f"{order[0]} {named[order[0]].shown}"
    says = f"{best} gets {figure(weights[order[0]])}"
    wrong = [(f"{key} {named[key].shown}", f"It gets {figure(weights[key])}, and {says}.") for key in order[1:3]]
    own = f"{query} {live.token(query)}, the token itself"
    follows = f", {live.token(query + 1)}," if query + 1 < live.length else ""
    question = live.ask("cross-attention").words(
        f"At token {query} of the target, {live.token(query)}, the next one{follows} is about to be written. "
        f"Which token of the source does head {head} of block {layer} look at most there?",
        best,
        [*wrong, (own, "That is a token of the target, and here every key is of the source.")],
        f"{best}, with {figure(weights[order[0]])} of the weight. The {len(weights)} weights of a row sum to 1; no key "
        "is masked, for the source is known to its end.",
        (float(weights[order[0]]),),
    )
    config, (scores,) = live.config.at(layer), live.trace.steps.at("cross.weights", layer).inputs
    row = live.trace[f"L{layer}H{head}.{scores}"][query].double().tolist()
    rows = [(f"{key} {token.shown}", row[key], float(weights[key])) for key, token in enumerate(named)]
    divisor = f" / {figure(config.score_divisor)}" if config.score_divisor != 1 else ""
    return live.lesson(
        "cross-attention",
        question,
        LiveTable(("source", scores), tuple(row[:2] for row in rows), keep="spread"),
        LiveTable(("source", scores, "weight"), tuple(rows), share=2, keep="spread"),
        address=f"L{layer}H{head}.cross.weights",
        query=query,
        key=order[0],
        divisor=divisor,
        source=len(weights),
    )


def _clearest(live: Live) -> tuple[int, int, int]:
    """The layer, head and query that look most at one word of the source; the head that is followed, if one is."""
    words = [i for i, token in enumerate(live.trace.tokens_on("source")) if not token.special]
    layers = [live.layer] if live.follows_one else range(live.config.n_layers)
    found = []
    for layer in layers:
        maps = live.trace[f"L{layer}.cross.weights"].double().cpu().numpy()
        maps = maps[..., words] if words else maps
        heads = [live.head] if live.follows_one else range(len(maps))
        for head in heads:
            most = maps[head].max(-1)
            query = int(most.argmax())
            found.append((float(most[query]), layer, head, query))
    return max(found)[1:]
