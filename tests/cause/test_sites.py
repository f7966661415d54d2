"""Every step with a row a token can be replaced: queries, keys, maps, units; cells of attention weights are blocked."""

from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids
from torch import Tensor

from tinytf.cause.interventions import Intervention, hook_points
from tinytf.cause.interventions.hooks import logits_with
from tinytf.cause.interventions.sweep import sweep
from tinytf.model.transformer import Transformer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

WITH_HEAD = [kind for kind in KINDS if config_of(kind).head.kind != "none"]
kinds = pytest.mark.parametrize("kind", WITH_HEAD)
LENGTH, MASK, CLOSE = 9, 5, 2e-4


def traced(model: Transformer, seed: int) -> Trace:
    """A trace of random tokens; of an encoder with the mask at 5."""
    ids = some_ids(model.config, 1, LENGTH, seed)[0].tolist()
    if not model.config.causal:
        ids = [token if token != 30 else 0 for token in ids]
        ids[MASK] = 30
    return record(model, encoding_of(ids), None if model.config.causal else 30)


@kinds
def test_every_step_takes_the_value_of_another_text_alone_and_in_a_batch(kind: str) -> None:
    model = lively(config_of(kind))
    clean, corrupt = traced(model, 5), traced(model, 6)
    position = corrupt.recording.logit_rows[-1]
    rows: dict[str, Any] = {}
    for step in clean.steps.in_layer(1):
        if not step.can_intervene:
            continue
        (*points,) = hook_points([f"L1.{step.name}"], clean.steps)
        for point in points[:1]:
            assert [str(point)] == [str(same) for same in hook_points([str(point)], clean.steps)]
            rows[str(point)] = (Intervention(point, point.value(clean)),)
            own = logits_with(corrupt, [Intervention(point, point.value(corrupt))], position)
            assert torch.allclose(own, corrupt.logits_at(position), atol=CLOSE), point
    found, check = sweep(
        corrupt, rows, position, lambda logits: list(logits.double()), lambda row: float(row.abs().max()),
        resume=None, subject="", from_data=lambda data: data,
    )  # fmt: skip
    assert check.holds
    for (name, interventions), logits in zip(rows.items(), found, strict=True):
        alone = logits_with(corrupt, interventions, position).double()
        assert torch.allclose(alone, logits, atol=CLOSE), name
        point = interventions[0].point

        def put(tensor: Tensor, value: Tensor = interventions[0].value) -> Tensor:
            return value

        with asked(model).edited({point.full_name if point.shared == 1 else str(point): put}):
            edited = model(torch.tensor([corrupt.encoding.ids]))[0, position].detach().double()
        assert torch.allclose(alone, edited, atol=CLOSE), name
