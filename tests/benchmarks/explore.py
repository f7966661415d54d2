"""The explorer at 120 columns and 40 rows: from a letter of the text to the screen, and the memory of many edits.

python tests/benchmarks/explore.py --repeat 20
python tests/benchmarks/explore.py --terminal          # in a real pseudo-terminal, to the bytes that it is sent
python tests/benchmarks/explore.py --edits 1000        # memory after 10 edits, and after so many
python tests/benchmarks/explore.py --model MODEL --text TEXT
"""

import argparse
import asyncio
import gc
import os
import sys
import time
from pathlib import Path
from statistics import median

import pexpect
from textual.widgets import Input

from tinytf_cli.explore.app import Explorer
from tinytf_cli.explore.keys import KEYS
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec
from tinytf_cli.terminal import Terminal

_LETTERS = " a sunny day"


async def _type(app: Explorer, edit: Input, text: str) -> float:
    """Milliseconds from a text in the line to the screen of that text."""
    began = time.perf_counter()
    edit.value = text
    while app.trace.encoding.text != text:
        await asyncio.sleep(0.001)
    return (time.perf_counter() - began) * 1000


async def typed(app: Explorer, count: int) -> list[float]:
    """Milliseconds from each of ``count`` letters to the screen of the text with it."""
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        return [await _type(app, app.edit, app.edit.value + _LETTERS[number % 12]) for number in range(count)]


async def edited(app: Explorer, count: int) -> tuple[float, float]:
    """MiB of the process after 10 edits, and after ``count`` of them."""
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        text, found = app.edit.value, {}
        for number in range(1, count + 1):
            await _type(app, app.edit, text + _LETTERS[: number % 12 + 1])
            if number in (10, count):
                await pilot.pause()
                gc.collect()
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                found[number] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return found[10], found[count]


def typed_at_a_terminal(model: str, text: str, count: int) -> list[float]:
    """Milliseconds from each letter to the last bytes that its screen sends."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "CI": "1"}
    words = ["-m", "tinytf_cli", "explore", "--model", model, text]
    child = pexpect.spawn(sys.executable, words, dimensions=(40, 120), env=environment, timeout=120)
    child.delaybeforesend = None  # else pexpect waits 50 ms before each key
    child.expect("heads")
    _quiet(child, 2.0)
    child.send("t")
    _quiet(child, 1.0)
    found = []
    for number in range(count):
        began = time.perf_counter()
        child.send(_LETTERS[number % 12])
        found.append((_quiet(child, 0.4) - began) * 1000)
    child.send("\x03")
    child.expect(pexpect.EOF)
    return found


def _quiet(child: "pexpect.spawn[bytes]", patience: float) -> float:
    """When the last bytes came, before ``patience`` seconds without any."""
    last = time.perf_counter()
    while time.perf_counter() - last < patience:
        try:
            child.read_nonblocking(65536, timeout=0.005)
            last = time.perf_counter()
        except pexpect.TIMEOUT:
            continue
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--text", default="The cat lost the ball. The cat lost the")
    parser.add_argument("--terminal", action="store_true")
    parser.add_argument("--edits", type=int, default=0)
    chosen = parser.parse_args()
    goal = 50 if chosen.model == "tiny" else 300
    if chosen.terminal:
        found = typed_at_a_terminal(chosen.model, chosen.text, chosen.repeat)
    else:
        session = Session(VERBS, Spec(chosen.model), Settings(color="always", theme="dark"))
        session.begin(chosen.text)
        app = Explorer(KEYS, session, Terminal(width=120, height=40, depth="truecolor", cuts=True))
        if chosen.edits:
            few, many = asyncio.run(edited(app, chosen.edits))
            print(f"{chosen.model}: {few:.0f} MiB after 10 edits, {many:.0f} after {chosen.edits:,}")
            return
        found = asyncio.run(typed(app, chosen.repeat))
    print(f"{chosen.model}: median {median(found):.0f} ms, largest {max(found):.0f}, goal {goal}")


if __name__ == "__main__":
    main()
