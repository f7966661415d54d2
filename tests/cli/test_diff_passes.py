"""``tinytf diff`` with a folder of passes, and its table of what to mend."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from driving import Tinytf

from tinytf.loading import load
from tinytf.version import __version__


def test_the_command_takes_a_folder(tinytf: Tinytf, tmp_path: Path) -> None:
    trace, folder = load("tiny").trace("The cat sat"), tmp_path / "passes"
    folder.mkdir()
    for number, (start, end) in enumerate(((0, 2), (2, 3))):
        q, turned = (trace[name][:, start:end].numpy() for name in ("L0.q", "L0.q_rot"))
        ids = np.array(trace.encoding.ids[start:end])
        np.savez(folder / f"step{number}.npz", **{"input_ids": ids, "L0.q": q, "L0.q_rot": q if number else turned})
    ran = tinytf("diff", "--versus", str(folder), "--width", "200")
    assert ran.status == 0, ran.err
    assert "They differ from L0.q_rot of token 2, in pass 2 of 2, on: from token 2 on positions restart at 0" in ran.out
    assert "; it begins at 2 ·sat, in pass 2 of 2" in ran.out


def test_fix_lists_what_to_mend(tinytf: Tinytf, tmp_path: Path) -> None:
    trace = load("tiny").trace("The cat sat")
    names = ("L0.norm1", "L0.q", "L0.ffn.hidden", "L0.ffn.act")
    steps = {name: trace[name].numpy() for name in names}
    steps["L0.q"] = steps["L0.q"] * 2
    np.savez(tmp_path / "port.npz", input_ids=np.array(trace.encoding.ids), **steps)
    ran = tinytf("diff", "--versus", str(tmp_path / "port.npz"), "--fix")
    assert ran.status == 0, ran.err
    assert ran.lines[0].startswith("They differ from L0.q on: ")
    rows = [line.split() for line in ran.lines if line.strip().startswith("1 ")]
    assert rows[0][:2] == ["1", "L0.q"]
    assert "2 times as large" in " ".join(rows[0])
    assert not [line for line in ran.lines if line.startswith("steps")]
    sound = {name: trace[name].numpy() for name in names}
    np.savez(tmp_path / "port.npz", input_ids=np.array(trace.encoding.ids), **sound)
    assert "nothing differs" in tinytf("diff", "--versus", str(tmp_path / "port.npz"), "--fix").out


def test_reports_for_a_pull_request(tinytf: Tinytf, tmp_path: Path) -> None:
    port = Path(__file__).parents[2] / "samples" / "port.npz"
    files = [tmp_path / f"out{extension}" for extension in (".xml", ".md", ".html", ".json")]
    ran = tinytf("diff", "--versus", str(port), *(word for file in files for word in ("--report", str(file))))
    assert ran.status == 0, ran.err
    suite = ElementTree.fromstring(files[0].read_text("utf-8"))
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("9", "1", "3")
    assert (cases["L0.q"], cases["L0.q_rot"], cases["L0.attn"]) == ([], ["failure"], ["skipped"])
    (failure,) = suite.iter("failure")
    assert failure.get("message") == (
        "They differ from L0.q_rot on: a rotary base of 100,000 instead of 10,000, the same in all 4 layers."
    )
    text = files[1].read_text("utf-8")
    assert "| L0.q_rot |" in text
    assert f"tinytf {__version__}, torch " in text
    assert "L0.q_rot" in files[2].read_text("utf-8")
    assert json.loads(files[3].read_text("utf-8"))["first_difference"] == "L0.q_rot"


def test_a_sound_port_passes_every_test(tinytf: Tinytf, tmp_path: Path) -> None:
    trace = load("tiny").trace("The cat sat")
    np.savez(tmp_path / "port.npz", input_ids=np.array(trace.encoding.ids), **{"L0.q": trace["L0.q"].numpy()})
    assert tinytf("diff", "--versus", str(tmp_path / "port.npz"), "--report", str(tmp_path / "out.xml")).status == 0
    suite = ElementTree.fromstring((tmp_path / "out.xml").read_text("utf-8"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("1", "0", "0")


def test_a_report_that_cannot_be_written_is_refused_at_once(tinytf: Tinytf, tmp_path: Path) -> None:
    for name, said in (("nowhere/out.xml", "there is no folder"), ("out.doc", "no extension that names a format")):
        ran = tinytf("diff", "The cat", "A cat", "--report", str(tmp_path / name))
        assert ran.status == 2
        assert said in ran.err
        assert not ran.out
