"""Mistakes of convolutions, steps and gates of mixers with a state are told apart from one another."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "parity"))

from architectures import asked, config_of, encoding_of, lively
from wrong_settings import IDS, dumped

from tinytf.compare.mistakes.states import states
from tinytf.compare.mistakes.wrong_trace import WrongTrace, wrong_formulas
from tinytf.trace.record import record

_KINDS = (
    "lfm2, short convolutions around grouped attention",
    "mamba 2, a state space before a layer of attention",
    "mamba-2 and attention side by side",
)


def mistaken(kind: str) -> Iterator[tuple[str, Any]]:
    """The runs of a kind with each of the mistakes that it can have, and the model."""
    model = lively(config_of(kind))
    trace = record(model, encoding_of(IDS))
    for mistake in states():
        for step, layer in trace.steps.rows:
            if layer is not None and mistake.fits(step):
                with suppress(RuntimeError, TypeError, AttributeError, IndexError):
                    run = WrongTrace(trace, wrong_formulas(mistake, trace.steps, (step.name, layer), "name"))
                    if not torch.allclose(run.step(step.name, layer), trace.step(step.name, layer), atol=1e-3):
                        yield f"{step.full_name(layer)} {mistake.words}", (asked(model), run, mistake.words)
                        break


@pytest.mark.share(6)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.slow
def test_a_mistake_of_a_state_is_named(kind: str) -> None:
    tried = list(mistaken(kind))
    assert len(tried) > 2
    for name, (model, run, words) in tried:
        found = model.diff(None, dumped(run))
        assert found.cause is not None, name
        alike = words.replace("the norm of what is read is", "the norm is")  # by the search that solves for its eps
        assert any(one in found.cause.in_words for one in (words, alike)), (name, found.cause.in_words)
