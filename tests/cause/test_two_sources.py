"""Sweeps over two sources of a model of two stacks: each site of the encoder, as a patch of it alone has it."""

from pathlib import Path

import pytest
import torch
from architectures import SOURCE, asked, config_of, encoding_of, lively

from tinytf.cause.interventions import patch, patch_sweep
from tinytf.errors import UsageError
from tinytf.loading import Model
from tinytf.model.transformer import Source, reading
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

KINDS = ("t5, two stacks", "bart, two stacks", "bert and gpt-2, two stacks of two widths")
OTHER = [*SOURCE[:2], SOURCE[2] + 1, *SOURCE[3:]]
TARGET = [3, 14, 15, 9]


def opened(kind: str, other: list[int] = OTHER) -> tuple[Model, Trace, Trace]:
    model = lively(config_of(kind))
    assert model.encoder is not None

    def trace(ids: list[int]) -> Trace:
        with torch.no_grad():
            read = record(model.encoder, encoding_of(ids))
            bound = reading(model, Source(read.last_hidden[None], trace=read))
            return record(bound, encoding_of(TARGET))

    return asked(model), trace(SOURCE), trace(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", ["residual", "heads"])
def test_a_site_of_the_encoder_is_a_patch_of_it_alone(kind: str, over: str) -> None:
    model, clean, corrupt = opened(kind)
    found = patch_sweep(model, clean, corrupt, over, answer="#1", versus="#2")
    assert found.stack == "enc."
    assert found.values.shape == (model.config.encoder.n_layers, 7 if over == "residual" else found.values.shape[1])
    for layer, column, _ in found.strongest(3):
        at = f"enc.L{layer}.{clean.source.steps.input}" if over == "residual" else found.site(layer, column)
        positions = [column] if over == "residual" else None
        alone = patch(model, clean, corrupt, [at], positions=positions, answer="#1", versus="#2")
        assert float(found.values[layer, column]) == pytest.approx(alone.value, abs=1e-5)
    if over == "residual":
        before = found.recovered[0]
        assert float(before[2]) == pytest.approx(1, abs=1e-4), "all that differs enters there"
        assert before.abs().sum() == pytest.approx(1, abs=1e-3)


def test_the_decoder_is_swept_where_it_is_asked_for_or_its_text_differs() -> None:
    model, clean, corrupt = opened(KINDS[0])
    found = patch_sweep(model, clean, corrupt, answer="#1", versus="#2", stack="decoder")
    assert (found.stack, found.values.shape[1]) == ("", len(TARGET))
    plain = asked(lively(config_of("gpt2")))
    assert patch_sweep(plain, "3 14 15", "3 9 15").stack == ""
    with pytest.raises(UsageError, match="no encoder here that read a text"):
        patch_sweep(plain, "3 14 15", "3 9 15", stack="encoder")


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_file_of_results_is_of_one_pair_of_sources(stack: str, tmp_path: Path) -> None:
    model, clean, corrupt = opened(KINDS[0])
    _, _, another = opened(KINDS[0], [*SOURCE[:4], SOURCE[4] + 2, *SOURCE[5:]])
    settings = {"answer": "#1", "versus": "#2", "stack": stack}
    resumed = [patch_sweep(model, clean, one, **settings, resume=tmp_path / "log") for one in (corrupt, another)]
    for found, one in zip(resumed, (corrupt, another), strict=True):
        torch.testing.assert_close(found.values, patch_sweep(model, clean, one, **settings).values)


@pytest.mark.parametrize("over", ["heads", "residual"])
def test_the_decoder_is_swept_from_a_later_token_on(over: str) -> None:
    """What comes before is not run again; the keys of the source are."""
    model, clean, corrupt = opened(KINDS[0])
    last = len(TARGET) - 1
    positions = [last] if over == "heads" else None
    found = patch_sweep(model, clean, corrupt, over, answer="#1", versus="#2", positions=positions, stack="decoder")
    for layer, column, _ in found.strongest(2):
        at = found.site(layer, column) if over == "heads" else f"L{layer}.{clean.steps.input}"
        where = [last] if over == "heads" else [column]
        alone = patch(model, clean, corrupt, [at], positions=where, answer="#1", versus="#2")
        assert float(found.values[layer, column]) == pytest.approx(alone.value, abs=1e-5)
