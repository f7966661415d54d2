"""The documents, the held-out share and the token streams of a text in memory: what the streaming corpus must equal."""

import re
from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.masked import sentence_ends, sentences_of


def paragraphs(text: str) -> list[str]:
    """The pieces between blank lines that have a word in them."""
    *whole, rest = re.split(r"\n[ \t]*\r?\n", text)
    return [piece for piece in (*(piece.removesuffix("\r") for piece in whole), rest) if piece.strip()]


def split_held_out(documents: list[str], share: float) -> tuple[list[str], list[str]]:
    """The last documents, ``share`` of all characters, are held out; at least one stays on either side.

    Where that is less than half or more than twice the share, the document at the border is cut.
    """
    total = sum(map(len, documents))
    kept, count = 0, 0
    while count < len(documents) - 1 and kept + len(documents[count]) <= total * (1 - share):
        kept += len(documents[count])
        count += 1
    held_out = sum(map(len, documents[max(1, count) :]))
    if share and documents and len(documents[count]) > 1 and not share / 2 * total <= held_out <= 2 * share * total:
        border = documents[count]
        at = min(max(round(total * (1 - share)) - kept, 1), len(border) - 1)
        return [*documents[:count], border[:at]], [border[at:], *documents[count + 1 :]]
    return documents[: max(1, count)], documents[max(1, count) :]


def token_stream(documents: list[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """All documents in order, an end token after each where the tokenizer has one."""
    tail = [] if tokenizer.end_id is None else [tokenizer.end_id]
    encodings = tokenizer.library.encode_batch_fast(documents, add_special_tokens=False)
    return np.concatenate([np.array(encoding.ids + tail, dtype=np.int64) for encoding in encodings])


def sentence_stream(documents: Iterable[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The tokens of all sentences in order, with ``sentence_ends`` between them."""
    sep, cls = sentence_ends(tokenizer)
    pieces = list(sentences_of(documents))
    found = tokenizer.library.encode_batch_fast([text for text, _ in pieces], add_special_tokens=False)
    both = zip(found, pieces, strict=True)
    ids = chain.from_iterable(one.ids + ([sep, cls] if ends else [sep]) for one, (_, ends) in both)
    return np.fromiter(ids, dtype=np.int64)
