"""A key typed into the text of the explorer: from the key to the panes drawn anew, at 120 columns and 40 rows.

python tests/benchmarks/explore.py --repeat 20
python tests/benchmarks/explore.py --model MODEL --text TEXT
"""

import argparse
import asyncio
import time
from statistics import median

from textual.widgets import Input

from tinytf_cli.explore.app import Explorer
from tinytf_cli.explore.keys import KEYS
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec
from tinytf_cli.terminal import Terminal


async def typed(app: Explorer, count: int) -> list[float]:
    """Milliseconds from each of ``count`` letters to the screen of the text with it."""
    found = []
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("t")
        edit = app.query_one("#edit", Input)
        for number in range(count):
            began = time.perf_counter()
            edit.insert_text_at_cursor(" a sunny day"[number % 12])
            while app.trace.encoding.text != edit.value:
                await asyncio.sleep(0.001)
            found.append((time.perf_counter() - began) * 1000)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--text", default="The cat lost the ball. The cat lost the")
    chosen = parser.parse_args()
    session = Session(VERBS, Spec(chosen.model), Settings(color="always", theme="dark"))
    session.begin(chosen.text)
    terminal = Terminal(width=120, height=40, depth="truecolor", cuts=True)
    found = asyncio.run(typed(Explorer(KEYS, session, terminal), chosen.repeat))
    goal = 50 if chosen.model == "tiny" else 300
    print(f"{chosen.model}: median {median(found):.0f} ms, largest {max(found):.0f}, goal {goal}")


if __name__ == "__main__":
    main()
