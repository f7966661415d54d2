"""The same facts in every form: text, JSON, NDJSON, files of six kinds; the same bytes each time."""

import csv
import io
import json
import math
import re
import weakref
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pytest
import torch
from driving import SENTENCE, Tinytf, digits
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from tinytf.loading import Model, load
from tinytf.report import Report
from tinytf.trace.parameters import parse_any
from tinytf.trace.trace import Trace
from tinytf_cli import encodings
from tinytf_cli.output import Output
from tinytf_cli.terminal import detect

EXTENSIONS = ("txt", "json", "ndjson", "html", "svg", "safetensors")
WORDS = st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
VALUES = st.recursive(SCALARS, lambda inside: st.lists(inside, max_size=5) | st.dictionaries(WORDS, inside, max_size=3))


@pytest.fixture(scope="module")
def trace(opened: Model) -> Trace:
    return opened.trace(SENTENCE)


def as_json(tensor: torch.Tensor) -> Any:
    """What the documentation says of numbers in JSON: −∞ is null, NaN and +∞ are words, float32 has its own digits."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(part) for part in value]
        if math.isnan(value):
            return "NaN"
        if math.isfinite(value):
            return digits(value) if tensor.dtype == torch.float32 else value
        return "Infinity" if value > 0 else None

    return one(tensor.tolist())


def shown(trace: Trace, address: str) -> Any:
    """The tensor at an address as JSON has it: a masked weight is null, although the model has 0 there."""
    where, tensor = parse_any(address, trace.steps), trace[address]
    if where.step == trace.steps.by_name["weights"] and not where.cell and where.lens is None:
        tensor = tensor.masked_fill(torch.ones(tensor.shape[-2:]).triu(1).bool(), -math.inf)
    return as_json(tensor)


def test_json_of_a_trace_holds_the_tensors_of_the_library(tinytf: Tinytf, decoder: Path, trace: Trace) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder, "--layer", "1", "--head", "1", "--json")
    data = json.loads(ran.out)
    assert (data["schema_version"], data["kind"], data["text"]) == (3, "trace", SENTENCE)
    assert [token["id"] for token in data["tokens"]] == trace.encoding.ids
    assert set(data["values"]) == {
        f"L1{'H1' if step.has_heads else ''}.{step.name}" for step in trace.steps.layer_steps
    }
    for address, found in data["values"].items():
        assert found["values"] == shown(trace, address), address


def test_masked_cells_are_null_and_no_other_is(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--json").out)
    masked = data["values"]["L0H0.masked"]["values"]
    for query, row in enumerate(masked):
        assert [value is None for value in row] == [key > query for key in range(len(row))]
    assert "null" not in json.dumps(data["values"]["L0H0.scaled"]["values"])


def test_json_of_attention_has_null_where_a_weight_is_masked(tinytf: Tinytf, decoder: Path, trace: Trace) -> None:
    (head,) = json.loads(tinytf("attention", SENTENCE, "-m", decoder, "--head", "L1H0", "--json").out)["heads"]
    weights = trace["L1H0.weights"]
    expected = weights.masked_fill(torch.ones_like(weights).triu(1).bool(), -math.inf)
    assert head["weights"] == as_json(expected)


def test_the_steps_of_json_have_the_statistics_of_the_tensors(tinytf: Tinytf, decoder: Path, trace: Trace) -> None:
    steps = json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--json").out)["steps"]
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        if step["statistics"] is None or step["name"] in ("logits", "probs"):
            continue
        values = trace[step["name"]].detach().double()
        assert step["shape"] == list(values.shape)
        if step["name"].endswith((".masked", ".weights")):
            values = values[:, torch.ones(values.shape[-2:]).tril().bool()]
        figures = step["statistics"]
        assert figures["count"] == values.numel()
        assert figures["mean"] == pytest.approx(float(values.mean()), abs=1e-5)
        assert figures["std"] == pytest.approx(float(values.std(correction=0)), abs=1e-5)
        assert (figures["min"], figures["max"]) == digits((float(values.min()), float(values.max())))
        assert sum(figures["histogram"]) == figures["count"]


def test_predictions_are_the_softmax_of_the_last_logits(tinytf: Tinytf, decoder: Path, trace: Trace) -> None:
    (found,) = json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--json", "--top", "5").out)["predictions"]
    model, hidden = trace.model, trace.last_hidden
    logits = (hidden[-1] @ model.embed.tokens.weight.T).double()  # type: ignore[union-attr]
    probs, order = logits.softmax(-1).sort(descending=True)
    assert [one["id"] for one in found["top"]] == order[:5].tolist()
    assert [one["probability"] for one in found["top"]] == pytest.approx(probs[:5].tolist(), abs=1e-5)


def test_an_encoder_fills_each_mask(tinytf: Tinytf, encoder: Path) -> None:
    data = json.loads(tinytf("trace", "The [MASK] sat on the [MASK].", "-m", encoder, "--json").out)
    places = [token["index"] for token in data["tokens"] if token["shown"] == "[MASK]"]
    assert [one["position"] for one in data["predictions"]] == places
    assert len(places) == 2


@pytest.mark.parametrize(
    "address",
    ["L0.in", "L1H1.q", "L0-1H*.weights", "L*H0.scores", "L0.weights", "L1H0.weights[sat,cat]", "L0.mid[-1]",
     "L0.mid[2,3]", "L0H1.masked[0,1]", "embed.out", "final.norm", "logits", "probs[-1]", "logits[sat,5]",
     "blocks.1.attn.hook_pattern", "hook_embed", "L0-1.out[cat]"],
)  # fmt: skip
def test_every_kind_of_address_gives_what_the_library_gives(
    tinytf: Tinytf, decoder: Path, trace: Trace, address: str
) -> None:
    data = json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--at", address, "--json").out)
    ((name, found),) = data["values"].items()
    assert name == str(parse_any(address, trace.steps))
    assert found["values"] == shown(trace, address)
    assert tinytf("trace", SENTENCE, "-m", decoder, "--at", address).status == 0


def test_the_axes_of_json_say_what_the_values_are_nested_by(tinytf: Tinytf, decoder: Path) -> None:
    def depth(values: Any) -> int:
        return 1 + depth(values[0]) if isinstance(values, list) else 0

    for address in ("L0.in", "L0H0.q", "L0.q", "L0-1.q", "L0.in[0]", "L0.in[0,0]", "L0H0.weights[1,0]", "L0H*.k"):
        data = json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--at", address, "--json").out)
        ((_, found),) = data["values"].items()
        assert len(found["axes"]) == depth(found["values"]), address


def test_a_step_outside_the_layers_is_shown_once_with_full(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder, "--step", "embed.out", "--step", "weights", "--full")
    assert sum(line.startswith("embed.out ") for line in ran.lines) == 1
    assert sum(".weights " in line and "=" in line for line in ran.lines) == 2


def test_the_next_step_shows_the_prediction(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder, "--step", "next")
    (found,) = json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--json").out)["predictions"]
    assert found["top"][0]["token"] in ran.out
    assert f"{found['top'][0]['probability']:.3f}" in ran.out


@pytest.mark.parametrize("command", ["trace", "attention", "tokens"])
@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_ndjson_is_an_object_a_line_with_the_facts_of_json(
    tinytf: Tinytf, request: pytest.FixtureRequest, command: str, model: str
) -> None:
    arguments = [command, SENTENCE, "-m", request.getfixturevalue(model)]
    if command == "attention":
        arguments += ["--head", "L0"]
    data = json.loads(tinytf(*arguments, "--json").out)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    first = events[0]
    assert (first["type"], first["schema_version"]) == (command, data["schema_version"])
    assert (first["text"], first["model"]) == (data["text"], data["model"])
    of = lambda kind: [{k: v for k, v in e.items() if k != "type"} for e in events if e["type"] == kind]  # noqa: E731
    assert of("token") == data["tokens"]
    if command == "trace":
        assert of("step") == data["steps"]
        assert {e.pop("address"): e for e in of("values")} == data["values"]
        assert of("prediction") == data["predictions"]
    if command == "attention":
        assert of("head") == data["heads"]
        for one in of("measures"):
            layer, head = one.pop("layer"), one.pop("head")
            assert one == {by: values[layer][head] for by, values in data["measures"].items()}
    if command != "tokens":
        assert of("check") == [data["check"]]


def test_ndjson_of_info_has_a_line_for_every_component(tinytf: Tinytf) -> None:
    data = json.loads(tinytf("info", "preset:gpt2", "--json").out)
    first, *rest = [json.loads(line) for line in tinytf("info", "preset:gpt2", "--format", "ndjson").lines]
    assert first == {"type": "info", **{k: v for k, v in data.items() if k not in ("kind", "parameters")}}
    assert rest == [{"type": "component", **part} for part in data["parameters"]]


@pytest.mark.parametrize("command", ["trace", "attention", "tokens", "info"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_is_json_wherever_it_goes(tinytf: Tinytf, decoder: Path, command: str, encoding: str) -> None:
    arguments = [command, decoder] if command == "info" else [command, "The café 😀 坐", "-m", decoder]
    usual = tinytf(*arguments, "--json")
    for ran in (tinytf(*arguments, "--json", "--ascii"), tinytf(*arguments, "--json", encoding=encoding)):
        assert ran.data.isascii()
        assert json.loads(ran.out) == json.loads(usual.out)
    for line in tinytf(*arguments, "--format", "ndjson", "--ascii").lines:
        json.loads(line)


def test_a_text_from_the_argument_from_dash_and_from_a_pipe_is_the_same(tinytf: Tinytf, decoder: Path) -> None:
    for text in (SENTENCE, "two\nlines", " spaces around ", "café 坐"):
        from_argument = tinytf("tokens", text, "-m", decoder, "--json")
        for end in ("", "\n", "\r\n"):
            data = (text + end).encode()
            assert tinytf("tokens", "-m", decoder, "--json", stdin=data) == from_argument
            assert tinytf("tokens", "-", "-m", decoder, "--json", stdin=data) == from_argument
    several_words = tinytf("tokens", *SENTENCE.split(), "-m", decoder, "--json")
    assert several_words == tinytf("tokens", SENTENCE, "-m", decoder, "--json")


def test_a_text_that_starts_with_dashes_follows_two_dashes(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("tokens", "-m", decoder, "--json", "--", "--help me", "-x").out)
    assert data["text"] == "--help me -x"


LINES = "The cat sat\n\nThe dog ran\n   \nthe mat\n"
COMMANDS: dict[str, list[str]] = {
    "trace": ["trace", SENTENCE],
    "trace one step": ["trace", SENTENCE, "--step", "weights"],
    "attention": ["attention", SENTENCE],
    "one head": ["attention", SENTENCE, "--head", "L0H1"],
    "tokens": ["tokens", SENTENCE],
    "several texts": ["trace", LINES, "--lines", "--pipeline"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_file_and_a_redirected_stream_agree(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, arguments: list[str]
) -> None:
    for extension, options in (("txt", []), ("json", ["--json"]), ("ndjson", ["--format", "ndjson"])):
        path = tmp_path / f"out.{extension}"
        assert tinytf(*arguments, "-m", decoder, "-o", path).status == 0
        assert path.read_bytes() == tinytf(*arguments, "-m", decoder, *options).data, extension


@pytest.mark.share(4)
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_the_same_command_twice_gives_the_same_bytes(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, extension: str
) -> None:
    for name in ("trace", "attention", "several texts"):
        written = []
        for path in (tmp_path / f"one.{extension}", tmp_path / f"two.{extension}"):
            assert tinytf(*COMMANDS[name], "-m", decoder, "-o", path).status == 0
            written.append(path.read_bytes())
        assert written[0] == written[1]


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_an_extension_in_capitals_says_the_same_format(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, extension: str
) -> None:
    small, capital = tmp_path / f"a.{extension}", tmp_path / f"b.{extension.upper()}"
    for path in (small, capital):
        assert tinytf("attention", SENTENCE, "-m", decoder, "-o", path).status == 0
    assert small.read_bytes() == capital.read_bytes()


def test_safetensors_hold_the_recorded_tensors_under_their_step_names(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, trace: Trace
) -> None:
    path = tmp_path / "out.safetensors"
    tinytf("trace", SENTENCE, "-m", decoder, "-o", path)
    tensors = load_file(path)
    recorded = {step.full_name(layer) for step, layer in trace.steps.rows if step.recorded and step.is_tensor}
    assert set(tensors) == recorded | {"ids"}
    assert tensors.pop("ids").tolist() == trace.encoding.ids
    assert torch.equal(tensors.pop("logits"), trace.recorded_logits)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, trace[name]), name


def test_safetensors_of_attention_hold_the_weights(tinytf: Tinytf, decoder: Path, tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "out.safetensors"
    tinytf("attention", SENTENCE, "-m", decoder, "-o", path)
    tensors = load_file(path)
    assert set(tensors) == {"L0.weights", "L1.weights"}
    assert all(torch.equal(tensor, trace[name]) for name, tensor in tensors.items())
    tinytf("attention", SENTENCE, "-m", decoder, "--head", "L1H0", "-o", path)
    tensors = load_file(path)
    assert set(tensors) == {"L1H0.weights"}
    assert torch.equal(tensors["L1H0.weights"], trace["L1H0.weights"])


class _Page(HTMLParser):
    """The text of a page; every tag that is opened has to be closed."""

    VOID = ("meta", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_pictures_are_well_formed_and_hold_the_words_of_the_view(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, arguments: list[str]
) -> None:
    svg, html = tmp_path / "a.svg", tmp_path / "a.html"
    for path in (svg, html):
        assert tinytf(*arguments, "-m", decoder, "-o", path).status == 0
    drawn = "".join(element.text or "" for element in ElementTree.parse(svg).iter()).replace("\xa0", " ")
    page = _Page()
    page.feed(html.read_text("utf-8"))
    page.close()
    assert page.open == []
    for word in ("decoder", "L0" if arguments[0] != "tokens" else "·cat"):
        assert word in drawn
        assert word in page.text


def test_the_html_of_a_view_has_every_line_of_the_screen(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    tinytf("trace", SENTENCE, "-m", decoder, "-o", path, "--width", "100")
    page = _Page()
    page.feed(path.read_text("utf-8"))
    screen = tinytf("trace", SENTENCE, "-m", decoder, "--width", "100", "--color", "always", screen=True).lines
    from rich.text import Text

    drawn = {line.rstrip() for line in page.text.splitlines()}
    assert [line for line in (Text.from_ansi(one).plain.rstrip() for one in screen) if line not in drawn] == []


@pytest.mark.parametrize("command", ["trace", "attention", "tokens"])
def test_lines_are_texts_of_their_own(tinytf: Tinytf, decoder: Path, tmp_path: Path, command: str) -> None:
    arguments = [command, LINES, "--lines", "-m", decoder]
    texts = [line for line in LINES.splitlines() if line.strip()]
    alone = [json.loads(tinytf(command, text, "-m", decoder, "--json").out) for text in texts]
    data = json.loads(tinytf(*arguments, "--json").out)
    kind = data["kind"]
    assert (data["schema_version"], data[kind]) == (3, alone)
    streamed = tinytf(*arguments).out
    separately = [tinytf(command, text, "-m", decoder).out for text in texts]
    assert streamed == "\n".join(separately)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert events == [
        {**json.loads(line), "result": number}
        for number, text in enumerate(texts)
        for line in tinytf(command, text, "-m", decoder, "--format", "ndjson").lines
    ]
    if command != "tokens":
        path = tmp_path / "a.safetensors"
        tinytf(*arguments, "-o", path)
        names = {name.split("/")[0] for name in load_file(path)}
        assert names == {"0", "1", "2"}


def test_one_line_has_the_shape_of_several(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    """A script that reads --lines must not care how many lines there are."""
    data = json.loads(tinytf("tokens", "-m", decoder, "--lines", "--json", stdin=b"The cat\n").out)
    assert data["kind"] == "texts"
    assert len(data["texts"]) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_every_width_of_number_adds_up(tinytf: Tinytf, request: pytest.FixtureRequest, dtype: str, model: str) -> None:
    folder = request.getfixturevalue(model)
    for text in (SENTENCE, "a", "The dog saw the big cat.", "cat cat cat cat"):
        ran = tinytf("trace", text, "-m", folder, "--dtype", dtype, "--json", "--pipeline")
        data = json.loads(ran.out)
        assert data["model"]["dtype"] == dtype
        assert data["check"]["holds"], data["check"]
        assert ran.status == 0


def test_float64_agrees_with_float32(tinytf: Tinytf, decoder: Path) -> None:
    wide = load(str(decoder), device="cpu", dtype="float64").trace(SENTENCE)
    data = json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--at", "L1.out", "--dtype", "float64", "--json").out)
    assert data["values"]["L1.out"]["values"] == wide["L1.out"].tolist()
    narrow = load(str(decoder), device="cpu").trace(SENTENCE)
    torch.testing.assert_close(narrow["L1.out"].double(), wide["L1.out"], atol=1e-4, rtol=1e-4)


def test_json_gives_float32_back_to_the_last_bit_with_no_more_digits(
    tinytf: Tinytf, decoder: Path, trace: Trace
) -> None:
    """Each number is the shortest decimal whose float32 is the model's: what numpy prints for that float32."""
    ran = tinytf("trace", SENTENCE, "-m", decoder, "--at", "L1.out", "--json")
    written = re.search(r'"L1.out": \{.*?"values": (\[\[.*?\]\])', ran.out)
    assert written is not None
    words = re.findall(r"[-+.0-9e]+", written[1])
    expected = trace["L1.out"].numpy().ravel()
    assert np.array_equal(np.array([np.float32(word) for word in words]), expected)
    assert [float(word) for word in words] == [float(str(number)) for number in expected]
    assert max(map(len, words)) <= len("-1.12345678e-05")


def test_json_of_a_float64_model_has_all_digits(tinytf: Tinytf, decoder: Path) -> None:
    """Also of weights, which float32 would hold."""
    wide = load(str(decoder), device="cpu", dtype="float64")
    for form in ("json", "ndjson"):
        out = tinytf("trace", "-m", decoder, "--at", "L0.W_Q", "--dtype", "float64", "--as", "table", "--format", form)
        assert repr(float(wide.parameters(["L0.W_Q"]).found[0].values[0, 0])) in out.out


def test_the_heads_and_layers_of_a_list_keep_their_numbers(tinytf: Tinytf) -> None:
    csv = tinytf("trace", SENTENCE, "--at", "L1H1,3.q[0,0]", "--format", "csv")
    rows = [line.rsplit(",", 2)[1:] for line in csv.lines[1:]]
    assert [head for head, _ in rows] == ["1", "3"]
    expected = load("tiny").trace(SENTENCE)["L1H1,3.q[0,0]"]
    assert torch.equal(torch.tensor([float(value) for _, value in rows]), expected)
    drawn = tinytf("trace", SENTENCE, "--at", "L0,-1H1,3.q[0,0:2]").lines
    assert [line.split()[:2] for line in drawn if line.startswith("  L")] == [
        ["L0", "H1"], ["L0", "H3"], ["L3", "H1"], ["L3", "H3"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "kind", "places"),
    [
        (["score"], "token_score", "index"),
        (["neurons", "--top", "1"], "active", "position"),
        (["attention", "--head", "L0H0", "--row", "1"], "head", "query"),
        (["rollout"], "position", "query"),
    ],
)
def test_a_row_of_ndjson_says_which_text_and_which_token(
    tinytf: Tinytf, decoder: Path, opened: Model, arguments: list[str], kind: str, places: str
) -> None:
    texts = ["The cat sat", "A dog ran on"]
    given = "\n".join(texts).encode()
    lines = tinytf(*arguments, "--lines", "-m", decoder, "--format", "ndjson", stdin=given).lines
    rows = [one for one in map(json.loads, lines) if one["type"] == kind]
    assert {one["result"] for one in rows} == {0, 1}
    for row in rows:
        assert row["shown"] == opened.encode(texts[row["result"]]).tokens[row[places]].shown
    table = tinytf(*arguments, "--lines", "-m", decoder, "--format", "csv", stdin=given).lines
    assert ("shown" in table[0].split(",")) == (arguments[0] in ("score", "neurons"))


def test_the_lens_names_the_token_that_it_stands_at(tinytf: Tinytf, decoder: Path, trace: Trace) -> None:
    stages = json.loads(tinytf("lens", SENTENCE, "-m", decoder, "--json").out)["stages"]
    for stage in stages:
        assert [one["shown"] for one in stage["at"]] == [trace.tokens[one["position"]].shown for one in stage["at"]]


def test_every_form_of_a_map_is_read_back_as_the_same_facts(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, trace: Trace
) -> None:
    """Numbers to the last bit of float32, text, tokens and axes; a picture and a text have the numbers in short."""
    address = "L1H1.weights"
    hidden = np.triu(np.ones((len(trace.tokens),) * 2, dtype=bool), 1)
    expected = np.where(hidden, -np.inf, trace[address].numpy())
    shown = [token.shown for token in trace.tokens]

    def written(extension: str) -> Path:
        path = tmp_path / f"map.{extension}"
        assert tinytf("trace", SENTENCE, "-m", decoder, "--at", address, "-o", path).status == 0
        return path

    def array(rows: list[list[Any]]) -> np.ndarray[Any, Any]:
        return np.array([[-np.inf if cell in (None, "") else np.float32(cell) for cell in row] for row in rows])

    data = json.loads(written("json").read_text("utf-8"))
    events = [json.loads(line) for line in written("ndjson").read_text("utf-8").splitlines()]
    (values,) = [event for event in events if event["type"] == "values"]
    for found, tokens, text in (
        (data["values"][address], data["tokens"], data["text"]),
        (values, [event for event in events if event["type"] == "token"], events[0]["text"]),
    ):
        assert np.array_equal(array(found["values"]), expected)
        assert (found["axes"], [one["shown"] for one in tokens], text) == (["query", "key"], shown, SENTENCE)
    corner, *keys = (rows := list(csv.reader(written("csv").open(encoding="utf-8"))))[0]
    assert (corner, keys) == ("query/key", [f"{place} {word}" for place, word in enumerate(shown)])
    assert np.array_equal(array([row[1:] for row in rows[1:]]), expected)
    with safe_open(written("safetensors"), "np") as file:
        said = json.loads(file.metadata()["tinytf"])
        assert np.array_equal(np.where(hidden, -np.inf, file.get_tensor(address)), expected)
    assert (said["text"], [one["shown"] for one in said["tokens"]]) == (SENTENCE, shown)
    assert said["axes"][address] == ["query", "key"]
    page = _Page()
    page.feed(written("html").read_text("utf-8"))
    drawn = "".join(element.text or "" for element in ElementTree.parse(written("svg")).iter())
    for picture in (written("txt").read_text("utf-8"), page.text, drawn):
        assert all(word in picture for word in shown)
        assert all(f"{weight:.3f}" in picture for weight in expected[~hidden])


@given(st.dictionaries(WORDS, VALUES, max_size=3), st.integers(1, 5))
def test_json_in_pieces_is_the_json_of_the_whole(data: dict[str, Any], size: int) -> None:
    def lazy(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: lazy(member) for name, member in value.items()}
        return map(lazy, value) if isinstance(value, list) else value

    with patch.object(encodings, "_PIECE", size), patch.object(encodings, "_AT_ONCE", size):
        pieces = [*encodings.json_pieces(lazy(data), wide=True)]
    assert json.loads("".join(pieces)) == data
    assert "".join(pieces) == encodings.to_json(data, wide=True)


@dataclass(frozen=True, kw_only=True)
class Answer(Report):
    """A report of one row, the last of which has a column that the others lack."""

    KIND = "answer"
    EVENTS: ClassVar = {"rows": "row"}
    number: int

    def fields(self) -> dict[str, Any]:
        late = {"late": 1.5} if self.number == 49 else {}
        return {"rows": [{"value": self.number, "word": "a,b", **late}]}


@pytest.mark.parametrize("name", ["json", "csv", "markdown", "ndjson", "a.json", "a.csv", "a.md", "a.ndjson"])
def test_no_report_is_kept_once_it_is_written(name: str, tmp_path: Path) -> None:
    """However many texts there are, the answers to a few are in memory."""
    alive: list[weakref.ref[Answer]] = []
    most = 0

    def answers() -> Iterator[Answer]:
        nonlocal most
        for number in range(50):
            report = Answer(number=number)
            alive.append(weakref.ref(report))
            yield report
            most = max(most, sum(one() is not None for one in alive))

    stream, file = io.StringIO(), tmp_path / name if "." in name else None
    form = {"md": "markdown"}.get(name.split(".")[-1], name.split(".")[-1])
    output = Output(detect(stream), form, file, stdout=stream, stderr=None)
    assert output.draw_all(answers(), "answers", lines=True) == 0
    written = stream.getvalue() if file is None else file.read_text("utf-8")
    if form == "json":
        values = [answer["rows"][0]["value"] for answer in json.loads(written)["answers"]]
        assert values == list(range(50))
    if form == "csv":
        rows = list(csv.reader(io.StringIO(written)))
        assert rows[0] == ["result", "value", "word", "late"]
        assert rows[1:] == [[str(i), str(i), "a,b", "1.5" if i == 49 else ""] for i in range(50)]
    assert most <= 3
