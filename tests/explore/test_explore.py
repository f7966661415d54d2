"""The explorer, driven by Textual's pilot: every key, the mouse, text edited live, other sizes and models."""

import asyncio
import itertools
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import sample
from safetensors.torch import load_file, save_file
from textual.widgets import Input

from tinytf.learn.course import lesson
from tinytf.learn.live import Live
from tinytf.loading import load
from tinytf.look.heads.measures import MEASURES, measure_heads
from tinytf.look.trace import traced
from tinytf_cli.explore import status
from tinytf_cli.explore.app import Explorer
from tinytf_cli.explore.arrange import arrange_panes
from tinytf_cli.explore.cursor import matrix
from tinytf_cli.explore.keys import KEYS
from tinytf_cli.explore.panels import LINES, USUAL
from tinytf_cli.explore.tour import Tour
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Span, Words

ROOT = Path(__file__).parents[2]
TEXT = "The cat lost the ball. The cat lost the"
BALL = load("tiny").tokenizer.encode(" ball").ids[0]
PILOTED = Callable[["Driver"], Awaitable[None]]


def words_of(title: Words) -> str:
    """Words without their roles."""
    if isinstance(title, str):
        return title
    return "".join(one if isinstance(one, str) else one.text for one in ([title] if isinstance(title, Span) else title))  # type: ignore[union-attr]


class Driver:
    """An explorer under a pilot."""

    def __init__(self, app: Explorer, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        """Press keys, each after all that the one before set going."""
        for key in keys:
            await self.pilot.press(key)
            await self.settled()

    async def settled(self) -> None:
        """Wait for what runs behind the screen, and for what that sets going."""
        await self.pilot.pause()
        while self.app.engine.waiting:
            await asyncio.sleep(0.005)
            await self.pilot.pause()

    async def type(self, text: str) -> None:
        await self.press(*({" ": "space", ".": "full_stop", "-": "minus"}.get(letter, letter) for letter in text))

    def shown(self, pane: str) -> str:
        """The lines of a pane."""
        shown = self.app.panes[pane]
        return "\n".join([words_of(shown.title), *("".join(one.text for one in line) for line in shown._lines)])

    @property
    def here(self) -> str:
        return str(self.app.look.cursor.cell_address(self.app.look.scene.trace))

    @property
    def lines(self) -> list[str]:
        """The lines of the session."""
        return [entry.line for entry in self.app.session.log.lines]


def explore(
    act: PILOTED,
    text: str = TEXT,
    model: str = "tiny",
    size: tuple[int, int] = (120, 40),
    checkpoints: tuple[Path, ...] = (),
    at: str = "L3H0.weights[9,0]",
    tour: Tour | None = None,
    **terminal: Any,
) -> Driver:
    """Open a text, go to an address, act, and leave."""
    session = Session(VERBS, Spec(model), Settings(color="always", theme="dark"))
    assert session.begin(text).status == 0
    screen = Terminal(width=size[0], height=size[1], cuts=True, **{"depth": "truecolor", **terminal})
    app = Explorer(KEYS, session, screen, checkpoints, tour)
    drivers = []

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            drivers.append(Driver(app, pilot))
            await drivers[0].settled()
            if at and text == TEXT:
                app.go(app.look.cursor.to(app.trace, app.trace.address(at)))
                await drivers[0].settled()
            await act(drivers[0])

    asyncio.run(run())
    assert app.fault is None
    return drivers[0]


def test_it_opens_at_the_head_that_trace_draws_and_the_token_that_it_sees_most() -> None:
    trace = load("tiny").trace(TEXT)
    layer, head, _ = traced(load("tiny"), TEXT).overview.ranked[0]
    key = int(trace[f"L{layer}H{head}.weights"][9].argmax())

    async def act(driver: Driver) -> None:
        assert driver.here == f"L{layer}H{head}.weights[9,{key}]"
        assert f"▾ L{layer}" in driver.shown("steps")
        assert f"▶  H{head}" in driver.shown("heads")
        assert "·ball" in driver.shown("next")

    explore(act, at="")


@pytest.mark.slow
def test_the_prediction_and_the_reading_of_each_layer_are_those_of_the_chosen_token() -> None:
    trace = load("tiny").trace(TEXT)

    async def act(driver: Driver) -> None:
        for position in (9, 8, 2):
            best = int(trace.logits_at(position).argmax())
            assert f"after {trace.tokens[position].shown} " in driver.shown("next").split("\n")[0] + " "
            assert load("tiny").shown(best) in driver.shown("next").split("\n")[1]
            for stage in load("tiny").lens(TEXT, position=str(position)).stages[1:]:
                row = next(line for line in driver.shown("steps").split("\n") if f" L{stage.layer} " in line)
                shown = load("tiny").shown(int(stage.top_ids[0, 0]))
                assert row.split()[-4:-1] == [f"L{stage.layer}", shown, f"{float(stage.top_probabilities[0, 0]):.3f}"]
            await driver.press("k")
            await driver.press(*["k"] * 5 if position == 8 else [])

    explore(act)


def test_keys_walk_steps_heads_layers_and_cells() -> None:
    async def act(driver: Driver) -> None:
        assert driver.here == "L3H0.weights[9,0]"
        await driver.press("right", "right")
        assert driver.here == "L3H2.weights[9,0]"
        await driver.press("left")
        assert driver.here == "L3H1.weights[9,0]"
        await driver.press("pageup", "pageup")
        assert driver.here == "L1H1.weights[9,0]", "the same step and head, two layers up"
        await driver.press("pagedown", "up")
        assert driver.here == "L2H1.masked[9,0]"
        await driver.press("down", "k", "l", "l", "h")
        assert driver.here == "L2H1.weights[8,1]"
        await driver.press("j", "j", "j")
        assert driver.here == "L2H1.weights[9,1]", "no further than the edge"
        await driver.press("home")
        assert driver.here == "tokens"
        await driver.press("end")
        assert driver.here == "next"
        assert "·ball" in driver.shown("main")

    explore(act)


def test_the_chosen_cell_is_the_recorded_number() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("k", "l", "l")
        trace = driver.app.look.scene.trace
        assert f"{driver.here} = {float(trace['L3H0.weights'][8, 2]):.7g}" in driver.shown("main")

    explore(act)


def test_enter_shows_the_arithmetic_and_follows_the_largest_term_down_to_the_embeddings() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("enter")
        assert "checked: the arithmetic comes to the recorded" in driver.shown("arithmetic")
        assert driver.lines[-1] == "explain 'L3H0.weights[9,0]'"
        seen = [driver.here]
        for _ in range(80):
            await driver.press("enter")
            if driver.here == seen[-1]:
                break
            seen.append(driver.here)
        assert seen[1] == "L3H0.masked[9,0]"
        assert seen[-1].startswith(("embed", "E")), seen[-1]
        assert "this number has no earlier source" in driver.shown("status")
        await driver.press("backspace")
        assert driver.here == seen[-2]
        assert f"explain '{seen[-2]}'" in driver.shown("arithmetic")
        await driver.press("escape")
        assert driver.app.active == "main"
        await driver.press("escape")
        assert not driver.app.opened

    explore(act)


def test_a_text_is_edited_live_and_becomes_one_line_of_the_session() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("t")
        await driver.type(" cat")
        assert driver.app.look.scene.trace.encoding.text == f"{TEXT} cat"
        whole = driver.app.look.scene.model.trace(f"{TEXT} cat")
        assert torch.equal(driver.app.look.scene.trace["L3.weights"], whole["L3.weights"])
        assert driver.here == "L3H0.weights[10,0]", "the last token stays chosen"
        assert len(driver.lines) == 1, "no line while it is typed"
        await driver.press("enter")
        assert driver.lines[1:] == [f'run --quiet -- "{TEXT} cat"']
        assert driver.app.focused is None
        assert "+0." in driver.shown("next") or "-0." in driver.shown("next"), "against the run before"

    explore(act)


def test_a_text_that_cannot_be_run_is_told_and_the_last_one_stays() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("t")
        driver.app.query_one("#edit", Input).value = ""
        await driver.pilot.pause()
        await driver.settled()
        assert "the text is empty" in driver.shown("status")
        assert driver.app.look.scene.trace.encoding.text == TEXT
        driver.app.query_one("#edit", Input).value = "cat " * 2000
        await driver.pilot.pause()
        await driver.settled()
        assert "tokens" in driver.shown("status")
        assert driver.app.look.scene.trace.encoding.text == TEXT

    explore(act)


def test_without_a_head_every_pane_shows_the_difference_and_again_makes_it_whole() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("pageup", "pageup", "w")
        assert driver.app.session.state.spec.without is not None
        assert "without L1H0" in driver.shown("status")
        ablated = driver.app.session.model.trace(TEXT)
        now, before = (float(one.logits_at(9).softmax(-1)[BALL]) for one in (ablated, load("tiny").trace(TEXT)))
        fell = next(line for line in driver.shown("next").split("\n") if "·ball" in line)
        assert fell.split()[1] == f"{now:.3f}", "what was predicted is still there, though it fell"
        assert fell.split()[-1] == f"{now - before:+.3f}"
        assert torch.equal(driver.app.look.scene.trace["logits"], ablated["logits"])
        assert not ablated["L1H0.head_out"].any()
        await driver.press("w")
        assert driver.app.session.state.spec.without is None
        assert driver.lines[-1] == "without none"

    explore(act)


@pytest.mark.parametrize(
    ("key", "pane", "line", "words"),
    [
        ("g", "gradients", "grad L3H0.weights", "∂loss/∂L3H0.weights"),
        ("L", "lens", "lens --position 9", "entropy here"),
        ("a", "attribution", "attribute --position 9 --top 8", "logit of ·ball at 9 ·the"),
        ("b", "block", "trace --block L3H0", "L3H0.weights"),
    ],
)
def test_a_pane_shows_what_a_line_of_the_session_answers(key: str, pane: str, line: str, words: str) -> None:
    async def act(driver: Driver) -> None:
        await driver.press(key)
        assert driver.lines[-1] == line
        assert line in driver.shown(pane), "its title"
        assert words in driver.shown(pane)
        outcome = driver.app.session.execute(line)
        shown = set(re.findall(r"-?\d+\.\d{3,}", driver.shown(pane)))
        assert shown
        assert shown <= set(re.findall(r"-?\d+\.\d{3,}", outcome.text))
        await driver.press(key)
        assert pane not in driver.app.visible_panes, "the same key closes it"

    explore(act)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_no_pane_names_an_option_of_the_command_line() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("w", "d")
        for name in LINES:
            for address in ("L1H0.weights", "L2.ffn", "L1.out"):
                driver.app.go(driver.app.look.cursor.to(driver.app.trace, driver.app.trace.address(address)))
                driver.app.open(name)
                await driver.settled()
                assert driver.app.panels[name].succeeded
                _, *body = driver.shown(name).split("\n")
                assert not re.search(r"--[a-z]|tinytf ", "\n".join(body)), (name, address)
        text = driver.app.trace.encoding.text
        other = text.replace("ball", "cat", 1)
        for line in ("attention", "attention --layer 0", "rollout", f"patch '{text}' '{other}'", "tokens", "heads"):
            driver.app.run_line(line)
            await driver.settled()
            _, *body = driver.shown("output").split("\n")
            assert body
            assert not re.search(r"--[a-z]|tinytf ", "\n".join(body)), line

    explore(act, "The cat lost the ball. " * 6 + "The cat lost the", size=(110, 40))


def test_a_pane_follows_the_cell_and_the_text() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("L", "k")
        assert "lens --position 8" in driver.shown("lens")
        await driver.press("j", "t")
        await driver.type(" cat")
        await asyncio.sleep(0.3)
        await driver.settled()
        found = driver.app.look.scene.model.lens(f"{TEXT} cat", position="10")
        assert "position 10 ·cat" in driver.shown("lens")
        assert f"{float(found.stages[-1].entropy[0]):.3f}" in driver.shown("lens")
        await driver.press("escape")
        assert driver.lines[1:] == ["goto L3H0.weights", "lens --position 9"], "what the pane follows is no line"

    explore(act)


@pytest.mark.slow
def test_panes_stand_beside_the_map_as_many_as_fit() -> None:
    async def act(driver: Driver) -> None:
        assert {"main", "heads", "next", "arithmetic", "lens", "attribution"} <= driver.app.visible_panes
        assert "explain 'L3H0.weights[9,0]'" in driver.shown("arithmetic")
        await driver.press("g")
        assert {"gradients", "arithmetic", "lens"} <= driver.app.visible_panes
        await driver.press("z")
        assert driver.app.visible_panes == {"text", "status", "steps", "next", "gradients"}
        await driver.press("z", "tab")
        assert driver.app.active == "arithmetic"
        assert len(driver.lines) == 3, "run, goto, grad"

    explore(act, size=(200, 60))


def test_on_a_large_terminal_no_pane_is_half_empty() -> None:
    async def act(driver: Driver) -> None:
        for step in ("L1H0.weights[9,4]", "L1H0.q", "L2.in", "L1.ffn.hidden", "final.norm", "logits", "probs"):
            driver.app.go(driver.app.look.cursor.to(driver.app.trace, driver.app.trace.address(step)))
            await driver.settled()
            in_layer = step.startswith("L")  # outside the layers all are folded
            for name in driver.app.visible_panes - {"text", "status"} - (set() if in_layer else {"steps"}):
                pane = driver.app.panes[name]
                filled = sum(any(part.text.strip() for part in line) for line in pane._lines[pane.top :][: pane.room])
                share = 1 / 3 if name in LINES else 1 / 2  # the arithmetic of a sum of two is short
                assert filled > pane.room * share, (step, name, filled, pane.room)

    explore(act, size=(200, 60))


def test_on_a_small_terminal_there_are_the_steps_the_prediction_and_one_pane() -> None:
    async def act(driver: Driver) -> None:
        always = {"text", "status", "steps", "next"}
        assert driver.app.visible_panes == always | {"main"}
        assert "·ball" in driver.shown("next")
        shown, top = driver.app.panes["steps"], driver.app.panes["steps"].top
        assert any("L1" in part.text for line in shown._lines[top : top + shown.room] for part in line), "its reading"
        await driver.press("L")
        assert driver.app.visible_panes == always | {"lens"}
        await driver.press("escape", "tab")
        assert driver.app.visible_panes == always | {"heads"}
        await driver.press("tab")
        assert driver.app.visible_panes == always

    explore(act, size=(80, 24), at="")


def test_below_60_columns_the_prediction_is_below_the_map_and_the_number_is_whole() -> None:
    async def act(driver: Driver) -> None:
        assert driver.app.visible_panes == {"text", "status", "main", "next"}
        assert "·ball" in driver.shown("next")
        await driver.press("L")
        assert driver.app.visible_panes == {"text", "status", "lens", "next"}
        await driver.press("escape")
        await driver.pilot.resize_terminal(60, 20)
        await driver.settled()
        weight = float(driver.app.trace["L1H0.weights"][9, 4])
        assert f"[9,4] = {weight:.7g}" in driver.shown("main")
        assert "→ 4 ·ball" in driver.shown("main")

    explore(act, size=(50, 20), at="")


def test_the_axes_say_what_rows_and_columns_are_and_which_is_chosen() -> None:
    async def act(driver: Driver) -> None:
        assert "query ↓ 9 ·the  key → 0 The" in driver.shown("main")
        await driver.press("l", "k")
        assert "query ↓ 8 ·lost  key → 1 ·cat" in driver.shown("main")
        await driver.press("pageup", "down")
        assert "token ↓ 8 ·lost  d_head → d1" in driver.shown("main")
        await driver.press("end", "up")
        assert "token ↓ 9 ·the  vocab → !" in driver.shown("main"), "the last token alone has probabilities"

    explore(act)


def test_the_heads_that_add_most_are_listed_and_one_is_chosen_by_the_mouse() -> None:
    async def act(driver: Driver) -> None:
        ranked = traced(load("tiny"), TEXT).overview.ranked
        listed = re.findall(r"L(\d)H(\d) +([+-]\d\.\d\d)", driver.shown("heads"))
        assert len(listed) > 4
        assert listed == [(str(layer), str(head), f"{by:+.2f}") for layer, head, by in ranked[: len(listed)]]
        line = next(n for n, one in enumerate(driver.shown("heads").split("\n")) if "L2H2" in one)
        await driver.pilot.click("#heads", offset=(6, line))
        assert driver.here.startswith("L2H2.weights")

    explore(act)


def test_no_two_panes_overlap_and_together_they_fill_the_screen() -> None:
    for width, height in itertools.product((20, 59, 80, 99, 100, 120, 163, 200, 300), (3, 24, 32, 40, 60, 90)):
        for opened in ([], ["lens"], ["lens", "gradients", "block"]):
            for zoomed in (False, True):
                found = arrange_panes(width, height, opened, USUAL, "lens" if opened else "main", zoomed)
                cells = Counter(
                    (x, y) for where in found.values() for x in where.column_range for y in where.line_range
                )
                assert set(cells.values()) == {1}, (width, height, opened, zoomed)
                assert len(cells) == width * height


def test_d_shows_every_pane_against_the_run_before() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("d")
        assert "there is no run before" in driver.shown("status")
        before = driver.app.look.scene.trace
        await driver.press("pageup", "pageup", "w", "pagedown", "right")
        assert "this run − the run before" in driver.shown("main")
        now = driver.app.look.scene.trace
        values = [float(trace["L2H1.weights"][9, 0]) for trace in (now, before)]
        assert "{} = {:.7g}   was {:.7g}".format(driver.here, *values) in driver.shown("main")
        apart, scale = now["L2.ffn"] - before["L2.ffn"], before["L2.ffn"].abs().max()
        moved = next(line for line in driver.shown("steps").split("\n") if line.split()[:1] == ["ffn"])
        assert f"{float(apart.abs().max() / scale):.2f}" in moved
        apart, scale = now["L3.out"] - before["L3.out"], before["L3.out"].abs().max()
        folded = next(line for line in driver.shown("steps").split("\n") if line.split()[:2] == ["▸", "L3"])
        assert f"{float(apart.abs().max() / scale):.2f}" in folded, "a layer moved as far as its output"
        await driver.press("d")
        assert "looks at" in driver.shown("main")
        await driver.press("L", "d")
        assert "this run" in driver.shown("lens")
        assert "the run before" in driver.shown("lens")
        await driver.press("D")
        assert driver.lines[-1] == "diff"
        assert "first" in driver.shown("difference")

    explore(act)


def test_a_typed_line_is_run_and_one_that_fails_is_told() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("colon")
        await driver.type("top 3")
        await driver.press("enter")
        assert driver.lines[-1] == "top 3"
        assert "·ball" in driver.shown("output")
        await driver.press("colon")
        await driver.type("print L9")
        await driver.press("enter")
        assert "there is no layer 9" in driver.shown("status")
        await driver.press("colon", "escape")
        assert driver.app.focused is None

    explore(act)


def test_a_line_is_typed_with_a_list_of_what_it_can_become() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("colon")
        await driver.type("print L1H")
        assert [one.word for one in driver.app.line.offers] == ["L1H0", "L1H1", "L1H2", "L1H3"]
        assert driver.shown("offers").split("\n")[1].split() == ["▶", "L1H0", "head", "0"]
        await driver.press("down", "down", "tab")
        assert driver.app.line.value == "print L1H2"
        await driver.type(".sc")
        await driver.press("tab")
        assert driver.app.line.value.rstrip() == "print L1H2.scores"
        await driver.press("enter")
        assert driver.lines[-1] == "print L1H2.scores"
        assert f"{float(driver.app.trace['L1H2.scores'][9, 0]):.2f}" in driver.shown("output")
        await driver.press("colon", "up")
        assert driver.app.line.value == "print L1H2.scores", "the line before"
        await driver.press("escape", "slash")
        await driver.type("L0.no")
        await driver.press("tab", "enter")
        assert driver.here.startswith("L0.norm1[")

    explore(act)


def test_the_steps_show_where_the_session_stops() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("colon")
        await driver.type("break L1.weights")
        await driver.press("enter", "escape", "escape")
        folded = next(line for line in driver.shown("steps").split("\n") if "L1" in line)
        assert folded.split()[:3] == ["●", "▸", "L1"]
        await driver.press("pageup", "pageup")
        assert re.search(r"▶● +weights", driver.shown("steps"))

    explore(act)


def test_find_goes_to_an_address_a_step_a_token_and_a_number() -> None:
    async def act(driver: Driver) -> None:
        async def find(word: str) -> None:
            await driver.press("slash")
            driver.app.query_one("#line", Input).value = word
            await driver.press("enter")

        await find("L1H2.weights[4,2]")
        assert driver.here == "L1H2.weights[4,2]"
        await find("scores")
        assert driver.here == "L1H2.scores[4,2]"
        await driver.press("j", "j")
        await find("ball")
        assert driver.here == "L1H2.scores[4,2]"
        await find("hat")
        assert "hat is no step, parameter, token of the text or number" in driver.shown("status")
        value = float(driver.app.look.scene.trace["L1H2.scores"][7, 3])
        await find(f"{value:.6f}")
        assert driver.here == "L1H2.scores[7,3]"

    explore(act)


def test_marks_are_set_and_gone_to() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("m", "a")
        assert re.search(r"▶a +weights", driver.shown("steps")), "the steps show it"
        await driver.press("home", "apostrophe", "a")
        assert driver.here == "L3H0.weights[9,0]"
        await driver.press("apostrophe", "z")
        assert "there is no mark z; there are a" in driver.shown("status")

    explore(act)


def test_s_sorts_the_heads_by_each_measure_in_turn() -> None:
    async def act(driver: Driver) -> None:
        for name, measure in MEASURES.items():
            shown = driver.shown("heads").split("\n")
            assert f"by {name} " in shown[0]
            values = [float(line.split("H")[1].split()[1]) for line in shown[1:] if re.search(r" H\d", line)]
            whole = measure_heads(driver.app.trace, name, [3])[0].tolist()
            assert values == [round(value, 3) for value in sorted(whole, reverse=True)], measure
            await driver.press("s")
        assert "by entropy" in driver.shown("heads"), "round and round"

    explore(act)


def test_y_copies_the_address_and_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(driver: Driver) -> None:
        copied: list[str] = []
        monkeypatch.setattr(driver.app, "copy_to_clipboard", copied.append)
        await driver.press("y", "Y")
        found = matrix(driver.app.look.scene.trace, driver.app.look.cursor)
        assert found is not None
        assert copied[0] == "L3H0.weights[9,0]"
        cells = [[float(cell) for cell in row.split("\t")] for row in copied[1].split("\n")]
        assert torch.equal(torch.tensor(cells), found)

    explore(act)


def test_p_saves_the_screen_and_never_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinytf_cli.explore.acting.user_pictures_dir", lambda: str(tmp_path))
    first, second = (tmp_path / "tinytf" / f"explore-{number}.svg" for number in (1, 2))

    async def act(driver: Driver) -> None:
        await driver.press("p")
        assert f"wrote {first}" in driver.shown("status")
        assert "L3H0.weights" in first.read_text(encoding="utf-8")
        await driver.press("p")
        assert f"wrote {second}" in driver.shown("status")
        assert second.exists()
        shutil.rmtree(tmp_path / "tinytf")
        (tmp_path / "tinytf").touch()
        await driver.press("p")
        assert "cannot write" in driver.shown("status")

    explore(act, size=(200, 40))


def test_the_mouse_chooses_a_step_a_head_a_cell_and_a_token() -> None:
    async def act(driver: Driver) -> None:
        row = next(n for n, line in enumerate(driver.shown("steps").split("\n")) if "▸ L1" in line)
        await driver.pilot.click("#steps", offset=(3, row))
        assert driver.here.startswith("L1.in")
        await driver.press("end", "pageup", "slash")
        driver.app.query_one("#line", Input).value = "L2H0.weights"
        await driver.press("enter")
        line = next(n for n, one in enumerate(driver.shown("heads").split("\n")) if " H3 " in one)
        await driver.pilot.click("#heads", offset=(6, line))
        assert driver.here.startswith("L2H3.weights")
        lines = driver.shown("main").split("\n")
        line = next(n for n, one in enumerate(lines) if one.split()[:1] == ["."])  # the token at 5
        *_, third = itertools.islice(re.finditer(r"\S+", lines[line]), 4)
        await driver.pilot.click("#main", offset=(2 + third.start(), line))
        assert driver.here == "L2H3.weights[5,2]"
        await driver.pilot.click("#text", offset=(6, 0))
        assert driver.here == "L2H3.weights[1,2]"

    explore(act)


@pytest.mark.slow
def test_a_question_mark_explains_the_chosen_number_its_step_and_head_and_again_lists_every_key() -> None:
    trace = load("tiny").trace(TEXT)
    told = lesson("softmax", Live(load("tiny"), TEXT))

    async def act(driver: Driver) -> None:
        await driver.press("question_mark")
        shown = " ".join(driver.shown("what").split())
        for words in (
            "Softmax turns the scores of a row",
            told.pytorch,
            "softmax(masked)",
            f"learn {told.number}",
            "query 9 ·the",
            "key 4 ·ball",
        ):
            assert words in shown
        assert f"number {float(trace['L1H0.weights'][9, 4]):.7g}" in shown
        assert "to the logit of ·ball after 9 ·the, the most of 16 heads" in shown
        await driver.press("question_mark")
        for key in KEYS:
            assert key.words in driver.shown("output")
        await driver.press("escape", "escape", "right", "question_mark")
        rank = [(layer, head) for layer, head, _ in traced(load("tiny"), TEXT).overview.ranked].index((1, 1)) + 1
        assert f"rank {rank} of 16 heads" in " ".join(driver.shown("what").split()), "it follows the head"
        await driver.press("k")
        parts = {part.name: part.value for part in load("tiny").attribute(TEXT, position="8").parts}
        assert f"adds {parts['L1H1']:+.2f} to the logit of" in " ".join(driver.shown("what").split())
        assert "after 8 ·lost" in " ".join(driver.shown("what").split()), "it follows the token"
        await driver.press("end", "escape", "escape")
        for row, (step, _) in enumerate(driver.app.trace.steps.rows):
            if step.name in ("tokens", "ids", "embed.tokens", "ffn.act", "logits", "next"):
                driver.app.go(replace(driver.app.look.cursor, row=row))
                await driver.press("question_mark")
                assert step.title in driver.shown("what"), step.name
                await driver.press("escape", "escape")

    explore(act, at="", size=(120, 60))


def test_the_bar_names_the_keys_of_each_mode_and_no_others() -> None:
    named = {word for key in KEYS for word in key.shown.split()}
    for mode in ("map", "arithmetic", "what", "pane"):
        for keys, words in status.HINTS[mode]:
            assert all(key in named or named.issuperset(key) for key in keys.split()), (mode, words)

    async def act(driver: Driver) -> None:
        assert "hjkl cell" in driver.shown("status")
        assert driver.shown("status").rstrip().endswith("? what is this")
        await driver.press("enter")
        assert "Backspace back" in driver.shown("status")
        await driver.press("escape", "slash")
        assert "Enter go" in driver.shown("status")
        await driver.press("escape", "colon")
        assert "Enter run" in driver.shown("status")
        await driver.press("escape", "t")
        assert "Enter keep the text" in driver.shown("status")

    explore(act, size=(80, 24))


@pytest.mark.parametrize(("address", "number"), [("L1H0.weights[9,4]", -0.25), ("L0H1.W_Q[3,7]", -0.25), ("√d", 0.25)])
def test_equals_sets_a_number_and_all_that_follows_is_computed_from_it(address: str, number: float) -> None:
    model = load("tiny")
    before, changed = model.trace(TEXT), model.with_numbers({address: number}).trace(TEXT)

    async def act(driver: Driver) -> None:
        if "W_Q" in address:
            await driver.press("slash")
            driver.app.line.value = address
            await driver.press("enter")
        if address == "√d":
            await driver.press("colon")
            driver.app.line.value = "set √d = "
            driver.app.line.cursor_position = 9
        else:
            await driver.press("equals_sign")
            assert driver.app.line.value == f"set {address} = "
        await driver.type(str(number))
        await driver.press("enter")
        assert torch.equal(driver.app.trace["logits"], changed["logits"])
        assert f"set {address} = {number}  against the run before" in driver.shown("status")
        now, then = (float(trace["L1H0.weights"][9, 4]) for trace in (changed, before))
        assert f"L1H0.weights[9,4] = {now:.7g}   was {then:.7g}" in driver.shown("main")
        apart, scale = changed["L1.attn"] - before["L1.attn"], before["L1.attn"].abs().max()
        moved = next(line for line in driver.shown("steps").split("\n") if line.split()[:1] == ["attn"])
        assert f"{float(apart.abs().max() / scale):.2f}" in moved
        share = float(before.logits_at(9).softmax(-1)[BALL])
        line = next(line for line in driver.shown("next").split("\n") if "·ball" in line)
        assert line.split()[-1] == f"{float(changed.logits_at(9).softmax(-1)[BALL]) - share:+.3f}"
        await driver.press("u")
        assert torch.equal(driver.app.trace["logits"], before["logits"])
        assert "set" not in driver.shown("status").replace("= set", "")

    explore(act, at="")


def test_a_number_that_cannot_be_set_is_told_in_one_line_and_numbers_accumulate() -> None:
    async def act(driver: Driver) -> None:
        for typed, told in (("abc", "'abc' is not a number"), ("1e99", "not a finite number of float32")):
            await driver.press("equals_sign")
            await driver.type(typed)
            await driver.press("enter")
            assert told in driver.shown("status")
        for at in ("tokens", "logits[9,5]"):
            driver.app.go(driver.app.look.cursor.to(driver.app.trace, driver.app.trace.address(at)))
            await driver.press("equals_sign")
            assert "is not a step that can be edited" in driver.shown("status")
        assert not driver.app.line.display
        await driver.press("escape")
        for line in ("set L1H0.weights[9,4] = 0", "set √d = 1"):
            driver.app.run_line(line)
            await driver.settled()
        changed = load("tiny").with_numbers({"L1H0.weights[9,4]": 0, "√d": 1})
        assert torch.equal(driver.app.trace["logits"], changed.trace(TEXT)["logits"])
        assert "set √d = 1, the last of 2" in driver.shown("status")

    explore(act, size=(160, 40))


def test_u_takes_back_the_text_and_the_ablation_but_never_the_first_text() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("w", "t")
        await driver.type(" cat")
        await driver.press("enter", "u")
        assert driver.app.trace.encoding.text == TEXT
        assert driver.app.session.state.spec.without is not None
        await driver.press("u")
        assert driver.app.session.state.spec.without is None
        assert torch.equal(driver.app.trace["logits"], load("tiny").trace(TEXT)["logits"])
        await driver.press("u")
        assert "there is nothing to undo" in driver.shown("status")
        assert driver.app.session.run is not None
        await driver.press("U")
        assert driver.app.session.state.spec.without is not None

    explore(act)


def test_backspace_goes_back_through_the_places_before() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("L0H1.q")
        await driver.press("enter", "k", "backspace")
        assert driver.here == "L0H1.q[9,0]"
        await driver.press("backspace")
        assert driver.here == "L3H0.weights[9,0]"
        await driver.press("backspace", "backspace")
        assert "where you began" in driver.shown("status")

    explore(act)


def test_find_takes_the_highlighted_offer_and_finds_parameters() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("W_")
        words = [offer.word for offer in driver.app.line.offers]
        assert words[:4] == ["L3.W_Q", "L3.W_K", "L3.W_V", "L3.W_O"], "of this layer"
        await driver.press("down", "enter")
        weight = load("tiny").transformer.blocks[3].attention.k.weight.detach()
        assert "L3.W_K" in driver.shown("output")
        assert f"{float(weight.min()):.3f} … {float(weight.max()):.3f}" in driver.shown("output")
        await driver.press("escape", "slash")
        await driver.type("sca")
        await driver.press("enter")
        assert driver.here.startswith("L3H0.scaled")
        await driver.press("slash")
        await driver.type("bal")
        await driver.press("enter")
        assert driver.here.startswith("L3H0.scaled[4,"), "a token of the text"

    explore(act)


def test_n_draws_small_cells_and_brackets_the_chosen_one() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("n")
        assert "[]" in driver.shown("main")
        await driver.press("n")
        assert "[0.001]" in driver.shown("main")

    explore(act)


@sample(("size", "depth"), [((80, 24), "truecolor"), ((200, 60), "256"), ((120, 40), "16"), ((120, 40), "none")])
def test_every_step_is_drawn_in_every_size_and_colour(size: tuple[int, int], depth: str) -> None:
    async def act(driver: Driver) -> None:
        for row, (step, layer) in enumerate(driver.app.look.scene.trace.steps.rows):
            if layer in (None, 0):
                driver.app.go(replace(driver.app.look.cursor, row=row))
                await driver.settled()
                assert driver.shown("main").startswith((step.full_name(layer), f"L0H0.{step.name}")), step.name
                assert f"▶ {step.name}" in " ".join(driver.shown("steps").split())

    explore(act, size=size, depth=depth)


def test_an_encoder_shows_what_fills_its_mask() -> None:
    async def act(driver: Driver) -> None:
        assert "[MASK] at 3" in driver.shown("next")
        assert "sat" in driver.shown("next")

    explore(act, "The cat [MASK] on the mat.", "tiny-encoder")


@pytest.mark.slow
def test_of_two_stacks_either_text_is_changed_and_a_chain_that_ends_at_the_source_goes_on() -> None:
    async def act(driver: Driver) -> None:
        driver.app.go(driver.app.look.cursor.to(driver.app.trace, driver.app.trace.address("source[3,8]")))
        await driver.settled()
        await driver.press("enter", "enter")
        assert "it comes from enc.final.norm[3,8], in the encoder" in driver.shown("status")
        await driver.press("colon")
        await driver.type("explain enc.final.norm[3,8]")
        await driver.press("enter")
        assert "final norm" in driver.shown("output")
        await driver.press("escape", "escape", "colon")
        await driver.type("run the third of June 1994")
        await driver.press("enter")
        assert driver.app.trace.encoding.text == "1994-06-03"
        await driver.press("t", "backspace", "backspace")
        assert driver.app.look.scene.trace.encoding.text == "1994-06-"
        assert driver.app.look.scene.trace.source.encoding.text == "the third of June 1994"
        await driver.press("enter")
        assert driver.lines[-1] == 'run --quiet --target-text "1994-06-" -- "the third of June 1994"'
        assert driver.app.trace.encoding.text == "1994-06-"

    explore(act, "the third of May 1994", "tiny-translator")


def test_the_source_is_edited_live_while_the_target_stays() -> None:
    async def act(driver: Driver) -> None:
        count = len(driver.lines)
        await driver.press("T")
        await driver.type("5")
        scene = driver.app.look.scene
        assert scene.trace.source.encoding.text == "on the 3rd of May 19945"
        assert scene.trace.encoding.text == "1994-05-03"
        whole = load("tiny-translator").reading("on the 3rd of May 19945").trace("1994-05-03")
        assert torch.equal(scene.trace["L1.cross.weights"], whole["L1.cross.weights"])
        assert len(driver.lines) == count, "no line while it is typed"
        driver.app.query_one("#edit", Input).value = ""
        await driver.pilot.pause()
        await driver.settled()
        assert "the text is empty" in driver.shown("status")
        driver.app.query_one("#edit", Input).value = "on the 3rd of June 1994"
        await driver.pilot.pause()
        await driver.press("enter")
        assert driver.lines[-1] == 'run --quiet --target-text "1994-05-03" -- "on the 3rd of June 1994"'
        assert driver.app.trace.source.encoding.text == "on the 3rd of June 1994"
        assert driver.app.trace.encoding.text == "1994-05-03"

    explore(act, "on the 3rd of May 1994", "tiny-translator")


def test_a_model_of_one_stack_has_no_source_to_edit() -> None:
    async def act(driver: Driver) -> None:
        await driver.press("T")
        assert "this model reads one text" in driver.shown("status")
        assert driver.app.focused is None

    explore(act)


def test_a_training_run_is_walked_through_its_checkpoints(tmp_path: Path) -> None:
    built_in, early = ROOT / "tinytf" / "assets" / "tiny", tmp_path / "checkpoints" / "step-000010"
    shutil.copytree(built_in, early)
    weights = load_file(early / "model.safetensors")
    save_file({name: tensor / 2 for name, tensor in weights.items()}, early / "model.safetensors")
    shutil.copytree(built_in, tmp_path, dirs_exist_ok=True)

    async def act(driver: Driver) -> None:
        last = driver.app.look.scene.trace
        await driver.press("less_than_sign")
        assert driver.lines[-1] == f"model --quiet '{early}'"
        assert "< ●─ > step-000010, 1 of 2" in driver.shown("status")
        assert torch.equal(driver.app.look.scene.trace["logits"], load(str(early)).trace(TEXT)["logits"])
        assert driver.here == "L3H0.weights[9,0]", "the same step of the other checkpoint"
        await driver.press("greater_than_sign", "greater_than_sign")
        assert torch.equal(driver.app.look.scene.trace["logits"], last["logits"])

    explore(act, model=str(tmp_path), checkpoints=(early, tmp_path))


def replayed(app: Explorer, path: Path) -> Session:
    """A new session that runs the lines that the explorer's saved."""
    assert app.session.execute(f"save '{path}' --force").failure is None
    again = Session(VERBS, Spec(), Settings(color="always", theme="dark"))
    for line in path.read_text(encoding="utf-8").splitlines():
        assert again.execute(line).failure is None, line
    return again


def test_what_was_done_is_a_script_that_runs_again(tmp_path: Path) -> None:
    async def act(driver: Driver) -> None:
        await driver.press("t")
        await driver.type(" cat")
        await driver.press("enter", "w", "enter", "enter", "pageup", "L", "colon")
        await driver.type("break L1.weights")
        await driver.press("enter", "escape")

    driver = explore(act)
    again = replayed(driver.app, tmp_path / "look.session")
    assert again.state == driver.app.session.state
    assert again.row == driver.app.look.cursor.row, "the session is left where the screen was"
    assert torch.equal(again.trace["logits"], driver.app.trace["logits"])


@pytest.mark.parametrize("seed", [int(os.environ.get("TINYTF_FUZZ_SEED", "0"))])
@pytest.mark.slow
def test_random_keys_and_sizes_never_end_it_and_its_lines_run_again(seed: int, tmp_path: Path) -> None:
    """TINYTF_FUZZ=5000 presses so many keys."""
    draw, count = random.Random(seed), int(os.environ.get("TINYTF_FUZZ", "60"))
    keys = [one.keys.split(",")[0] for one in KEYS if one.keys not in ("q", "p")]
    keys += ["x", "e", "full_stop", "7", "up", "down", "escape", "escape", "enter", "enter", "enter"]

    async def act(driver: Driver) -> None:
        for number in range(count):
            await driver.pilot.press(draw.choice(keys))
            if number % 37 == 0:
                await driver.pilot.resize_terminal(draw.randint(1, 220), draw.randint(1, 70))
            if number % 11 == 0:
                width, height = driver.app.size
                await driver.pilot.click(offset=(draw.randrange(width), draw.randrange(height)))
            if draw.random() < 0.3:
                await driver.settled()
            assert driver.app.fault is None, (number, driver.lines[-3:])
        await driver.press("escape")

    driver = explore(act)
    again = replayed(driver.app, tmp_path / "random.session")
    assert again.state == driver.app.session.state
    assert torch.equal(again.trace["logits"], driver.app.trace["logits"])
