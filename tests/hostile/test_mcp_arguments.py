"""Whatever an assistant gives a tool for a name, a text or an address, the answer is a report or one line."""

import inspect
from pathlib import Path
from random import Random

import pytest

from hostile.bases import ours
from hostile.strings import text, word
from hostile.watchdog import watched
from tinytf.errors import TinytfError
from tinytf_cli.mcp_server import Bench, tools

NAMES = ("\0", "a\0b", "x" * 5_000, "x/" * 5_000, "../" * 3_000, "\ud800", "\udcff.gguf", "", ".", "/", "~", "\n", "-m",
         "preset:\0", "preset:" + "x" * 5_000, "hub:\0", "tiny\0", "model/../model", "model\n", "model/config.json",
         "con", "\x1b]0;x\x07", "[" * 5_000)  # fmt: skip
SOUND = {"text": "the cat sat", "clean": "the cat", "corrupt": "the dog", "address": "L0H0.scores[1,0]", "model": "m"}


def test_every_argument_of_every_tool_gives_a_report_or_one_line(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for name, data in ours().items():
        (tmp_path / "m" / name).write_bytes(data)
    rng, bench, tries = Random(0), Bench((tmp_path.resolve(),)), 0
    for tool in tools(bench).values():
        parameters = inspect.signature(tool).parameters
        sound = {name: SOUND[name] for name in parameters if name in SOUND}
        for name in (name for name in parameters if name != "depth"):
            words = NAMES if name in ("model", "other_model") else (*NAMES[:3], NAMES[5])
            more = [rng.choice((word, text))(rng) for _ in range(pytestconfig.getoption("hostile") // 8)]
            for given in (*words, *more):
                value = [given] if name in ("at", "track") else given
                tries += 1
                try:
                    with watched():
                        tool(**{**sound, name: value})
                except TinytfError as error:
                    told = f"{error.message}. {error.hint}"
                    assert len(told.splitlines()) == 1, told
                    assert len(told) < 1_500 or name not in ("model", "other_model"), told
                    told.encode("utf-8")
    assert tries > 200
