"""The film of a run: as a table, as JSON, as files that move, and under keys."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyte
import pytest
from driving import Tinytf
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.cells import cell_len
from rich.text import Text
from training_runs import FILMED, STORY, changed, run_once

from tinytf.runs.film import FEWEST_TOKENS, Film, read_film
from tinytf.runs.history import NAMES
from tinytf.training.train import train
from tinytf_cli.paged import screen_of
from tinytf_cli.replay import Player
from tinytf_cli.terminal import Terminal

run = run_once(changed(FILMED, keep=1))
STEPS = [0, 1, 2, 4, 6]
COLOURED = {"depth": "truecolor", "cuts": True}


@pytest.fixture(scope="module")
def film(run: Path) -> Film:
    return read_film(run)


def player(film: Film, *others: Film, **more: object) -> Player:
    return Player([film, *others], Terminal(**{"width": 100, **COLOURED, **more}))


def seen(lines: list[str]) -> str:
    return "\n".join(Text.from_ansi(line).plain for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_every_frame_of_a_usual_terminal_has_the_loss_curve_all_keys_and_no_cut_words(
    film: Film, size: tuple[int, int]
) -> None:
    playing = player(film)
    for _ in film.frames:
        lines = seen(playing.lines(*size)).split("\n")
        assert len(lines) == size[1]
        assert max(map(cell_len, lines)) <= size[0]
        assert any("loss in nats by step" in line for line in lines)
        assert lines[-1].rstrip().endswith("q leave")
        assert not lines[0].endswith("…")
        assert not lines[1].endswith("…")
        playing.press("next")


def test_the_speed_is_said_when_it_changes(film: Film) -> None:
    playing = player(film)
    playing.press("faster")
    assert seen(playing.lines(80, 24)).split("\n")[-1].rstrip() == f"{playing.seconds:.1f} s a frame"


def test_a_pipe_gets_a_table_with_a_line_for_each_frame(tinytf: Tinytf, run: Path, film: Film) -> None:
    ran = tinytf("runs", "--film", run)
    assert ran.status == 0
    assert ran.out.splitlines()[1].startswith("learned")
    rows = re.findall(r"^ +(\d+) +(\d\.\d{3}) ", ran.out, re.MULTILINE)
    assert rows == [(str(frame.step), f"{frame.mean('unseen'):.3f}") for frame in film.frames]


def test_what_falls_short_is_not_learned_and_says_by_how_much(tinytf: Tinytf, run: Path, film: Film) -> None:
    short = {one.kind: one.gain for one in film.learned if one.by is None and one.tokens >= FEWEST_TOKENS}
    assert "copying" in short  # six steps of training do not teach it
    nearest = ", ".join(f"{kind} {short[kind]:.2f}" for kind in sorted(short, key=lambda kind: -short[kind]))
    assert f"; short of 1.0 nats: {nearest}" in tinytf("runs", "--film", run, "--width", "200").out.splitlines()[1]


def test_no_head_is_said_to_have_a_kind_only_where_none_ends_with_one(tinytf: Tinytf, run: Path, film: Film) -> None:
    ends = max(float(np.nanmax(film.frames[-1].heads[kind])) for kind in NAMES)
    assert ("no head ends at a score of 0.5" in tinytf("runs", "--film", run, "--width", "200").out) == (ends < 0.5)


def test_held_out_is_the_loss_that_the_board_has(film: Film) -> None:
    one = player(film)
    one.press("last")
    (line,) = [line for line in seen(one.lines(200, 45)).splitlines() if "held-out" in line]
    assert f" · held-out {film.history.held_out[-1][1]:.4f}" in line
    assert f"unseen {film.at(6).mean('unseen'):.3f} ({film.probes[0].predicted} tokens)" in line


def test_json_has_every_loss_and_a_line_for_each_frame(tinytf: Tinytf, run: Path, film: Film) -> None:
    found = json.loads(tinytf("runs", "--film", run, "--json").out)
    assert [frame["step"] for frame in found["frames"]] == STEPS
    for frame, true in zip(found["frames"], film.frames, strict=True):
        for name, probe in frame["probes"].items():
            assert probe["loss"] == pytest.approx(true.loss[name].tolist())
    events = [json.loads(line) for line in tinytf("runs", "--film", run, "--format", "ndjson").out.splitlines()]
    assert [event["step"] for event in events if event["type"] == "frame"] == STEPS


def test_the_maps_go_into_a_file_of_tensors(tinytf: Tinytf, run: Path, film: Film, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    assert tinytf("runs", "--film", run, "-o", tmp_path / "film.safetensors").status == 0
    stored = load_file(tmp_path / "film.safetensors")
    assert np.array_equal(stored["step-4.twice.maps"], film.at(4).maps["twice"])


def test_a_cast_plays_the_frames_one_after_the_other(tinytf: Tinytf, run: Path, tmp_path: Path) -> None:
    assert tinytf("runs", "--film", run, "-o", tmp_path / "film.cast", "--width", "90").status == 0
    header, *events = [json.loads(line) for line in (tmp_path / "film.cast").read_text("utf-8").splitlines()]
    assert (header["version"], header["width"]) == (2, 90)
    screen = pyte.Screen(header["width"], header["height"])
    stream = pyte.Stream(screen)
    shown = []
    for _, kind, data in events:
        assert kind == "o"
        stream.feed(data)
        shown.append(int(re.search(r"step (\d+) of 6", screen.display[0])[1]))
    assert shown == [*STEPS, STEPS[-1]]
    assert [time for time, _, _ in events] == sorted(time for time, _, _ in events)


def test_an_svg_shows_one_frame_at_a_time(tinytf: Tinytf, run: Path, tmp_path: Path) -> None:
    assert tinytf("runs", "--film", run, "-o", tmp_path / "film.svg").status == 0
    text = (tmp_path / "film.svg").read_text("utf-8")
    moves = re.findall(r'values="([a-z;]+)" keyTimes="([0-9.;]+)"', text)
    assert len(moves) == len(STEPS)
    for moment in np.linspace(0, 1, 97)[:-1]:
        visible = 0
        for values, times in moves:
            at = sum(float(time) <= moment for time in times.split(";")) - 1
            visible += values.split(";")[at] == "visible"
        assert visible == 1
    assert text.count('<g visibility="visible">') == 1
    assert [values.startswith("visible") for values, _ in moves] == [False] * (len(STEPS) - 1) + [True]


def test_what_does_not_move_is_no_cast(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("models", "-o", tmp_path / "x.cast")
    assert (ran.status, "does not move" in ran.err) == (2, True)
    assert not (tmp_path / "x.cast").exists()


def test_a_folder_without_a_run_is_refused_in_one_line(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("runs", "--film", tmp_path)
    assert ran.status == 2
    assert ran.err.startswith("tinytf: error:")
    assert "Traceback" not in ran.err


def test_keys_go_through_the_frames(film: Film) -> None:
    one = player(film)

    def steps() -> Iterator[int]:
        for key in ("next", "next", "back", "last", "next", "first", "back"):
            one.press(key)
            yield one.sight.step

    assert list(steps()) == [1, 2, 1, 6, 6, 0, 0]


def test_what_is_played_stops_at_the_end(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tinytf_cli.replay.time.monotonic", lambda: clock[0])
    one, shown = player(film), []
    one.press("play")
    for _ in range(7):
        clock[0] += one.seconds + 0.001
        one.lines(100, 40)
        shown.append((one.sight.step, one.playing))
    assert shown == [(1, True), (2, True), (4, True), (6, False), (6, False), (6, False), (6, False)]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 45), (200, 50), (40, 10)])
def test_a_screen_of_any_size_is_filled_and_not_overrun(film: Film, columns: int, rows: int) -> None:
    for theme in ("dark", "light"):
        one = player(film, theme=theme)
        one.press("last")
        lines = one.lines(columns, rows)
        assert len(lines) == rows
        assert all(cell_len(Text.from_ansi(line).plain) <= columns for line in lines)
        assert "step 6 of 6" in seen(lines[:1])


def test_maps_fill_a_large_window_and_none_is_lost_for_it(film: Film) -> None:
    heights, pools = [], []
    for columns, rows in ((80, 24), (120, 45), (200, 60)):
        lines = seen(player(film).lines(columns, rows)).splitlines()
        title = next(number for number, line in enumerate(lines) if line.startswith("attention of unseen"))
        top = "".join(lines[title : title + 4])
        assert all(f"L{layer}H{head}" in top for layer in (0, 1) for head in (0, 1))
        pool = re.search(r"largest of\s+(\d+)", " ".join(lines[title : title + 3]))
        pools.append(int(pool[1]) if pool else 1)
        heights.append(sum("▀" in line or "▄" in line for line in lines[title:]))
    assert heights == sorted(heights)
    assert pools[0] > pools[-1] == 1  # 24 tokens, two in a line
    assert heights[-1] == 24  # and each number twice in each direction


def test_the_chosen_token_shows_what_the_model_thought_came_next(film: Film) -> None:
    one = player(film)
    one.press("last")
    for _ in range(5):
        one.press("token")
    frame, probe = film.at(6), film.probes[0]
    text = seen(one.lines(120, 45))
    (line,) = [line for line in text.splitlines() if line.startswith(f"  after {probe.tokens[5]} ")]
    for word in frame.words[probe.name][5][:3]:
        assert word in line
    assert f"{frame.loss[probe.name][5]:.2f} nats" in line


def test_a_frame_shows_what_the_model_writes_and_an_older_run_shows_the_rest(film: Film) -> None:
    older = replace(film, history=replace(film.history, samples=film.history.samples[-1:]))
    for recorded, steps in ((film, STEPS), (older, STEPS[-1:])):
        one = player(recorded)
        shown = {}
        for step in STEPS:
            lines = seen(one.lines(100, 45)).splitlines()
            shown.update((step, line) for line in lines if line.startswith("  writes  "))
            one.press("next")
        assert list(shown) == steps
        for step in steps:
            sample = film.samples[step]
            assert f"{sample.prompt}│{sample.text}"[:40].replace("\n", "↵") in shown[step]


def test_a_frame_without_weights_says_which_have_them(film: Film) -> None:
    one = player(film)
    assert one.press("open")
    assert "the weights of step 0 were not kept" in seen(one.lines(120, 45)[-1:])
    one.press("last")
    assert not one.press("open")
    assert one.opened is not None
    assert (one.opened / "model.safetensors").is_file()


def test_two_films_play_in_step(film: Film, tmp_path: Path) -> None:
    train(STORY, changed(FILMED, seed=1, steps=3, eval_every=3), tmp_path / "other")
    both = player(film, read_film(tmp_path / "other"))
    assert both.steps == [0, 1, 2, 3, 4, 6]
    both.press("last")
    for columns, beside in ((158, True), (157, False)):
        lines = seen(both.lines(columns, 60)).splitlines()
        named = [number for name in ("step 6 of 6", "step 3 of 3") for number, line in enumerate(lines) if name in line]
        assert (named == [0, 0]) == beside, columns
        assert len(named) == 2


def test_a_film_that_begins_later_says_so(film: Film, tmp_path: Path) -> None:
    branch = Film("branch", tmp_path, film.probes, film.frames[2:], film.history)
    both = player(film, branch)
    assert "step 0 of 6" in seen(both.lines(200, 60)[:1])
    assert "branch · begins at step 2 of 6" in seen(both.lines(200, 60)[:1])


def test_real_keys_turn_play_and_leave(film: Film) -> None:
    one = player(film)
    with create_pipe_input() as source:
        source.send_text("\x1b[C\x1b[C\t\x1b[Bq")
        screen_of(one, input=source, output=DummyOutput()).run()
    assert (one.sight.step, one.sight.probe, one.sight.token, one.opened) == (2, 1, 1, None)


def test_a_screen_is_drawn_anew_only_where_something_on_it_changes(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = Player._drawn
    monkeypatch.setattr(Player, "_drawn", lambda one, *size: drawn.append(1) or draw(one, *size))
    one = player(film)
    assert one.lines(80, 24) == one.lines(80, 24)
    assert len(drawn) == 1
    before = one.lines(80, 24)
    one.press("next")
    assert one.lines(80, 24) != before
    one.lines(120, 45)
    assert len(drawn) == 3
