"""doctor: versions, devices, the terminal, models at hand, and missing extras."""

import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from driving import Tinytf

from tinytf import doctor
from tinytf.tolerance import Comparison
from tinytf.trace.check import Check


def test_it_tells_what_the_system_and_the_packages_say_themselves(tinytf: Tinytf):
    ran = tinytf("config", "--doctor", "--json")
    assert ran.status == 0
    found = json.loads(ran.out)
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
    assert found["variables"]["OMP_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"]
    cpu = found["devices"][0]
    assert cpu["total"] == psutil.virtual_memory().total >= cpu["free"] > 0
    assert cpu["check"]["holds"]
    assert cpu["check"]["difference"] <= cpu["check"]["allowed"]
    assert {one["name"] for one in found["devices"]} >= {"cpu", *(["cuda"] if torch.cuda.is_available() else [])}
    assert found["versions"]["gguf"] == version("gguf")


def test_it_is_twenty_lines_and_one_event_each_in_a_stream(tinytf: Tinytf, tmp_path: Path):
    ran = tinytf("config", "--doctor", tmp_path)
    assert len(ran.lines) <= 20
    assert ran.lines[0].startswith("tinytf 0.1.0 · ")
    events = [json.loads(line) for line in tinytf("config", "--doctor", "--format", "ndjson").lines]
    assert [event["type"] for event in events if event["type"] != "device"] == [
        "doctor", *["place"] * 6, *["extra"] * 5, "terminal",
    ]  # fmt: skip


def test_it_tells_the_terminal_as_everything_is_drawn_for_it(tinytf: Tinytf):
    shown = json.loads(
        tinytf("config", "--doctor", "--json", "--color", "always", "--width", "77", "--theme", "light").out
    )
    assert shown["terminal"] | {"height": 0} == {
        "screen": False, "width": 77, "height": 0, "colours": "256", "unicode": True, "theme": "light", "pager": [],
    }  # fmt: skip
    assert "no colours, 7-bit characters" in tinytf("config", "--doctor", "--ascii").out


def test_models_of_a_folder_are_counted_and_those_that_do_not_open(tinytf: Tinytf, decoder: Path, tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}", "utf-8")
    (tmp_path / "good").symlink_to(decoder)
    folder = next(
        one for one in json.loads(tinytf("config", "--doctor", tmp_path, "--json").out)["places"] if one["folder"]
    )
    assert (folder["name"], folder["models"], folder["closed"]) == ("folder", 3, 2)
    line = next(line for line in tinytf("config", "--doctor", tmp_path).lines if line.strip().startswith("folder"))
    assert line.split(maxsplit=1)[1].startswith("3 models ")
    assert "2 cannot be opened, see tinytf models; " in line


def test_what_is_missing_is_said_with_what_it_is_for_and_how_to_get_it(tinytf: Tinytf, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "huggingface_hub" else "1.0")
    monkeypatch.setenv("CXX", "no-such-compiler")
    ran = tinytf("config", "--doctor", "--width", 140)
    assert ran.status == 0
    missing = [line.split(maxsplit=1) for line in ran.lines if "missing" in line]
    assert [name for name, _ in missing] == ["huggingface_hub", "C++"]
    assert missing[0][1].split("  ")[-1].strip() == 'for hub:ORG/NAME, models of the hub: pip install "tinytf[hub]"'
    assert "for generate --compile: install g++ or clang++" in missing[1][1]


@pytest.mark.parametrize("way", ["wrong", "broken"])
def test_a_device_that_computes_wrongly_or_fails_is_status_1(way, tinytf: Tinytf, monkeypatch):
    def bad(trace: object) -> Check:
        if way == "broken":
            raise RuntimeError("CUDA error: no kernel image\nmore of it")
        return Check((Comparison("L0.q", "formula", 0.5, 1.0, 1e-6),))

    monkeypatch.setattr(doctor, "check_trace", bad)
    ran = tinytf("config", "--doctor")
    assert ran.status == 1
    said = {"wrong": "computes wrongly  1 steps of a trace within 5.0e-01;", "broken": "fails  CUDA error: no kernel"}
    assert said[way] in re.sub("  +", "  ", ran.out)
    assert "more of it" not in ran.out
    assert json.loads(tinytf("config", "--doctor", "--json").out)["holds"] is False


def test_a_folder_that_is_not_there_is_refused(tinytf: Tinytf, tmp_path: Path):
    assert tinytf("config", "--doctor", tmp_path / "nowhere").status == 2
