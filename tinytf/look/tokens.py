"""The tokens of a text as a report."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.report import Report, text_data
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text_model import TextModel


@dataclass(frozen=True)
class Tokenized(Report):
    """A text split by the tokenizer of the model ``name``; ``note`` says where the vocabulary comes from."""

    KIND = "tokens"
    EVENTS: ClassVar = {"tokens": "token"}

    name: str
    tokenizer: Tokenizer
    note: str
    text: Encoding

    def fields(self) -> dict[str, Any]:
        tokenizer = {"kind": self.tokenizer.kind, "vocab_size": self.tokenizer.vocab_size, "note": self.note}
        return {"model": self.name, "tokenizer": tokenizer, **text_data(self.text)}


def tokens(model: TextModel, text: Written) -> Tokenized:
    """The tokens of a text or a conversation, which may be longer than the context."""
    encoding = model.tokenizer.encode(text) if isinstance(text, str) else model.tokenizer.converse(text)
    return Tokenized(model.name, model.tokenizer, model.tokenizer_note, encoding)
