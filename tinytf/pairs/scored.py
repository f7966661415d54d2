"""How a model answers pairs: the difference of the two logits where it predicts."""

from collections.abc import Iterator, Sequence

from tinytf.pairs.pair import EncodedPair, PairScores
from tinytf.report import Progress, ignore_progress
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite
from tinytf.trace.record import record_all

_BATCH = 32  # texts whose logits are in memory at a time


def each_lead(model: TextModel, texts: Sequence[Encoding], pairs: Sequence[EncodedPair]) -> Iterator[float]:
    """Yield logit(answer) − logit(versus) of each pair after its text, at the last token or the first [MASK].

    Raises TinytfError for logits that are not finite.
    """
    for start in range(0, len(texts), _BATCH):
        traces = record_all(model.transformer, texts[start : start + _BATCH], model.tokenizer.mask_id, layers=())
        for trace, pair in zip(traces, pairs[start:], strict=False):
            logits = trace.logits_at(trace.recording.logit_rows[0]).double()
            require_finite(trace, logits)
            yield float(logits[pair.answer] - logits[pair.versus])


def score_pairs(
    model: TextModel, pairs: Sequence[EncodedPair], progress: Progress = ignore_progress, *, partly: bool = False
) -> PairScores:
    """The lead of the answer of each pair, after both texts.

    An interrupt is raised, or with ``partly`` ends it with the pairs scored until then, if there are any.
    """
    texts = [text for pair in pairs for text in (pair.clean, pair.corrupt)]
    leads: list[float] = []
    try:
        for lead in each_lead(model, texts, [pair for pair in pairs for _ in range(2)]):
            leads.append(lead)
            progress(len(leads), len(texts))
    except KeyboardInterrupt:
        if not partly or len(leads) < 2:
            raise
    count = len(leads) // 2
    return PairScores(tuple(leads[0 : 2 * count : 2]), tuple(leads[1 : 2 * count : 2]))
