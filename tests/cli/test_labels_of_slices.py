"""Of any slice, every form of output has the numbers of the tensor, each under its own index; rows wrap, uncut."""

import csv
import html
import io
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from driving import Tinytf
from safetensors import safe_open

import tinytf as library
from tinytf.look.values import tensor_at
from tinytf.trace.parameters import parse_any
from tinytf_cli.explore.cursor import Cursor
from tinytf_cli.explore.maps import step_map
from tinytf_cli.explore.scene import Look, Scene
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Run, Spec
from tinytf_cli.repl.streams import Capture
from tinytf_cli.views.steps import axis_labels

TEXT = "The dog ate my red ball while the cat slept on the mat, and the bird sat near the big hat"
Pairs = list[tuple[str, float]]
NAMED = ("token", "query", "key", "vocab")
"""The axes whose labels in a table are ``3 ·cat``."""
STEPS = (
    "L1H2.q", "L3.out", "L2.ffn.act", "L0H1.weights", "L1H3.scores", "final.norm", "logits", "probs", "embed.out",
    "L2H1.head_out", "blocks.1.hook_resid_post",
)  # fmt: skip
MAPS = ("L0H1.weights", "L1H3.scores")
PARAMETERS = ("L0.W_Q", "L2.ffn.W_up", "E", "L1H2.W_O")


@pytest.fixture(scope="module")
def trace() -> library.Trace:
    return library.load("tiny", device="cpu").trace(TEXT)


def slices() -> Iterator[tuple[str, str]]:
    """A tensor and a cell of it: one row, and of that a slice, which may be stepped or count from the end."""
    draw = random.Random(58)
    for tensor in (*STEPS, *PARAMETERS):
        start, step = draw.randint(2, 9), draw.choice((1, 1, 2, 3))
        words = (f"{start}:{start + 7 * step}:{step}", f"{-start - 6}:{-start}", f"{start}-{start + 5}")
        row = -1 if tensor in MAPS else draw.randint(1, 9)  # the last token sees all keys
        yield tensor, f"{row},{draw.choice(words)}"


def numbers_of(trace: library.Trace, tensor: str, cell: str) -> tuple[np.ndarray, str, list[int]]:
    """The numbers of a slice, its axis, and their indices there, by numpy alone."""
    whole = np.asarray(trace[tensor].detach().double())
    row, word = cell.split(",")
    if "-" in word[1:] and ":" not in word:
        first, last = word.split("-")
        index = range(int(first), int(last) + 1)
    else:
        index = range(whole.shape[1])[slice(*map(int, word.split(":")))]
    parsed = parse_any(f"{tensor}[{cell}]", trace.steps)
    return whole[int(row)][list(index)], parsed.axes[-1], list(index)


def in_text(text: str, heading: str) -> Pairs:
    """Labels and the numbers that end below their ends: a line of labels, a line of numbers, again where it wraps."""
    lines = text[text.index(heading) :].splitlines()[1:]
    pairs: Pairs = []
    for head, row in itertools.pairwise(lines):
        labels = list(re.finditer(r"head \d+ d\d+|unit \d+|\S+", head))
        below = [re.search(r"-?\d+\.\d+(e[-+]\d+)?$", row[: label.end()]) for label in labels]
        if all(below):
            pairs += [(label[0], float(number[0])) for label, number in zip(labels, below, strict=True) if number]
    return pairs


def text_of_picture(svg: str) -> str:
    """The lines of a picture, each piece at its column."""
    lines: dict[str, str] = {}
    for x, y, piece in re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>([^<\n]*)', svg):
        words = html.unescape(piece).replace("\xa0", " ")
        lines[y] = lines.get(y, "").ljust(round(float(x) / 12.2)) + words
    return "\n".join(lines.values())


def in_sentence(text: str, heading: str) -> Pairs:
    line = next(
        line for line in text[text.index(heading) :].splitlines()[1:] if re.search(r" -?\d+\.\d", line) and ": " in line
    )
    parts = (part.rpartition(" ") for part in re.split(r"(?<=\d), ", line.partition(": ")[2].removesuffix(".")))
    return [(label.strip('"') or label, float(number)) for label, _, number in parts]


@pytest.mark.share(8)
@pytest.mark.parametrize(("tensor", "cell"), slices())
def test_a_slice_has_its_own_labels_in_every_form(
    tensor: str, cell: str, trace: library.Trace, tinytf: Tinytf, tmp_path: Path
) -> None:
    address = f"{tensor}[{cell}]"
    numbers, axis, index = numbers_of(trace, tensor, cell)
    words = [TEXT] if tensor in STEPS else []
    base = ["trace", *words, "-m", "tiny", "--device", "cpu", "--at", address]
    assert trace.about is not None
    model = trace.about.model

    def shown(at: int) -> str:
        if axis in ("d_ff", "n_heads·d_head") and tensor in PARAMETERS:
            return f"unit {at}" if axis == "d_ff" else f"head {at // 32} d{at % 32}"
        return axis_labels(trace, axis, [at], model.tokenizer.shown)[0]

    def same(pairs: Pairs, name: Callable[[int], str] = shown, digits: float = 5e-5) -> None:
        assert [label for label, _ in pairs] == [name(at) for at in index]
        assert [number for _, number in pairs] == pytest.approx(list(numbers), abs=digits)

    def in_table(at: int) -> str:
        return f"{at} {shown(at)}" if axis in NAMED else str(at)

    for width in ("40", "200"):
        same(in_text(tinytf(*base, "--precision", "4", "--width", width).out, address))
    same(in_sentence(tinytf(*base, "--precision", "4", "--plain").out, address))
    for name, read in (("x.svg", text_of_picture), ("x.html", lambda page: html.unescape(re.sub("<[^>]*>", "", page)))):
        assert tinytf(*base, "--precision", "4", "-o", tmp_path / name).status == 0
        same(in_text(read((tmp_path / name).read_text("utf-8")), address))

    entry = next(iter(json.loads(tinytf(*base, "--format", "json").data).get("values", {}).values()), None)
    if entry is None:
        entry = json.loads(tinytf(*base, "--format", "json").data)["parameters"][0]
    places = entry["places"].get(axis, range(len(entry["values"])))
    same(list(zip(map(str, places), entry["values"], strict=True)), str, 1e-5)
    events = [json.loads(line) for line in tinytf(*base, "--format", "ndjson").lines]
    event = next(event for event in events if event["type"] in ("values", "parameter"))
    assert (event["places"], event["values"]) == (entry["places"], entry["values"])

    rows = list(csv.DictReader(io.StringIO(tinytf(*base, "--format", "csv").out)))
    same([(row[axis], float(row["value"])) for row in rows], in_table, 1e-5)
    table = [
        line.strip("| ").split(" | ") for line in tinytf(*base, "--format", "markdown").lines if line.startswith("|")
    ]
    assert {row[-2].replace("\\", ""): row[-1] for row in table[2:]} == {
        row[axis].replace("\\", ""): row["value"] for row in rows
    }

    assert tinytf(*base, "-o", tmp_path / "x.safetensors").status == 0
    with safe_open(tmp_path / "x.safetensors", "numpy") as file:
        metadata = json.loads(file.metadata()["tinytf"])
        places = metadata["places"].get(address, {}).get(axis, range(len(index)))
        same(list(zip(map(str, places), file.get_tensor(address).tolist(), strict=True)), str, 1e-5)

    session = Session(VERBS, stdout=Capture(), stderr=Capture())
    for line in ("model tiny", f'run "{TEXT}"', "set precision 4"):
        assert session.execute(line).status == 0
    for verb in ("print", "display"):
        if verb == "print" or tensor in STEPS:
            out = session.execute(f"{verb} {address}").text
            if verb == "display":
                out = session.execute("run").text
            same(in_text(out, address))


@pytest.mark.parametrize("tensor", ["L1H2.q", "L3.out", "L0H1.weights", "logits"])
def test_a_gradient_of_a_slice_has_its_own_labels(tensor: str, trace: library.Trace, tinytf: Tinytf) -> None:
    address = f"{tensor}[3,5:11]"
    base = ["grad", TEXT, "-m", "tiny", "--device", "cpu", "--at", address]
    entry = json.loads(tinytf(*base, "--format", "json").data)["values"][address]
    rows = list(csv.DictReader(io.StringIO(tinytf(*base, "--format", "csv").out)))
    axis = entry["axes"][-1]
    places = list(entry["places"].get(axis, range(6)))
    assert places == list(range(5, 11))
    assert [int(row[axis].split()[0]) for row in rows] == places
    assert [float(row["value"]) for row in rows] == pytest.approx(entry["gradient"])
    assert trace.about is not None
    labels = axis_labels(trace, axis, places, trace.about.model.tokenizer.shown)
    if tensor == "logits":  # its tokens are by falling size
        drawn = tinytf(*base).out
        order = np.argsort(-np.abs(entry["gradient"]), kind="stable")
        assert re.search(r"\s+".join(re.escape(labels[at]) for at in order), drawn)
    else:
        drawn = in_text(tinytf(*base, "--precision", "6").out, f"∂loss/∂{address}")
        assert [label for label, _ in drawn] == list(labels)
        assert [number for _, number in drawn] == pytest.approx(entry["gradient"], abs=1e-6)


def test_a_pane_of_the_explorer_has_the_labels_of_its_window(trace: library.Trace) -> None:
    assert trace.about is not None
    scene = Scene(library.load("tiny", device="cpu"), trace, Run(Spec(), TEXT))
    for name, cell in (("L3.out", (4, 103)), ("L1H2.weights", (18, 17)), ("logits", (len(trace.tokens) - 1, 900))):
        cursor = Cursor().to(scene.trace, scene.trace.address(f"{name}[{cell[0]},{cell[1]}]"))
        drawn = step_map(Look(scene, cursor), 80, 24)
        assert drawn is not None
        whole = np.asarray(tensor_at(scene.trace, cursor.address(scene.trace)))
        step, _ = cursor.at(scene.trace)
        columns = range(whole.shape[1])[drawn.columns]
        assert len(columns) > 2
        assert list(drawn.heat.column_labels) == list(
            axis_labels(scene.trace, step.axes[-1], columns, trace.about.model.tokenizer.shown)
        )
        assert drawn.heat.values[-1] == pytest.approx(whole[range(len(whole))[drawn.rows][-1], columns], abs=1e-6)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("address", ["L2H3.weights[-1]", "L1H2.q[dog]", "L3.out[4]", "L0.norm1.gain", "L1H1.q"])
def test_what_is_asked_for_by_address_is_whole_on_a_screen_too(
    address: str, width: int, trace: library.Trace, tinytf: Tinytf
) -> None:
    ran = tinytf(
        "trace", TEXT, "-m", "tiny", "--device", "cpu", "--at", address, "--precision", "4", "--width", str(width),
        "--color", "never", screen=True,
    )  # fmt: skip
    drawn = ran.out[ran.out.index(f"\n{address}") :]
    found = re.findall(r"(?<![\w.])-?\d+\.\d{4}(?!\d)", drawn)
    expected = [f"{value:.4f}" for value in np.asarray(trace[address].detach().double()).flatten()]
    assert not set(expected) - set(found)
    assert "▲" not in drawn
    assert max(map(len, drawn.splitlines())) <= width


def test_a_cut_row_keeps_its_largest_number_and_says_how_many_there_are(trace: library.Trace, tinytf: Tinytf) -> None:
    drawn = tinytf(
        "trace", TEXT, "-m", "tiny", "--device", "cpu", "--at", "L3.out", "--precision", "4", "--rows", "0"
    ).out
    whole = np.asarray(trace["L3.out"].detach().double())
    assert "the first 8 of 128 numbers and the largest" in drawn
    for row in whole:
        at = int(np.abs(row).argmax())
        assert re.search(rf"\bd{at} {row[at]:.4f}\b", drawn)


def test_explain_of_a_slice_names_its_first_cell(tinytf: Tinytf) -> None:
    ran = tinytf("explain", "L3.out[2,100:106]", TEXT, "-m", "tiny")
    assert ran.status == 2
    assert "for example L3.out[2,100]" in ran.err
