"""A Llama from scratch, as a student writes it, with the weights of SmolLM2: every step of thirty layers."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "check"))

from students import FILES, edited

from tinytf.check.checked import check
from tinytf.loading import Model

pytestmark = pytest.mark.real

LLAMA = "llama.py:Llama"


@pytest.mark.exhaustive
def test_a_llama_from_scratch_is_smollm2_step_by_step(model: Model) -> None:
    found = check(model, str(FILES / LLAMA))
    assert found.holds
    assert len(found.steps) > 600
    assert max(step.difference for step in found.steps if step.difference is not None) < found.tolerance


@pytest.mark.exhaustive  # of a tiny model: tests/check/test_checked.py
def test_its_mistake_is_found_with_trained_weights_too(model: Model, tmp_path: Path) -> None:
    found = check(model, edited(LLAMA, tmp_path, ("+ rotate_half(x)", "- rotate_half(x)")))
    assert [one.mistake for one in found.mistakes] == ["RoPE turns the other way"]
    assert found.mistakes[0].places == 60
    assert found.unexplained == ""
