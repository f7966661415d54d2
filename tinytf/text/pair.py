"""Two texts that are read as one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tinytf.errors import TokenizerError, UsageError
from tinytf.text.chat import Conversation, TextPair, Written
from tinytf.text.library import DEFAULT_LIMIT, Limit, Pieces, library_errors
from tinytf.text.tokenizer import Encoding, Tokenizer, cut_in_words


@dataclass(frozen=True)
class PairTemplate:
    """How a reranker reads two texts: as messages of the roles query and document, which its chat template renders.

    The ``prompt`` is a system message before them, unless it is empty. ``variables`` are those of the template;
    ``structured`` contents are lists of parts.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    structured: bool = False
    prompt: str = ""

    def messages(self, pair: TextPair) -> Conversation:
        """The pair as a conversation."""
        said = {"system": self.prompt, "query": pair.first, "document": pair.second}
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if self.structured else text}
            for role, text in said.items()
            if text
        ]
        return Conversation(messages, variables={"add_generation_prompt": False, **self.variables})


def encode_rendered(
    tokenizer: Tokenizer, pair: TextPair, template: PairTemplate, *, limit: Limit = DEFAULT_LIMIT, cut: int = 0
) -> Encoding:
    """The tokens of a pair that a chat template renders; beyond ``cut`` tokens (0: none) the document ends earlier.

    Raises UsageError and TokenizerError like ``Tokenizer.converse``.
    """
    encoding = replace(
        tokenizer.converse(template.messages(pair), limit=limit), added="chat template: a query and a document"
    )
    excess = len(encoding.tokens) - cut if cut else 0
    if excess <= 0:
        return encoding
    end = encoding.said[-1].end if encoding.said else len(encoding.text)
    after = sum(token.start >= end for token in encoding.tokens)
    tokens = encoding.tokens[: max(0, cut - after)] + encoding.tokens[len(encoding.tokens) - after :]
    return replace(encoding, tokens=tokens, added=f"{encoding.added}, {cut_in_words(excess, cut)}", cut=excess)


def encode_written(
    tokenizer: Tokenizer, text: Written, *, special: bool = True, pairs: PairTemplate | None = None
) -> Encoding:
    """The tokens of a text, a conversation or a pair, which ``pairs`` may render.

    Raises UsageError and TokenizerError as the tokenizer does.
    """
    if isinstance(text, Conversation):
        return tokenizer.converse(text)
    if isinstance(text, TextPair) and pairs is not None:
        return encode_rendered(tokenizer, text, pairs)
    return encode_pair(tokenizer, text) if isinstance(text, TextPair) else tokenizer.encode(text, special=special)


def encode_pair(tokenizer: Tokenizer, pair: TextPair, *, limit: Limit = DEFAULT_LIMIT, cut: int = 0) -> Encoding:
    """The tokens of two texts as one, with what the tokenizer puts before, between and after them.

    The text of the encoding is the first, a new line, and the second. Beyond ``cut`` tokens (0: none) the longer text
    is shortened. Raises UsageError for a tokenizer that puts nothing between two texts, and like ``Tokenizer.encode``.
    """
    texts = pair.first, pair.second
    for text in texts:
        tokenizer.encode(text, special=False, limit=limit)
    if tokenizer.is_untrusted:
        raise UsageError("this tokenizer runs in a process of its own, which takes no pairs", "give one text")
    with library_errors(TokenizerError, "the tokenizer cannot take these texts"):
        found = tokenizer.library.encode(*texts)
    of = list(found.sequence_ids)
    if None not in of[of.index(0) : of.index(1)]:
        raise UsageError("this tokenizer puts nothing between two texts", "give one text")
    kept = _kept(of, cut) if 0 < cut < len(of) else range(len(of))
    limit.require(len(kept))
    shift = len(pair.first) + 1
    offsets = [(a + shift, b + shift) if which else (a, b) for which, (a, b) in zip(of, found.offsets, strict=True)]
    text = "\n".join(texts)
    ids, masks = found.ids, found.special_tokens_mask
    pieces = Pieces([ids[n] for n in kept], [offsets[n] for n in kept], [masks[n] for n in kept])
    tokens = [
        replace(token, type=found.type_ids[n]) for n, token in zip(kept, tokenizer.tokens_of(text, pieces), strict=True)
    ]
    parts = ["text" if of[n] is not None else token.shown for n, token in zip(kept, tokens, strict=True)]
    told = [part for n, part in enumerate(parts) if part != "text" or parts[n - 1] != "text"]
    missing = len(of) - len(kept)
    note = f", {cut_in_words(missing, cut)}" if missing else ""
    return Encoding(text, tuple(tokens), f"a pair: {' '.join(told)}{note}", cut=missing)


def _kept(of: list[int | None], most: int) -> list[int]:
    """The tokens that remain of a pair, given the text that each is of: as longest_first in transformers."""
    room = max(0, most - of.count(None))
    counts = of.count(0), of.count(1)
    shorter = min(*counts, room // 2)
    lengths = (shorter, room - shorter) if counts[0] <= counts[1] else (room - shorter, shorter)
    ends = [of.index(which) + lengths[which] for which in (0, 1)]
    return [n for n, which in enumerate(of) if which is None or n < ends[which]]
