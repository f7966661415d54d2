"""Runs that are kept by name, lines that are undone and redone, and how often a stop held."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talking import Talk

from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture


def test_a_kept_run_comes_back_with_its_text_model_and_ablations(ran: Talk) -> None:
    ran("without L1H2", "keep ablated")
    top = ran("top --json")
    ran("without none", "model tiny-encoder", "run A dog")
    assert ran.session.model.name != "tiny"
    shown = ran("use ablated")
    assert "The│·cat│·sat│·on│·the" in shown
    assert ran("top --json") == top
    assert ran("without --json").find("L1H2") > 0
    assert [one["present"] for one in json.loads(ran("keep --json"))["runs"]] == [True]


def test_a_run_is_compared_with_a_kept_one_as_the_command_does(ran: Talk) -> None:
    ran("keep cat", "run A dog sat", "keep dog", "run The boy")
    by_name, by_text = json.loads(ran("diff cat --json")), json.loads(ran('diff "The cat sat on the" "The boy" --json'))
    assert by_name == by_text
    assert json.loads(ran("diff cat dog --json")) == json.loads(ran('diff "The cat sat on the" "A dog sat" --json'))
    assert json.loads(ran("diff --json")) == json.loads(ran("diff dog --json"))


def test_a_step_stays_where_it_is_also_without_others(ran: Talk) -> None:
    ran("goto L1.weights", "without scaling")
    assert ran.session.step_words.startswith("L1.weights ")
    ran("goto next", "without none", "goto L3.scaled", "without scaling")
    assert ran.session.step_words
    ran("goto next", "without mask")
    assert ran.session.step_words.startswith("next ")


def test_a_step_stays_where_it_is_in_another_run(ran: Talk) -> None:
    ran("keep cat", "goto L1H2.weights", "run A dog sat", "goto L3H1.scores", "use cat")
    assert ran.session.step_words.startswith("L3H1.scores ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("use nothing", "no run is kept as 'nothing'"),
        ("keep 2nd", "'2nd' cannot name a run"),
        ("keep 'a b'", "cannot name a run"),
        ("diff --top 0", "--top"),
    ],
)
def test_what_names_no_run_is_told(ran: Talk, line: str, said: str) -> None:
    failure = ran.fails(line).failure
    assert failure is not None
    assert said in failure.message


def test_nothing_is_kept_before_a_run(talk: Callable[..., Talk]) -> None:
    session = talk()
    assert session("keep") == "no run is kept\n"
    session.fails("keep cat")


class Editor:
    """Undo and redo as an editor has them: two stacks."""

    def __init__(self) -> None:
        self.now: int | None = None
        self.past, self.future = list[int | None](), list[int | None]()

    def set(self, number: int) -> None:
        if number != self.now:
            self.past, self.future, self.now = [*self.past, self.now], [], number

    def undo(self) -> bool:
        if not self.past:
            return False
        self.future.append(self.now)
        self.now = self.past.pop()
        return True

    def redo(self) -> bool:
        if not self.future:
            return False
        self.past.append(self.now)
        self.now = self.future.pop()
        return True


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 4), st.sampled_from(["undo", "redo", "nonsense", "show dims"])), max_size=14))
@pytest.mark.slow
def test_undo_and_redo_are_those_of_an_editor(lines: list[int | str]) -> None:
    session, editor = Session(VERBS, stdout=Capture(), stderr=Capture()), Editor()
    for line in lines:
        if isinstance(line, int):
            editor.set(line)
            assert session.execute(f"set dims {line}").status == 0
        else:
            works = {"undo": editor.undo, "redo": editor.redo, "nonsense": lambda: False, "show dims": lambda: True}
            assert (session.execute(line).status == 0) == works[line]()
        assert session.settings.dims == editor.now


def test_hits_of_a_stop_are_the_steps_where_it_held(ran: Talk) -> None:
    trace = ran.session.trace
    largest = [float(np.max(trace[f"L{layer}.weights"].numpy()[:, 1:])) for layer in range(4)]
    limit = sorted(largest)[1]
    holding = sum(one > limit for one in largest)
    assert holding == 2
    ran("delete", f"break L*.weights[1:] if max > {limit!r}", "run", "continue", "continue")
    assert ran.session.row == len(ran.session.table.rows) - 1
    assert [stop.hits for stop in ran.session.state.stops] == [holding]
    assert ran("break").split()[-1] == str(holding)
    ran("ignore 1 1", "run")
    assert [stop.hits for stop in ran.session.state.stops] == [2], "the second hit after two more"


def test_ignored_hits_are_passed_in_every_run(ran: Talk) -> None:
    ran("break L*.weights", "ignore 1 2", "run")
    assert ran.session.step_words.startswith("L2.weights ")
    ran("run A dog sat")
    assert ran.session.step_words.startswith("L2.weights ")
    ran("ignore 1 1", "continue")
    assert ran.session.row is not None
    assert ran.session.row + 1 == len(ran.session.table.rows), "3 hits and 1 more: none is left"
    ran("ignore 1 0", "run")
    assert ran.session.step_words.startswith("L0.weights ")
    assert "there is no stop 7" in ran.fails("ignore 7 1").failure.message  # type: ignore[union-attr]


def test_a_stop_that_holds_once_passes_what_is_ignored_first(ran: Talk) -> None:
    ran("tbreak L*.weights", "ignore 1 1", "run")
    assert ran.session.step_words.startswith("L1.weights ")
    assert ran("break") == "there are no stops\n"
    ran("tbreak L1.q if max > 0")
    assert ran("ignore 1 2").split("\n")[1].strip() == "1  L1.q, once, after 2 hits, if max > 0"


def test_two_stacks_have_two_texts_and_either_changes() -> None:
    session = Session(VERBS, Spec("tiny-translator"), stdout=Capture(), stderr=Capture())
    assert session.begin("the third of May 1994", target="1994-05-0").status == 0
    assert session.run is not None
    assert (session.run.spec.reads, session.run.text) == ("the third of May 1994", "1994-05-0")
    before = session.trace["L1.cross.weights"].shape
    session.execute("run --target-text=1994-05-03")
    assert (session.run.spec.reads, session.run.text) == ("the third of May 1994", "1994-05-03")
    assert session.trace["L1.cross.weights"].shape[1:] == (before[1] + 1, before[2])
    session.execute("run the ninth of June 2011")
    assert (session.run.spec.reads, session.run.text) == ("the ninth of June 2011", "2011-06-09")
