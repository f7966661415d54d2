"""The README and docs/ say what is true: commands run and print that, Python runs, tables are those of the code."""

import asyncio
import html
import importlib
import json
import re
import shlex
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gguf
import numpy as np
import pyte
import pytest
import safetensors.torch
import torch
from generated import make_again, sample_script
from insides import INSIDES
from safetensors.torch import load_file, save_file
from schemas import FOLDER, hold
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import tinytf
from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.checkpoints.huggingface.load import FAMILIES
from tinytf.pytest_plugin import Port
from tinytf.recorders import recorder
from tinytf.report import Data, Report, plain
from tinytf.runs.reader import read_history
from tinytf.text.corpus import find_files
from tinytf_cli.main import EVERY, run
from tinytf_cli.output import Output
from tinytf_cli.views.draw import Shown

ROOT = Path(__file__).parent.parent
WRITTEN = (ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = {page.name: page.read_text("utf-8") for page in WRITTEN}
README = PAGES["README.md"]


def code_blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def between(name: str, page: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", PAGES[page], re.DOTALL)
    assert found, f"{page} has no part {name}"
    return found[1].strip()


_NOT_HERE = (
    " certify ", " explore ", " mcp ", " steer ", " --add ", " train ", " train-sae ", " record ", " sweep ",
    " --follow ", " --film ", " check ", " -m run ",
)  # fmt: skip
_OWN = (".json", ".jsonl", ".safetensors", ".tex", ".txt", ".npz")


def is_at_hand(line: str) -> bool:
    """Whether a command runs here: its files stand in the repository, and it needs no training, screen or client."""
    words = shlex.split(line, comments=True)
    return not any(word in line for word in _NOT_HERE) and not any(
        Path(word).suffix in _OWN and not (ROOT / word).exists() for word in words
    )


TOUR = [
    line
    for page in PAGES
    for block in code_blocks("sh", page)
    for line in block.splitlines()
    if line.startswith("tinytf ") and is_at_hand(line)
]
EXAMPLES = [found for page in PAGES for found in sample_script("make_readme").EXAMPLE.findall(PAGES[page])]


def test_no_page_shows_the_insides_of_the_program() -> None:
    assert [page for page in PAGES for block in code_blocks("console", page) if INSIDES.search(block)] == []


def test_every_command_has_an_example() -> None:
    examples = [line for block in code_blocks("sh", "commands.md") for line in block.splitlines()]
    lines = [line.partition("#")[0].split()[1:] for line in examples if line.startswith("tinytf ")]
    shown = {name for name in EVERY for words in lines if {*name.split()} <= {*words} and words[0] == name.split()[0]}
    assert sorted({*EVERY} - shown) == [], "docs/commands.md has no example of these"


def test_every_kind_of_answer_has_its_members_in_the_docs() -> None:
    kinds = {file.stem for file in FOLDER.glob("*.json")}
    assert sorted(kind for kind in kinds if f"`{kind}`" not in PAGES["json.md"]) == [], "docs/json.md lacks these"


def test_the_readme_begins_with_the_two_commands() -> None:
    first, second = code_blocks("sh", "README.md")[0].splitlines()
    assert first.endswith('tinytf trace "The cat sat"')
    assert second.endswith("-m pytest")


@pytest.mark.share(4)
@pytest.mark.parametrize("line", dict.fromkeys(TOUR))
def test_every_command_of_the_docs_runs_and_its_json_is_as_its_schema_says(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    reports, show = list[Report](), Output.show

    def kept(output: Output, shown: Shown) -> None:
        reports.append(shown.report)
        show(output, shown)

    monkeypatch.setattr(Output, "show", kept)
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line, comments=True)[1:]) == 0
    for report in reports:
        hold(report.to_dict())
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out


@pytest.mark.parametrize(("line", "shown"), EXAMPLES)
@pytest.mark.slow
def test_every_example_prints_what_the_page_shows(
    line: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(shlex.split(line)[1:]) == (1 if " is wrong at " in shown else 0)
    assert _rounded(capsys.readouterr().out) == _rounded(shown), make_again("examples")


PICTURES = sample_script("make_readme").PICTURES
_rounded = sample_script("make_readme").rounded


def _words(picture: Path) -> list[str]:
    """The words of a picture, as they were drawn; a shade of nearly 0 may end before the space or after it."""
    found: list[str] = sample_script("make_readme").words(picture.read_text("utf-8"))
    return " ".join(found).split()


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_of_the_docs_is_what_its_command_draws(name: str, tmp_path: Path) -> None:
    script = sample_script("make_readme")
    assert _words(script.draw(name, tmp_path)) == _words(script.DRAWN / f"{name}.svg"), make_again("pictures")


def test_the_film_of_the_docs_is_what_a_session_shows(tmp_path: Path) -> None:
    script, film = sample_script("make_readme"), tmp_path / "session.svg"
    film.write_text(sample_script("make_session").film(), "utf-8")
    assert _words(film) == _words(script.DRAWN / "session.svg"), make_again("pictures")


def test_the_explorer_of_the_docs_is_what_it_shows(tmp_path: Path) -> None:
    script = sample_script("make_cast")
    asyncio.run(script.write_frame(tmp_path / "explore.svg"))
    picture = ROOT / "samples" / "pictures" / "explore.svg"
    assert _words(tmp_path / "explore.svg") == _words(picture), make_again("pictures")


@pytest.mark.slow
def test_the_recording_of_the_explorer_shows_what_its_picture_shows() -> None:
    head, *events = (ROOT / "samples" / "pictures" / "explore.cast").read_text("utf-8").splitlines()
    size, rows = json.loads(head), defaultdict[float, str](str)
    picture = (ROOT / "samples" / "pictures" / "explore.svg").read_text("utf-8")
    for y, text in re.findall(r'<text [^>]*?y="([\d.]+)"[^>]*>([^<]*)</text>', picture):
        rows[float(y)] += html.unescape(text)
    above = ["".join(row.split()) for _, row in sorted(rows.items())][2:16]  # the headings, and the map below them
    screen = pyte.Screen(size["width"], size["height"])
    stream, seen = pyte.Stream(screen), False
    for event in events:
        stream.feed(json.loads(event)[2])
        seen = seen or {*above} <= {"".join(row.split()) for row in screen.display}
    assert seen, f"{make_again('cast')}: {above}"


def test_no_picture_of_the_docs_is_without_its_command() -> None:
    # make_cast.py films the explorer, make_session.py a session; docs/training.md and docs/mixers.md train the others.
    filmed = {"explore", "session", "replay", "gated-delta"}
    pictures = {file.stem for file in (ROOT / "samples" / "pictures").iterdir()}
    assert {name for name in pictures if not name.startswith("case-")} == filmed | PICTURES.keys()


def test_the_session_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (session,) = code_blocks("tinytf", "session.md")
    lines = [line.removeprefix("tinytf> ") for line in session.splitlines()]
    assert len(lines) == 10
    # What stops, and what compares two runs, comes before there is anything to stop at or a second run.
    again = [*lines[:5], "run The dog sat on the", *lines[5:]]
    assert run(["repl", *(word for line in again for word in ("-c", line))]) == 0
    assert capsys.readouterr().err == ""


def test_the_python_of_the_docs_runs_and_gives_the_shapes_it_says() -> None:
    (code,) = code_blocks("python", "python.md")
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
    assert shapes == 9


@pytest.mark.parametrize(
    ("page", "holds"),
    [
        ("circuits.md", "circuit.edges[0].input == 'L1H0.v' and round(circuit.edges[0].score, 2) == 5.46"),
        ("loops.md", "counted.last.loss < 2.5 and counted.path.name == 'counting' and step == 19"),
        ("features.md", "tinytf.open_sae('my-sae').n_features == 64 and examples"),
        ("pairs.md", "0 < len(plural.pairs) < len(pairs.pairs) == 50"),
        ("recording.md", "acts.at('L3.out')[:5].shape == (5, 128) and batch.shape[1] == 128"),
    ],
)
def test_the_python_of_a_page_runs_and_gives_what_the_page_says(
    page: str, holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    for name in ("task.jsonl", "more.jsonl"):
        (tmp_path / name).symlink_to(ROOT / "samples" / "lost.jsonl")
    monkeypatch.chdir(tmp_path)
    model = tinytf.load("tiny")
    if page == "recording.md":
        model.record(find_files([ROOT / "samples" / "notebook.txt"]), ["L3.out"], "acts")
    generator = SimpleNamespace(from_generator=lambda rows: list(rows()))  # the package datasets is not a dependency
    names = {
        "tinytf": tinytf,
        "model": model,
        "safetensors": safetensors,
        "datasets": SimpleNamespace(Dataset=generator),
    }
    for code in code_blocks("python", page):
        if not code.startswith("import lightning"):
            exec(code, names)
    assert eval(holds, names)


def test_the_trainer_of_lightning_is_watched_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning", reason="no dependency of the project")
    monkeypatch.chdir(tmp_path)
    (code,) = (code for code in code_blocks("python", "loops.md") if code.startswith("import lightning"))
    exec(code, {"tinytf": tinytf, "torch": torch, "F": torch.nn.functional})
    history = read_history(Path("runs/lit"))
    assert history.last == history.steps == 20
    assert [step for step, _ in history.held_out] == [10, 20]
    assert history.loss[-1] < history.loss[0]


def test_the_python_of_the_ports_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, passes, hooks, test = code_blocks("python", "ports.md")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passes").mkdir()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    names: dict[str, Any] = {"model": LlamaForCausalLM(config).eval(), "DynamicCache": DynamicCache, "kept": {}}
    names |= {"prompt": [3, 1, 4], "generated": [1, 5], "ids": torch.tensor([[3, 1, 4]]), "save_file": save_file}
    exec(recorder("torch").text, names)
    exec(passes, names)
    assert sorted(path.name for path in Path("passes").iterdir()) == ["step0.npz", "step1.npz", "step2.npz"]
    with torch.no_grad():
        exec(hooks, names)
    assert "model.layers.0.self_attn.q_proj" in load_file("theirs.safetensors")
    tiny = tinytf.load("tiny")
    trace = tiny.trace("The cat sat")
    names |= {"IDS": trace["ids"].tolist(), "my_port": lambda ids: {name: trace[name] for name in ("L0.q", "logits")}}
    exec(test, names)
    names["test_my_port"](lambda folder: Port(tiny))


def test_no_python_of_the_docs_is_left_out() -> None:
    pages = {page for page in PAGES if code_blocks("python", page)}
    assert pages == {
        "circuits.md",
        "features.md",
        "loops.md",
        "notebook.md",
        "pairs.md",
        "ports.md",
        "python.md",
        "recording.md",
        "two-stacks.md",
    }
    assert ["mx.eval" in code for page in PAGES for code in code_blocks("py", page)] == [True]  # that needs a Mac


def test_the_port_of_the_docs_writes_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = code_blocks("python", "ports.md")[0]
    monkeypatch.chdir(tmp_path)
    exec(code.replace("tinytf/assets", f"{ROOT}/tinytf/assets"), {})
    made, sample = np.load("port.npz"), np.load(ROOT / "samples" / "port.npz")
    assert made.files == sample.files
    for name in made.files:
        np.testing.assert_allclose(made[name], sample[name], rtol=1e-5, atol=1e-6)


IN_SECONDS = [name for name in sample_script("make_all").QUICK if name not in ("examples", "pictures")]
"""What is generated and compared as text; examples and pictures are compared with their numbers rounded."""


@pytest.mark.parametrize("name", IN_SECONDS)
@pytest.mark.slow
def test_what_is_generated_is_what_the_code_makes(name: str) -> None:
    stale = [str(file.relative_to(ROOT)) for file, _ in sample_script("make_all").changes(name)]
    assert stale == [], make_again(name)


def test_a_schema_is_read_from_the_declarations_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    make = sample_script("make_schemas")
    monkeypatch.setattr(sys.modules["read_hints"], "LIBRARY", ("tinytf", __name__))

    @dataclass(frozen=True)
    class Row(Data):
        ALSO: ClassVar = ("double",)

        at: str
        shares: tuple[float, ...]

        @property
        def double(self) -> int:
            return 2

    @dataclass(frozen=True)
    class Asked(Report):
        KIND = "asked"

        rows: tuple[Row, ...]
        why: str | None = None

        def fields(self) -> dict[str, Any]:
            return {"rows": plain(self.rows), "n": len(self.rows), **({} if self.why is None else {"why": self.why})}

    schema = make.of_report(Asked)
    row = schema["properties"]["rows"]["items"]
    assert row["properties"]["at"] == {"type": "string"}
    assert row["properties"]["shares"]["items"] == make.NUMBER
    assert row["properties"]["double"] == {"type": "integer"}
    assert sorted(row["required"]) == ["at", "double", "shares"]
    assert schema["properties"]["n"] == {"type": "integer"}
    assert {"rows", "n"} <= {*schema["required"]} < {*schema["properties"]}
    assert "why" in schema["properties"]


def test_the_families_of_the_docs_are_those_that_are_opened() -> None:
    kinds = re.findall(r"^\| [^|]+ \| `([^`]+)` \|", between("families", "families.md"), re.MULTILINE)
    assert kinds == list(FAMILIES), make_again("families")


def test_the_reach_that_the_docs_claim_is_that_of_the_code() -> None:
    assert f"opens {len(FAMILIES)} families of models" in README
    assert f"{len(ARCHITECTURES)} architectures of GGUF files" in README
    assert f"{len(ARCHITECTURES)} of the {len(gguf.MODEL_ARCH_NAMES)} architectures" in PAGES["families.md"]
    assert set(ARCHITECTURES) <= set(gguf.MODEL_ARCH_NAMES.values())


def test_every_checked_method_has_its_row_and_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "parity")
    methods = importlib.import_module("methods").METHODS
    rows = [line.strip("| ").split(" | ") for line in between("methods", "methods.md").splitlines()[2:]]
    assert [row[0] for row in rows] == [method.name for method in methods], make_again("methods")
    for row, method in zip(rows, methods, strict=True):
        assert re.fullmatch(rf"{re.escape(method.source)}( [\d.]+)?: {re.escape(method.how)}", row[1]), row[0]
        assert row[2] == "not run" or all(float(number.replace(",", "")) >= 0 for number in row[2:5]), row[0]
        code = (ROOT / "tests" / method.file).read_text("utf-8")
        assert all(f"\ndef {test}(" in code for test in method.tests), row[0]


def test_a_comparison_is_recorded_with_its_worst_difference_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "parity")
    compared = importlib.import_module("methods").Compared()
    compared.add([1.0, -7.5, np.nan, np.inf], [1.25, -8.0, np.nan, np.inf])
    compared.add(torch.tensor(2, dtype=torch.int64), 2)
    assert (compared.difference, compared.count) == (0.5, 5)
    compared.add([np.nan], [3.0])
    assert compared.difference == np.inf


@pytest.mark.parametrize("page", PAGES)
def test_pictures_and_links_of_the_docs_are_there(page: str) -> None:
    folder = ROOT / "docs" if (ROOT / "docs" / page).is_file() else ROOT
    for path in re.findall(r"\]\(([^)#]+)", PAGES[page]):
        if not path.startswith("http"):
            assert (folder / path).is_file(), path
            assert not path.endswith(".svg") or (folder / path).read_text("utf-8").startswith("<svg")


def test_the_version_is_said_once() -> None:
    assert f"version: {tinytf.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_front_page_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_a_cell_of_the_page_of_benchmarks_is_a_figure() -> None:
    data = json.loads((ROOT / "docs" / "benchmarks.json").read_text("utf-8"))
    for group in data["groups"]:
        for row in group["rows"]:
            assert row.keys() <= {"what", "tinytf", "peer", "ratio", "goal", "command", "note"}
            assert len(row.get("tinytf", "") + row.get("peer", "")) < 40, f"{row['what']}: a cell is a figure"


def test_a_benchmark_writes_its_figures_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "benchmarks")
    timing = importlib.import_module("_timing")
    monkeypatch.setattr(timing.Results, "data", {"machine": "", "tables": []})
    monkeypatch.setattr(timing.Results, "file", None)
    timing.options("About.", repeat=3).parse_args(["--json", str(tmp_path / "figures.json")])
    assert (
        timing.show("A title", [timing.Row("fast", 0.5, goal=1.0), timing.Row("slow", 2.0, goal=1.0, note="why")]) == 1
    )
    written = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    (table,) = written["tables"]
    assert table["title"] == "A title"
    assert [(row["what"], row["value"], row["goal"], row["holds"], row["note"]) for row in table["rows"]] == [
        ("fast", 0.5, 1.0, True, ""),
        ("slow", 2.0, 1.0, False, "why"),
    ]
