"""CSV read back: the numbers are those of the trace, to the last bit of float32, and labels say which they are."""

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driving import SENTENCE, Ran, Tinytf

from tinytf.loading import Model, load
from tinytf.text.printable import printable
from tinytf.trace.trace import Trace

Cells = list[list[str]]
Write = Callable[..., Cells]


@pytest.fixture(scope="module")
def trace(opened: Model) -> Trace:
    return opened.trace(SENTENCE)


@pytest.fixture
def write(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> Write:
    """The cells of the CSV file that a command writes."""

    def run(*arguments: str | Path) -> Cells:
        path = tmp_path / "out.csv"
        ran = tinytf(*arguments, "-m", decoder, "-o", path)
        assert (ran.status, ran.out) == (0, ""), ran
        return read(path.read_text("utf-8"))

    return run


def read(text: str) -> Cells:
    return list(csv.reader(io.StringIO(text, newline="")))


def numbers(cells: list[str]) -> np.ndarray[Any, Any]:
    """The float32 of each cell; an empty one is −∞."""
    return np.array([np.float32(cell) if cell else -np.inf for cell in cells], dtype=np.float32)


def records(cells: Cells) -> list[dict[str, str]]:
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


def labels(trace: Trace) -> list[str]:
    return [f"{place} {token.shown}" for place, token in enumerate(trace.tokens)]


def test_a_map_has_tokens_with_their_places_on_both_sides(write: Write, trace: Trace) -> None:
    for name, cells in (
        ("L1H0.weights", write("attention", SENTENCE, "--head", "L1H0")),
        ("L1H0.masked", write("trace", SENTENCE, "--at", "L1H0.masked")),
    ):
        assert cells[0] == ["query/key", *labels(trace)]
        assert [row[0] for row in cells[1:]] == labels(trace)
        hidden = torch.ones_like(trace[name]).triu(1).bool()
        expected = trace[name].masked_fill(hidden, -math.inf).numpy()
        assert np.array_equal(np.stack([numbers(row[1:]) for row in cells[1:]]), expected), name


def test_a_window_of_a_map_keeps_the_places_of_the_text(write: Write, trace: Trace) -> None:
    cells = write("attention", SENTENCE, "--head", "L1H0", "--window", "2:4,1:3")
    assert cells[0] == ["query/key", *labels(trace)[1:3]]
    assert [row[0] for row in cells[1:]] == labels(trace)[2:4]
    assert np.array_equal(numbers(cells[2][1:]), trace["L1H0.weights"][3, 1:3].numpy())


def test_a_block_of_a_trace_is_a_row_a_number(write: Write, trace: Trace) -> None:
    rows = records(write("trace", SENTENCE, "--layer", "1", "--head", "1"))
    assert next(iter(rows[0])) == "address"
    assert list(rows[0])[-1] == "value"
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["address"], []).append(row["value"])
    assert set(found) == {f"L1{'H1' if step.has_heads else ''}.{step.name}" for step in trace.steps.layer_steps}
    for address, values in found.items():
        expected = trace[address]
        if address == "L1H1.weights":  # what a query does not see is an empty cell, as of attention
            expected = expected.masked_fill(torch.ones_like(expected).triu(1).bool(), -math.inf)
        assert np.array_equal(numbers(values), expected.numpy().ravel()), address
    cell = next(row for row in rows if row["address"] == "L1H1.weights" and row["query"][0] == row["key"][0] == "2")
    assert np.float32(cell["value"]) == trace["L1H1.weights"][2, 2].numpy()
    assert (cell["query"], cell["d_model"], cell["token"]) == (labels(trace)[2], "", "")


def test_several_layers_and_heads_have_a_column_each_or_an_address(write: Write, trace: Trace) -> None:
    rows = records(write("trace", SENTENCE, "--at", "L*.weights"))
    at = {(row["address"], row["head"], row["query"], row["key"]): row["value"] for row in rows}
    names = labels(trace)
    assert len(at) == trace.config.n_layers * trace.config.n_heads * len(names) ** 2
    assert np.float32(at["L1.weights", "1", names[3], names[1]]) == trace["L1.weights"][1, 3, 1].numpy()


def test_logits_are_labelled_by_the_vocabulary(write: Write, trace: Trace, opened: Model) -> None:
    rows = records(write("trace", SENTENCE, "--at", "logits[-1]"))
    assert [row["vocab"] for row in rows] == [f"{at} {opened.tokenizer.shown(at)}" for at in range(len(rows))]
    assert np.array_equal(numbers([row["value"] for row in rows]), trace.logits_at(-1 % len(trace.tokens)).numpy())


def test_a_parameter_is_a_map_or_a_row_a_number(write: Write, trace: Trace, opened: Model) -> None:
    cells = write("trace", "--at", "L0H1.W_Q")
    expected = trace["L0H1.W_Q"].detach().numpy()
    assert np.array_equal(np.stack([numbers(row[1:]) for row in cells[1:]]), expected)
    table = write("trace", "--at", "E")
    assert [row[0] for row in table[1:4]] == [f"{at} {opened.tokenizer.shown(at)}" for at in range(3)]


def test_gradients_are_those_of_the_library(write: Write, opened: Model) -> None:
    cells = write("grad", SENTENCE, "--at", "L0H1.weights")
    expected = opened.grad(SENTENCE).grad["L0H1.weights"].numpy()
    assert np.array_equal(np.stack([numbers(row[1:]) for row in cells[1:]]), expected)


TABLES = {
    "tokens": ("tokens", "tokens"),
    "heads": ("heads", "heads"),
    "attribute": ("attribute", "parts"),
    "score": ("score", "scores"),
    "ablate": ("ablate --sweep heads", "effects"),
    "generate": ("generate --max-tokens 3", "steps"),
    "grad": ("grad --derive L0H0.weights", "gradients"),
}


@pytest.mark.parametrize(("line", "member"), TABLES.values(), ids=TABLES)
def test_a_table_has_the_records_of_json(tinytf: Tinytf, decoder: Path, line: str, member: str) -> None:
    command, *options = line.split()
    text = () if command == "heads" else (SENTENCE,)
    arguments = [command, *text, *options, "-m", decoder]
    data = json.loads(tinytf(*arguments, "--json").out)[member]
    rows = records(read(tinytf(*arguments, "--format", "csv").out))
    assert len(rows) == len(data) > 0
    for row, record in zip(rows, data, strict=True):
        for name, value in record.items():
            if isinstance(value, (int, float, list)):
                assert json.loads(row[name]) == value, name
            elif isinstance(value, str):
                assert row[name].lstrip("'") == printable(value, spaces=False).lstrip("'"), name
            elif value is None:
                assert row.get(name, "") == ""


def test_the_lens_has_a_row_a_candidate(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("lens", SENTENCE, "-m", decoder, "--json").out)["stages"]
    rows = records(read(tinytf("lens", SENTENCE, "-m", decoder, "--format", "csv").out))
    expected = [
        (stage["stage"], at["position"], best["id"], best["probability"])
        for stage in data
        for at in stage["at"]
        for best in at["top"]
    ]
    assert [(r["stage"], int(r["position"]), int(r["id"]), float(r["probability"])) for r in rows] == expected


def test_numbers_of_every_width_come_back_whole(tinytf: Tinytf, decoder: Path) -> None:
    for dtype, kept in (("float64", torch.float64), ("bfloat16", torch.float32)):
        expected = load(str(decoder), device="cpu", dtype=dtype).trace(SENTENCE)["L1.out"]
        ran = tinytf("trace", SENTENCE, "-m", decoder, "--at", "L1.out", "--dtype", dtype, "--format", "csv")
        found = [[float(cell) for cell in row[1:]] for row in read(ran.out)[1:]]
        assert torch.equal(torch.tensor(found, dtype=kept), expected.to(kept)), dtype


def test_no_text_becomes_a_formula(tinytf: Tinytf, decoder: Path) -> None:
    """A token that begins as a formula does gets one ' before it; taking that off gives the token back."""
    text = "=1+1 @a -b +c 'd '=e"
    tokens = json.loads(tinytf("tokens", text, "-m", decoder, "--json").out)["tokens"]
    rows = records(read(tinytf("tokens", text, "-m", decoder, "--format", "csv").out))
    assert not any(row["shown"].startswith(("=", "+", "-", "@")) for row in rows)
    for row, token in zip(rows, tokens, strict=True):
        shown = row["shown"]
        plain = shown.lstrip("'").startswith(("=", "+", "-", "@"))
        assert (shown[1:] if plain else shown) == token["shown"]
    assert any(row["shown"].startswith("'=") for row in rows)


def test_several_texts_are_one_table_with_the_number_of_each(tinytf: Tinytf, decoder: Path) -> None:
    texts = ["The cat sat", "The dog"]
    arguments = ["trace", "\n".join(texts), "--lines", "-m", decoder, "--at", "L0H0.weights"]
    rows = records(read(tinytf(*arguments, "--format", "csv").out))
    for number, text in enumerate(texts):
        weights = load(str(decoder), device="cpu").trace(text)["L0H0.weights"]
        expected = weights.masked_fill(torch.ones_like(weights).triu(1).bool(), -math.inf).numpy().ravel()
        found = [row["value"] for row in rows if row["result"] == str(number)]
        assert np.array_equal(numbers(found), expected)


def test_what_has_no_table_is_refused_and_no_file_is_left(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    ran: Ran = tinytf("tokens", "The cat", "-m", decoder, "--versus", decoder, "-o", path)
    assert ran.status == 2
    assert "there is no table to write here" in ran.err
    assert list(tmp_path.glob("*out.csv*")) == []


def test_csv_is_seven_bits_nowhere_and_a_pipe_may_close(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert tinytf("tokens", "café", "-m", decoder, "-o", path).status == 0
    assert path.read_bytes().decode("utf-8") == tinytf("tokens", "café", "-m", decoder, "--format", "csv").out
