"""Write docs/benchmarks.md from docs/benchmarks.json: python samples/benchmarks_page.py"""

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
COLUMNS = ("what", "tinytf", "peer", "ratio", "goal")


def markdown(data: dict[str, Any]) -> str:
    """The page: a table of figures for each group, its notes and commands below it."""
    lines = ["# Measured", "", data["machine"], ""]
    lines += ["Written by `samples/benchmarks_page.py` from `docs/benchmarks.json`. Each script of `tests/benchmarks`"]
    lines += ["writes its own figures with `--json FILE`, and says when a goal is missed.", ""]
    for group in data["groups"]:
        lines += [f"## {group['title']}", "", "| | what | tinytf | peer | ratio | goal |", "|--:|---|--:|--:|--:|--:|"]
        notes: list[str] = []
        commands: dict[str, list[int]] = {}
        for number, row in enumerate(group["rows"], 1):
            cells = [str(row.get(column, "")).replace("|", "\\|") for column in COLUMNS]
            lines.append(f"| {' | '.join([str(number), *cells])} |")
            if "note" in row:
                notes.append(f"- {number}: {row['note']}")
            commands.setdefault(row["command"], []).append(number)
        lines += ["", *notes, *([""] if notes else [])]
        lines += [f"- {', '.join(map(str, numbers))}: `{command}`" for command, numbers in commands.items()]
        lines.append("")
    lines += [line for paragraph in data["about"] for line in (paragraph, "")]
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    data = json.loads((DOCS / "benchmarks.json").read_text("utf-8"))
    (DOCS / "benchmarks.md").write_text(markdown(data), "utf-8")


if __name__ == "__main__":
    main()
