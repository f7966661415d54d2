"""A run that is followed: what is shown is what its files say."""

import io
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from driving import Stream, Tinytf, is_a_clean_error, streams
from filelock import FileLock
from followed import append, files, line, measured, on_a_screen, on_a_terminal, watching
from rich.cells import cell_len

from tinytf.runs.run_files import LOCK, is_stopped
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf_cli.main import run as run_command
from tinytf_cli.screen import Screen


def test_the_present_state_has_all_that_was_measured(tinytf: Tinytf, two: Path) -> None:
    before = files(two)
    out = tinytf("runs", "--follow", two / "good", "--once").out
    for said in ("step 15 of 20", "75 %", "loss 1.2667", "held-out 3.0000", "best held-out 2.0000 at 10",
                 "lr 1.00e-03", "gradient norm 0.500", "tokens/s 41,000", "memory 512 B"):  # fmt: skip
        assert said in out
    assert re.search("L1H0 +1.00 █{8} +0.20 █▋ +0.52 ████▏", out)
    assert "L1H0 became an induction head, score 0.10" in out
    assert "duplicate" not in out
    assert files(two) == before
    data = json.loads(tinytf("runs", "--follow", two / "good", "--json").out)
    assert (data["kind"], data["state"], data["step"]) == ("run", "unfinished", 15)


def test_log_counts_steps_in_powers_of_ten(tinytf: Tinytf, two: Path) -> None:
    for given in (("runs", "--follow", two / "good", "--once"), ("runs", two)):
        plain, log = (tinytf(*given, *more, "--width", "80").lines for more in ((), ("--log",)))
        assert plain != log
        ticks = [line.split() for line in log if re.fullmatch(r"[\s\d]*\b1\s+2\s+5\s+10\b[\s\d]*", line)]
        assert ticks, "\n".join(log)


def test_a_real_run_can_be_watched(tinytf: Tinytf, tmp_path: Path) -> None:
    recipe = Recipe(
        model={"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}, tokenizer="char", block=8,
        batch=2, steps=4, warmup=1, eval_every=2, held_out=0.2,
    )  # fmt: skip
    last = train("The cat sat on the mat. " * 20, recipe, tmp_path / "run").last
    assert f"loss {last.loss:.4f}" in tinytf("runs", "--follow", tmp_path / "run").out
    assert f"{last.loss:.4f}" in tinytf("runs", tmp_path).out


def test_a_run_that_is_not_there_is_a_wrong_request(tinytf: Tinytf, tmp_path: Path) -> None:
    assert is_a_clean_error(tinytf("runs", "--follow", tmp_path / "none"), 2)
    assert is_a_clean_error(tinytf("runs", "--follow", tmp_path), 2)
    assert is_a_clean_error(tinytf("runs", "--follow", tmp_path, "--once", "--json"), 2)


def test_a_growing_run_is_followed_line_by_line_until_it_is_finished(two: Path) -> None:
    run = two / "good"
    with watching(run, "--every", "2", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"good: step 15 of 20  loss 1.2667")
        append(run, line(16) + line(17)[:9])
        assert process.stdout.readline().startswith(b"step 16 of 20  loss 1.2500")
        append(run, line(17)[9:] + measured(18, 1.5) + line(19) + line(20))
        rest, err = process.communicate(timeout=30)
    assert [text.split("  ")[:2] for text in rest.decode().splitlines()] == [
        ["step 18 of 20", "loss 1.2222"], ["step 18 of 20", "held-out loss 1.5000"],
        ["step 18 of 20", "milestone: L1H0 became an induction head, score 0.18"], ["step 20 of 20", "loss 1.2000"],
    ]  # fmt: skip
    assert (process.returncode, err) == (0, b"")


def test_events_are_followed_as_ndjson_and_control_c_ends_it(two: Path) -> None:
    run = two / "good"
    with watching(run, "--format", "ndjson", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["type"] == "run"
        append(run, measured(16, 1.5))
        assert json.loads(process.stdout.readline()) == {"type": "held_out", "step": 16, "steps": 20, "loss": 1.5}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (130, b"tinytf: interrupted")


def test_a_reader_that_has_gone_hears_no_complaint(two: Path) -> None:
    for arguments in (
        ["runs", str(two)],
        ["runs", "--follow", str(two / "slow")],
        ["runs", "--follow", str(two / "slow"), "--once"],
    ):
        read_end, write_end = os.pipe()
        os.close(read_end)
        err = Stream()
        with open(write_end, "w", encoding="utf-8") as pipe, streams(stdout=pipe, stderr=err):
            status = run_command(arguments)
            pipe.flush()
        assert (status, err.got()) == (0, b""), arguments


@pytest.mark.parametrize("rows", [60, 24, 10])
def test_on_a_terminal_the_picture_is_redrawn_in_its_place(two: Path, rows: int) -> None:
    run = two / "good"
    status, written = on_a_terminal(
        run, rows, ("step 15", line(16)), ("step 16", measured(17, 1.5)), ("step 17", line(18) + line(19) + line(20))
    )
    shown = on_a_screen(written)
    assert status == 0
    if rows > 24:  # a small screen has no room for the sentence
        assert " ".join(shown[:2]) == (
            "After 17 steps the model is as unsure about text that it did not train on as if it chose among 4.5 "
            "tokens, at step 10 among 7.4."
        )
        shown = shown[2:]
    assert shown[0] == "good · finished"
    assert sum("good" in text for text in shown) == 1
    assert shown[1].startswith("  step 20 of 20  100 %")
    assert shown[-1] == ""
    assert len(shown) <= rows
    assert all(cell_len(text) <= 80 for text in shown)
    if rows >= 24:
        assert any(text.startswith("heads") for text in shown)
        assert any("score 0.17" in text for text in shown)
    else:
        assert re.fullmatch(r"\d+ more lines do not fit", shown[-2])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_terminal_is_left_clean(two: Path, number: signal.Signals, status: int) -> None:
    ended, written = on_a_terminal(two / "good", 50, ("step 15", line(16)), ("step 16", number))
    shown = on_a_screen(written)
    assert ended == status
    assert [text for text in shown if text][-1] == ("tinytf: interrupted" if number == signal.SIGINT else shown[-2])
    assert sum("good" in text for text in shown) == 1
    assert shown[-1] == ""
    assert "?25l" not in written
    assert "?1049" not in written


@pytest.mark.parametrize("form", ["text", "ndjson", "screen"])
def test_a_run_that_was_stopped_is_told_and_ends_the_watching(tinytf: Tinytf, two: Path, form: str) -> None:
    run = two / "good"
    with FileLock(run / LOCK):
        assert not is_stopped(run)
        assert "stopped" not in tinytf("runs", "--follow", run, "--once").out
    assert "stopped at step 15; tinytf train --resume RUN continues" in tinytf("runs", "--follow", run, "--once").out
    ran = tinytf("runs", "--follow", run, *(("--format", form) if form != "screen" else ()), screen=form == "screen")
    assert ran.status == 1
    if form == "ndjson":
        assert json.loads(ran.lines[-1]) == {"type": "stopped", "step": 15, "steps": 20}
    else:
        assert "stopped at step 15; tinytf train --resume RUN continues" in ran.out
    append(run, measured(20, 1.5))
    assert tinytf("runs", "--follow", run, *(("--format", form) if form != "screen" else ())).status == 0


def test_a_run_that_is_trained_elsewhere_is_followed_until_its_process_is_gone(two: Path) -> None:
    run = two / "good"
    with FileLock(run / LOCK) as lock, watching(run, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"good: step 15 of 20")
        append(run, line(16))
        lock.release()
        rest = process.communicate(timeout=60)[0]
    assert rest.decode().splitlines()[-1] == "stopped at step 16; tinytf train --resume RUN continues"
    assert process.returncode == 1


def test_a_screen_that_shrinks_and_grows_again_keeps_no_line_of_an_old_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that a smaller screen pushed into its history come back above the picture when it grows."""
    stream, size = io.StringIO(), (80, 24)
    monkeypatch.setattr(Screen, "size", property(lambda _: size))
    screen = Screen(stream)

    def rows_up(columns: int, rows: int, lines: int) -> int:
        nonlocal size
        size, begin = (columns, rows), stream.tell()
        screen.draw(["x" * 70] * lines)
        stream.seek(begin)
        moved = re.search(r"\x1b\[(\d+)A", stream.read())
        return int(moved[1]) if moved else 0

    assert [rows_up(80, 24, 18) for _ in range(2)] == [0, 18]
    assert rows_up(80, 12, 11) == 11  # 18 - 11 of them are in the history now
    assert rows_up(80, 24, 18) == 11 + 7
    assert rows_up(40, 24, 18) == 23  # each line takes two rows
    assert rows_up(80, 24, 18) == 23
    screen.forget()
    assert [rows_up(80, 24, 18) for _ in range(2)] == [0, 18]
    assert [rows_up(80, 12, 9) for _ in range(4)] == [11, 9, 9, 9]  # a picture that leaves rows of the screen empty
    assert rows_up(80, 24, 18) == 9 + 7
