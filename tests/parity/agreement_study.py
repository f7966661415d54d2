"""The figures of docs/agreement.md, recomputed: ``python tests/parity/agreement_study.py [--write]``.

Runs the commands of the page on SmolLM2 in the folder that TINYTF_REAL_WEIGHTS names, on the pairs of discovery and on
those of confirmation, and compares what they print with the page, within 2 % of a figure or 0.01. Takes seven minutes.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from case_study import ROOT, SUBJECTS, agree, asked, interval, written

from tinytf_cli.main import run

PAGE = ROOT / "docs" / "agreement.md"
HEAD, SECOND, OTHERS = "L26H0", "L27H8", [f"L26H{head}" for head in range(1, 9)]
SETS = ("discovery", "confirmation")
MODEL = ("-m", "smollm2.gguf")


def prepare() -> None:
    """Make both files of pairs in this folder, beside a link to the model; no text of one is in the other."""
    Path(MODEL[1]).symlink_to(SUBJECTS["smollm2"].path)
    with contextlib.redirect_stderr(io.StringIO()):
        for name, count, seed in (("discovery", "60", "11"), ("drawn", "120", "12")):
            assert run(["pairs", "agreement", "-n", count, "--seed", seed, *MODEL, "-o", f"{name}.jsonl"]) == 0
    first, drawn = (Path(f"{name}.jsonl").read_text("utf-8").splitlines() for name in ("discovery", "drawn"))
    seen = {text for line in first for text in texts(line)}
    fresh = {json.loads(line)["clean"]: line for line in reversed(drawn) if not seen.intersection(texts(line))}
    kept = [line for line in drawn if line in {*fresh.values()}][:60]
    for name, lines in zip(SETS, (first, kept), strict=True):
        Path(f"{name}.jsonl").write_text("\n".join(lines), "utf-8")
        for label, value in [
            ("attractor", "other"),
            ("attractor", "same"),
            ("number", "plural"),
            ("number", "singular"),
        ]:
            some = [line for line in lines if json.loads(line)[label] == value]
            Path(f"{name}-{value}.jsonl").write_text("\n".join(some), "utf-8")


def texts(line: str) -> list[str]:
    row = json.loads(line)
    return [row["clean"], row["corrupt"]]


def figures(name: str) -> Iterator[tuple[str, str]]:
    """Yield each figure of a set of pairs: what it is, and the number in words."""
    pairs = ("--pairs", f"{name}.jsonl", *MODEL)
    scored = asked("score", *pairs)
    yield "answered right", f"{scored['right']:.1%}"
    yield "lead, clean", interval(scored["lead"]["clean"], "+.2f")
    yield "lead, corrupt", interval(scored["lead"]["corrupt"], "+.2f")
    if name == "discovery":
        estimated = asked("patch", *pairs, "--sweep", "heads", "--estimate", "gradient")
        yield "head of the largest estimate", estimated["by"]
    for head in (HEAD, SECOND):
        yield f"{head}, share brought back", interval(patched(pairs, head), "+.3f")
    ablated = asked("ablate", *pairs, "--at", HEAD)
    yield (
        f"what the lead moves by without {HEAD}",
        interval(ablated["rows"][0][ablated["quantities"][0]["name"]], "+.2f"),
    )
    sizes = [abs(patched(pairs, head)["value"]) for head in OTHERS]
    yield "the other 8 heads of L26, the largest share", f"{max(sizes):.3f}"
    for first, second in (("plural", "singular"), ("other", "same")):
        files = ("--pairs", f"{name}-{first}.jsonl", "--versus", f"{name}-{second}.jsonl")
        row = asked("patch", *files, *MODEL, "--at", HEAD)["rows"][0]
        yield f"{HEAD}, {first} less {second}", interval(row["difference"], "+.3f")


def patched(pairs: tuple[str, ...], head: str) -> dict[str, float]:
    row = asked("patch", *pairs, "--at", head)["rows"][0]
    share: dict[str, float] = row["recovered"]
    return share


def wrong_figures(*, write: bool = False) -> list[str]:
    """The figures that the page has wrong; with ``write`` they are put there."""
    page, wrong = PAGE.read_text("utf-8"), []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare()
        for name in SETS:
            found, stated = dict(figures(name)), written(page, name)
            wrong += [
                f"{name}: {what}: {cell}" for what, cell in found.items() if not agree(stated.get(what, ""), cell)
            ]
            rows = "\n".join(
                ["| what | figure |", "|---|---|", *(f"| {what} | {cell} |" for what, cell in found.items())]
            )
            page = re.sub(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", rf"\g<1>{rows}\g<2>", page, flags=re.DOTALL)
    if write:
        PAGE.write_text(page, "utf-8")
    return wrong


if __name__ == "__main__":
    found = wrong_figures(write="--write" in sys.argv)
    print("\n".join(found) or "every figure of the page holds")
    raise SystemExit(bool(found) and "--write" not in sys.argv)
