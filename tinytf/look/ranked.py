"""Which of several texts are most like a query, by the cosine of their vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tinytf.errors import UsageError
from tinytf.look.interaction import score, vectors_of_document, vectors_of_query
from tinytf.look.similar import cosine_of, pooled_model, vector_of
from tinytf.report import About, Data, Report
from tinytf.tables import ColumnStyle
from tinytf.text.printable import printable
from tinytf.text.prompts import DOCUMENT, QUERY
from tinytf.text_model import TextModel, require_text_list

_TEXTS = 64
"""The number of texts that are recorded at a time."""
_QUOTED = 60
"""The most characters of a text that a sentence quotes."""


@dataclass(frozen=True)
class Near(Data):
    """One of the texts that were compared with a query: its ``number`` among them, from 1, and its cosine."""

    COLUMNS: ClassVar = {
        "cosine": ColumnStyle("cosine", "%.3f"),
        "number": ColumnStyle("", "{:,}".format, drop=1, spoken="number"),
        "text": ColumnStyle("text", lambda text: printable(text, spaces=False), shrink=20),
    }

    cosine: float
    number: int
    text: str


@dataclass(frozen=True)
class Ranked(Report):
    """Texts by the cosine of their vectors with that of a query, the ``nearest`` first; ``of`` were compared."""

    KIND = "ranked"
    EVENTS: ClassVar = {"tokens": "token", "nearest": "near"}
    ROWS = "nearest"

    nearest: tuple[Near, ...]
    of: int
    note: str

    def in_a_sentence(self) -> str:
        """The nearest text and the one after it."""
        best, *others = self.nearest
        words = (
            f"Nearest of {self.of:,} texts is {_quoted(best.text)}, with a cosine of {best.cosine:.2f}, of at most 1"
        )
        return f"{words}; then {_quoted(others[0].text)} ({others[0].cosine:.2f})." if others else f"{words}."

    def fields(self) -> dict[str, Any]:
        return self.members("of", "note", "nearest")


@torch.no_grad()
def most_similar(
    model: TextModel,
    query: str,
    texts: Sequence[str],
    *,
    top: int | None = None,
    pooling: str | None = None,
    prompts: Sequence[str | None] | None = None,
    truncate: bool = False,
) -> Ranked:
    """``texts`` by the cosine of their vectors with that of the ``query``, the nearest first; only the ``top`` nearest.

    ``prompts`` are the names of those to put before the query and before each text: by default the model's own for a
    query and for a document, where it has them. Raises UsageError like ``similar``, and for no texts.
    """
    if not require_text_list(texts):
        raise UsageError("there is no text to compare with", "give one or more")
    if model.late is not None and pooling is None:
        return _by_interaction(model, query, texts, top)
    model, note = pooled_model(model, pooling)
    if prompts is None:
        prompts = (model.prompts.first(QUERY), model.prompts.first(DOCUMENT))
    before = model.prompts.of(prompts[1])
    trace = model.trace(model.prompts.of(prompts[0]) + query, layers=(), truncate=truncate)
    own = vector_of(trace)
    cosines: list[float] = []
    cut = 0
    for start in range(0, len(texts), _TEXTS):
        some = [before + text for text in texts[start : start + _TEXTS]]
        recorded = model.traces(some, layers=(), truncate=truncate)
        cosines += [cosine_of(own, vector_of(other)) for other in recorded]
        cut += sum(other.encoding.cut > 0 for other in recorded)
    note += f"; {cut:,} of the texts cut to {model.cuts_at or model.config.context:,} tokens" if cut else ""
    return Ranked(_nearest(cosines, texts)[:top], len(texts), note, about=About(model, trace.encoding))


def _by_interaction(model: TextModel, query: str, texts: Sequence[str], top: int | None) -> Ranked:
    """Texts by their MaxSim, shown as the mean cosine of what the tokens of the query find."""
    encoding, vectors = vectors_of_query(model, query)
    cosines = [score(vectors, *vectors_of_document(model, text)[1:]) / len(vectors) for text in texts]
    note = f"the cosine is the mean over the query's {len(vectors):,} tokens; times {len(vectors):,} it is MaxSim"
    return Ranked(_nearest(cosines, texts)[:top], len(texts), note, about=About(model, encoding))


def _nearest(cosines: Sequence[float], texts: Sequence[str]) -> tuple[Near, ...]:
    found = (Near(cosine, number, texts[number - 1]) for number, cosine in enumerate(cosines, 1))
    return tuple(sorted(found, key=lambda near: (-near.cosine, near.number)))


def _quoted(text: str) -> str:
    shown = printable(text, spaces=False)
    return f"“{shown if len(shown) <= _QUOTED else shown[: _QUOTED - 1].rstrip() + '…'}”"
