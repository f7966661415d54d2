"""The tokens of a text as a report."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.report import Report, text_data
from tinytf.text.chat import Written
from tinytf.text.pair import encode_written
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text_model import TextModel

_LONGEST = 24
"""The most characters of a word in the sentence."""


@dataclass(frozen=True)
class Tokenized(Report):
    """A text split by the tokenizer of the model ``name``; ``note`` says where the vocabulary comes from.

    ``window`` is how many tokens of it a model would be trained on at a time, or 0.
    """

    KIND = "tokens"
    EVENTS: ClassVar = {"tokens": "token"}
    ALWAYS_SAID = True

    name: str
    tokenizer: Tokenizer
    note: str
    text: Encoding
    window: int = 0

    @property
    def windows(self) -> list[tuple[list[int], list[int]]]:
        """The windows of a training text, x and y: each begins a token later, and each y a token after its x."""
        ids, size = self.text.ids, self.window
        return [(ids[i : i + size], ids[i + 1 : i + size + 1]) for i in range(len(ids) - size)] if size else []

    def in_a_sentence(self) -> str:
        """How many words, split at spaces, became how many tokens, and the word of most tokens; empty below 2 words."""
        words = [(match.start(), match.end()) for match in re.finditer(r"\S+", self.text.text)]
        if len(words) < 2 or self.text.said is not None:
            return ""
        own = [token for token in self.text.tokens if token.start < token.end]
        counts, first = [0] * len(words), 0
        for token in own:
            while first < len(words) and words[first][1] <= token.start:
                first += 1
            word = first
            while word < len(words) and words[word][0] < token.end:
                counts[word] += 1
                word += 1
        most = max(range(len(words)), key=counts.__getitem__)
        shown = printable(self.text.text[slice(*words[most])])
        shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
        became = f"{len(words):,} words, split at spaces, became {len(own):,} tokens"
        split = f"{shown} became the most, {counts[most]:,}" if counts[most] > 1 else "no word was split"
        return f"{became}; {split}."

    def fields(self) -> dict[str, Any]:
        windows = {"windows": [{"x": x, "y": y} for x, y in self.windows]} if self.window else {}
        tokenizer = self.tokenizer.to_dict(self.note)
        return {"model": self.name, "tokenizer": tokenizer, **text_data(self.text), **windows}


def tokens(model: TextModel, text: Written) -> Tokenized:
    """The tokens of a text, a conversation or a pair, which may be longer than the context."""
    encoding = encode_written(model.tokenizer, text, pairs=model.pair_template)
    return Tokenized(model.name, model.tokenizer, model.tokenizer_note, encoding)
