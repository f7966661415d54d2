"""A session without some steps of its model: everything in it runs so, says so, and comes back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import Tinytf
from talking import SENTENCE, Talk

from tinytf.loading import Model, load


@pytest.fixture(scope="module")
def cut() -> Model:
    """The model by itself without the steps, in the way that changes nothing of it for good."""
    return load("tiny")


def top(ran: Talk) -> list[float]:
    found: Any = json.loads(ran("top 5 --json"))
    return [one["probability"] for one in found["predictions"][0]["top"]]


def test_verbs_and_commands_run_without_the_steps(ran: Talk, cut: Model) -> None:
    whole = top(ran)
    assert ran("without L3H1 L2.ffn").startswith("without L3H1, L2.ffn (zero)")
    with cut.ablated(["L3H1", "L2.ffn"]):
        trace = cut.trace(SENTENCE)
        expected = trace.logits_at(4).softmax(dim=-1).sort(descending=True).values[:5].tolist()
        said = "".join(step.text for step in cut.stream(SENTENCE, max_tokens=4))
    assert top(ran) == pytest.approx(expected, abs=1e-5)
    assert top(ran) != pytest.approx(whole, abs=1e-3)
    assert ran("generate --max-tokens 4").strip() == said.strip()
    assert torch.equal(ran.session.trace["L3H1.head_out"], torch.zeros(5, 32))


@pytest.mark.share(4)
@pytest.mark.parametrize("line", ["where", "heat L0H0", "top", "print L0.ffn", "heads", "step", "list", "lens", "score",
                                  "attention", "trace", "grad", "explain L0H0.scores[1,0]", "attribute"])  # fmt: skip
def test_what_depends_on_it_says_so_and_checks_hold(ran: Talk, line: str) -> None:
    assert "without" not in ran(line)
    ran("back" if line == "step" else "show", "without L3H1")
    assert "without L3H1 (zero)" in ran(line)
    ran("without none")
    assert "without L3H1" not in ran(line)


def test_generate_says_so_beside_its_text(ran: Talk) -> None:
    ran("without L3H1", "generate --max-tokens 2")
    assert ran.err.text == "tinytf: the model ran without L3H1.head_out\n"


def test_a_check_names_what_was_put_there(ran: Talk) -> None:
    ran("without L3H1 L2.ffn")
    last = ran("trace --pipeline --width 200").splitlines()[-1]
    assert last.startswith("checked: 47 steps add up")
    assert last.endswith("not compared, because replaced: L2.ffn, L3H1.head_out")
    assert "put there by an intervention" in ran.fails("explain L2.ffn[0,0]").failure.message  # type: ignore[union-attr]


def test_undo_brings_the_steps_back_and_none_ends_it(ran: Talk) -> None:
    before = ran("top")
    ran("without L3H1", "without L1 --how mean")
    assert "without L1 (mean)" in ran("top")
    ran("undo")
    assert "without L3H1 (zero)" in ran("without")
    ran("undo")
    assert ran("top") == before
    ran("without L3H1", "without none")
    assert ran("top") == before
    assert ran("without") == "the model is whole\n"


def test_diff_compares_the_run_with_and_the_run_without(ran: Talk) -> None:
    ran("without L2.ffn")
    told = json.loads(ran("diff --json"))
    first = next(one for one in told["steps"] if one["largest"])
    assert first["name"] == "L2.ffn"
    assert "without L2.ffn (zero)" in ran("diff")


def test_another_text_and_another_model_go_without_it_too(ran: Talk) -> None:
    ran("without L2.ffn", "run The dog")
    assert "without" in ran("where")
    ran("model tiny --dtype float64")
    assert "without L2.ffn" in ran("where")
    ran("model tiny", "without L3")
    failure = ran.fails("model tiny-encoder").failure
    assert failure is not None
    assert failure.message.startswith("there is no layer 3")
    assert "without none" in failure.hint


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("without L9H1", "there is no layer 9"),
        ("without embed.out", "cannot be replaced"),
        ("without L0.ffn[0,0]", "is a cell"),
        ("without none L0", "none cannot be combined"),
        ("without none --how mean", "none restores the whole model"),
        ("without --how mean", "no step is named"),
        ("without L0 --how median", "'median'"),
        ("without L0 --how mean --reference nowhere.txt", "nowhere.txt"),
        ("without L0 --how zero --reference nowhere.txt", "--how zero takes no --reference"),
        ("without mask --how mean", "--how is for steps"),
    ],
)
def test_what_cannot_be_taken_away_leaves_the_session_as_it_was(ran: Talk, line: str, said: str) -> None:
    before = ran.session.state
    assert said in ran.fails(line).failure.message  # type: ignore[union-attr]
    assert ran.session.state == before


def test_the_weights_are_held_once(ran: Talk) -> None:
    held = ran.session.models.nbytes
    one_trace = ran.session.trace.recorded_bytes
    ran("without L3H1")
    assert ran.session.models.nbytes <= held + 2 * one_trace


@pytest.mark.parametrize("part", ["scaling", "mask", "positions"])
def test_a_part_of_attention_is_left_out_by_its_name(ran: Talk, part: str) -> None:
    whole = top(ran)
    assert ran(f"without {part}") == f"without {part}\ndiff compares this run with the one before\n"
    assert top(ran) == pytest.approx(_top_five(load("tiny").without(part)), abs=1e-5)
    assert top(ran) != pytest.approx(whole, abs=1e-3)
    assert f"without {part}" in ran("trace")
    assert "checked: 4" in ran("trace --pipeline")
    ran(f"without L0H1 {part}", "generate --max-tokens 2")
    assert ran.err.text.endswith(f"tinytf: the model ran without {part}, L0H1.head_out\n")
    assert f"without {part}, L0H1 (zero)" in ran("where")
    assert "one lesson is about" in ran.fails("learn softmax").failure.message  # type: ignore[union-attr]


def _top_five(model: Model) -> list[float]:
    best: list[float] = model.trace(SENTENCE).logits_at(4).softmax(dim=-1).sort(descending=True).values[:5].tolist()
    return best


def test_a_saved_session_goes_without_it_again(tinytf: Tinytf, tmp_path: Path, talk: Callable[..., Talk]) -> None:
    saved = tmp_path / "kept.session"
    lines = ["set precision 2", 'run "The cat sat"', "without L1H0", "top 3", "undo", "top 3", f"save '{saved}'"]
    first = tinytf("repl", *(word for line in lines for word in ("-c", line)))
    again = tinytf("repl", "-f", saved)
    assert (again.status, again.lines) == (0, first.lines[:-1])
