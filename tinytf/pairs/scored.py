"""How a model answers pairs: the difference of the two logits where it predicts."""

from collections.abc import Sequence

from tinytf.pairs.pair import EncodedPair, PairScores
from tinytf.report import Progress, ignore_progress
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.record import record_all

_BATCH = 32  # texts whose logits are in memory at a time


def leads(
    model: TextModel, texts: Sequence[Encoding], pairs: Sequence[EncodedPair], progress: Progress = ignore_progress
) -> list[float]:
    """logit(answer) − logit(versus) of each pair after its text, at the last token or the first [MASK]."""
    differences: list[float] = []
    for start in range(0, len(texts), _BATCH):
        traces = record_all(model.transformer, texts[start : start + _BATCH], model.tokenizer.mask_id, layers=())
        for trace, pair in zip(traces, pairs[start:], strict=False):
            logits = trace.logits_at(trace.recording.logit_rows[0]).double()
            differences.append(float(logits[pair.answer] - logits[pair.versus]))
        progress(len(differences), len(texts))
    return differences


def score_pairs(model: TextModel, pairs: Sequence[EncodedPair], progress: Progress = ignore_progress) -> PairScores:
    """The lead of the answer of each pair, after both texts."""
    texts = [text for pair in pairs for text in (pair.clean, pair.corrupt)]
    differences = leads(model, texts, [pair for pair in pairs for _ in range(2)], progress)
    return PairScores(tuple(differences[0::2]), tuple(differences[1::2]))
