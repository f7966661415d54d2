"""The tokens of a text as a report."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.report import Report, text_data
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text_model import TextModel


@dataclass(frozen=True)
class Tokenized(Report):
    """A text split by the tokenizer of the model ``name``; ``note`` says where the vocabulary comes from.

    ``window`` is how many tokens of it a model would be trained on at a time, or 0.
    """

    KIND = "tokens"
    EVENTS: ClassVar = {"tokens": "token"}

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

    def fields(self) -> dict[str, Any]:
        windows = {"windows": [{"x": x, "y": y} for x, y in self.windows]} if self.window else {}
        tokenizer = self.tokenizer.to_dict(self.note)
        return {"model": self.name, "tokenizer": tokenizer, **text_data(self.text), **windows}


def tokens(model: TextModel, text: Written) -> Tokenized:
    """The tokens of a text or a conversation, which may be longer than the context."""
    encoding = model.tokenizer.encode(text) if isinstance(text, str) else model.tokenizer.converse(text)
    return Tokenized(model.name, model.tokenizer, model.tokenizer_note, encoding)
