"""The tour: the claims of the built-in one hold, its numbers are live, and a bad file is one line with its line."""

import re
from pathlib import Path

import pytest

from tests.explore.test_explore import TEXT, Driver, explore
from tinytf.errors import UsageError
from tinytf.loading import load
from tinytf.look.prediction import predictions
from tinytf.sentences import percent
from tinytf_cli.explore.keys import KEYS
from tinytf_cli.explore.scene import Scene
from tinytf_cli.explore.tour import read_tour
from tinytf_cli.repl.state import Run, Spec

TOURED = frozenset(key.shown for key in KEYS if key.toured)
HEAD, BEFORE = "L1H0", "L0H0"


def told(driver: Driver) -> str:
    return " ".join(driver.shown("tour").split())


def test_the_built_in_tour_has_eight_stops_and_every_number_in_it_is_live() -> None:
    tour = read_tour(None)
    assert (tour.text, tour.model, len(tour.stops)) == (TEXT, "tiny", 8)
    for stop in tour.stops:
        for _, sentence in stop.sentences:
            assert not re.search(r"\d", re.sub(r"\{[^}]*\}|\bL\d\b", "", sentence)), sentence


def test_what_the_built_in_tour_claims_holds() -> None:
    model = load("tiny")
    trace = model.trace(TEXT)
    shown = [token.shown for token in trace.tokens]
    rows = trace["embed.tokens"]
    assert shown[1] == shown[7] == "·cat"
    assert rows[1].equal(rows[7]), "both rows of ·cat are equal"
    labels = model.heads().labels
    assert labels[1][0].name == "induction"
    assert labels[0][0].name == "previous"
    assert float(trace[f"{BEFORE}.weights"][7, 6]) > 0.5
    assert shown[3:5] == ["·the", "·ball"], "·ball followed ·the"
    assert float(trace[f"{HEAD}.weights"][9, 4]) > 0.5
    without = model.without([HEAD]).trace(TEXT)
    before, after = (float(trace_["probs[9,ball]"]) for trace_ in (trace, without))
    assert after < before / 2, "that head is the reason"


def test_the_tour_goes_from_stop_to_stop_with_live_numbers_and_its_own_run() -> None:
    trace = load("tiny").trace(TEXT)

    async def act(driver: Driver) -> None:
        stops = read_tour(None).stops
        assert "stop 1 of 8" in told(driver)
        assert driver.app.trace.encoding.text == TEXT
        for stop in stops[1:]:
            await driver.press("greater_than_sign")
            address = driver.app.trace.address(stop.address)
            assert driver.app.look.cursor.address(driver.app.trace).step == address.step
            assert "…" not in told(driver)
            if stop.address.startswith(f"{HEAD}.weights"):
                assert driver.here == f"{HEAD}.weights[9,4]"
            if stop is stops[3]:
                assert f"the, {percent(float(trace[f'{HEAD}.weights'][9, 4]))} of its weight" in told(driver)
            if stop is stops[6]:
                assert f"·ball, with {percent(float(trace['probs[9,ball]']))}" in told(driver)
        ablated = driver.app.trace
        assert driver.app.session.state.spec.without is not None
        assert f"is now {percent(float(ablated['probs[9,ball]']))}" in told(driver)
        await driver.press("greater_than_sign")
        assert "this is the last stop" in driver.shown("status")
        await driver.press("less_than_sign")
        assert driver.app.session.state.spec.without is None
        await driver.press("t")
        await driver.type(" a")
        await driver.press("enter")
        assert "this run is your own" in told(driver)
        await driver.press("less_than_sign")
        assert driver.app.trace.encoding.text == TEXT
        assert "lens" in driver.app.visible_panes, "the key of this stop"

    explore(act, at="", tour=read_tour(None), size=(100, 36))


GOOD = "text The cat sat\n\nL0H0.weights[1,0] Enter\nThe number is {L0H0.weights[1,0]}.\n"


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("", 1, "the tour has no text"),
        ("text The cat sat\n", 1, "the tour has no stop"),
        ("The cat sat\n\ntokens\nWords.\n", 1, "is neither a text nor a model"),
        ("text The cat sat\n\ntokens\n", 3, "the stop says nothing"),
        (GOOD.replace("1,0]}.", "1,0]."), 4, "a brace is open"),
        (GOOD.replace("L0H0.weights[1,0] Enter", "L9.weights"), 3, "there is no layer 9"),
        (GOOD.replace("Enter", "Return"), 3, "Return is no key of a tour"),
        (GOOD.replace("Enter", "q"), 3, "q is no key of a tour"),
        (GOOD.replace("{L0H0.weights[1,0]}", "{L0H0.weights}"), 4, "L0H0.weights is not one number"),
        (GOOD.replace("{L0H0.weights[1,0]}", "{hat}"), 4, "hat"),
        (GOOD.replace("{L0H0.weights[1,0]}", "{guess next}"), 4, "next"),
        (GOOD.replace("{L0H0.weights[1,0]}", "{L0H0.weights[1,dog]}"), 4, "dog"),
    ],
)
def test_a_bad_tour_is_one_line_that_names_the_line_of_the_file(
    content: str, line: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "my.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_tour(path).check(scene("The cat sat"), TOURED)
    assert caught.value.message.startswith(f"{path}, line {line}: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def scene(text: str) -> Scene:
    model = load("tiny")
    return Scene(model, model.trace(text), Run(Spec(), text))


def test_a_teachers_tour_is_read_and_its_words_are_live(tmp_path: Path) -> None:
    path = tmp_path / "my.txt"
    path.write_text(GOOD + "\n# more\n\nnext\n{next} has {chance}, {chance a} for a.\n", encoding="utf-8")
    tour = read_tour(path)
    tour.check(scene(tour.text), TOURED)
    assert [stop.keys for stop in tour.stops] == [("Enter",), ()]

    async def act(driver: Driver) -> None:
        number = float(driver.app.trace["L0H0.weights"][1, 0])
        assert f"The number is {percent(number)}." in told(driver)
        await driver.press("greater_than_sign")
        best = predictions(driver.app.trace, load("tiny"), 1)[0].top[0]
        assert f"{best.shown} has {percent(best.probability or 0)}, " in told(driver)

    explore(act, tour.text, tour=tour)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(UsageError):
            read_tour(path)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_tour(tmp_path / "bad.txt")
