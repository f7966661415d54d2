"""Steering in a session: on its model and its text, and on a model that runs without a head."""

from collections.abc import Callable
from pathlib import Path

import pytest
from talking import Talk

VECTOR = Path(__file__).parent.parent.parent / "samples" / "moods.safetensors"


@pytest.mark.parametrize("options", ["--add {}*-0.7", "--remove 'L*.out:{}'"])
def test_generate_takes_vectors(talk: Callable[..., Talk], options: str) -> None:
    session, words = talk(), options.format(VECTOR)
    plain = session("generate 'The donkey was very' --max-tokens 6")
    steered = session("run The donkey was very", f"generate {words} --max-tokens 6")
    assert (" sad" in steered) == ("--add" in words)
    compared = session(f"generate {words} --max-tokens 6 --compare")
    assert plain.strip() in compared
    assert "those without a cache" in compared


def test_steer_goes_on_from_the_text_and_the_model_of_the_session(talk: Callable[..., Talk]) -> None:
    session, curve = talk(), f"steer {VECTOR} --curve=-1:1:1 --ask happy --ask sad"
    shown = session("run The donkey was very", curve)
    assert shown.startswith("From −1 to 1 × moods.safetensors at L1.out, the lead of ·happy over ·sad in logits rises")
    assert '"The donkey was very"' in shown
    ablated = session("without L0H1", curve)
    assert ablated.split("rises")[1] != shown.split("rises")[1]
    assert "cannot read nothing.csv" in str(session.fails("steer nothing.csv").failure)
