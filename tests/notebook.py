"""The cells of docs/notebook.md, with TransformerLens' spelling of each."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "notebook.md").read_text("utf-8")
CELLS = re.findall(r"^## (\d+)\. ([^\n]+)\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
"""The number, title and code of each cell."""


def of_lens(code: str) -> str:
    """The code of TransformerLens in the comments of a cell: one line, or those indented below."""
    comment = re.match(r"# TransformerLens:(.*(?:\n#   .*)*)\n# nnsight: ", code)
    assert comment is not None, code
    return "\n".join(line.removeprefix("#   ") for line in comment[1].strip().splitlines())
