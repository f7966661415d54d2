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

    Raises UsageError if there is nothing to predict, for a position beyond the text, and for a target of several
    tokens, with its split.
    """
    chosen = None if positions is None else positions_in(positions, [token.shown for token in encoding.tokens])
    target_id = None if target is None else find_token(tokenizer, target, causal=causal)
    if causal:
        return encoding, _next_tokens(encoding, chosen, target_id)
    masks = tuple(i for i, token in enumerate(encoding.tokens) if token.id == tokenizer.mask_id)
    if target_id is not None:
        masked_positions = chosen or masks
        if not masked_positions:
            raise UsageError("the text has no [MASK] for the target", "write [MASK] where it belongs, or --positions 2")
        return _masked(tokenizer, encoding, masked_positions), Targets(
            masked_positions, (target_id,) * len(masked_positions)
        )
    if chosen is None:
        raise UsageError(
            "an encoder predicts masked tokens, and none is chosen",
            "mask tokens with --positions 2, or write [MASK] and name its token with --target WORD",
        )
    already_masked = [i for i in chosen if i in masks]
    if already_masked:
        raise UsageError(
            f"token {already_masked[0]} is already [MASK] in the text", "name its token with --target WORD"
        )
    return _masked(tokenizer, encoding, chosen), Targets(chosen, tuple(encoding.tokens[i].id for i in chosen))


def _next_tokens(encoding: Encoding, chosen: tuple[int, ...] | None, target_id: int | None) -> Targets:
    last = len(encoding.tokens) - 1
    if target_id is not None:
        predicted = (last,) if chosen is None else chosen
        return Targets(predicted, (target_id,) * len(predicted))
    if not last:
        raise UsageError(
            "the text is one token, with none after it to predict", "give more words, or the next token: --target WORD"
        )
    predicted = tuple(range(last)) if chosen is None else chosen
    if last in predicted:
        raise UsageError(
            f"position {last} is the last one, with no token after it to predict",
            f"choose from 0 to {last - 1}, or name the next token: --target WORD",
        )
    return Targets(predicted, tuple(encoding.tokens[i + 1].id for i in predicted))


def _masked(tokenizer: Tokenizer, encoding: Encoding, positions: tuple[int, ...]) -> Encoding:
    """The tokens of a text with [MASK] at ``positions``."""
    mask = tokenizer.mask_id
    if mask is None:
        raise UsageError("this model's tokenizer has no [MASK]", "use a model trained on masked tokens")
    masks = {i: replace(encoding.tokens[i], id=mask, shown=tokenizer.shown(mask), special=True) for i in positions}
    tokens = tuple(masks.get(i, token) for i, token in enumerate(encoding.tokens))
    return replace(encoding, tokens=tokens)
