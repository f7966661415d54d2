"""Runs side by side: what is shown is what their files say."""

import json
import math
import re
import statistics
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from driving import Tinytf, is_a_clean_error, without_colour
from followed import CONFIG, line, made, measured
from rich.cells import cell_len

from tinytf.look.info import parameter_count
from tinytf.runs.reader import read_history
from tinytf.runs.runs import RunReport, compare_runs
from tinytf_cli.encodings import json_pieces, to_json


def test_two_runs_are_compared_the_better_one_first(tinytf: Tinytf, two: Path) -> None:
    ran = tinytf("runs", two)
    assert (ran.status, ran.err) == (0, "")
    rows = [re.split(" {2,}", text.strip()) for text in ran.lines[2:4]]
    count = f"{parameter_count(CONFIG) / 1000:.2f} k"
    assert rows == [
        ["good", "15 of 20", "1.2667", "2.0000", "10", count, "41,000", "1 s", "at 75 %"],
        ["slow", "20 of 20", "1.2000", "3.0000", "10", count, "41,000", "1 s", "finished"],
    ]
    assert ran.out.index("* good") > 0
    assert ran.out.index("o slow") > 0
    assert "step 15  L1H0 became an induction head, score 0.15" in ran.out


def test_json_is_what_the_files_say(tinytf: Tinytf, two: Path) -> None:
    data = json.loads(tinytf("runs", two, "--json").out)
    assert (data["schema_version"], data["kind"]) == (3, "runs")
    assert [one["name"] for one in data["runs"]] == ["good", "slow"]
    for one in data["runs"]:
        folder = two / one["name"]
        lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
        for name in ("step", "loss", "lr", "grad_norm"):
            assert one["metrics"][name] == [row[name] for row in lines]
        assert one["held_out"] == [
            {"step": row["step"], "loss": row["held_out_loss"], "bits_per_byte": None}
            for row in lines
            if "held_out_loss" in row
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


def test_python_has_what_the_commands_print(tinytf: Tinytf, two: Path) -> None:
    found = compare_runs([two])
    assert json.loads(to_json(found.to_dict())) == json.loads(tinytf("runs", two, "--json").out)
    events = [json.loads(text) for text in tinytf("runs", two, "--format", "ndjson").lines]
    assert [json.loads(to_json(event)) for event in found.events()] == events
    one = RunReport("good", two / "good", read_history(two / "good"))
    assert json.loads(to_json(one.to_dict())) == json.loads(tinytf("runs", "--follow", two / "good", "--json").out)


def test_a_damaged_run_is_a_row_but_an_error_where_it_is_named(tinytf: Tinytf, two: Path) -> None:
    (two / "slow" / "recipe.json").write_text("{", "utf-8")
    ran = tinytf("runs", two)
    assert (ran.status, ran.err) == (0, "")
    assert re.search("^  slow +damaged$", ran.out, re.M)
    assert "recipe.json is not JSON" in " ".join(ran.out.split())
    states = {one["name"]: one["state"] for one in json.loads(tinytf("runs", two, "--json").out)["runs"]}
    assert states == {"good": "unfinished", "slow": "damaged"}
    assert is_a_clean_error(tinytf("runs", two / "slow"), 1)
    assert is_a_clean_error(tinytf("runs", "--follow", two / "slow"), 1)


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
    assert tinytf("runs", "--follow", two / "slow", "--once").status == 0
    assert "no loss yet" in tinytf("runs", "--follow", two / "slow", "--once").out


def test_without_a_folder_runs_is_looked_through_or_else_this_one(
    tinytf: Tinytf, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two.parent)
    above = tinytf("runs").out
    monkeypatch.chdir(two)
    assert tinytf("runs").out == above.replace("runs/", "")  # in the lines to type next
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
    assert "the best 8, 2 more omitted" in out
    assert "& run-7" in out


def test_many_runs_fit_one_screen_and_a_pipe_has_them_all(tinytf: Tinytf, tmp_path: Path) -> None:
    for place in range(30):
        made(tmp_path / f"run-{place:02}", held_out=1.0 + place)
    seen = tinytf("runs", tmp_path, screen=True)
    assert len(seen.lines) <= 45
    assert "the best 10 of 30 runs" in without_colour(seen.out)
    assert sum(line.startswith("  run-") for line in tinytf("runs", tmp_path).lines) == 2 * 30  # and a milestone each


def test_a_deep_run_fits_one_screen_with_its_strongest_layers(tinytf: Tinytf, tmp_path: Path) -> None:
    run = made(tmp_path / "deep")
    scores = np.linspace(0, 0.5, 30 * 9).reshape(30, 9)
    scores[4, 8] = 0.9
    heads = {"entropy": (1 - scores).tolist(), "induction": scores.tolist()}
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(line(21, heads=heads))
    seen = tinytf("runs", "--follow", run, "--once", screen=True)
    assert len(seen.lines) <= 45
    layers = [int(name) for name in re.findall(r"^  L(\d+)", without_colour(seen.out), re.M)]
    assert layers == [4, *range(19, 30)]
    assert "12 of 30 layers" in without_colour(seen.out)
    assert len(re.findall(r"^  L\d+", tinytf("runs", "--follow", run, "--once").out, re.M)) == 30


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("options", [[], ["--color", "never"], ["--ascii"]], ids=["colour", "bare", "ascii"])
def test_no_line_is_wider_than_the_screen(tinytf: Tinytf, two: Path, width: int, options: list[str]) -> None:
    (two / ("very-long-name-猫-" * 5)).mkdir()
    (two / ("very-long-name-猫-" * 5) / "metrics.jsonl").touch()
    for arguments in (["runs", two], ["runs", "--follow", two / "good", "--once"]):
        ran = tinytf(*arguments, "--width", str(width), *options, screen=True)
        assert (ran.status, ran.err) == (0, "")
        assert [text for text in ran.lines if cell_len(without_colour(text)) > width] == []


@pytest.mark.parametrize("options", [["--ascii"], ["--ascii", "--plain"], ["--ascii", "--json"]])
def test_ascii_is_ascii(tinytf: Tinytf, two: Path, options: list[str]) -> None:
    for arguments in (["runs", two], ["runs", "--follow", two / "good", "--once"], ["runs", "--follow", two / "slow"]):
        assert tinytf(*arguments, *options).data.isascii()


def test_plain_is_sentences(tinytf: Tinytf, two: Path) -> None:
    out = tinytf("runs", two, "--plain").out
    assert "run good, steps 15 of 20, loss 1.2667, best held-out 2.0000, at step 10" in out
    out = tinytf("runs", "--follow", two / "good", "--once", "--plain").out
    assert "L1H0, entropy 1.00, previous 0.20, induction 0.52." in out


def test_untrusted_texts_do_not_act_on_the_terminal(tinytf: Tinytf, two: Path) -> None:
    with (two / "good" / "metrics.jsonl").open("a") as stream:
        stream.write(line(16, milestones=["\x1b[2J gone"], heads={"\x1b[31m": [[1.0]]}))
    for arguments in (["runs", two], ["runs", "--follow", two / "good", "--once"], ["runs", two, "--json"]):
        assert b"\x1b" not in tinytf(*arguments).data


@pytest.mark.parametrize("extension", ["txt", "json", "ndjson", "html", "svg"])
def test_every_format_is_written(tinytf: Tinytf, two: Path, tmp_path: Path, extension: str) -> None:
    for arguments in (["runs", two], ["runs", "--follow", two / "good"]):
        ran = tinytf(*arguments, "-o", tmp_path / f"out.{extension}")
        assert (ran.status, ran.data) == (0, b"")
        assert "good" in (tmp_path / f"out.{extension}").read_text("utf-8")


@pytest.mark.parametrize("command", [["runs"], ["runs", "--follow", "--once"]])
def test_looking_at_runs_loads_no_torch(two: Path, command: list[str]) -> None:
    """A run is looked at beside a training that wants the memory; it also makes the answer quick."""
    script = "import sys; from tinytf_cli.main import run; print(run(), 'torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, *command, str(two / "good")], capture_output=True, timeout=60)
    assert done.stderr == b"0 False\n"


def test_the_help_names_both(tinytf: Tinytf) -> None:
    out = tinytf("--help").out
    assert re.search("^  runs  +Compare", out, re.M)
    assert re.search("^  --follow  +Follow", tinytf("runs", "--help").out, re.M)


def test_runs_are_ranked_by_what_is_asked_for_and_show_what_their_recipes_do_not_share(
    tinytf: Tinytf, tmp_path: Path
) -> None:
    """The first has the lower loss a token, of tokens that are half as long."""
    for name, loss, size, rate in (("short", 2.0, 200, 1e-3), ("long", 3.0, 400, 3e-3)):
        run = tmp_path / name
        run.mkdir()
        recipe = {"steps": 10, "lr": rate, "model": {"norm": "rmsnorm", "d_ff": size}, "batch": 2}
        (run / "recipe.json").write_text(json.dumps(recipe), "utf-8")
        line = {"step": 10, "loss": loss, "lr": rate, "grad_norm": 1.0, "held_out_loss": loss}
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
        sizes = {"tokens": 50, "held_out_tokens": 100, "held_out_bytes": size}
        (run / "text.json").write_text(json.dumps(sizes), "utf-8")

    def order(*options: str) -> list[str]:
        return [one["name"] for one in json.loads(tinytf("runs", tmp_path, "--json", *options).out)["runs"]]

    assert order() == ["long", "short"]
    assert order("--by", "held-out") == ["short", "long"]
    found = json.loads(tinytf("runs", tmp_path, "--json").out)
    assert (found["by"], found["differing"]) == ("bits", ["lr", "model.d_ff"])
    bits = [one["best_held_out"]["bits_per_byte"] for one in found["runs"]]
    assert bits == [pytest.approx(3.0 / math.log(2) / 4), pytest.approx(2.0 / math.log(2) / 2)]
    sentence, head, *rows = tinytf("runs", tmp_path, "--width", "160").out.splitlines()[:4]
    assert sentence.endswith(f"best, in {bits[0]:.2f} bits a byte; they differ in lr and d_ff.")
    assert head.split()[:3] == ["run", "lr", "d_ff"]
    assert [row.split()[:3] for row in rows] == [["long", "0.003", "400"], ["short", "0.001", "200"]]
    (tmp_path / "long" / "text.json").unlink()
    assert order() == ["short", "long"]


def test_runs_that_differ_in_their_seed_alone_have_a_mean_and_a_deviation(tinytf: Tinytf, tmp_path: Path) -> None:
    losses = {1e-3: [2.0, 2.5, 3.0], 3e-3: [1.5, 1.7]}
    for rate, of_seeds in losses.items():
        for seed, loss in enumerate(of_seeds):
            run = tmp_path / f"lr-{rate}-seed-{seed}"
            run.mkdir()
            (run / "recipe.json").write_text(json.dumps({"steps": 10, "lr": rate, "seed": seed}), "utf-8")
            line = {"step": 10, "loss": loss, "lr": rate, "grad_norm": 1.0, "held_out_loss": loss}
            (run / "metrics.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
            (run / "text.json").write_text(json.dumps({"baselines": {"unigram": 4.5, "bigram": 3.25}}), "utf-8")
    settings = json.loads(tinytf("runs", tmp_path, "--json").out)["settings"]
    assert [(setting["values"], setting["runs"]) for setting in settings] == [({"lr": 3e-3}, 2), ({"lr": 1e-3}, 3)]
    for setting, of_seeds in zip(settings, (losses[3e-3], losses[1e-3]), strict=True):
        assert setting["mean"] == pytest.approx(statistics.mean(of_seeds))
        assert setting["deviation"] == pytest.approx(statistics.stdev(of_seeds))
    shown = tinytf("runs", tmp_path, "--width", "180").out
    assert re.search(r"0\.003 +2 +1\.6000 ± 0\.1414\n", shown)
    assert re.search(r"0\.001 +3 +2\.5000 ± 0\.5000\n", shown)
    assert shown.count("4.5000") == shown.count("3.2500") == 5
    assert "±" not in tinytf("runs", tmp_path / "lr-0.001-seed-0", tmp_path / "lr-0.003-seed-1").out


@pytest.mark.exhaustive
def test_the_memory_of_json_does_not_grow_with_what_was_measured(tmp_path: Path) -> None:
    def peak(count: int) -> tuple[int, int]:
        run = made(tmp_path / str(count))
        lines = "".join(measured(step, 1.0) for step in range(1, count + 1))
        (run / "metrics.jsonl").write_text(lines, "utf-8")
        tracemalloc.start()
        size = sum(map(len, json_pieces(compare_runs([run]).streamed())))
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest, size

    peak(20)
    (small, short), (large, long) = peak(4_000), peak(10_000)  # of a chunk of 1 MiB, and of some more
    assert large - small < (long - short) / 2
