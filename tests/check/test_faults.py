"""Modules of other styles with one fault each: the first wrong step, its line, the cause, and never a wrong one."""

import sys
import tomllib
from pathlib import Path

import pytest
from covering import sample

sys.path.insert(0, str(Path(__file__).parent))

from students import FILES, checked, like

from tinytf.check.checked import check
from tinytf.check.consistency import Consistency
from tinytf.check.invariances import Invariance
from tinytf.compare.mistakes import MISTAKES as KNOWN
from tinytf.compare.mistakes.wrong_trace import wrong_formulas

pytestmark = pytest.mark.usefixtures("checks_here")

FAULTS = tomllib.loads((Path(__file__).parent / "faults.toml").read_text("utf-8"))
ROWS = [(target, row) for target, rows in FAULTS.items() for row in rows]
LOOKS_AHEAD = {
    "no mask", "upside down", "sees the next one", "hidden scores become 0", "added as 1 and 0",
    "over the queries", "mixes tokens", "weights are transposed", "masked after the softmax", "length of the text",
    "hides the token itself, by a large number", "norms over the tokens", "run backwards",
}  # fmt: skip
"""Words of mistakes by which a token depends on later ones."""


@pytest.mark.share(24)
@sample(("target", "row"), ROWS, ids=[row["name"] for _, row in ROWS], every=6)
@pytest.mark.slow
def test_a_fault_is_found_at_its_step_and_line_and_has_no_cause_but_its_own(
    target: str, row: dict[str, str], tmp_path: Path
) -> None:
    found = checked(target, tmp_path, (row["right"], row["wrong"]))
    assert found.first_wrong is not None
    assert found.first_wrong.step == row["step"]
    assert found.first_wrong.line is not None
    assert row["line"] in found.first_wrong.line.text
    if row["says"]:
        (mistake,) = found.mistakes
        assert row["says"] in mistake.mistake
        assert found.unexplained == ""
    else:
        assert found.mistakes == ()
        assert found.unexplained


@pytest.mark.slow
def test_ones_and_masks_of_the_code_are_no_evidence_of_attention(tmp_path: Path) -> None:
    rows = {row["name"]: row for _, row in ROWS}
    for name in ("uniform attention", "ones added to the scores of the past"):
        found = checked("einsum_gpt.py:Net", tmp_path, (rows[name]["right"], rows[name]["wrong"]))
        assert found.mistakes == (), name


def test_rows_that_were_permuted_to_fit_are_said_first() -> None:
    paired = check(like("complex_llama.py:Transformer"), str(FILES / "complex_llama.py:Transformer"))
    assert "is with the rows of queries and keys in rotary pairs (2i, 2i+1), right" in paired.in_a_sentence()
    halves = check(like("fused_llama.py:Llama"), str(FILES / "fused_llama.py:Llama"))
    assert "pairs" not in halves.in_a_sentence()


@pytest.mark.parametrize("target", ["gpt.py:GPT", "llama.py:Llama"])
def test_no_mistake_is_named_that_would_break_what_the_module_keeps(target: str) -> None:
    """Every mistake beside every invariance: it is refuted exactly where it makes the reference look ahead."""
    model = like(target)
    trace = model.trace("The cat sat on the mat.")
    for name in ("padding", "batch"):
        kept = Consistency(model, trace, [Invariance(name, "it holds", 0.0, 1e-4)])
        open_to_all = Consistency(
            model, trace, [Invariance(name, "it fails", 1.0, 1e-4), Invariance(name, "", None, 0)]
        )
        for mistake in KNOWN:
            at = next(((s.name, layer) for s, layer in trace.steps.rows if mistake.fits(s)), None)
            if at is None:
                continue
            wrong = wrong_formulas(mistake, trace.steps, at, "all")
            try:
                refuted = kept.refuted_by([mistake], wrong)
            except RuntimeError:  # it does not fit this model
                continue
            ahead = any(words in mistake.words for words in LOOKS_AHEAD)
            expected = ahead if name == "padding" else mistake.across_texts
            assert bool(refuted) == expected, (name, mistake.words)
            assert open_to_all.refuted_by([mistake], wrong) == ""
