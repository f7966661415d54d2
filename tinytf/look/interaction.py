"""Late interaction: which token of a document each token of a query finds (Khattab and Zaharia 2020, ColBERT)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.parts.pooling import UNREAD
from tinytf.report import About, Data, Report, text_data
from tinytf.sentences import listed
from tinytf.tables import Array
from tinytf.text.late import Side
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel


@dataclass(frozen=True)
class Find(Data):
    """The token of the document that is most like the token ``number`` of the query, and their ``cosine``."""

    number: int
    token: str
    found: int
    found_token: str
    cosine: float


@dataclass(frozen=True, eq=False)
class Interaction(Report):
    """How well a document answers a query: the ``score`` is MaxSim, the sum of the cosines of the ``finds``.

    Every token of the query finds the token of the ``other`` text whose vector is most like its own; ``cosines``
    (T, T′) are those of all pairs. Tokens of the document in ``skipped`` are found by none.
    """

    KIND = "interaction"
    EVENTS: ClassVar = {"tokens": "token", "finds": "find"}
    TABLE = ("finds",)

    score: float
    other: Encoding
    finds: tuple[Find, ...]
    cosines: Tensor
    skipped: tuple[int, ...]
    note: str

    def in_a_sentence(self) -> str:
        """The score, and the two words of the query that find most, each by its own token."""
        best = sorted(self.spoken, key=lambda find: -find.cosine)[:2]
        words = f"The document's score (MaxSim) is {self.score:.2f}, of at most {len(self.finds)}"
        found = [f"{find.token} finds {find.found_token} ({find.cosine:.2f})" for find in best]
        return f"{words}; {listed(found)}." if found else f"{words}."

    @property
    def spoken(self) -> tuple[Find, ...]:
        """The finds of tokens that are in the query's own text."""
        return tuple(find for find in self.finds if not self.encoding.tokens[find.number].special)

    def fields(self) -> dict[str, Any]:
        other = text_data(self.other)
        return {
            "other": {"text": other["text"], "tokens": other["tokens"]},
            **self.members("score", "note", "skipped", "finds", "cosines"),
        }

    def stored(self) -> list[Array]:
        """The cosines of all pairs of tokens."""
        return [Array("cosines", ["first", "second"], lambda: self.cosines)]


@torch.no_grad()
def interaction(model: TextModel, query: str, document: str) -> Interaction:
    """Which token of the document each token of the query finds, and the score that these add up to.

    Raises UsageError for a model that is no late interaction model, and like ``encode``.
    """
    encoding, vectors = vectors_of_query(model, query)
    other, of_other, kept = vectors_of_document(model, document)
    cosines = vectors @ of_other.T  # (T, T′)
    best = cosines.masked_fill(~kept, -torch.inf).max(dim=1)
    finds = tuple(
        Find(number, encoding.tokens[number].shown, found, other.tokens[found].shown, cosine)
        for number, (found, cosine) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )
    skipped = tuple(number for number, counts in enumerate(kept.tolist()) if not counts)
    told = f"document: {other.added}" + (f"; nothing finds its punctuation ({len(skipped):,})" if skipped else "")
    return Interaction(float(best.values.sum()), other, finds, cosines, skipped, told, about=About(model, encoding))


def vectors_of_query(model: TextModel, text: str) -> tuple[Encoding, Tensor]:
    """The tokens of a query and their vectors (T, E) in float64. Raises UsageError for another kind of model."""
    encoding, vectors = _vectors(model, text, _late(model).query)
    return encoding, vectors


def vectors_of_document(model: TextModel, text: str) -> tuple[Encoding, Tensor, Tensor]:
    """The tokens of a document, their vectors (T, E) in float64, and which of them can be found, (T,)."""
    late = _late(model)
    encoding, vectors = _vectors(model, text, late.document)
    skipped = {model.tokenizer.id_of(piece) for piece in late.skipped}
    return encoding, vectors, torch.tensor([token.id not in skipped for token in encoding.tokens])


def score(query: Tensor, document: Tensor, kept: Tensor) -> float:
    """MaxSim of the vectors of a query (T, E) and a document (T′, E)."""
    return float((query @ document.T).masked_fill(~kept, -torch.inf).amax(1).sum())


def _late(model: TextModel) -> Any:
    if unread := next((note for note in model.file_notes if note.startswith(UNREAD)), ""):
        raise UsageError(unread, "--pooling mean takes the mean of the last hidden states instead")
    if model.late is None or model.transformer.pooling is None:
        raise UsageError(
            "this model does not compare texts token by token", "models of late interaction do, such as ColBERT"
        )
    return model.late


def _vectors(model: TextModel, text: str, side: Side) -> tuple[Encoding, Tensor]:
    if not text.strip():
        raise UsageError("the text is empty", "give a few words, such as: The cat sat")
    transformer = model.transformer
    encoding, real = side.encode(model.tokenizer, text, model.cuts_at or model.config.context)
    device = next(transformer.parameters()).device
    mask = None if all(real) else torch.tensor([real], device=device)
    hidden = transformer.hidden(torch.tensor([encoding.ids], device=device), padding_mask=mask)  # (1, T, C)
    assert transformer.pooling is not None
    vectors: Tensor = transformer.pooling(hidden)[0]
    return encoding, vectors.double().cpu()
