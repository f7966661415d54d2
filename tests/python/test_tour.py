"""The notebook of the tour runs from top to bottom, and draws what it says; the magics are lines of one session."""

import re
from pathlib import Path

import nbformat
import pytest
from IPython.testing.globalipapp import get_ipython, start_ipython
from nbclient import NotebookClient

TOUR = Path(__file__).parents[2] / "samples" / "tour.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_every_cell_shows_what_it_is_about() -> None:
    notebook = nbformat.read(TOUR, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(str(output.get("data", output.get("text", ""))) for output in cell.outputs) for cell in cells]
    shown = [re.sub(r"<[^>]*>", "", text) for text in texts]
    assert [len(cell.outputs) for cell in cells] == [0, *[1] * (len(cells) - 1)]
    assert "·on" in shown[1]
    assert "tensor" in shown[2]
    assert "L1H2.weights" in shown[3]
    assert "sum" in shown[4]
    assert "text/html" in texts[5]
    assert "Without L3.ffn" in shown[6]
    assert "kind" in shown[7]
    assert "first" in shown[9]
    assert "L3" in shown[10]


def test_a_line_goes_on_from_the_one_before_and_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    shell = start_ipython() or get_ipython()
    shell.run_line_magic("load_ext", "tinytf")
    shell.run_line_magic("tinytf", "run The cat sat on the")
    shell.run_line_magic("tinytf", "attribute --top 3")
    shell.run_line_magic("trace", "--at L9.ffn")
    error = capsys.readouterr().err
    assert error.startswith("tinytf: error: there is no layer 9")
    assert "Traceback" not in error
