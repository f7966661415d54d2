"""Which positions of two runs correspond, so that their numbers can be compared."""

from dataclasses import dataclass
from typing import Self

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class Side:
    """One of two runs: a model, its tokenizer, and the encoded text; its ``trace`` if it was recorded."""

    model: Transformer
    tokenizer: Tokenizer
    encoding: Encoding
    trace: Trace | None = None

    @classmethod
    def of(cls, model: TextModel, text: Text, truncate: bool) -> Self:
        """A text, or its trace, on a model."""
        if isinstance(text, Trace):
            return cls(model.transformer, model.tokenizer, text.encoding, text)
        return cls(model.transformer, model.tokenizer, model.encode(text, truncate=truncate))


@dataclass(frozen=True)
class Alignment:
    """The first ``positions`` of both runs are compared, place by place.

    ``changed`` are those of them where the tokens are not the same; ``asked`` the pairs of positions at which either
    run predicts: the ends of the texts, or the masks of an encoder that both have. ``note`` says what is omitted.
    """

    positions: int
    changed: tuple[int, ...]
    asked: tuple[tuple[int, int], ...]
    same_vocabulary: bool
    note: str = ""


def align(first: Side, second: Side) -> Alignment:
    """Align two runs, position by position.

    Raises UsageError for runs that cannot be compared: one text that two tokenizers split at different places, texts of
    different lengths in a model that looks both ways, different texts in different vocabularies.
    """
    sizes = {side.model.config.vocab_size for side in (first, second)}
    same = len(sizes) == 1 and same_vocabulary(first.tokenizer, second.tokenizer)
    lengths = [len(side.encoding.tokens) for side in (first, second)]
    one_text = first.encoding.text == second.encoding.text
    if not same:
        if not one_text:
            raise UsageError(
                "two texts in two vocabularies have no numbers in common", "compare two models on one text"
            )
        _require_same_cuts(first, second)
    if lengths[0] != lengths[1] and any(side.model.config.looks_ahead for side in (first, second)):
        raise UsageError(
            f"the texts have {lengths[0]:,} and {lengths[1]:,} tokens, and this model looks both ways: with another "
            "length every position is another one",
            "give texts with the same number of tokens; tinytf tokens shows how they split",
        )
    n = min(lengths)
    pairs = list(zip(first.encoding.tokens[:n], second.encoding.tokens[:n], strict=True))
    changed = tuple(i for i, (a, b) in enumerate(pairs) if same and a.id != b.id)
    note = ""
    if lengths[0] != lengths[1]:
        longer = "second" if lengths[1] > lengths[0] else "first"
        note = f"the texts have {lengths[0]:,} and {lengths[1]:,} tokens: the first {n:,} are compared, place by place"
        note += f", the other {abs(lengths[0] - lengths[1]):,} of the {longer} are omitted"
    asked: tuple[tuple[int, int], ...]
    reads = {side.model.config.head_reads for side in (first, second)}
    if reads == {"first"}:
        asked = ((0, 0),)
    elif first.model.config.causal and second.model.config.causal:
        asked = ((lengths[0] - 1, lengths[1] - 1),)
    else:
        masks = [{i for i, id in enumerate(s.encoding.ids) if id == s.tokenizer.mask_id} for s in (first, second)]
        asked = tuple((i, i) for i in sorted(masks[0] & masks[1]))
    return Alignment(n, changed, asked, same, note)


def same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether one id is one token in both."""
    return first is second or bool(first.library.get_vocab() == second.library.get_vocab())


def _require_same_cuts(first: Side, second: Side) -> None:
    cuts = [[(token.start, token.end) for token in side.encoding.tokens] for side in (first, second)]
    if cuts[0] == cuts[1]:
        return
    place = next((i for i, (a, b) in enumerate(zip(*cuts, strict=False)) if a != b), min(map(len, cuts)))
    words = [
        side.encoding.tokens[place].shown if place < len(side.encoding.tokens) else "the end"
        for side in (first, second)
    ]
    raise UsageError(
        f"the two models have different vocabularies and split the text differently, first at token {place}: "
        f"{words[0]} and {words[1]} ({len(cuts[0]):,} and {len(cuts[1]):,} tokens in all)",
        "models with one tokenizer can be compared, such as the checkpoints of a run",
    )
