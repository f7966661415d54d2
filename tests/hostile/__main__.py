"""The table of SECURITY.md: ``PYTHONPATH=tests python -m hostile [--count N] [--seed N] [CLASS …]``."""

import argparse
import os
import sys
from collections import Counter

from hostile import CLASSES
from hostile.attempts import attempt


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hostile")
    parser.add_argument("names", nargs="*", default=CLASSES, metavar="CLASS")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=10, help="show so many of each class")
    asked = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", TINYTF_CACHE="", HF_HUB_CACHE=os.devnull, OLLAMA_MODELS=os.devnull)
    print("| class | tries | faults | hangs | longest | most memory |\n|---|---|---|---|---|---|")
    for name in asked.names:
        found = attempt(name, asked.count, asked.seed)
        wrong = [(case, one) for case, one in found if one.fault]
        hung = sum(one.hung for _, one in found)
        longest, peak = max(one.seconds for _, one in found), max(one.peak for _, one in found)
        print(
            f"| {name} | {len(found):,} | {len(wrong) - hung} | {hung} | {longest:.1f} s | {peak / 2**20:,.0f} MB |",
            flush=True,
        )
        for case, one in wrong[: asked.faults]:
            about, words = case
            print(f"\n{name}: {about}\n  {ascii(words)[:400]}\n  {one.fault}", file=sys.stderr, flush=True)
        total, ways = sum(one.seconds for _, one in found), Counter(one.status for _, one in found)
        print(f"\n{name}: {total:.0f} s in all; exit statuses {dict(ways)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
