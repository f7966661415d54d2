"""One grammar of addresses: what is printed reads the same, cuts as numpy does, and holds wherever it is typed."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import Tinytf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from talking import Talk

from tinytf.errors import AddressError
from tinytf.loading import load
from tinytf.steps.table import StepTable
from tinytf.text.words import numbers_in, positions_in
from tinytf.trace.parameters import parse_any
from tinytf.trace.trace import Trace

TEXT = "The cat sat on the cat"
DOCS = Path(__file__).parents[2] / "docs" / "steps.md"
always = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load("tiny").trace(TEXT)


def table() -> StepTable:
    return StepTable(load("tiny").config)


def some(count: int) -> st.SearchStrategy[tuple[str, list[int]]]:
    """Words that mean some of ``count`` layers or heads, and which."""
    one = st.integers(-count, count - 1)
    each = one.map(lambda n: (str(n), [n % count]))
    runs = st.tuples(one, one).filter(lambda ends: ends[0] % count <= ends[1] % count)
    ranges = runs.map(lambda ends: (f"{ends[0]}-{ends[1]}", list(range(ends[0] % count, ends[1] % count + 1))))
    lists = st.lists(st.one_of(each, ranges), min_size=1, max_size=3).map(
        lambda parts: (",".join(word for word, _ in parts), list(dict.fromkeys(n for _, found in parts for n in found)))
    )
    return st.one_of(lists, st.just(("*", list(range(count)))))


def cut(size: int) -> st.SearchStrategy[tuple[str, Any]]:
    """A word of a cell on an axis of that size, and what numpy is asked for."""
    end = st.one_of(st.none(), st.integers(-size - 2, size + 2))
    step = st.one_of(st.none(), st.integers(1, 3))
    slices = st.builds(slice, end, end, step).filter(lambda one: len(range(size)[one]) > 0)
    written = slices.map(
        lambda one: (
            f"{'' if one.start is None else one.start}:{'' if one.stop is None else one.stop}"
            + ("" if one.step is None else f":{one.step}"),
            one,
        )
    )
    numbers = st.integers(-size, size - 1).map(lambda n: (str(n), n))
    runs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda ends: ends[0] <= ends[1])
    return st.one_of(written, numbers, runs.map(lambda ends: (f"{ends[0]}-{ends[1]}", slice(ends[0], ends[1] + 1))))


@always
@given(st.data())
def test_an_address_is_the_tensor_that_numpy_cuts_and_reads_the_same_when_printed(data: st.DataObject) -> None:
    trace = _trace()
    config = trace.config
    layers, which = data.draw(some(config.n_layers))
    step = data.draw(st.sampled_from(["in", "weights", "q", "ffn.act"]))
    whole = np.stack([trace.step(step, layer).numpy() for layer in which])
    text, first = f"L{layers}", 1
    if step in ("weights", "q"):
        if data.draw(st.booleans()):
            heads, chosen = data.draw(some(config.n_heads))
            text, whole = f"{text}H{heads}", whole[:, chosen]
            if len(chosen) == 1:
                whole, first = whole[:, 0], 0
    else:
        first = 0
    text, index = f"{text}.{step}", [slice(None)] * (1 + first)
    if data.draw(st.booleans()):
        words = [data.draw(cut(size)) for size in whole.shape[1 + first :][: data.draw(st.integers(1, 2))]]
        text, index = f"{text}[{','.join(word for word, _ in words)}]", [*index, *(one for _, one in words)]
    expected = whole[tuple(index)]
    expected = expected[0] if len(which) == 1 else expected
    where = parse_any(text, trace.steps)
    assert parse_any(str(where), trace.steps) == where
    assert str(parse_any(str(where), trace.steps)) == str(where)
    found = trace[text].numpy()
    assert found.shape == expected.shape, text
    assert np.allclose(found, expected, atol=1e-6), text
    assert len(where.axes) == expected.ndim, text


def _trace() -> Trace:
    if not hasattr(_trace, "found"):
        _trace.found = load("tiny").trace(TEXT)  # type: ignore[attr-defined]
    return _trace.found  # type: ignore[attr-defined,no-any-return]


@always
@given(st.data())
def test_a_name_of_transformer_lens_is_cut_as_numpy_does(data: st.DataObject) -> None:
    trace = _trace()
    name = data.draw(st.sampled_from(["attn.hook_z", "attn.hook_pattern", "ln1.hook_scale", "hook_resid_mid"]))
    whole = trace[f"blocks.1.{name}"].numpy()
    words = [data.draw(cut(size)) for size in whole.shape[: data.draw(st.integers(1, whole.ndim))]]
    text = f"L1.{name}[{','.join(word for word, _ in words)}]"
    assert np.array_equal(trace[text].numpy(), whole[tuple(one for _, one in words)]), text
    where = parse_any(text, trace.steps)
    assert parse_any(str(where), trace.steps) == where


def forms() -> list[str]:
    """The addresses in the table of the docs."""
    page = DOCS.read_text(encoding="utf-8")
    rows = page[page.index("<!-- grammar -->") : page.index("<!-- /grammar -->")].splitlines()[3:]
    return [found[1] for row in rows if (found := re.search(r"`([^`]+)` \|$", row))]


LENS = [
    "blocks.0.attn.hook_q",
    "blocks.0.attn.hook_pattern[0,0:2]",
    "L1.attn.hook_z[0:2,1]",
    "blocks.-1.ln1.hook_scale",
    "hook_unembed[-1]",
    "ln_final.hook_scale[1:3,0:1]",
]


@pytest.mark.share(4)
@pytest.mark.parametrize("address", [*forms(), *LENS])
def test_every_form_is_the_same_for_an_option_for_python_and_in_a_session(
    address: str, tinytf: Tinytf, talk: Callable[..., Talk], trace: Trace
) -> None:
    expected = trace[address].tolist()
    typed = json.loads(tinytf("trace", TEXT, "--at", address, "--json").out)["values"]
    session = talk()
    session(f'run "{TEXT}"')
    shown = json.loads(session(f"print {address} /json"))["values"]
    for found in (typed, shown):
        numbers = np.stack([np.array(one["values"], dtype=float) for one in found.values()])
        numbers = np.where(np.isnan(numbers), 0.0, numbers)  # null where a weight is masked
        assert np.allclose(numbers.reshape(-1), np.array(expected, dtype=float).reshape(-1), atol=1e-6)
    assert tinytf("trace", TEXT, "--at", address).status == 0
    for form in ("", " /shape", " /stats"):
        session(f"print {address}{form}")
    session(f"heat {address}")


def test_rows_and_columns_are_named_by_their_own_places(tinytf: Tinytf) -> None:
    shown = tinytf("trace", TEXT, "--at", "L0,2H1,3.weights[cat#2,3:5]").lines
    rows = [line.split()[:2] for line in shown if re.match(r"  L\d H\d ", line)]
    assert rows == [["L0", "H1"], ["L0", "H3"], ["L2", "H1"], ["L2", "H3"]]
    assert any(line.split()[:2] == ["·on", "·the"] for line in shown)
    (head, *lines) = tinytf("trace", TEXT, "--at", "L1H0.weights[-2:,::3]", "--format", "csv").lines
    assert head.split(",")[1:] == ["0 The", "3 ·on"]
    assert [line.split(",")[0] for line in lines] == ["4 ·the", "5 ·cat"]


@pytest.mark.parametrize(
    ("address", "canonical"),
    [
        ("L-1.out[-1,0]", "L3.out[5,0]"),
        ("L0H-1.weights[cat#2,cat#1]", "L0H3.weights[5,1]"),
        ("logits[-1,·on]", None),
        ("logits[cat#2,#5]", "logits[5,5]"),
        ("blocks.0.attn.hook_q[5,1,3]", "L0H1.q[5,3]"),
        ("L1.attn.hook_pattern[-1,2,0]", "L1H3.weights[2,0]"),
    ],
)
def test_one_cell_is_explained_by_the_same_words(
    address: str, canonical: str | None, tinytf: Tinytf, talk: Callable[..., Talk], trace: Trace
) -> None:
    (found,) = json.loads(tinytf("explain", address, TEXT, "--json").out)["explanations"]
    assert found["recorded"] == pytest.approx(float(trace[address]), abs=1e-6)
    assert canonical in (None, found["address"])
    session = talk()
    session(f'run "{TEXT}"')
    assert found["address"] in session(f"explain {address}")


@pytest.mark.parametrize("address", ["L0H1.weights[0:2,0]", "blocks.0.attn.hook_q[0:2]", "L0,1H0.q[0,0]"])
def test_several_cells_are_not_explained(address: str, tinytf: Tinytf) -> None:
    ran = tinytf("explain", address, TEXT)
    assert ran.status == 2
    assert "one number is explained at a time" in ran.err


@always
@given(st.data())
def test_a_list_of_layers_is_what_it_says(data: st.DataObject) -> None:
    words, expected = data.draw(some(9))
    assert list(numbers_in(words, 9, "layer")) == expected
    if words != "*":
        assert list(positions_in(words, ["·x"] * 9)) == expected


@always
@given(st.text(alphabet="L0123-*,H.[]:#qinweights ·", max_size=14))
def test_any_words_are_an_address_that_is_printed_as_it_is_read_or_are_refused(text: str) -> None:
    trace = _trace()
    with suppress(AddressError):
        where = parse_any(text, trace.steps)
        assert replace(parse_any(str(where), trace.steps), note="") == replace(where, note="")


@pytest.mark.parametrize(
    ("words", "places"),
    [("cat#2", (5,)), ("cat#1,0", (1, 0)), ("-2--1", (4, 5)), ("0:2", (0, 1)), ("on,0-1", (3, 0, 1)),
     ("all", (0, 1, 2, 3, 4, 5))],
)  # fmt: skip
def test_positions_of_an_option_are_words_of_the_same_grammar(
    words: str, places: tuple[int, ...], trace: Trace
) -> None:
    assert trace.positions(words) == places


def test_a_session_completes_the_words_of_a_cell_and_the_names_of_transformer_lens(talk: Callable[..., Talk]) -> None:
    from tinytf_cli.repl.completing import find_offers

    session = talk()
    session(f'run "{TEXT}"')

    def offers(line: str) -> list[str]:
        return [one.word for one in find_offers(session.session, line)[1]]

    assert {"L0H0.weights[cat#1,", "L0H0.weights[cat#2,"} <= set(offers("print L0H0.weights[cat"))
    assert "L-1" in offers("print L-")
    assert "L0,2.weights" in offers("print L0,2.we")
    assert {"blocks.0.attn.hook_q", "blocks.3.attn.hook_q"} <= set(offers("print blocks."))
    assert offers("print L1.attn.hook_p") == ["L1.attn.hook_pattern"]
    assert "hook_embed" in offers("print hook_e")
