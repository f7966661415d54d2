"""tinytf circuit: its first screen, its formats, its picture, and what it refuses."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from driving import Tinytf, is_a_clean_error
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.cause.circuit import Circuit
from tinytf.loading import load
from tinytf_cli.views.circuit import _edges

PAIRS = Path(__file__).parent.parent.parent / "samples" / "lost.jsonl"


@cache
def found() -> Circuit:
    return load("tiny").circuit(PAIRS)


@pytest.mark.share(6)
@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.slow
def test_the_answer_comes_first_and_fits_a_screen(tinytf: Tinytf, width: int) -> None:
    ran = tinytf("circuit", "--pairs", PAIRS, "--width", str(width), "--color", "never", "--no-pager", screen=True)
    assert ran.status == 0, ran.err
    assert len(ran.lines) <= 45
    assert max(map(cell_len, ran.lines)) <= width
    first = " ".join(ran.lines[:2])
    assert re.match(
        r"\d+ of 479 edges keep \d+ % of the effect that the pairs have on the answer, and L1H0 matters", first
    )
    report = found()
    assert re.search(rf"^  circuit +{report.faithfulness.value:.3f} ", ran.out, re.MULTILINE)
    assert f"the larger one in {report.separated} of 12 pairs" in ran.out


def test_every_format_gives_the_numbers_of_the_library(tinytf: Tinytf, tmp_path: Path) -> None:
    report = load("tiny").circuit(PAIRS, method="gradient", left_out=2)
    ask = ("circuit", "--pairs", PAIRS, "--method", "gradient", "--left-out", "2")
    data = json.loads(tinytf(*ask, "--json").out)
    assert data["faithfulness"]["value"] == pytest.approx(report.faithfulness.value)
    assert [(link["from"], link["input"]) for link in data["links"]] == [
        (edge.source, edge.input) for edge in report.edges
    ]
    assert sum(node["without"] is not None for node in data["nodes"]) == 2
    events = [json.loads(line) for line in tinytf(*ask, "--format", "ndjson").lines]
    assert [event["weight"] for event in events if event["type"] == "link"] == [
        link["weight"] for link in data["links"]
    ]
    tensors = tmp_path / "circuit.safetensors"
    assert tinytf(*ask, "-o", tensors).status == 0
    assert int(load_file(tensors)["kept"].sum()) == data["edges"]


@pytest.mark.parametrize(
    ("left_out", "title"),
    [
        ("0", "the 8 largest scores of 10 nodes"),
        ("3", "3 nodes left out in turn, then the largest scores"),
        ("8", "the 8 most needed of 8 nodes left out in turn"),
    ],
)
def test_the_nodes_that_were_not_left_out_are_not_called_needed(tinytf: Tinytf, left_out: str, title: str) -> None:
    shown = tinytf("circuit", "--pairs", PAIRS, "--left-out", left_out).out
    assert f"nodes   {title}, the last layer first" in shown
    assert ("left without it" in shown) == (left_out != "0")


@pytest.mark.parametrize(
    ("level", "method", "how"),
    [("edges", "exact", "measured"), ("positions", "exact", "measured"), ("nodes", "exact", "estimated"),
     ("positions", "integrated", "estimated")],
)  # fmt: skip
def test_scores_of_edges_are_measured_where_each_was_run(level: str, method: str, how: str) -> None:
    choice = replace(found().choice, level=level, method=method)
    heading: Any = next(_edges(replace(found(), choice=choice), 5))
    assert heading.note.endswith(f"without one, as {how}")


@pytest.mark.parametrize("width", [80, 200])
def test_at_single_tokens_each_layer_sums_its_nodes_beside_their_token(
    tinytf: Tinytf, tmp_path: Path, width: int
) -> None:
    ask = ("circuit", "--pairs", PAIRS, "--level", "positions", "--method", "gradient", "--left-out", "0")
    ran = tinytf(*ask, "--width", str(width), "--color", "never", "--no-pager", screen=True)
    assert max(map(cell_len, ran.lines)) <= width
    sums: dict[tuple[int, str], float] = defaultdict(float)
    for node in json.loads(tinytf(*ask, "--json").out)["nodes"]:
        if node["score"] is not None:
            sums[node["ctx_idx"], node["layer"]] += node["score"]
    shown = {int(row.split()[0]): row for row in ran.lines if re.match(r"  \d+ [·.\w]+ ", row)}
    assert shown.keys() == {position for position, _ in sums}
    for (position, _), score in sums.items():
        assert re.search(rf"{score:.3f}|{score:.2f}".replace("-", r"\-"), shown[position])
    tensors = tmp_path / "circuit.safetensors"
    assert tinytf(*ask, "-o", tensors).status == 0
    assert load_file(tensors)["kept"].shape[2] == 10


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_picture_draws_every_node_and_edge_once(tinytf: Tinytf, tmp_path: Path, theme: str) -> None:
    report, picture = found(), tmp_path / "circuit.svg"
    assert tinytf("circuit", "--pairs", PAIRS, "--theme", theme, "-o", picture).status == 0
    drawn = ElementTree.parse(picture).getroot()
    shapes = "{http://www.w3.org/2000/svg}"
    widths = [float(path.get("stroke-width", "nan")) for path in drawn.iter(f"{shapes}path")]
    assert len(widths) == report.n_edges
    assert widths == sorted(widths)  # the widest is on top
    names = [text.text for text in drawn.iter(f"{shapes}text")]
    assert {node.name for node in report.nodes} <= {*names}
    assert " ".join(str(name) for name in names[:2]) == report.sentence


def test_two_texts_are_the_pair_of_their_predictions(tinytf: Tinytf, tmp_path: Path) -> None:
    texts = ("The cat lost the ball. The cat found the", "The dog lost the hat. The dog found the")
    model = load("tiny")
    best = [model.tokenizer.decode([int(model.trace(text)["logits"][-1].argmax())]) for text in texts]
    row = dict(zip(("clean", "corrupt", "answer", "versus"), (*texts, *best), strict=True))
    (tmp_path / "pair.jsonl").write_text(json.dumps(row), "utf-8")
    of = [json.loads(tinytf("circuit", *ask, "--json").out) for ask in (texts, ("--pairs", tmp_path / "pair.jsonl"))]
    assert of[0]["links"] == of[1]["links"]
    assert is_a_clean_error(tinytf("circuit", *texts, "--answer", best[1]))


def test_a_stored_circuit_is_measured_on_other_pairs_and_compared(tinytf: Tinytf, tmp_path: Path) -> None:
    stored = tmp_path / "circuit.json"
    assert tinytf("circuit", "--pairs", PAIRS, "--where", "who=cat", "-o", stored).status == 0
    ran = tinytf("circuit", "--pairs", PAIRS, "--where", "who=fox", "--from", stored, "--versus", stored)
    assert ran.status == 0, ran.err
    assert "edges scored by integrated gradients, on lost.jsonl; run on 3 pairs of lost.jsonl" in ran.out
    assert "the lead that is lost without one, as estimated on lost.jsonl" in " ".join(ran.out.split())
    edges = json.loads(stored.read_text("utf-8"))["edges"]
    assert re.search(rf"this circuit +\d+ +{edges} ", ran.out)
    assert re.search(r"Jaccard +1\.00 +1\.00", ran.out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there are no pairs"),
        (("The cat sat",), "CORRUPT, the second text, is missing"),
        (("The cat", "The dog sat down there"), "the texts have 2 and 5 tokens"),
        (("The cat sat", "The cat sat"), "both texts are answered by 'on'"),
        (("--pairs", PAIRS, "The cat sat", "The dog sat"), "takes the texts and answers of a file"),
        (("--pairs", PAIRS, "--where", "who=zebra"), "no pair of"),
        (("--pairs", PAIRS, "--keep", "nan"), "nan is not more than 0"),
        (("--pairs", PAIRS, "--method", "exact", "--steps", "3"), "--steps goes with --method integrated"),
        (("--pairs", PAIRS, "--from", "circuit.json", "--keep", "0.5"), "--from measures a circuit"),
        (("--pairs", PAIRS, "--from", PAIRS), "is not JSON"),
        (("--pairs", PAIRS, "-m", "tiny-encoder"), "this model is an encoder"),
    ],
)
def test_what_cannot_be_asked_is_one_error_and_a_hint(tinytf: Tinytf, words: tuple[str, ...], said: str) -> None:
    ran = tinytf("circuit", *words)
    assert is_a_clean_error(ran, 1 if "JSON" in said else 2)
    assert said in ran.err
