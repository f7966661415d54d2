"""The lessons under real keys: a pseudo-terminal of 80 × 24, and what its screen shows."""

import os
import sys
import time
from pathlib import Path

import pexpect
import pyte
import pytest
from covering import sample
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.cells import cell_len

from tinytf.learn import OF_ANY, find
from tinytf.learn.live import Live
from tinytf.loading import load
from tinytf_cli.bookmark import Bookmark
from tinytf_cli.learn import Pages
from tinytf_cli.paged import screen_of
from tinytf_cli.terminal import Terminal as ScreenOf

COLUMNS, ROWS = 80, 24
COUNT, MASK, BACKWARD = len(OF_ANY), find("mask"), find("backward")


class Terminal:
    """A terminal with tinytf learn in it; ``screen`` is what somebody in front of it sees."""

    def __init__(self, *arguments: str, state: Path) -> None:
        environ = {**os.environ, "XDG_STATE_HOME": str(state)}
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.seen = b""
        words = ["-m", "tinytf_cli", "learn", *arguments]
        self.child = pexpect.spawn(sys.executable, words, env=environ, dimensions=(ROWS, COLUMNS), timeout=60)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, words: str, seconds: float = 60.0) -> str:
        """The screen as soon as ``words`` are on it, and nothing more is drawn."""
        end = time.monotonic() + seconds
        still = False
        while not (words in self.text and still):
            assert time.monotonic() < end, self.text
            try:
                self._feed(self.child.read_nonblocking(65_536, 0.1))
                still = False
            except pexpect.TIMEOUT:
                still = True
            except pexpect.EOF:
                raise AssertionError(self.text) from None
        return self.text

    def _feed(self, data: bytes) -> None:
        self.seen += data
        # pyte knows no alternate screen; the rest is as a terminal does it
        self.stream.feed(data)

    def press(self, keys: str, words: str) -> str:
        self.child.send(keys)
        return self.until(words)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def leave(self, keys: str) -> int:
        self.child.send(keys)
        while True:
            try:
                self._feed(self.child.read_nonblocking(65_536, 60))
            except pexpect.EOF:
                break
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def the_screen_is_whole(text: str) -> None:
    """Every row is used at most to its end, the keys stand in the last row, and no row was wrapped into another."""
    lines = text.splitlines()
    assert len(lines) == ROWS
    assert lines[-1].startswith("space ")
    assert lines[0].rstrip().endswith(f"of {len(OF_ANY)}")
    for label in ("why", "formula", "PyTorch", "predict"):
        assert sum(line.startswith(f"{label} ") for line in lines) == 1, label


@pytest.mark.slow
def test_keys_turn_the_lessons_answer_explain_and_leave(state: Path) -> None:
    terminal = Terminal("1", "-m", "tiny", state=state)
    terminal.until(f"1 of {COUNT}")
    for number, name in enumerate(OF_ANY, 1):
        text = terminal.until(f"{number} of {COUNT}")
        assert text.startswith(f"{name}  ")
        the_screen_is_whole(text)
        assert "1-4 answer" in text
        assert "e explain" not in text.splitlines()[-1]
        answered = terminal.press("1", "✓")
        the_screen_is_whole(answered)
        assert ("\nright  " in answered) != ("✗" in answered and "\nno, " in answered)
        assert "e explain" in answered.splitlines()[-1]
        if number < len(OF_ANY):
            terminal.child.send(" \r"[number % 2])
    terminal.press("b", f"{COUNT - 1} of {COUNT}")
    text = terminal.press("b", f"{BACKWARD} of {COUNT}")
    assert "✓" in text  # what was answered stays so
    explained = terminal.press("e", "any key back")
    assert "checked: the terms add up to the recorded" in explained
    terminal.press("x", f"{BACKWARD} of {COUNT}")
    terminal.resize(60, 12)
    small = terminal.until("up down scroll")
    assert small.startswith("backward")
    assert "no loss" not in small
    scrolled = terminal.press("\x1b[6~", "loss smaller.")
    assert not scrolled.startswith("backward")
    terminal.resize(COLUMNS, ROWS)
    terminal.until("space next")
    assert terminal.leave("q") == 0
    assert terminal.seen.count(b"\x1b[?1049h") == terminal.seen.count(b"\x1b[?1049l") == 1
    end = terminal.seen[terminal.seen.rindex(b"\x1b[?1049l") :]
    assert terminal.seen.rindex(b"\x1b[?25h") > terminal.seen.rindex(b"\x1b[?25l")
    assert f"left at lesson {BACKWARD}, backward".encode() in end


@pytest.mark.slow
def test_the_place_is_remembered_and_ctrl_c_interrupts(state: Path) -> None:
    (state / "tinytf").mkdir(parents=True)
    (state / "tinytf" / "learn.json").write_text(f'{{"lesson": {MASK}}}', "utf-8")
    terminal = Terminal(state=state)
    text = terminal.until(f"continuing at lesson {MASK}, where you left")
    assert text.startswith("mask  ")
    assert "answer   3 " in terminal.press(" ", "space next")  # the answer first, and only then the next lesson
    terminal.press(" ", f"{MASK + 1} of {COUNT}")
    assert terminal.leave("\x03") == 130
    assert f'"lesson": {MASK + 1}' in (state / "tinytf" / "learn.json").read_text("utf-8")
    assert terminal.seen.count(b"\x1b[?1049l") == 1
    assert b"Traceback" not in terminal.seen


def words_of(tmp_path: Path, typed: str) -> list[str]:
    """What the keys of some typed text are taken for, up to the one that leaves."""
    heard = []

    class Heard(Pages):
        ready = True

        def lines(self, columns: int, rows: int) -> list[str]:
            return [""] * rows

        def press(self, key: str) -> bool:
            heard.append(key)
            return key != "leave"

    with create_pipe_input() as source:
        pages = Heard(Live(load("tiny", device="cpu")), 1, ScreenOf(width=80), Bookmark(tmp_path / "learn.json"))
        source.send_text(typed)
        screen_of(pages, input=source, output=DummyOutput()).run()
    return heard


def test_keys_are_words(tmp_path: Path) -> None:
    assert words_of(tmp_path, " \rb3eq") == ["on", "on", "back", "3", "explain", "leave"]
    arrows = words_of(tmp_path, "\x1b[A\x1b[B\x1b[5~\x1b[6~\x1b[C\x1b[Dq")
    assert arrows == ["up", "down", "page up", "page down", "next", "back", "leave"]
    assert words_of(tmp_path, "Zé0\x1b[15~\x04") == ["other", "other", "other", "other", "leave"]
    with pytest.raises(KeyboardInterrupt):
        words_of(tmp_path, "b\x03")


@pytest.mark.slow
def test_keys_that_are_pressed_during_a_computation_wait(state: Path) -> None:
    terminal = Terminal("1", "-m", "tiny", state=state)
    terminal.until(f"1 of {COUNT}")
    terminal.child.send("  2")  # the answer of 1, on to 2, and its answer before it is drawn
    text = terminal.until(f"2 of {COUNT}")
    assert text.startswith("embeddings  ")
    assert "space next" in text
    assert terminal.leave("q") == 0


def test_a_key_is_about_a_lesson_that_has_been_computed(tmp_path: Path) -> None:
    heard = []

    class Slow(Pages):
        def press(self, key: str) -> bool:
            heard.append((key, self.number, self.ready))
            return super().press(key)

    with create_pipe_input() as source:
        pages = Slow(Live(load("tiny", device="cpu")), 1, ScreenOf(width=80), Bookmark(tmp_path / "learn.json"))
        source.send_text("  1 q")
        screen_of(pages, input=source, output=DummyOutput()).run()
    assert heard == [("on", 1, True), ("on", 1, True), ("1", 2, True), ("on", 2, True), ("leave", 3, True)]


def test_space_shows_the_answer_and_then_goes_on_and_e_never_gives_it_away(tmp_path: Path) -> None:
    pages = Pages(
        Live(load("tiny", device="cpu")), MASK + 1, ScreenOf(width=80, cuts=True), Bookmark(tmp_path / "learn.json")
    )
    pages.lesson()
    pages.press("explain")
    assert not pages.explaining
    before = "\n".join(pages.lines(100, 45))
    assert "predict first" in before
    assert "✓" not in before
    assert "L0H0.weights" not in before
    pages.press("on")
    after = "\n".join(pages.lines(100, 45))
    assert pages.number == MASK + 1
    assert "L0H0.weights" in after
    assert "answer   " in after
    assert "✗" not in after
    pages.press("3")  # too late
    assert pages.farewell().startswith(f"left at lesson {MASK + 1}, softmax; tinytf")
    pages.press("explain")
    assert pages.explaining
    pages.press("other")
    pages.press("on")
    assert pages.number == MASK + 2


def test_a_place_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    place = Bookmark(tmp_path / "file" / "learn.json")
    assert place.lesson is None
    place.write(3)
    said = place.trouble
    assert "cannot remember the place" in said
    place.write(4)
    assert place.trouble == said


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", "\udcff", '{"lesson": 0}', '{"lesson": 99}', '{"lesson": "7"}', '{"lesson": true}',
        '{"answers": []}', '{"answers": {"mask": "yes"}}', '{"answers": {"nothing": true}}',
    ],
)  # fmt: skip
def test_a_place_that_makes_no_sense_is_none_and_costs_a_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "learn.json"
    path.write_text(content, "utf-8", errors="surrogateescape")
    place = Bookmark(path)
    assert (place.lesson, place.answers) == (None, {})
    assert str(path) in place.unread
    place.write(3)
    assert (Bookmark(path).lesson, Bookmark(path).unread) == (3, "")


def test_an_older_place_without_answers_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "learn.json"
    path.write_text('{"lesson": 4}', "utf-8")
    assert (Bookmark(path).lesson, Bookmark(path).answers, Bookmark(path).unread) == (4, {}, "")


def test_answers_are_kept_and_the_last_one_counts(tmp_path: Path) -> None:
    path, live = tmp_path / "learn.json", Live(load("tiny", device="cpu"))

    def sitting(*, right: bool) -> None:
        pages = Pages(live, MASK, ScreenOf(width=80, cuts=True), Bookmark(path))
        answer = pages.lesson().question.answer
        chosen = answer if right else (answer + 1) % 4
        pages.press(str(chosen + 1))
        shown = " ".join("\n".join(pages.lines(100, 45)).split())
        reasons = [reason for reason in pages.lesson().question.reasons if reason and reason in shown]
        assert set(reasons) == (set() if right else {pages.lesson().question.reasons[chosen]})

    sitting(right=False)
    assert Bookmark(path).answers == {"mask": False}
    sitting(right=True)
    assert Bookmark(path).answers == {"mask": True}


def test_after_the_last_lesson_the_next_time_starts_at_the_first(tmp_path: Path) -> None:
    place = Bookmark(tmp_path / "learn.json")
    pages = Pages(Live(load("tiny", device="cpu")), COUNT, ScreenOf(width=80, cuts=True), place)
    pages.press(str(pages.lesson().question.answer + 1))
    assert pages.press("next") is False
    assert Bookmark(place.path).lesson == 1
    assert pages.farewell() == f"that was the last of {COUNT} lessons; 1 of 1 predicted correctly"


@pytest.mark.share(4)
@sample("size", [(80, 24), (200, 50), (60, 20), (40, 10), (20, 3)], every=2)
@pytest.mark.parametrize("seven_bits", [False, True])
@pytest.mark.slow
def test_a_screen_of_any_size_is_filled_to_its_last_row(
    tmp_path: Path, size: tuple[int, int], seven_bits: bool
) -> None:
    columns, rows = size
    screen = ScreenOf(width=columns, cuts=True, ascii=seven_bits)
    live = Live(load("tiny", device="cpu"), "The cat 🐈 sat. " * 20)
    for number in (1, MASK + 1, find("heads"), find("cache")):
        pages = Pages(live, number, screen, Bookmark(tmp_path / "learn.json"))
        for key in ("computing", "shown", "2", "explain", "page down"):
            if key == "shown":
                pages.lesson()
            elif key != "computing":
                pages.press(key)
            lines = pages.lines(columns, rows)
            assert len(lines) == rows
            assert pages.ready == (key != "computing")
            assert max(map(cell_len, lines)) <= columns


def test_the_picture_of_the_schedule_is_as_high_as_the_screen_allows(tmp_path: Path) -> None:
    live, screen = Live(load("tiny", device="cpu")), ScreenOf(width=120, cuts=True)
    pages = Pages(live, find("schedule"), screen, Bookmark(tmp_path / "learn.json"))
    pages.lesson()
    pages.press("on")
    charts = {rows: sum(bool({"┤", "│"} & {*line}) for line in pages.lines(120, rows)) for rows in (24, 36, 60)}
    assert charts[24] == 0
    assert 0 < charts[36] < charts[60]


def test_a_map_of_sixteen_tokens_keeps_its_keys_and_numbers_on_a_small_screen(tmp_path: Path) -> None:
    live = Live(load("tiny", device="cpu"), "The cat lost the ball. The cat lost the ball and the dog sat.")
    tokens = [token.shown for token in live.encoding.tokens]
    assert len(tokens) == 16
    of_maps = 0
    for number in range(1, COUNT + 1):
        pages = Pages(live, number, ScreenOf(width=80, cuts=True), Bookmark(tmp_path / "learn.json"))
        lesson = pages.lesson()
        for addresses in (lesson.shown, lesson.revealed):
            text = "\n".join(pages.lines(80, 24))
            pages.press("on")
            for address in (address for address in addresses if "[" not in address):
                where = live.trace.address(address)
                if where.step is None or not where.step.is_map or address not in text:
                    continue
                of_maps += 1
                of_lesson = text[text.index(f"\n{address}") :].splitlines()
                assert of_lesson[2].split() == tokens[:7], address
                row = next(line for line in of_lesson if line.startswith(f"  {tokens[lesson.focus]} "))
                value = float(live.trace[where][lesson.focus, 0])
                assert any(f"{value:.{digits}f}" in row for digits in (1, 2, 3)), (address, row)
    assert of_maps >= 6


@pytest.mark.parametrize("name", ["positions", "residual", "feed-forward", "cache"])
def test_on_a_small_screen_empty_lines_go_before_rows_do(tmp_path: Path, name: str) -> None:
    live = Live(load("tiny", device="cpu"), "The cat lost the ball. The cat lost the ball and the dog sat.")
    number = list(OF_ANY).index(name) + 1
    pages = Pages(live, number, ScreenOf(width=80, cuts=True), Bookmark(tmp_path / "learn.json"))
    assert "rows are omitted" not in "\n".join(pages.lines(80, 24))


@pytest.mark.slow
def test_what_is_typed_before_the_first_question_is_no_answer(state: Path) -> None:
    terminal = Terminal("1", "-m", "tiny", state=state)
    terminal.child.send("1")
    assert "1-4 answer" in terminal.until(f"1 of {COUNT}")
    assert terminal.leave("q") == 0
    assert "answers" not in (state / "tinytf" / "learn.json").read_text("utf-8").replace('"answers": {}', "")
