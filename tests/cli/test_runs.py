"""Runs side by side, and a run that is followed: what is drawn is what its files say."""

import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from driving import Stream, Tinytf, is_a_clean_error, streams, without_colour
from rich.cells import cell_len

from tinytf.analysis.size import parameter_count
from tinytf.config import ModelConfig
from tinytf.training.loop import train
from tinytf.training.recipe import Recipe
from tinytf_cli.main import run as run_command
from tinytf_cli.paint.painter import paint
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.blocks import Column, Curve, Curves, Histogram, Meter, Table

CONFIG = ModelConfig(vocab_size=50, d_model=8, n_layers=2, n_heads=2, d_ff=8, context=16)


def line(step: int, **more: object) -> str:
    return json.dumps({"step": step, "loss": 1 + 4 / step, "lr": 1e-3, "grad_norm": 0.5, **more}) + "\n"


def measured(step: int, held_out: float) -> str:
    heads = {"entropy": [[0.5, 0.25], [1.0, 0.75]], "previous": [[0.0, 0.1], [0.2, 0.9]], "duplicate": None,
             "induction": [[0.0, 0.1], [0.52, 0.3]]}  # fmt: skip
    said = [f"L1H0 became an induction head, score 0.{step}"]
    return line(step, held_out_loss=held_out, heads=heads, milestones=said)


def made(folder: Path, last: int = 20, steps: int = 20, held_out: float = 2.0) -> Path:
    """A run of which two measurements are there; the first is the better one."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps({"steps": steps, "seed": 3}), "utf-8")
    lines = [line(step) for step in range(1, last + 1)]
    lines[9], lines[last - 1] = measured(10, held_out), measured(last, held_out + 1)
    (folder / "metrics.jsonl").write_text("".join(lines), "utf-8")
    speed = {"step": 10, "seconds": 1.0, "tokens_per_second": 41000.0, "memory_bytes": 512}
    (folder / "speed.jsonl").write_text(json.dumps(speed) + "\n", "utf-8")
    (folder / "config.json").write_text(json.dumps({"format": "tinytf", "model": CONFIG.to_dict()}), "utf-8")
    (folder / "model.safetensors").touch()
    return folder


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All that is in a folder, and when it was written."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    made(tmp_path / "runs" / "slow", held_out=3.0)
    made(tmp_path / "runs" / "good", last=15, held_out=2.0)
    return tmp_path / "runs"


# Curves


def straight(label: str = "up", points: bool = False) -> Curve:
    x = np.arange(1, 101)
    return Curve(label, x, x / 100.0, "q", points)


def plot(block: Curves, terminal: Terminal) -> list[str]:
    """What is within the axes."""
    lines = [without_colour(text) for text in paint([block], terminal)]
    return [re.split("[│┤|+]", text, maxsplit=1)[1] for text in lines[1 : 1 + block.height]]


def braille_dots(rows: list[str]) -> list[tuple[int, int]]:
    """(column, row from the bottom) of every dot, decoded by the Unicode chart rather than by the painter."""
    places = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2), 6: (0, 3), 7: (1, 3)}
    found = []
    for r, row in enumerate(rows):
        for c, sign in enumerate(row):
            if "⠀" <= sign <= "⣿":
                bits = ord(sign) - 0x2800
                found += [(2 * c + x, 4 * (len(rows) - r) - 1 - y) for b, (x, y) in places.items() if bits >> b & 1]
    return sorted(found)


def test_a_straight_line_rises_through_the_dots() -> None:
    dots = braille_dots(plot(Curves([straight()], "step", "loss", 10), Terminal(60)))
    columns, rows = zip(*dots, strict=True)
    assert (rows[0], rows[-1]) == (0, 39)
    assert list(rows) == sorted(rows)
    assert set(columns) == set(range(max(columns) + 1))
    ideal = np.array(columns) / max(columns) * 39
    assert np.abs(np.array(rows) - ideal).max() <= 1.5


def test_a_straight_line_rises_through_the_cells_of_7_bits() -> None:
    rows = plot(Curves([straight()], "step", "loss", 10), Terminal(60, ascii=True))
    places = [(row.index("*"), row.rindex("*")) for row in rows[::-1]]
    assert places == sorted(places)
    assert places[0][0] == 0
    assert all(after[0] - before[1] <= 1 for before, after in itertools.pairwise(places))


def test_few_points_are_joined_and_points_are_not() -> None:
    ends = Curve("ends", np.array([0, 100]), np.array([0.0, 1.0]), "q")
    joined = "".join(plot(Curves([ends], "step", "loss", 8), Terminal(50, ascii=True)))
    assert joined.count("*") >= 40
    alone = "".join(plot(Curves([Curve("ends", ends.x, ends.y, "q", points=True)], "step", "loss", 8), Terminal(50)))
    assert alone.count("•") == 2


def test_a_steep_fall_leaves_no_hole() -> None:
    fall = Curve("fall", np.arange(100), np.where(np.arange(100) < 50, 1.0, 0.0), "q")
    rows = plot(Curves([fall], "step", "loss", 12), Terminal(60, ascii=True))
    assert all("*" in row for row in rows)


def test_numbers_of_the_axes_are_where_their_values_are() -> None:
    lines = list(paint([Curves([straight()], "step", "loss", 16)], Terminal(70, ascii=True)))
    for text in lines[1:17]:
        label, _, cells = text.partition("+")
        if label.strip() and "*" in cells:
            along = (cells.index("*") + cells.rindex("*")) / 2 / (len(lines[17].split("+", 1)[1]) - 1)
            assert along == pytest.approx(float(label), abs=0.06)
    foot, beneath = lines[17], lines[18]
    for match in re.finditer(r"[\d,]+", beneath):
        tick = (match.start() + match.end() - 1) / 2
        start = foot.index("+") + 1
        assert (tick - start) / (len(foot) - 1 - start) == pytest.approx((int(match[0]) - 1) / 99, abs=0.05)


@pytest.mark.parametrize(
    "y",
    [[], [np.nan] * 3, [1.0], [2.0, 2.0], [np.inf, 1.0, -np.inf], [0.0, 0.0], [1e-9, 2e-9], [-1e12, 1e12], [5, 1e300]],
)
@pytest.mark.parametrize("width", [20, 80])
def test_any_numbers_can_be_drawn(y: list[float], width: int) -> None:
    curve = Curve("odd", np.arange(len(y)), np.array(y, dtype=np.float64), "q")
    for terminal in (Terminal(width, cuts=True), Terminal(width, "truecolor", cuts=True), Terminal(width, ascii=True)):
        lines = [without_colour(text) for text in paint([Curves([curve], "step", "loss")], terminal)]
        assert lines
        assert all(cell_len(text) <= width for text in lines)
    assert all("nan" not in text for text in paint([Curves([curve], "step", "loss")], Terminal(plain=True)))


def test_two_curves_are_told_apart_with_colour_and_without() -> None:
    down = Curve("down", np.arange(1, 101), 1 - np.arange(1, 101) / 100, "k")
    block = Curves([straight(), down], "step", "loss", 10)
    for terminal in (Terminal(60), Terminal(60, ascii=True)):
        drawn = "\n".join(plot(block, terminal))
        assert min(drawn.count("*"), drawn.count("o")) > 20
        assert "* up   o down" in list(paint([block], terminal))[-1]
    coloured = list(paint([block], Terminal(60, "truecolor")))
    assert all(any(colour in text for text in coloured) for colour in ("38;2;18;116;228", "38;2;186;92;10"))
    assert list(paint([block], Terminal(plain=True))) == [
        "up: loss 0.01 at step 1, 1 at step 100, lowest 0.01 at step 1.",
        "down: loss 0.99 at step 1, 0 at step 100, lowest 0 at step 100.",
    ]


def test_meters_and_bars_have_a_fixed_scale() -> None:
    table = Table(
        [Column("a", [Meter(0.5, "0.50"), Meter(1.0, "1.00")]), Column("b", [Histogram((0, 50, 100), 200)] * 2)]
    )
    assert [text.split() for text in paint([table], Terminal(60))][1:] == [
        ["0.50", "████", "▂▄"], ["1.00", "████████", "▂▄"],
    ]  # fmt: skip
    assert list(paint([table], Terminal(60, plain=True))) == ["a 0.50.", "a 1.00."]


# tinytf runs


def test_two_runs_are_compared_the_better_one_first(tinytf: Tinytf, two: Path) -> None:
    ran = tinytf("runs", two)
    assert (ran.status, ran.err) == (0, "")
    rows = [re.split(" {2,}", text.strip()) for text in ran.lines[1:3]]
    count = f"{parameter_count(CONFIG) / 1000:.2f} k"
    assert rows == [
        ["good", "15 of 20", "1.2667", "2.0000", "10", count, "41,000", "at 75 %"],
        ["slow", "20 of 20", "1.2000", "3.0000", "10", count, "41,000", "finished"],
    ]
    assert "* good   o slow" in ran.out
    assert "step 15  L1H0 became an induction head, score 0.15" in ran.out


def test_json_is_what_the_files_say(tinytf: Tinytf, two: Path) -> None:
    data = json.loads(tinytf("runs", two, "--json").out)
    assert (data["schema_version"], data["kind"]) == (1, "runs")
    assert [one["name"] for one in data["runs"]] == ["good", "slow"]
    for one in data["runs"]:
        folder = two / one["name"]
        lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
        for name in ("step", "loss", "lr", "grad_norm"):
            assert one["metrics"][name] == [row[name] for row in lines]
        assert one["held_out"] == [
            {"step": row["step"], "loss": row["held_out_loss"]} for row in lines if "held_out_loss" in row
        ]
        assert [{**heads, "duplicate": None} for heads in one["heads"]] == [
            {"step": row["step"], **row["heads"]} for row in lines if "heads" in row
        ]
        assert [m["text"] for m in one["milestones"]] == [t for row in lines for t in row.get("milestones", ())]
        assert one["recipe"] == json.loads((folder / "recipe.json").read_text("utf-8"))
        assert one["parameters"] == parameter_count(CONFIG)
        assert (one["step"], one["steps"], one["best_held_out"]["step"]) == (len(lines), 20, 10)
    events = [json.loads(text) for text in tinytf("runs", two, "--format", "ndjson").lines]
    assert [event["step"] for event in events if event["type"] == "step"] == [*range(1, 16), *range(1, 21)]
    assert sum(event["type"] == "milestone" for event in events) == 4


def test_a_damaged_run_is_a_row_but_an_error_where_it_is_named(tinytf: Tinytf, two: Path) -> None:
    (two / "slow" / "recipe.json").write_text("{", "utf-8")
    ran = tinytf("runs", two)
    assert (ran.status, ran.err) == (0, "")
    assert re.search("^  slow +damaged$", ran.out, re.M)
    assert "recipe.json is not JSON" in " ".join(ran.out.split())
    states = {one["name"]: one["state"] for one in json.loads(tinytf("runs", two, "--json").out)["runs"]}
    assert states == {"good": "unfinished", "slow": "damaged"}
    assert is_a_clean_error(tinytf("runs", two / "slow"), 1)
    assert is_a_clean_error(tinytf("watch", two / "slow"), 1)


def test_a_torn_last_line_changes_nothing(tinytf: Tinytf, two: Path) -> None:
    whole = tinytf("runs", two).out
    with (two / "good" / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 16, "loss": 1.')
    assert tinytf("runs", two).out == whole


def test_files_may_be_missing(tinytf: Tinytf, two: Path) -> None:
    for name in ("speed.jsonl", "config.json"):
        (two / "good" / name).unlink()
    (two / "slow" / "metrics.jsonl").unlink()
    (two / "slow" / "model.safetensors").unlink()
    ran = tinytf("runs", two)
    assert ran.status == 0
    assert "0 of 20" in ran.out
    assert tinytf("watch", two / "slow", "--once").status == 0
    assert "no loss yet" in tinytf("watch", two / "slow", "--once").out


def test_without_a_folder_runs_is_looked_through_or_else_this_one(
    tinytf: Tinytf, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two.parent)
    above = tinytf("runs").out
    monkeypatch.chdir(two)
    assert tinytf("runs").out == above
    monkeypatch.chdir(two / "good")
    assert "good" in tinytf("runs").out
    (two / "none").mkdir()
    monkeypatch.chdir(two / "none")
    assert (tinytf("runs").status, "no training runs in" in tinytf("runs").out) == (0, True)
    assert is_a_clean_error(tinytf("runs", "nowhere"), 2)


def test_runs_that_are_named_twice_appear_once(tinytf: Tinytf, two: Path) -> None:
    data = json.loads(tinytf("runs", two / "good", two, two / "slow", "--json").out)
    assert [one["name"] for one in data["runs"]] == [str(two / "good"), str(two / "slow")]


def test_of_many_runs_the_best_are_drawn(tinytf: Tinytf, tmp_path: Path) -> None:
    for place in range(10):
        made(tmp_path / f"run-{place}", held_out=1.0 + place)
    out = tinytf("runs", tmp_path).out
    assert "the best 8, without 2 more" in out
    assert "& run-7" in out


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("options", [[], ["--color", "never"], ["--ascii"]], ids=["colour", "bare", "ascii"])
def test_no_line_is_wider_than_the_screen(tinytf: Tinytf, two: Path, width: int, options: list[str]) -> None:
    (two / ("very-long-name-猫-" * 5)).mkdir()
    (two / ("very-long-name-猫-" * 5) / "metrics.jsonl").touch()
    for arguments in (["runs", two], ["watch", two / "good", "--once"]):
        ran = tinytf(*arguments, "--width", str(width), *options, screen=True)
        assert (ran.status, ran.err) == (0, "")
        assert [text for text in ran.lines if cell_len(without_colour(text)) > width] == []


@pytest.mark.parametrize("options", [["--ascii"], ["--ascii", "--plain"], ["--ascii", "--json"]])
def test_ascii_is_ascii(tinytf: Tinytf, two: Path, options: list[str]) -> None:
    for arguments in (["runs", two], ["watch", two / "good", "--once"], ["watch", two / "slow"]):
        assert tinytf(*arguments, *options).data.isascii()


def test_plain_is_sentences(tinytf: Tinytf, two: Path) -> None:
    out = tinytf("runs", two, "--plain").out
    assert "run good, steps 15 of 20, loss 1.2667, best held-out 2.0000, at step 10" in out
    assert (
        "L1H0, entropy 1.00, previous 0.20, induction 0.52." in tinytf("watch", two / "good", "--once", "--plain").out
    )


def test_untrusted_texts_do_not_act_on_the_terminal(tinytf: Tinytf, two: Path) -> None:
    with (two / "good" / "metrics.jsonl").open("a") as stream:
        stream.write(line(16, milestones=["\x1b[2J gone"], heads={"\x1b[31m": [[1.0]]}))
    for arguments in (["runs", two], ["watch", two / "good", "--once"], ["runs", two, "--json"]):
        assert b"\x1b" not in tinytf(*arguments).data


@pytest.mark.parametrize("extension", ["txt", "json", "ndjson", "html", "svg"])
def test_every_format_is_written(tinytf: Tinytf, two: Path, tmp_path: Path, extension: str) -> None:
    for arguments in (["runs", two], ["watch", two / "good"]):
        ran = tinytf(*arguments, "-o", tmp_path / f"out.{extension}")
        assert (ran.status, ran.data) == (0, b"")
        assert "good" in (tmp_path / f"out.{extension}").read_text("utf-8")


# tinytf watch


def test_the_present_state_has_all_that_was_measured(tinytf: Tinytf, two: Path) -> None:
    before = files(two)
    out = tinytf("watch", two / "good", "--once").out
    for said in ("step 15 of 20", "75 %", "loss 1.2667", "held-out 3.0000", "best held-out 2.0000 at 10",
                 "lr 1.00e-03", "gradient norm 0.500", "tokens/s 41,000"):  # fmt: skip
        assert said in out
    assert re.search("L1H0 +1.00 █{8} +0.20 █▋ +0.52 ████▏", out)
    assert "L1H0 became an induction head, score 0.10" in out
    assert "duplicate" not in out
    assert files(two) == before
    data = json.loads(tinytf("watch", two / "good", "--json").out)
    assert (data["kind"], data["state"], data["step"]) == ("run", "unfinished", 15)


def test_a_real_run_can_be_watched(tinytf: Tinytf, tmp_path: Path) -> None:
    recipe = Recipe(
        model={"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}, tokenizer="char", block=8,
        batch=2, steps=4, warmup=1, eval_every=2, held_out=0.2,
    )  # fmt: skip
    last = train("The cat sat on the mat. " * 20, recipe, tmp_path / "run")
    assert f"loss {last.loss:.4f}" in tinytf("watch", tmp_path / "run").out
    assert f"{last.loss:.4f}" in tinytf("runs", tmp_path).out


def test_a_run_that_is_not_there_is_a_wrong_request(tinytf: Tinytf, tmp_path: Path) -> None:
    assert is_a_clean_error(tinytf("watch", tmp_path / "none"), 2)
    assert is_a_clean_error(tinytf("watch", tmp_path), 2)
    assert is_a_clean_error(tinytf("watch", tmp_path, "--once", "--json"), 2)


def watching(run: Path, *options: str, **more: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tinytf_cli", "watch", str(run), "--interval", "0.05", *options]
    return subprocess.Popen(command, **more)  # type: ignore[call-overload,no-any-return]


def append(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(text)


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
    for arguments in (["runs", str(two)], ["watch", str(two / "slow")], ["watch", str(two / "slow"), "--once"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        err = Stream()
        with open(write_end, "w", encoding="utf-8") as pipe, streams(stdout=pipe, stderr=err):
            status = run_command(arguments)
            pipe.flush()
        assert (status, err.got()) == (0, b""), arguments


_CODE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def on_a_screen(written: str) -> list[str]:
    """What an endless terminal shows in the end; a code that changes more than lines and colours is an error."""
    lines, row, column = [""], 0, 0
    for code in _CODE.finditer(written):
        number, letter, back, down, text = code.groups()
        if text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
        elif back:
            column = 0
        elif down:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif letter == "A":
            row -= int(number)
            assert row >= 0
        elif letter == "K":
            lines[row] = lines[row][:column]
        elif letter == "J":
            lines[row:] = [lines[row][:column]]
        else:
            assert letter == "m" or number == "?2026", code[0]
    return lines


def on_a_terminal(run: Path, rows: int, act: "list[str | signal.Signals]") -> tuple[int, str]:
    """Watch a run on a terminal of 80 columns; after each further picture the next of ``act`` is done."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    before = termios.tcgetattr(slave)
    environ = {**os.environ, "TERM": "xterm-256color"}
    with watching(run, stdin=slave, stdout=slave, stderr=slave, env=environ) as process:
        written, todo, deadline = b"", list(act), time.monotonic() + 30
        os.set_blocking(master, False)
        while process.poll() is None and time.monotonic() < deadline:
            try:
                written += os.read(master, 65536)
            except BlockingIOError:
                time.sleep(0.01)
            if todo and written.count(b"?2026l") > len(act) - len(todo):
                done = todo.pop(0)
                if isinstance(done, signal.Signals):
                    process.send_signal(done)
                else:
                    append(run, done)
        status = process.wait(timeout=5)
        try:
            while more := os.read(master, 65536):
                written += more
        except OSError:
            pass
        assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)
    return status, written.decode("utf-8").replace("\r\n", "\n")


@pytest.mark.parametrize("rows", [60, 24, 10])
def test_on_a_terminal_the_picture_is_redrawn_in_its_place(two: Path, rows: int) -> None:
    run = two / "good"
    status, written = on_a_terminal(run, rows, [line(16), measured(17, 1.5), line(18) + line(19) + line(20)])
    shown = on_a_screen(written)
    assert status == 0
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
        assert re.fullmatch(r"\d+ more lines have no room here", shown[-2])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_terminal_is_left_clean(two: Path, number: signal.Signals, status: int) -> None:
    ended, written = on_a_terminal(two / "good", 50, [line(16), number])
    shown = on_a_screen(written)
    assert ended == status
    assert [text for text in shown if text][-1] == ("tinytf: interrupted" if number == signal.SIGINT else shown[-2])
    assert sum("good" in text for text in shown) == 1
    assert shown[-1] == ""
    assert "?25l" not in written
    assert "?1049" not in written


@pytest.mark.parametrize("command", [["runs"], ["watch", "--once"]])
def test_looking_at_runs_loads_no_torch(two: Path, command: list[str]) -> None:
    """A run is looked at beside a training that wants the memory; it also makes the answer quick."""
    script = "import sys; from tinytf_cli.main import run; print(run(), 'torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, *command, str(two / "good")], capture_output=True, timeout=60)
    assert done.stderr == b"0 False\n"


def test_the_help_names_both(tinytf: Tinytf) -> None:
    out = tinytf("--help").out
    assert re.search("^  runs  +Compare", out, re.M)
    assert re.search("^  watch  +Follow", out, re.M)


# Samples


@pytest.fixture
def speaking(two: Path) -> Path:
    """A run whose model has said something that a terminal could act on."""
    sample = {"step": 10, "prompt": "The cat", "text": " sat\x1b[2J\non 猫猫猫 " + "very long " * 40}
    (two / "good" / "samples.jsonl").write_text(json.dumps(sample) + "\n", "utf-8")
    return two / "good"


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_the_latest_sample_is_one_line_of_the_board(tinytf: Tinytf, speaking: Path, width: int) -> None:
    ran = tinytf("watch", speaking, "--once", "--width", str(width), "--color", "never", screen=True)
    (shown,) = [text for text in ran.lines if "sample, step 10" in text]
    assert cell_len(shown) <= width
    if width >= 60:
        assert "  sample, step 10  The cat│ sat\\x1b[2J↵on 猫猫猫 very" in shown
        assert shown.endswith("…")


def test_the_latest_sample_is_in_every_form(tinytf: Tinytf, speaking: Path) -> None:
    written = json.loads((speaking / "samples.jsonl").read_text("utf-8"))
    assert json.loads(tinytf("watch", speaking, "--json").out)["sample"] == written
    runs = json.loads(tinytf("runs", speaking.parent, "--json").out)["runs"]
    assert [one["sample"] for one in runs] == [written, None]
    events = [json.loads(text) for text in tinytf("runs", speaking.parent, "--format", "ndjson").lines]
    assert [event for event in events if event["type"] == "sample"] == [{"type": "sample", "name": "good", **written}]
    plain = tinytf("watch", speaking, "--once", "--plain").out
    assert "sample, step 10: The cat; the model goes on:  sat\\x1b[2J↵on" in plain


def test_a_sample_is_followed_once(two: Path) -> None:
    run = two / "good"
    with watching(run, "--every", "100", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (run / "samples.jsonl").write_text('{"step": 17, "prompt": "The cat", "text": " sat"}\n', "utf-8")
        time.sleep(0.3)  # it is not told before its step is
        append(run, line(16) + line(17) + line(18))
        time.sleep(0.3)
        append(run, line(19) + line(20))
        rest, err = process.communicate(timeout=30)
    assert rest.decode().splitlines() == [
        "step 17 of 20  sample: The cat│ sat",
        "step 20 of 20  loss 1.2000  lr 1.00e-03  gradient norm 0.500  41,000 tokens/s",
    ]
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("rows", [60, 24])
def test_a_sample_has_a_place_on_common_screens(speaking: Path, rows: int) -> None:
    _, written = on_a_terminal(speaking, rows, [line(16) + line(17) + line(18) + line(19) + line(20)])
    shown = on_a_screen(written)
    assert len(shown) <= rows
    assert any("sample, step 10  The cat│ sat" in text for text in shown)
