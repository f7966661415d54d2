"""How a model answers pairs: the difference of the two logits where it predicts."""

from collections.abc import Sequence

from tinytf.pairs.pair import EncodedPair, PairScores
from tinytf.report import Progress, ignore_progress
from tinytf.text_model import TextModel
from tinytf.trace.record import record_all

_BATCH = 32  # texts whose logits are in memory at a time


def score_pairs(model: TextModel, pairs: Sequence[EncodedPair], progress: Progress = ignore_progress) -> PairScores:
    """logit(answer) − logit(versus) of each pair after both texts, at the last token or the first [MASK]."""
    texts = [text for pair in pairs for text in (pair.clean, pair.corrupt)]
    differences: list[float] = []
    for start in range(0, len(texts), _BATCH):
        traces = record_all(model.transformer, texts[start : start + _BATCH], model.tokenizer.mask_id, layers=())
        for number, trace in enumerate(traces, start):
            logits = trace.logits_at(trace.recording.logit_rows[0]).double()
            pair = pairs[number // 2]
            differences.append(float(logits[pair.answer] - logits[pair.versus]))
        progress(min(start + _BATCH, len(texts)) // 2, len(pairs))
    return PairScores(tuple(differences[0::2]), tuple(differences[1::2]))
