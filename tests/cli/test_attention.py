"""The attention command on weights that are known beforehand: identity, previous token, uniform."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import config_of, encoding_of, lively
from driving import SENTENCE, Tinytf, digits, is_a_clean_error

from tinytf.loading import Model, load
from tinytf.look.heads.measures import MEASURES, measure_heads
from tinytf.trace.record import record
from tinytf.trace.trace import Trace
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.attention import AttentionDisplay, thumbnails
from tinytf_cli.views.draw import blocks_of


class Known(Trace):
    """A trace whose weights are put in by hand; everything else is that of a real one."""

    weights: torch.Tensor

    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> torch.Tensor:
        if name == "weights":
            return self.weights[layer] if heads is None else self.weights[layer][list(heads)]
        return super().step(name, layer, heads)


@pytest.fixture
def known(opened: Model) -> Known:
    """Four heads: identity, previous token, uniform over what is visible, all on the first token."""
    real = opened.trace("The cat sat on")
    count = len(real.tokens)
    identity = torch.eye(count)
    previous = torch.eye(count).roll(-1, 1)
    previous[0] = torch.eye(count)[0]
    uniform = torch.ones(count, count).tril()
    first = torch.zeros(count, count)
    first[:, 0] = 1
    trace = Known(real.model, real.encoding, real.recording)
    # Rolling by one column makes row i the unit vector i - 1.
    trace.weights = torch.stack(
        [torch.stack([identity, previous]), torch.stack([uniform / uniform.sum(-1, keepdim=True), first])]
    )
    assert trace.weights.sum(-1).allclose(torch.ones(()))
    return trace


def test_the_measures_are_those_of_a_hand_calculation(known: Known) -> None:
    t = len(known.tokens)
    expected = {
        # identity, previous, uniform over i + 1 keys, first
        "entropy": [0, 0, sum(math.log(i + 1) for i in range(t)) / t, 0],
        "distance": [0, (t - 1) / t, sum(i / 2 for i in range(t)) / t, sum(range(t)) / t],
        "previous": [0, 1, sum(1 / (i + 1) for i in range(1, t)) / (t - 1), 1 / (t - 1)],
        "first": [0, 1 / (t - 1), sum(1 / (i + 1) for i in range(1, t)) / (t - 1), 1],
        "self": [1, 1 / t, sum(1 / (i + 1) for i in range(t)) / t, 1 / t],
    }
    assert set(expected) == set(MEASURES)
    for by, values in expected.items():
        assert measure_heads(known, by).flatten().tolist() == pytest.approx(values, abs=1e-6), by


def test_json_derives_the_weights_of_a_layer_once_for_all_measures(known: Known, opened: Model) -> None:
    asked: list[int | None] = []

    class Counted(Known):
        def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> torch.Tensor:
            asked.extend([layer] if name == "weights" and heads is None else [])
            return super().step(name, layer, heads)

    trace = Counted(known.model, known.encoding, known.recording)
    trace.weights = known.weights
    measures = opened.attention(trace).to_dict()["measures"]
    assert asked == [0, 1]
    assert measures == {by: measure_heads(known, by).tolist() for by in MEASURES}


def _drawn(model: Model, trace: Trace, by: str, width: int = 100) -> list[str]:
    terminal = Terminal(width)
    return list(paint(blocks_of(model.attention(trace), terminal, AttentionDisplay(by)), terminal))


@pytest.mark.parametrize("by", MEASURES)
def test_the_overview_shows_the_measure_of_every_head(opened: Model, known: Known, by: str) -> None:
    lines = _drawn(opened, known, by)
    rows = [line for line in lines if re.match(r"  L\d ", line)]
    shown = [[float(n) for n in re.findall(r"\d\.\d\d", row)] for row in rows]
    assert torch.tensor(shown).sub(measure_heads(known, by)).abs().max() <= 0.005 + 1e-6


def test_top_is_in_order_without_masked_cells(opened: Model, known: Known) -> None:
    (head,) = opened.attention(known, heads=((1, 0),), top=5).to_dict()["heads"]
    uniform = {(q, k): 1 / (q + 1) for q in range(len(known.tokens)) for k in range(q + 1)}
    shares = [share for _, _, share in head["top"]]
    assert shares == pytest.approx(sorted(uniform.values(), reverse=True)[:5])
    names = [token.shown for token in known.tokens]
    for query, key, share in head["top"]:
        q, k = int(query.split()[0]), int(key.split()[0])
        assert (query, key) == (f"{q} {names[q]}", f"{k} {names[k]}")
        assert share == pytest.approx(uniform[q, k])


def test_top_shows_no_more_pairs_than_there_are(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    count = len(opened.encode(SENTENCE).tokens)
    ran = tinytf("attention", SENTENCE, "-m", decoder, "--head", "L0H0", "--top", str(10**9))
    assert sum("→" in line for line in ran.lines) == count * (count + 1) // 2
    windowed = tinytf("attention", SENTENCE, "-m", decoder, "--head", "L0H0", "--top", "99", "--window", "2:4,0:2")
    assert sum("→" in line for line in windowed.lines) == 4


def test_a_row_has_the_weights_of_its_query(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    trace = opened.trace(SENTENCE)
    names = [token.shown for token in trace.tokens]
    query = names.index("·sat")
    weights = trace["L1H0.weights"][query]
    for word in (str(query), "sat", "·sat", "SAT", str(query - len(names))):
        ran = tinytf("attention", SENTENCE, "-m", decoder, "--head", "L1H0", "--row", word)
        shown = [line.split()[:3] for line in ran.lines if re.match(r"  \d+ \S+ +\d\.\d{3}", line)]
        assert shown == [[str(k), names[k], f"{float(weights[k]):.3f}"] for k in range(query + 1)]
        (head,) = json.loads(
            tinytf("attention", SENTENCE, "-m", decoder, "--head", "L1H0", "--row", word, "--json").out
        )["heads"]
        assert head["query"] == query
        assert head["weights"] == [*digits(weights[: query + 1].tolist()), *[None] * (len(names) - query - 1)]


@pytest.mark.parametrize(
    ("window", "expected"),
    [("1:3,0:2", (1, 3, 0, 2)), ("2:4", (2, 4, 2, 4)), (":2,1:", (0, 2, 1, None)), (":", (0, None, 0, None))],
)
def test_a_window_is_a_slice_of_the_weights(
    tinytf: Tinytf, decoder: Path, opened: Model, window: str, expected: tuple[int, int | None, int, int | None]
) -> None:
    weights = opened.trace(SENTENCE)["L0H1.weights"]
    weights = weights.masked_fill(torch.ones_like(weights).triu(1).bool(), math.nan)
    arguments = ["attention", SENTENCE, "-m", decoder, "--head", "L0H1", "--window", window]
    (head,) = json.loads(tinytf(*arguments, "--json").out)["heads"]
    q0, q1, k0, k1 = expected
    wanted = [[None if math.isnan(v) else v for v in row] for row in digits(weights[q0:q1, k0:k1].tolist())]
    assert head["weights"] == wanted
    assert head["queries"] == [q0, q1 or len(weights)]
    assert head["keys"] == [k0, k1 or len(weights)]
    text = tinytf(*arguments).out
    numbers = re.findall(r"\d\.\d{3}", text[text.index("L0H1.weights") :])
    assert numbers == [f"{v:.3f}" for row in wanted for v in row if v is not None]


@pytest.mark.parametrize(
    ("address", "heads"),
    [("L1H1", [(1, 1)]), ("L0", [(0, 0), (0, 1)]), ("L*H0", [(0, 0), (1, 0)]), ("L1H0.weights", [(1, 0)]),
     ("L0-1H*", [(0, 0), (0, 1), (1, 0), (1, 1)])],
)  # fmt: skip
def test_heads_are_chosen_by_address(tinytf: Tinytf, decoder: Path, address: str, heads: list[tuple[int, int]]) -> None:
    data = json.loads(tinytf("attention", SENTENCE, "-m", decoder, "--head", address, "--json").out)
    assert [(one["layer"], one["head"]) for one in data["heads"]] == heads
    lines = tinytf("attention", SENTENCE, "-m", decoder, "--head", address).lines
    assert [line.split()[0] for line in lines if re.match(r"L\d+H\d+\.weights", line)] == [
        f"L{layer}H{head}.weights" for layer, head in heads
    ]


def test_one_token_has_no_previous_one_and_says_nan(tinytf: Tinytf, decoder: Path) -> None:
    for by in MEASURES:
        ran = tinytf("attention", "a", "-m", decoder, "--by", by)
        assert (ran.status, ran.err) == (0, "")
        assert ("nan" in ran.out) == (by in ("previous", "first"))


def test_what_the_overview_names_is_there_where_layer_0_has_no_attention(tinytf: Tinytf) -> None:
    model = ("-m", "preset:qwen3.5-tiny")
    shown = " ".join(tinytf("attention", SENTENCE, *model).out.split())
    assert "larger: --head L3H0, --layer 3" in shown
    assert tinytf("attention", SENTENCE, *model, "--head", "L3H0").status == 0
    assert tinytf("attention", SENTENCE, *model, "--layer", "3").status == 0
    assert is_a_clean_error(tinytf("attention", SENTENCE, *model, "--layer", "0"))


def test_an_encoder_has_no_masked_cell(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("attention", SENTENCE, "-m", encoder, "--head", "L0H0", "--json")
    (head,) = json.loads(ran.out)["heads"]
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in head["weights"])
    assert "masked" not in tinytf("attention", SENTENCE, "-m", encoder, "--head", "L0H0").out


def test_grouped_heads_are_all_there(tinytf: Tinytf) -> None:
    data = json.loads(tinytf("attention", SENTENCE, "-m", "preset:llama-tiny", "--json", "--truncate").out)
    assert len(data["measures"]["entropy"]) == 4
    assert {len(row) for row in data["measures"]["entropy"]} == {8}


def test_thumbnails_show_each_layer_through_its_own_window() -> None:
    model = lively(config_of("gemma 2, norms around each part and windows by layer"))
    seen = thumbnails(record(model, encoding_of([3, 14, 15, 9, 2, 6, 5]))).visible
    causal = np.tri(7, dtype=bool)
    assert [np.array_equal(one, causal) for one in seen] == [False, True]
    assert np.array_equal(seen[0], causal & ~np.tri(7, k=-4, dtype=bool))


# Multi-head attention of a layer.


def test_the_heads_of_a_layer_are_drawn_with_their_shapes_and_joined(tinytf: Tinytf) -> None:
    text = "The cat lost the red ball"
    data = json.loads(tinytf("attention", text, "--layer", "1", "--json").out)
    lines = tinytf("attention", text, "--layer", "1", "--width", "80").lines
    start = next(place for place, line in enumerate(lines) if line.startswith("attention L1   of 4"))
    drawn = lines[start + 1 : lines.index("", start)]
    (layer,) = data["layers"]
    order = sorted(range(4), key=lambda head: -layer["heads"][head])
    (heads,) = (re.findall(r"H(\d)", line) for line in drawn if "H0" in line)
    assert [int(head) for head in heads] == order
    (adds,) = (line.split()[3:] for line in drawn if "adds" in line)
    assert adds == [f"{layer['heads'][head]:.2f}" for head in order]
    (taken,) = (line for line in drawn if "takes" in line)
    assert taken.split("takes ")[1].split() == ["(6,", "32)", *(f"{one}{head}" for head in order for one in "qkv")]
    branches, joins = (next(line for line in drawn if sign in line) for sign in "┬┴")
    assert [place for place, sign in enumerate(branches) if sign in "┬╮"] == [
        place for place, sign in enumerate(joins) if sign in "┴╯"
    ]
    assert drawn[-2].endswith("concat (6, 128) · W_O (128, 128) = attn      (6, 128)")
    assert all(len(line) <= 80 for line in drawn)


def test_shared_keys_and_values_and_heads_that_do_not_fit_are_said(opened: Model) -> None:
    model = Model(
        "grouped", lively(config_of("llama, grouped", vocab_size=opened.config.vocab_size)), opened.tokenizer, ""
    )
    found = model.attention("The cat sat", layer=1)
    for terminal in (Terminal(80), Terminal(80, "truecolor", cuts=True), Terminal(80, plain=True)):
        text = "\n".join(paint(blocks_of(found, terminal), terminal))
        bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert set(re.findall(r"q\d k\d v\d", bare)) == {"q0 k0 v0", "q1 k0 v0", "q2 k1 v1", "q3 k1 v1"}
    narrow = list(paint(blocks_of(found, Terminal(50)), Terminal(50)))
    assert any("3 of 4, those that add most; --head L1H*" in line for line in narrow)
    assert sum(len(re.findall(r"q\d k\d v\d", line)) for line in narrow) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--layer", "4"), "there is no layer 4"),
        (("--layer", "0", "--head", "L0H0"), "--layer draws every head of a layer"),
    ],
)
def test_a_layer_that_cannot_be_drawn_is_one_line(tinytf: Tinytf, options: tuple[str, ...], said: str) -> None:
    ran = tinytf("attention", "The cat sat", *options)
    assert ran.status == 2
    assert said in ran.err


def test_a_model_without_attention_is_refused_before_anything_is_drawn(tinytf: Tinytf) -> None:
    ran = tinytf("attention", "The cat", "--model", "preset:mamba-tiny")
    assert (ran.status, ran.out) == (2, "")
    assert "no layer of this model has attention weights" in ran.err


@pytest.mark.parametrize("option", [("--row", "cat"), ("--top", "2"), ("--window", "1:3")])
def test_without_a_head_the_one_that_adds_most_is_shown(
    tinytf: Tinytf, decoder: Path, opened: Model, option: tuple[str, str]
) -> None:
    layer, head = divmod(int(opened.attribute(SENTENCE).heads().argmax()), opened.config.n_heads)
    shown = json.loads(tinytf("attention", SENTENCE, "-m", decoder, *option, "--json").out)["heads"]
    assert [(one["layer"], one["head"]) for one in shown] == [(layer, head)]


@pytest.mark.parametrize("options", [(), ("--head", "L0H1")], ids=["all heads", "a head"])
@pytest.mark.parametrize("text", ["The", "The cat", "The cat sat"])
def test_texts_of_any_length_have_a_sentence(tinytf: Tinytf, text: str, options: tuple[str, ...]) -> None:
    first = tinytf("attention", text, "-m", "tiny", *options).lines[0]
    assert re.search("every head can look at it alone|look|rests", first), first


def test_of_two_tokens_it_counts_the_heads_that_look_back(tinytf: Tinytf) -> None:
    trace = load("tiny").trace("The cat")
    back = sum(bool(trace[f"L{layer}H{head}.weights"][1, 0] > 0.5) for layer in range(4) for head in range(4))
    said = tinytf("attention", "The cat", "-m", "tiny").lines[0]
    assert said == f"{back} of 16 heads look from ·cat more at The than at ·cat itself."
