"""A number set in a session: before and after, what follows, later runs, and back to the last bit."""

import json
from typing import Any

import pytest
import torch
from talking import SENTENCE, Talk

from tinytf.compare.measures import BothPredict
from tinytf.loading import load


def test_the_answer_is_before_and_after_then_the_prediction_then_the_first_difference(ran: Talk) -> None:
    before = float(ran.session.trace["L1H2.weights[4,1]"])
    lines = ran("set L1H2.weights[the#1,cat] = 0.5").splitlines()
    assert lines[0] == f"L1H2.weights[4,1] {before:.4g} → 0.5"
    assert lines[1].startswith("·mat ")
    assert "first difference at L1.weights" in lines[3]
    assert float(ran.session.trace["L1H2.weights[4,1]"]) == 0.5
    told = json.loads(ran("set L1H2.weights[2,:] = 0.1 --json"))
    assert told["numbers"] == 3
    assert told["set"] == {"L1H2.weights[4,1]": 0.5, "L1H2.weights[2,:]": 0.1}
    assert told["difference"]["first_difference"] == "L1.weights"


def test_the_probabilities_in_the_sentence_are_those_of_both_models(ran: Talk) -> None:
    plain, changed = load("tiny"), load("tiny").with_numbers({"L0H1.weights[4,0]": 2.5})
    shares = [model.trace(SENTENCE).logits_at(-1).softmax(-1) for model in (plain, changed)]
    was, now = (int(share.argmax()) for share in shares)
    assert was != now, "else the sentence says less"
    before, after = (100 * float(share[was]) for share in shares)
    assert before > 10 > after > 0.1
    falls = f"{plain.shown(was)} falls from {before:.0f} % to {after:.1f} %"
    line = ran("set L0H1.weights[4,0] = 2.5").splitlines()[1]
    assert line == f"{falls}, and {plain.shown(now)} comes first."


def test_generate_says_what_is_set(ran: Talk) -> None:
    ran("set L1H2.weights[4,1] = 0.5", "without L3H1", "generate --max-tokens 1")
    first = "tinytf: the model ran without L3H1.head_out\n"
    assert ran.err.text == first + "tinytf: the model ran with L1H2.weights[4,1] = 0.5\n"


def test_a_prediction_that_stays_first_is_said_to() -> None:
    change = BothPredict(4, 4, 0.1, (7, 8), (0.75, 0.125), (0.5, 0.25))
    assert change.in_words(str) == "7 falls from 75 % to 50 %, and is still first"


@pytest.mark.parametrize("line", ["set L1H2.weights[4,1] = 0.5", "set L0.W_Q[0,3] = 2", "set L1.scale=1"])
def test_undo_and_none_bring_back_every_bit(ran: Talk, line: str) -> None:
    def numbers() -> dict[str, Any]:
        trace = ran.session.trace
        return {
            **trace.recording.tensors,
            **{address: trace[address] for address in ("L0.W_Q", "L1.weights", "L1.scaled")},
        }

    before = numbers()
    for back in ("undo", "set none"):
        ran(line)
        assert not torch.equal(ran.session.trace.recorded_logits, before["logits"])
        ran(back)
        assert ran.session.state.spec.changes == {}
        after = numbers()
        assert before.keys() == after.keys()
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_later_runs_commands_and_lists_have_it_and_say_so(ran: Talk) -> None:
    ran("set L1H2.weights[4,1] = 0.5", "set √d = 2", "run The dog lay on a mat")
    model = load("tiny").with_numbers({"L1H2.weights[4,1]": 0.5, "√d": 2})
    assert torch.equal(ran.session.trace["logits"], model.trace("The dog lay on a mat")["logits"])
    said = "set L1H2.weights[4,1] = 0.5, √d = 2"
    for line in ("set", "show", "top"):
        assert said in ran(line)
    assert "note: with √d = 2\nnote: with L1H2.weights[4,1] = 0.5\n" in ran("where")
    assert json.loads(ran("top --json"))["set"] == {"L1H2.weights[4,1]": 0.5, "√d": 2}
    assert ran("generate --max-tokens 1").strip() == model.generate("The dog lay on a mat", max_tokens=1).strip()
    failure = ran.fails("run The cat").failure
    assert failure is not None
    assert "is set to 0.5, and in this text query 4 is out of range" in failure.message
    ran("set √d = 3", "without L0H1")
    assert "without L0H1 (zero)" in ran("where")
    assert "set L1H2.weights[4,1] = 0.5, √d = 3" in ran("top")
    assert ran("set none") == "every number is the model's own\n"


def test_parameters_and_divisors_are_set_before_any_text(ran: Talk) -> None:
    ran("model tiny")
    ran.session.change(runs=())
    assert ran("set √d = 1") == "√d 5.657 → 1\n"
    assert ran("set E[·cat,0] = 0").splitlines()[1] == "set √d = 1, E[·cat,0] = 0"
    ran.fails("set L1H2.weights[2,1] = 0")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("set L1H2.weights[4,1] = nan", "nan is not a finite number of float32", "L1H2.weights[4,1] = 0"),
        ("set L1H2.weights[4,1] = 1e39", "1e+39 is not a finite number of float32", "L1H2.weights[4,1] = 0"),
        ("set L1H2.weights[4,1] = much", "'much' is not a number", "L1H2.weights[4,1] = 0.5"),
        ("set L1H2.weights[4,1] =", "'' is not a number", "L1H2.weights[4,1] = 0.5"),
        ("set L1H2.weights[4,1] 0", "a number of the model is set with =", "set L1H2.weights[4,1] = 0"),
        ("set L1H2.weights[1,4] = 1", "L1H2.weights[1,4] is masked", "a cell that is not masked"),
        ("set L1H2.weights[dog,1] = 1", "no token is 'dog'", "tokens:"),
        ("set L1H2.weights[9,1] = 1", "query 9 is out of range", "numbers or by tokens"),
        ("set logits[4,1] = 1", "logits[4,1] is not a step that can be edited", "such as"),
        ("set L0.W_Q[0,999] = 1", "is out of range", "by numbers"),
        ("set √d = 0", "√d divides the scores, and 0 is not above 0", "√d = 1"),
        ("set = 1", "'' is not an address", "a cell"),
        ("set none 1", "there is no setting 'none'", ""),
    ],
)
def test_what_cannot_be_set_is_one_line_with_a_hint(ran: Talk, line: str, message: str, hint: str) -> None:
    state = ran.session.state
    failure = ran.fails(line).failure
    assert failure is not None
    assert message in failure.message
    assert hint in failure.hint
    assert "\n" not in failure.message + failure.hint
    assert ran.session.state == state


def test_settings_take_an_equals_sign_too(ran: Talk) -> None:
    ran("set precision = 2")
    assert ran.session.settings.precision == 2


def test_python_in_a_session_gets_the_numbers_of_a_model_that_it_changes(ran: Talk) -> None:
    same = "torch.equal(changed, trace['logits'])"
    for changed in ("model.without('L1H2')", "model.with_numbers({'√d': 1})"):
        ran(f"! changed = {changed}.trace('{SENTENCE}')['logits']")
        assert ran(f"! {same}") == "False\n"
    text = "The dog ran"
    edit = "{'L1.weights': lambda weights: weights * 0}"
    ran(f"! with model.edited({edit}):\n    changed = model.trace('{text}')['logits']")
    ran(f"run {text}")
    assert ran(f"! {same}") == "False\n"
    assert torch.equal(ran.session.trace["logits"], load("tiny").trace(text)["logits"])


def test_a_map_with_a_set_number_no_longer_says_that_its_rows_sum_to_one(ran: Talk) -> None:
    ran("run The cat", "set L1H2.weights[1,0] = 0.9")
    for line in ("heat L1H2", "print L1H2.weights[1,:]", "attention --head L1H2", "trace --block L1H2"):
        text = ran(line)
        assert "each row sums to 1" not in text
        assert "with numbers that were put there" in text
    headings = [text for text in ran("print L1.weights").splitlines() if text.startswith("L1H")]
    assert [("put there" in heading) for heading in headings] == [False, False, True, False]
    assert ["each row sums to 1" in heading for heading in headings] == [True, True, False, True]
