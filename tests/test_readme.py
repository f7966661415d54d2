"""The README says what is true: its commands run, its Python runs, its tables are those of the code."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

import tinytf
from tinytf_cli.main import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def between(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", README, re.DOTALL)
    assert found, f"the README has no part {name}"
    return found[1].strip()


def sample_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "samples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_TAKES_A_RUN = (" train ", " watch ")
TOUR = [
    line
    for block in code_blocks("sh")[1:]
    for line in block.splitlines()
    if line.startswith("tinytf ") and not any(word in line for word in _TAKES_A_RUN)
]


def test_the_readme_begins_with_the_two_commands() -> None:
    first, second = code_blocks("sh")[0].splitlines()
    assert README.startswith("```sh\n")
    assert first.endswith('tinytf trace "The cat sat"')
    assert second.endswith("-m pytest")


@pytest.mark.parametrize("line", TOUR)
def test_every_command_of_the_tour_runs(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line, comments=True)[1:]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out


def test_the_session_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (session,) = code_blocks("tinytf")
    lines = [line.removeprefix("tinytf> ") for line in session.splitlines()]
    assert len(lines) == 7
    # What stops, and what compares two runs, comes before there is anything to stop at or a second run.
    again = [*lines[:4], "run The dog sat on the", *lines[4:]]
    assert run(["repl", *(word for line in again for word in ("-c", line))]) == 0
    assert capsys.readouterr().err == ""


def test_the_python_of_the_readme_runs_and_gives_the_shapes_it_says() -> None:
    (code,) = code_blocks("python")
    names: dict[str, object] = {}
    shapes = 0
    for line in code.splitlines():
        statement, _, comment = line.partition("#")
        if "=" in statement.split("[")[0] or statement.startswith("import"):
            exec(statement, names)
            continue
        if not statement.strip():
            continue
        value = eval(statement, names)
        promised = re.search(r"\(([\d, ]+)\)", comment)
        if promised:
            assert tuple(value.shape) == tuple(int(n) for n in promised[1].split(",")), line
            shapes += 1
    assert shapes == 6


def test_the_step_table_of_the_readme_is_that_of_the_code() -> None:
    assert between("steps") == sample_script("step_table").markdown()


def test_the_model_figures_of_the_readme_are_those_of_the_cards() -> None:
    assert between("models") == sample_script("model_table").markdown()


def test_the_pictures_of_the_readme_are_there() -> None:
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).read_text("utf-8").startswith("<svg")


def test_the_version_is_said_once() -> None:
    assert f'version = "{tinytf.__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")
