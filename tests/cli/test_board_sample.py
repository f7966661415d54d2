"""The latest sample of a run, wherever a run is shown."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from driving import Tinytf
from followed import append, line, on_a_screen, on_a_terminal, watching
from rich.cells import cell_len


@pytest.fixture
def speaking(two: Path) -> Path:
    """A run whose model has said something that a terminal could act on."""
    sample = {"step": 10, "prompt": "The cat", "text": " sat\x1b[2J\non 猫猫猫 " + "very long " * 40}
    (two / "good" / "samples.jsonl").write_text(json.dumps(sample) + "\n", "utf-8")
    return two / "good"


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_the_latest_sample_is_one_line_of_the_board(tinytf: Tinytf, speaking: Path, width: int) -> None:
    ran = tinytf("runs", "--follow", speaking, "--once", "--width", str(width), "--color", "never", screen=True)
    (shown,) = [text for text in ran.lines if "sample, step 10" in text]
    assert cell_len(shown) <= width
    if width >= 60:
        assert "  sample, step 10  The cat│ sat\\x1b[2J↵on 猫猫猫 very" in shown
        assert shown.endswith("…")


def test_the_latest_sample_is_in_every_form(tinytf: Tinytf, speaking: Path) -> None:
    written = json.loads((speaking / "samples.jsonl").read_text("utf-8"))
    assert json.loads(tinytf("runs", "--follow", speaking, "--json").out)["sample"] == written
    runs = json.loads(tinytf("runs", speaking.parent, "--json").out)["runs"]
    assert [one["sample"] for one in runs] == [written, None]
    events = [json.loads(text) for text in tinytf("runs", speaking.parent, "--format", "ndjson").lines]
    assert [event for event in events if event["type"] == "sample"] == [{"type": "sample", "name": "good", **written}]
    plain = tinytf("runs", "--follow", speaking, "--once", "--plain").out
    assert "sample, step 10: The cat; the model says:  sat\\x1b[2J↵on" in plain


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
    _, written = on_a_terminal(speaking, rows, ("step 15", "".join(map(line, range(16, 21)))))
    shown = on_a_screen(written)
    assert len(shown) <= rows
    assert any("sample, step 10  The cat│ sat" in text for text in shown)
