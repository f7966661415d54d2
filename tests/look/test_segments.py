"""Segments of XLNet: the type of each token reaches scores, gradients, explanations, code and interventions."""

from dataclasses import replace

import pytest
import torch
from architectures import asked, config_of, encoding_of, furthest, lively
from torch import Tensor

from tinytf.gradients.by_hand import agreement
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import record_gradients
from tinytf.text.tokenizer import Encoding
from tinytf.trace.check import check
from tinytf.trace.record import record, walk
from tinytf.trace.trace import Trace

MASK, TYPES = 30, (0, 0, 0, 1, 1, 2, 0)


def typed(*types: int) -> Encoding:
    plain = encoding_of([3, 14, 15, 9, MASK, 6, 5])
    return replace(plain, tokens=tuple(replace(one, type=kind) for one, kind in zip(plain.tokens, types, strict=True)))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record(lively(config_of("xlnet, waves of distances and segments")).double(), typed(*TYPES), MASK)


@torch.no_grad()
def segment_scores(trace: Trace) -> Tensor:
    """What the segments add to each score, (H, T, T)."""
    vectors = trace["L1.G"].view(2, 4, 6)
    rows = [[int(one != other) for other in TYPES] for one in TYPES]
    return torch.einsum("hqd,qkhd->hqk", trace["L1.q_segment"], vectors[torch.tensor(rows)])


def test_a_query_scores_its_own_segment_and_all_others(trace: Trace) -> None:
    assert check(trace).holds
    assert furthest(trace["L1.segment"] - trace["L1.c2p"], segment_scores(trace)) < 1e-12
    one = record(trace.model, typed(*[0] * 7))
    assert furthest(record(trace.model, typed(*[1] * 7)).last_hidden, one.last_hidden) < 1e-12
    assert furthest(trace.last_hidden, one.last_hidden) > 1e-2


def test_its_gradients_and_explanations_are_right(trace: Trace) -> None:
    model = asked(trace.model)
    found = record_gradients(trace.model, trace.encoding, Targets((6, 4), (11, 7)))
    assert agreement(found).telling.relative < 1e-9
    assert float(found.parameters["blocks.1.attention.segments.weight"].abs().max()) > 1e-6
    for address in ("L1H2.segment[4,5]", "L1H2.segment[4,3]", "L0H1.q_segment[2,3]", "L0H0.pos_k[30,2]"):
        (explained,) = model.explain(trace, address)
        assert explained.holds, address
    assert model.code(trace).holds
    assert model.ablate(trace, "L1H2").check.holds
    assert model.ablate_sweep(trace, "heads").check.holds


def test_a_text_in_parts_has_the_same_segments(trace: Trace) -> None:
    (*_, last) = walk(trace.model, trace.encoding)
    assert torch.equal(last.recording.tensors["L1.norm2"], trace["L1.norm2"])
