"""Read the targets of a loss from words: the text's own next tokens, one named token, or masked tokens."""

from dataclasses import replace

from tinytf.errors import UsageError
from tinytf.gradients.loss import Targets
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text.words import find_token, positions_in


def choose_targets(
    tokenizer: Tokenizer, encoding: Encoding, *, causal: bool, target: str | None = None, positions: str | None = None
) -> tuple[Encoding, Targets]:
    """The tokens to run, and what to predict from them.

    A decoder predicts the next token at every position, or at ``positions`` (``2``, ``0-3,7``); with a ``target``,
    that token at the last position. An encoder predicts the ``target`` at each [MASK]; without one, the tokens at
    ``positions`` are masked and predicted. A target is a word as the text would continue, or a token's number as
    ``#514``.

    Raises UsageError where there is nothing to predict, for a position beyond the text, and for a target of several
    tokens, with how it splits.
    """
    asked = None if positions is None else positions_in(positions, [token.shown for token in encoding.tokens])
    named = None if target is None else find_token(tokenizer, target, causal=causal)
    if causal:
        return encoding, _next_tokens(encoding, asked, named)
    masks = tuple(place for place, token in enumerate(encoding.tokens) if token.id == tokenizer.mask_id)
    if named is not None:
        places = asked or masks
        if not places:
            raise UsageError("the text has no [MASK] for the target", "write [MASK] where it belongs, or --positions 2")
        return _masked(tokenizer, encoding, places), Targets(places, (named,) * len(places))
    if asked is None:
        raise UsageError(
            "an encoder predicts masked tokens, and nothing says which",
            "mask tokens with --positions 2, or write [MASK] and name its token with --target WORD",
        )
    already = [place for place in asked if place in masks]
    if already:
        raise UsageError(f"token {already[0]} is already [MASK] in the text", "name its token with --target WORD")
    return _masked(tokenizer, encoding, asked), Targets(asked, tuple(encoding.tokens[place].id for place in asked))


def _next_tokens(encoding: Encoding, asked: tuple[int, ...] | None, named: int | None) -> Targets:
    last = len(encoding.tokens) - 1
    if named is not None:
        places = (last,) if asked is None else asked
        return Targets(places, (named,) * len(places))
    if not last:
        raise UsageError(
            "the text is one token, and none comes after it", "give more words, or the next token: --target WORD"
        )
    places = tuple(range(last)) if asked is None else asked
    if last in places:
        raise UsageError(
            f"position {last} is the last one, and no token comes after it",
            f"choose from 0 to {last - 1}, or name the next token: --target WORD",
        )
    return Targets(places, tuple(encoding.tokens[place + 1].id for place in places))


def _masked(tokenizer: Tokenizer, encoding: Encoding, places: tuple[int, ...]) -> Encoding:
    """The tokens of a text with [MASK] at ``places``."""
    mask = tokenizer.mask_id
    if mask is None:
        raise UsageError("this model's tokenizer has no [MASK]", "use a model trained on masked tokens")
    hidden = {
        place: replace(encoding.tokens[place], id=mask, shown=tokenizer.shown(mask), special=True) for place in places
    }
    tokens = tuple(hidden.get(place, token) for place, token in enumerate(encoding.tokens))
    return replace(encoding, tokens=tokens)
