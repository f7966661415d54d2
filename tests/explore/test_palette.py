"""The search line of the explorer: anything on the screen is found by a few letters."""

import pytest
from textual.widgets import Input

from tests.explore.test_explore import TEXT, Driver, explore
from tinytf_cli.explore.keys import KEYS
from tinytf_cli.explore.palette import everything, ranked
from tinytf_cli.repl.addressing import Offer
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec


@pytest.fixture(scope="module")
def offers() -> list[Offer]:
    session = Session(VERBS, Spec("tiny"), Settings())
    session.begin(TEXT)
    return list(everything(session, 1, {key.shown: key.words for key in KEYS}))


def test_each_thing_is_the_first_for_its_own_name_and_found_without_its_vowels(offers: list[Offer]) -> None:
    for offer in offers:
        assert ranked(offer.word, offers)[0].word.casefold() == offer.word.casefold()
        letters = "".join(letter for letter in offer.word if letter.casefold() not in "aeiou. ")
        assert not letters or offer in ranked(letters, offers)


def test_what_is_found_has_the_letters_of_every_word_in_order(offers: list[Offer]) -> None:
    for typed in ("l2h1w", "softmax", "wq", "grad", "L1 attn", "zzzz", "[]^-\\"):
        for offer in ranked(typed, offers):
            for word in typed.casefold().split():
                letters = iter(offer.word.casefold())
                assert word in offer.about.casefold() or all(letter in letters for letter in word), (typed, offer)


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        ("softmax", "L3H0.weights[9,0]"),
        ("l2h1w", "L2H1.weights[9,0]"),
        ("L1H2", "L1H2.weights[9,0]"),
        ("lost#2", "L3H0.weights[8,0]"),
        ("logits", "logits[9,0]"),
    ],
)
def test_enter_goes_to_what_was_found(typed: str, here: str) -> None:
    async def act(driver: Driver) -> None:
        await driver.press("ctrl+p")
        driver.app.line.value = typed
        await driver.press("enter")
        assert driver.here == here

    explore(act, size=(80, 24))


def test_a_line_opens_a_key_acts_and_escape_leaves_all_as_it_was() -> None:
    async def act(driver: Driver) -> None:
        assert "Ctrl-P find" in driver.shown("status")
        before = driver.here
        await driver.press("ctrl+p")
        await driver.type("abl")
        assert "Esc cancel" in driver.shown("status")
        assert "…" not in driver.shown("status")
        assert "▶ :ablate" in " ".join(driver.shown("offers").split())
        await driver.press("escape")
        assert driver.here == before
        assert not isinstance(driver.app.focused, Input)
        await driver.press("slash")
        await driver.type("ablat")
        await driver.press("enter")
        assert (driver.app.line.sign, driver.app.line.value) == (":", "ablate ")
        await driver.press("escape", "ctrl+p")
        await driver.type("logit lens")
        await driver.press("enter")
        assert "lens" in driver.app.visible_panes

    explore(act, size=(80, 24))
