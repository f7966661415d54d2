"""What the search line finds by a few letters: steps or modules, heads, tokens, parameters, session lines and keys."""

import re
from collections.abc import Iterable, Iterator, Mapping

from textual.fuzzy import FuzzySearch

from tinytf_cli.repl.addressing import Offer, modules, parameters, tokens
from tinytf_cli.repl.completing import find_offers
from tinytf_cli.repl.session import Session

KEY, LINE = "key ", ":"
"""What begins the word of a key of the screen, and of a line of the session."""


def everything(session: Session, layer: int, keys: Mapping[str, str]) -> Iterator[Offer]:
    """All that can be found, the steps nearest to ``layer`` first; ``keys`` are the screen's, with what they do."""
    table = session.known_table
    if table is not None:
        for step, at in sorted(table.rows, key=lambda row: abs((layer if row[1] is None else row[1]) - layer)):
            about = f"{step.title} = {step.formula}" if step.formula else step.title
            yield Offer(step.full_name(at), about)
            for part in range(step.parts(table.config.at(at)) if step.is_split else 0):
                yield Offer(f"L{at}{step.letter}{part}.{step.name}", about)
        for at in range(table.config.n_layers):
            yield from (
                Offer(f"L{at}H{head}", f"head {head} of layer {at}") for head in range(table.config.at(at).n_heads)
            )
            yield from parameters(session, f"L{at}.")
        yield from parameters(session, "")
    elif (through := session.cached_through) is not None:
        yield from modules(through)
    yield from tokens(session, "")
    yield from (Offer(f"{KEY}{shown}", words) for shown, words in keys.items())
    _, lines = find_offers(session, "")
    yield from (Offer(f"{LINE}{offer.word}", offer.about) for offer in lines)


def ranked(typed: str, offers: Iterable[Offer]) -> list[Offer]:
    """The offers that have each typed word in their description, or its letters in order in their word; best first."""
    search, scored = FuzzySearch(), list[tuple[float, bool, Offer]]()
    words = [
        (word, re.compile("".join(f"[^{letter}]*{letter}" for letter in map(re.escape, word))))
        for word in typed.casefold().split()
    ]
    for offer in offers:
        name, about = offer.word.casefold(), offer.about.casefold()
        scores = [
            2 * search.match(word, name)[0] if letters.match(name) else search.match(word, about)[0] * (word in about)
            for word, letters in words
        ]
        if all(scores):
            scored.append((-sum(scores), name != typed.casefold(), offer))
    return [offer for *_, offer in sorted(scored, key=lambda scores: scores[:2])]
