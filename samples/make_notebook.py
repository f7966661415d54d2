"""Write the notebook of the tour, ``samples/tour.ipynb``: ``python samples/make_notebook.py``."""

import json
from pathlib import Path

NOTEBOOK = Path(__file__).parent / "tour.ipynb"
CELLS = (
    ("markdown", "# A tour of tinytf\n\nEvery number inside of a transformer, in a notebook. Run the cells from the top."),
    ("code", '%load_ext tinytf\nimport tinytf\n\nmodel = tinytf.load("tiny")  # or a folder, a .gguf file, "hub:ORG/NAME"'),
    ("markdown", "## From text to prediction\n\nA line of a session, drawn in colour; the text stays for the next lines."),
    ("code", "%trace The cat sat"),
    ("markdown", "The same in Python: a trace is a mapping of addresses, and draws itself at the end of a cell."),
    ("code", 'trace = model.trace("The cat sat on the")\ntrace["L1H2.weights"]'),
    ("code", "model.attention(trace, heads=((1, 2),))"),
    ("markdown", "## Where does a number come from?\n\nThe arithmetic of one score, checked against the recorded one."),
    ("code", 'model.explain(trace, "L1H2.scores[sat,cat]")'),
    ("markdown", "## Why this word?\n\nWhat each part adds to the logit, and what is left without one of them."),
    ("code", 'attributed = model.attribute(trace)\nattributed'),
    ("code", 'model.ablate(trace, "L3.ffn")'),
    ("code", "attributed.to_pandas().sort_values('value').tail()"),
    ("markdown", "## What if?\n\nAn edited step, for everything inside the block."),
    ("code", 'with model.edited({"L1H2.weights": lambda weights: 0 * weights}) as edited:\n    print(edited.generate("The cat sat on the", max_tokens=5))'),
    ("markdown", "## Two texts\n\nThe first step that differs, and by how much."),
    ("code", "%diff 'The cat sat on the' 'The dog sat on the'"),
    ("markdown", "Any other line of a session: `%tinytf help` lists them."),
    ("code", "%tinytf lens 'The cat sat on the' --track mat"),
)  # fmt: skip


def notebook() -> str:
    """The notebook as JSON."""
    cells = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, text) in enumerate(CELLS)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), "utf-8")
