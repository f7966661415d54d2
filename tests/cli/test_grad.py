"""tinytf grad: what it draws, its data, and what it refuses."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import asked, config_of, lively
from driving import SENTENCE, Tinytf, digits
from safetensors.torch import load_file

from tinytf.checkpoints.run import save_run
from tinytf.loading import load
from tinytf.model.transformer import Transformer
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.stack import stack_blocks


def test_the_whole_view_has_loss_pipeline_block_and_check(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("grad", SENTENCE, "--model", decoder, "--all", "--layer", "1", "--head", "1")
    assert ran.status == 0, ran.err
    assert "block L1, head 1" in ran.out
    assert re.search(r"loss +\d+\.\d{4} nats, mean of \d+ cross-entropies", ran.out)
    order = [ran.out.index(f"∂{name} ") for name in ("logits", "L1.out", "L1.weights", "L0.in", "embed.tokens")]
    assert order == sorted(order)
    assert "∂loss/∂L1H1.weights   ∂weights = ∂head_out·vᵀ" in ran.out
    assert "checked: by hand" in ran.lines[-1] or "checked: by hand" in ran.lines[-2]


def test_the_data_are_the_gradients(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("grad", SENTENCE, "--model", decoder, "--at", "L1H1.weights", "--at", "L0.norm1[2]", "--json")
    data = json.loads(ran.out)
    trace = load(str(decoder)).grad(SENTENCE)
    assert data["kind"] == "grad"
    assert data["loss"] == pytest.approx(trace.loss)
    assert data["loss"] == pytest.approx(sum(one["loss"] for one in data["targets"]) / len(data["targets"]))
    for one in data["targets"]:
        assert one["loss"] == pytest.approx(-math.log(one["probability"]), rel=1e-5)
        own = next(g["gradient"] for g in one["logit_gradients"] if g["id"] == one["id"])
        assert own == pytest.approx((one["probability"] - 1) / len(data["targets"]), rel=1e-4)
    assert data["values"]["L1H1.weights"]["gradient"] == digits(trace.grad["L1H1.weights"].tolist())
    assert data["values"]["L0.norm1[2]"]["gradient"] == digits(trace.grad["L0.norm1[2]"].tolist())
    rows = {row["name"]: row for row in data["gradients"]}
    assert next(iter(rows)) == "probs"
    assert rows["L0.ffn"]["norm"] == pytest.approx(float(trace.grad["L0.ffn"].norm()), rel=1e-5)
    assert rows["L0.ffn"]["ratio"] == pytest.approx(
        float(trace.grad["L0.ffn"].norm() / trace["L0.ffn"].norm()), rel=1e-5
    )
    assert rows["L0.ffn"]["largest"] == pytest.approx(float(trace.grad["L0.ffn"].abs().max()))
    assert data["by_hand"]["holds"] is True
    assert all(row["by_hand"] is None or row["by_hand"] < 1e-5 for row in rows.values())


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("grad", SENTENCE, "--model", decoder, "--pipeline", "--json").out)
    events = [
        json.loads(line) for line in tinytf("grad", SENTENCE, "-m", decoder, "--pipeline", "--format", "ndjson").lines
    ]
    assert events[0]["type"] == "grad"
    assert events[-1]["type"] == "by_hand"
    assert [event["name"] for event in events if event["type"] == "gradient"] == [
        row["name"] for row in data["gradients"]
    ]


def test_a_derivation_ends_with_the_row_of_the_gradient(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("grad", SENTENCE, "-m", decoder, "--derive", "L1.norm1", "--derive", "L0H1.masked[3]")
    ran = tinytf(*arguments)
    assert "∂norm1 = ∂q·W_Qᵀ + ∂k·W_Kᵀ + ∂v·W_Vᵀ" in ran.out
    assert "∂masked = w ⊙ (g − Σ g⊙w)" in ran.out
    assert "backward" not in ran.out
    norm, masked = json.loads(tinytf(*arguments, "--json").out)["derivations"]
    trace = load(str(decoder)).grad(SENTENCE)
    assert norm["result"] == pytest.approx(trace.grad["L1.norm1"][norm["row"]].tolist(), abs=1e-7)
    assert masked["result"] == pytest.approx(trace.grad["L0H1.masked[3]"].tolist(), abs=1e-7)
    assert masked["inputs"]["w"] == pytest.approx(trace["L0H1.weights[3]"].tolist(), abs=1e-7)


def test_a_row_of_a_map_names_its_keys(tinytf: Tinytf) -> None:
    ran = tinytf("grad", SENTENCE, "--derive", "L0H1.masked[3]", "--dims", "2")
    heads = [line.split() for line in ran.lines if "all 6" in line]
    assert heads
    assert all(words[:2] == ["The", "·cat"] for words in heads)


def test_tensors_are_the_gradients_of_steps_and_parameters(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    assert tinytf("grad", SENTENCE, "-m", decoder, "--by", "parameter", "-o", tmp_path / "g.safetensors").status == 0
    stored = load_file(tmp_path / "g.safetensors")
    trace = load(str(decoder)).grad(SENTENCE)
    assert stored["L1.scores"].equal(trace.grad["L1.scores"])
    assert stored["blocks.0.attention.q.weight"].equal(trace.parameters["blocks.0.attention.q.weight"])


def test_an_encoder_masks_what_is_asked_for(tinytf: Tinytf) -> None:
    ran = tinytf("grad", SENTENCE, "-m", "tiny-encoder", "--positions", "3", "--pipeline")
    assert ran.status == 0, ran.err
    assert re.search(r"loss \d+\.\d{4} nats, \S+ at \[MASK\], p ", ran.out)


def test_on_80_columns_every_heading_of_the_outcome_is_whole(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = tinytf("grad", SENTENCE, "--all", "--integrated", "--color", "never", screen=True).lines
    for heading in ("targets", "backward", "flow", "tokens", "heads", "weights"):
        (line,) = (line for line in lines if line.startswith(f"{heading}   "))
        assert not line.endswith("…")


def picture(kind: str, most: int | None = None, **changes: Any) -> list[str]:
    """The stack of blocks of a kind of model, without its heading."""
    report = asked(lively(config_of(kind, **changes))).backward("3 14 15")
    _, *drawn = stack_blocks(report, most, rails=True)
    return [re.split(r"  +[0-9]", line.strip())[0] for line in paint(drawn, Terminal(100))][1:]


def test_the_stack_is_drawn_from_the_loss_down_with_branches_beside_the_stream() -> None:
    assert picture("gpt2", n_layers=1) == [
        "●    logits",
        "│    L0.out",
        "├─╮  feed-forward",
        "⊕─╯  L0.mid",
        "├─╮  attention",
        "⊕─╯  L0.in",
        "●    embed.tokens",
    ]
    side_by_side = picture("pythia, side by side and turned in part", n_layers=1)
    assert [line.split()[0] for line in side_by_side] == ["●", "│", "├─╮", "├─┼─╮", "⊕─┴─╯", "●"]
    assert picture("gpt-j, a norm for both", n_layers=1)[2] == "├─╮  attention and feed-forward"
    assert picture("gpt2", n_layers=1, norm_order="post")[2:4] == ["│    L0.sum", "├─╮  feed-forward"]


def test_a_deep_stack_is_drawn_with_a_gap_and_says_what_is_folded() -> None:
    *lines, folded = picture("gpt2", 3, n_layers=9)
    assert sum(line.endswith(".in") for line in lines) == 3
    assert {"⊕─╯  L8.in", "⊕─╯  L0.in"} <= set(lines)
    assert any(line.startswith("┊    L") for line in lines)
    assert folded.startswith("folded: 6 of 9 layers")
    assert sum(line.endswith(".in") for line in picture("gpt2", n_layers=9)) == 9


def test_in_sentences_nothing_is_drawn(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("grad", SENTENCE, "-m", decoder, "--plain")
    assert ran.status == 0
    assert not re.search("[░▒▓█▁▂▃]", ran.out)


def test_a_failed_check_is_status_1(tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tinytf.steps.operations import softmax

    right = softmax.softmax_gradient
    monkeypatch.setattr(softmax, "softmax_gradient", lambda g, weights: 1.001 * right(g, weights))
    ran = tinytf("grad", SENTENCE, "-m", decoder, "--pipeline")
    assert ran.status == 1
    assert "check failed: by hand and autograd differ" in ran.out
    assert "L1.masked" in ran.out.rpartition("check failed")[2] or "L0.masked" in ran.out.rpartition("check failed")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("The",), "with none after it to predict"),
        ((SENTENCE, "--target", "catastrophically"), "tokens: "),
        ((SENTENCE, "--positions", "99"), "there is no position 99"),
        ((SENTENCE, "--at", "L9.out"), "there is no layer 9"),
        ((SENTENCE, "--at", "L0H0.weights[99,0]"), "query 99 is out of range"),
        ((SENTENCE, "--derive", "L0-1.norm1"), "one is derived at a time"),
        ((SENTENCE, "--derive", "next"), "has no gradient"),
        ((SENTENCE, "--derive", "L0H1"), "it is a whole block"),
        ((SENTENCE, "--at", "L0.out", "--at", "tokens"), "tokens has no gradient"),
        ((SENTENCE, "--lr", "nan"), "nan is not more than 0"),
        ((SENTENCE, "--lr", "inf"), "inf is not at most 3.4e+38"),
        ((SENTENCE, "--layer", "-3"), "there is no layer -3"),
        ((SENTENCE, "--head", "7"), "there is no head 7"),
        (("",), "the text is empty"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("grad", *arguments, "-m", decoder)
    assert ran.status == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) <= 2
    assert not ran.out


def test_a_model_without_a_head_is_said_to_have_none_whatever_is_asked(tinytf: Tinytf) -> None:
    for arguments in (("The cat",), ("The cat", "--positions", "1"), ("The", "--target", "cat")):
        ran = tinytf("grad", *arguments, "-m", "preset:paper")
        assert ran.status == 2
        assert "this model has no language-model head" in ran.err


def test_in_7_bits_no_sign_of_a_formula_is_escaped(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("grad", SENTENCE, "-m", decoder, "--ascii", "--derive", "L1.mid", "--derive", "L0.ffn.hidden")
    assert ran.status == 0, ran.err
    assert ran.out.isascii()
    assert "\\u" not in ran.out
    assert "dmid = dout + " in ran.out


@pytest.mark.parametrize("address", ["embed.tokens", "L1.ffn.act", "L0.norm1"])
def test_the_result_of_a_derivation_has_the_name_of_its_formula(tinytf: Tinytf, decoder: Path, address: str) -> None:
    short = address.removeprefix("L1.").removeprefix("L0.")
    lines = tinytf("grad", SENTENCE, "-m", decoder, "--derive", address).lines
    assert any(line.startswith(f"  ∂{short} = ") for line in lines)
    assert re.match(rf"  ∂{re.escape(short)} ", lines[lines.index("  result") + 2])


@pytest.mark.parametrize("asked", ["--at", "--derive"])
def test_over_the_vocabulary_the_tokens_with_the_largest_gradients_are_named(
    tinytf: Tinytf, decoder: Path, asked: str
) -> None:
    trace = load(str(decoder)).grad(SENTENCE)
    ran = tinytf("grad", SENTENCE, "-m", decoder, asked, "logits[4]", "--dims", "3")
    lines = ran.lines
    note = next(place for place, line in enumerate(lines) if line.startswith("  the largest 3 of"))
    assert lines[note - 2].split()[0] == trace.tokens[5].shown
    assert f"{float(trace.grad['logits[4]'].min()):.3f}" in lines[note - 1].split()
    assert "the others are 0" in tinytf("grad", SENTENCE, "-m", decoder, asked, "probs[4]").out


def test_slow_parts_say_on_a_terminal_how_far_they_are(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinytf_cli.progress_line._SECONDS_BEFORE_THE_FIRST", 0.0)
    monkeypatch.setattr("tinytf_cli.progress_line._SECONDS_BETWEEN", 0.0)
    arguments = ("grad", SENTENCE, "-m", decoder, "--pipeline", "--check", "2", "--integrated")
    said = tinytf(*arguments, screen=True).err
    assert "tinytf: finite differences: entry 1 of 2, " in said
    assert re.search("integrated gradients: point [0-9]+ of at most 768, at most .+ left", said)
    assert said.endswith(" \r")
    assert "\n" not in said
    assert tinytf(*arguments).err == ""


def test_the_text_is_coloured_by_what_its_tokens_add(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("grad", SENTENCE, "-m", decoder)
    shown = "".join(token.shown for token in load(str(decoder)).encode(SENTENCE).tokens)
    title = next(i for i, line in enumerate(ran.lines) if "tokens   gradient" in line)
    assert ran.lines[title + 1].endswith(f"  {shown}")
    assert ran.out.count(shown) == 1
    coloured = tinytf("grad", SENTENCE, "-m", decoder, "--color", "always").out
    assert shown not in coloured


@pytest.fixture
def broken(tmp_path: Path, decoder: Path) -> Callable[[Callable[[Transformer], None]], Path]:
    """A decoder after something was done to its weights."""

    def make(breaking: Callable[[Transformer], None]) -> Path:
        model = load(str(decoder))
        with torch.no_grad():
            breaking(model.transformer)
        save_run(tmp_path / "broken", model.transformer, model.tokenizer)
        return tmp_path / "broken"

    return make


def _nan(model: Transformer) -> None:
    model.blocks[1].ffn.down.weight[3, 5] = math.nan


def _sharp(model: Transformer) -> None:
    model.blocks[0].attention.q.weight *= 1e5


def _silent(model: Transformer) -> None:
    model.blocks[1].ffn.up.weight.zero_()
    model.blocks[1].ffn.up.bias.zero_()


@pytest.mark.parametrize("command", ["trace", "grad"])
@pytest.mark.parametrize(
    ("breaking", "kind", "first"),
    [(_nan, "nan", "L1.ffn"), (_sharp, "saturated", "L0.weights"), (_silent, "dead", "L1.ffn.act")],
)
def test_the_first_fault_is_named(
    tinytf: Tinytf, broken: Callable[..., Path], command: str, breaking: Callable[..., None], kind: str, first: str
) -> None:
    place = broken(breaking)
    ran = tinytf(command, SENTENCE, "-m", place, "--pipeline", "--fail-on", f"{kind},inf")
    assert ran.status == 1, ran.err
    assert f"{kind}: forward, first at {first}: " in ran.out
    data = json.loads(tinytf(command, SENTENCE, "-m", place, "--pipeline", "--fail-on", kind, "--json").out)
    assert data["fault"]["step"] == first
    fine = tinytf(command, SENTENCE, "-m", place, "--at", "L0.norm1", "--fail-on", "inf", "--json")
    assert json.loads(fine.out)["fault"] is None


def test_what_is_not_finite_is_counted_and_not_called_zero(
    tinytf: Tinytf, broken: Callable[[Callable[[Transformer], None]], Path]
) -> None:
    ran = tinytf("grad", SENTENCE, "-m", broken(_nan), "--pipeline", "--check", "2")
    trace = load(str(broken(_nan))).grad(SENTENCE)
    assert ran.status == 1
    (row,) = (line for line in ran.lines if "∂L0.ffn.act " in line)
    assert f" {int(trace.grad['L0.ffn.act'].isnan().sum()):,} " in row
    assert " nan " in row
    assert "first at L1.ffn, where not every number is finite, so no gradient" in " ".join(ran.out.split())
    assert "0 but for rounding" not in ran.out
    assert "not finite" not in tinytf("grad", SENTENCE, "--pipeline").out


@pytest.mark.parametrize(
    "asked",
    [
        ("trace", SENTENCE),
        ("grad", SENTENCE),
        ("lens", SENTENCE),
        ("attribute", SENTENCE),
        ("explain", "L1.out[1,3]", SENTENCE),
        ("trace", "--code", SENTENCE),
        ("ablate", SENTENCE, "--at", "L0H1"),
        ("ablate", SENTENCE, "--sweep", "heads"),
        ("generate", SENTENCE),
    ],
    ids=" ".join,
)
def test_where_numbers_are_none_the_first_step_is_named(
    tinytf: Tinytf, broken: Callable[[Callable[[Transformer], None]], Path], asked: tuple[str, ...]
) -> None:
    ran = tinytf(*asked, "-m", broken(_nan))
    assert ran.status == 1
    said = " ".join((ran.out + ran.err).split())
    assert re.search(r"first (appear )?at L1\.ffn(,| |$)", said), said
    assert not re.search("(differ|off) by nan|-nan", said)


def test_where_nothing_is_wrong_that_is_said(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("grad", SENTENCE, "-m", decoder, "--pipeline", "--fail-on", "nan,inf,mismatch")
    assert ran.status == 0, ran.out
    assert "no fault: looked for nan, inf, mismatch at every step" in ran.out
    assert "fault" not in json.loads(tinytf("grad", SENTENCE, "-m", decoder, "--json").out)


def test_finite_differences_are_drawn_by_the_seed(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("grad", SENTENCE, "-m", decoder, "--at", "L0.norm1", "--check", "12", "--json")
    first, again, other = (
        json.loads(tinytf(*arguments, "--seed", seed).out)["finite_differences"] for seed in ("1", "1", "2")
    )
    assert first == again != other
    assert first["holds"] is True
    assert len(first["entries"]) == 12


def test_integrated_gradients_say_whether_they_are_complete(tinytf: Tinytf) -> None:
    ran = tinytf("grad", SENTENCE, "--pipeline", "--integrated", "--json")
    found = json.loads(ran.out)["saliency"]["integrated_gradients"]
    assert found["sum"] == pytest.approx(found["difference"], rel=0.01)
    assert "complete: they sum to" in tinytf("grad", SENTENCE, "--pipeline", "--integrated").out


@pytest.mark.parametrize("by", ["parameter", "layer", "kind", "head"])
def test_weights_are_grouped(tinytf: Tinytf, decoder: Path, by: str) -> None:
    arguments = ("grad", SENTENCE, "-m", decoder, "--pipeline", "--by", by, "--lr", "0.5")
    rows = json.loads(tinytf(*arguments, "--json").out)["weights"]
    drawn = tinytf(*arguments).out
    for row in rows:
        assert row["name"][:12] in drawn
        assert float(row["update_ratio"]) == pytest.approx(0.5 * float(row["ratio"]))
    if by != "head":
        trace = load(str(decoder)).grad(SENTENCE)
        total = math.hypot(*(float(gradient.norm()) for gradient in trace.parameters.values()))
        assert math.hypot(*(row["gradient_norm"] for row in rows)) == pytest.approx(total, rel=1e-5)


def test_gradients_as_small_as_those_of_a_certain_target_are_not_shown_as_zero(tinytf: Tinytf) -> None:
    given = ("grad", "the ninth of March 2011", "-m", "tiny-translator", "--target-text", "2011-03-09")
    text, data = tinytf(*given).out, json.loads(tinytf(*given, "--json").out)
    assert "+0.0000" not in text
    added = max(data["saliency"]["gradient_times_input"], key=abs)
    assert f"({added:+.1e} nats)" in next(line for line in text.splitlines() if line.startswith("depends most on"))
    assert any(line.split()[2:3] == [f"{added:+.1e}"] for line in text.splitlines())
