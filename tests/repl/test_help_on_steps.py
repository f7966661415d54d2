"""``help L0.weights`` says what a step is for, on the live text; ``help induction`` what such a head does."""

from collections.abc import Callable

import pytest
from talking import Talk

from tinytf.learn.course import lesson
from tinytf.learn.live import Live
from tinytf.look.heads.kinds import LABELS


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_step_has_its_title_and_formula(ran: Talk) -> None:
    steps = [step for step in ran.session.table.by_name.values() if not ran.session.lexicon.meaning(step.name)]
    assert len(steps) > 20
    for step in steps:
        found = words(ran(f"help {step.name}"))
        assert ran.err.text == ""
        assert step.title in found, step.name
        assert words(step.formula) in found, step.name


def test_a_step_of_a_layer_is_explained_by_its_lesson_on_the_text(ran: Talk) -> None:
    found = ran("help L0.weights")
    told = lesson("softmax", Live(ran.session.model, ran.session.trace.encoding.text))
    assert words(told.why) in words(found)
    assert told.pytorch in found
    assert f"learn {told.number}" in found


def test_without_a_text_it_says_how_to_get_more(talk: Callable[..., Talk]) -> None:
    found = talk()("help L1.ffn")
    assert "feed-forward" in found
    assert "run a text" in found


@pytest.mark.parametrize("label", LABELS, ids=lambda label: label.name)
def test_every_kind_of_head_is_explained(label: object, ran: Talk) -> None:
    name, meaning, least = (getattr(label, part) for part in ("name", "meaning", "least"))
    found = words(ran(f"help {name}"))
    assert ran.err.text == ""
    assert meaning in found
    assert f"≥ {least:g}" in found


@pytest.mark.parametrize("topic", ["L9.weights", "L0.foo", "nothing-like-it"])
def test_what_is_no_step_is_a_line_and_a_hint(topic: str, ran: Talk) -> None:
    failure = ran.fails(f"help {topic}").failure
    assert failure is not None
    assert failure.message == f"there is no help on '{topic}'"
