"""A model of two stacks in every command that takes it: what is asked of which stack, bad input, and lines to go on."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from driving import Tinytf, is_a_clean_error

from tinytf.checkpoints.run import save_run
from tinytf.loading import load

SOURCE, TARGET = "the third of May 1994", "1994-05-03"
GIVEN = (SOURCE, "-m", "tiny-translator", "--target-text", TARGET)
LONG = "on the third of May 1994 " * 20

_ON_BOTH = (
    ("trace",), ("attention", "--cross"), ("lens",), ("attribute",), ("ablate", "--at", "L0H0"), ("grad",),
    ("neurons",), ("score",), ("explain", "L1H1.cross.weights[6,4]"),
)  # fmt: skip
"""Command lines about one source and its target, up to the text."""


@pytest.mark.parametrize(
    "line",
    [line for line in _ON_BOTH if line != ("grad",)],
    ids=lambda line: line[0],
)
def test_a_target_is_the_decoders_and_a_question_about_the_encoder_has_none(tinytf: Tinytf, line: tuple[str]) -> None:
    ran = tinytf(*line, *GIVEN, "--stack", "encoder")
    assert is_a_clean_error(ran)
    assert "--target-text is what the decoder is given, and this asks about the encoder" in ran.err


@pytest.mark.parametrize("line", _ON_BOTH, ids=lambda line: line[0])
def test_a_source_beyond_the_context_is_refused_or_cut(tinytf: Tinytf, line: tuple[str]) -> None:
    words = (*line, LONG, "-m", "tiny-translator", "--target-text", TARGET)
    refused = tinytf(*words)
    assert is_a_clean_error(refused)
    assert "and tiny-translator takes at most 64" in refused.err
    assert "--truncate" in refused.err
    cut = tinytf(*words, "--truncate")
    assert cut.status == 0, cut.err


def test_a_target_beyond_the_context_is_called_so(tinytf: Tinytf) -> None:
    ran = tinytf("trace", SOURCE, "-m", "tiny-translator", "--target-text", TARGET * 20)
    assert is_a_clean_error(ran)
    assert "the target has 201 tokens, and tiny-translator takes at most 64" in ran.err


def test_a_patch_without_a_target_asks_where_the_two_sources_part(tinytf: Tinytf) -> None:
    ran = tinytf("patch", SOURCE, "the third of June 1994", "-m", "tiny-translator", "--at", "enc.L0.out")
    assert ran.status == 0, ran.err
    assert ran.err.startswith("tinytf: target, generated, until they differ: 1994-0\n")
    assert "5" in ran.lines[0]


def test_the_sources_of_a_patch_are_what_differs(tinytf: Tinytf) -> None:
    line = ("patch", SOURCE, "the third of June 1994", "-m", "tiny-translator", "--at", "enc.L0.out")
    assert "different tokens of the sources: 3 ·May │ ·June; the other 9 are the same" in tinytf(*line).out
    texts = json.loads(tinytf(*line, "--json").out)["sources"]
    assert [text["text"] for text in texts] == [SOURCE, "the third of June 1994"]


def test_what_the_tokens_of_a_source_add_to_a_logit_is_computed_by_hand(tinytf: Tinytf) -> None:
    """In a model that norms before: through the last norm, whose scale is as it is, and no other."""
    ran = tinytf("attribute", SOURCE, "-m", "tiny-translator", "--target-text", "1994-0", "--json")
    told = json.loads(ran.out)
    model = load("tiny-translator").reading(SOURCE)
    trace = model.trace("1994-0")
    row, transformer = trace["final.norm"].shape[0] - 1, model.transformer
    stream = trace["L1.out"][row].double()
    norm, by_hand = transformer.final_norm, 0
    for layer, block in enumerate(transformer.blocks):
        weights, values = trace[f"L{layer}.cross.weights"][:, row].double(), trace[f"L{layer}.cross.v"].double()
        given = torch.einsum("hs,hsd->shd", weights, values).flatten(1) @ block.cross.o.weight.double().T
        by_hand += (given - given.mean(-1, keepdim=True)) / (stream.var(unbiased=False) + 1e-5).sqrt()
    direction = transformer.unembedding[told["target"]["id"]].double() * norm.weight.double()
    found = torch.tensor([token["value"] for token in told["source"]], dtype=torch.float64)
    torch.testing.assert_close(found, by_hand @ direction, rtol=1e-4, atol=1e-5)
    assert [token["token"] for token in told["source"]][3] == "·May"
    assert found.sum() == pytest.approx(told["by_kind"]["cross-attention"], abs=1e-6)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("generate", "--quantize", "int8"), "compiled and int8 decoding are of models of one stack"),
        (("generate", "--stack", "encoder"), "the model is an encoder"),
        (
            ("attention", "--cross", "--stack", "encoder"),
            "only the decoder of a model of two stacks has cross-attention",
        ),
        (("tokens", "--target-text", TARGET), "it has no target"),
    ],
    ids=lambda line: " ".join(line) if isinstance(line, tuple) else "",
)
def test_what_has_no_meaning_for_two_stacks_says_so_by_name(tinytf: Tinytf, line: tuple[str], said: str) -> None:
    ran = tinytf(line[0], SOURCE, *line[1:], "-m", "tiny-translator")
    assert is_a_clean_error(ran)
    assert said in ran.err
    assert f"{line[0]}, " not in ran.err.partition("hint:")[2]  # it does not name itself as one that would do it


@pytest.mark.slow
def test_an_export_opens_in_transformers_with_the_same_numbers(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("export", "tiny-translator", tmp_path / "new")
    assert ran.status == 0, ran.err
    assert "written as Blenderbot (BlenderbotForConditionalGeneration)" in ran.out
    assert "transformers.AutoModelForSeq2SeqLM.from_pretrained(" in ran.out
    (tmp_path / "lines.txt").write_text(f"{SOURCE}\nMay 3\n", "utf-8")
    certified = tinytf("certify", tmp_path / "new", "--texts", tmp_path / "lines.txt")
    assert certified.status == 0, certified.out + certified.err
    compared = tinytf("diff", *GIVEN, "--versus", tmp_path / "new", "--json")
    assert json.loads(compared.out)["equal"] is True


def test_an_explanation_goes_on_in_the_encoder(tinytf: Tinytf) -> None:
    ran = tinytf("explain", "L1H1.cross.v[May,3]", *GIVEN, "--depth", "40", "--json")
    cells = json.loads(ran.out)["explanations"]
    names = [cell["address"] for cell in cells]
    assert all(cell["holds"] for cell in cells)
    start = names.index(next(name for name in names if name.startswith("source[3,")))
    assert all(name.startswith("enc.") for name in names[start + 1 :])
    assert names[-1].startswith("enc.embed.")
    again = tinytf("explain", names[start + 1], SOURCE, "-m", "tiny-translator", "--json")  # as a person would ask
    assert json.loads(again.out)["explanations"][0]["total"] == cells[start + 1]["total"]


def test_the_head_that_is_named_looks_from_the_target_at_the_source(tinytf: Tinytf) -> None:
    ran = tinytf("attention", *GIVEN, "--cross", "--head", "L1H1")
    assert ran.out.startswith("L1H1 looks from ")


@pytest.mark.parametrize("line", _ON_BOTH, ids=lambda line: line[0])
@pytest.mark.parametrize("target", [TARGET, "", "-05"])
def test_the_command_lines_that_are_suggested_run(tinytf: Tinytf, line: tuple[str], target: str) -> None:
    found = [one.strip() for one in tinytf(*line, *GIVEN[:-1], target).lines if one.startswith("  tinytf ")]
    for one in found[:2]:
        words = shlex.split(one.partition("   ")[0])[1:]
        assert words[words.index("--target-text") + 1] == target
        ran = tinytf(*words)
        assert ran.status == 0, (one, ran.err)


@pytest.mark.parametrize("line", _ON_BOTH, ids=lambda line: line[0])
def test_an_empty_target_is_the_start_alone(tinytf: Tinytf, line: tuple[str]) -> None:
    ran = tinytf(*(word.replace("[6,", "[0,") for word in line), *GIVEN[:-1], "", "--json")
    if line[0] in ("score", "grad"):
        assert is_a_clean_error(ran)
        return
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["text"] == ""


@pytest.mark.parametrize(
    ("address", "row"),
    [("source", "8"), ("L1.cross.k", "3"), ("L1H1.cross.v", "May"), ("L1H1.cross.weights", "6"), ("L0.cross.q", "10")],
)
def test_the_gradient_of_a_step_has_the_rows_of_its_own_text(tinytf: Tinytf, address: str, row: str) -> None:
    whole = tinytf("grad", *GIVEN, "--at", address)
    assert whole.status == 0, whole.err
    assert f"∂loss/∂{address.replace('L1.cross.k', 'L1H0.cross.k').replace('L0.cross', 'L0H0.cross')}" in whole.out
    one = tinytf("grad", *GIVEN, "--at", f"{address}[{row}]")
    assert one.status == 0, one.err
    beyond = tinytf("grad", *GIVEN, "--at", f"{address}[30]")
    assert is_a_clean_error(beyond)
    assert (
        f"{'query' if 'weights' in address else 'token' if 'q' in address else 'source'} 30 is out of range"
        in beyond.err
    )


def test_in_a_session_the_other_text_is_another_source(tinytf: Tinytf) -> None:
    lines = (f"run {SOURCE}", 'patch "the third of June 1994" --at enc.L0.out', 'diff "the third of June 1994"')
    ran = tinytf("repl", "-m", "tiny-translator", stdin="\n".join((*lines, "trace --at enc.L0H0.weights")).encode())
    assert ran.status == 0, ran.err
    assert "until they differ: 1994-0" in ran.err
    assert "enc.L0.out" in ran.out
    assert "They differ from enc.embed.tokens on" in ran.out
    assert "tiny-translator · encoder, " in ran.out


def test_a_sweep_of_patch_is_over_the_encoder_and_over_the_decoder_where_it_is_asked_for(tinytf: Tinytf) -> None:
    line = ("patch", SOURCE, "the third of June 1994", "-m", "tiny-translator", "--target-text", "1994-0")
    encoder, decoder = (tinytf(*line, *more) for more in ((), ("--stack", "decoder")))
    assert (encoder.status, decoder.status) == (0, 0)
    assert encoder.out.startswith(
        "enc.L0 of the clean run at 3 ·May moves the lead of 5 over 6 most: it brings back 100 %"
    )
    assert "--stack decoder sweeps the other stack" in encoder.out
    assert "enc." not in decoder.out
    for more in (("--at", "L0.attn", "--stack", "encoder"), ("--estimate", "gradient", "--stack", "decoder")):
        refused = tinytf(*line, *more)
        assert is_a_clean_error(refused)
        assert "--stack goes with a sweep, without an estimate" in refused.err


def test_sources_of_two_lengths_say_that_the_encoder_is_not_compared(tinytf: Tinytf) -> None:
    ran = tinytf("diff", SOURCE, f"on {SOURCE}", "-m", "tiny-translator", "--target-text", "1994-", "--width", "200")
    assert ran.status == 0, ran.err
    assert "the encoder is not compared: the texts have " in ran.out


def test_the_encoder_has_no_loss(tinytf: Tinytf) -> None:
    ran = tinytf("grad", SOURCE, "-m", "tiny-translator", "--at", "enc.L0.out")
    assert is_a_clean_error(ran)
    assert "the encoder has no loss of its own" in ran.err


def test_another_model_in_a_session_gets_the_source_as_its_text(tinytf: Tinytf) -> None:
    lines = (f"run {SOURCE}", "model tiny", "where", "model tiny-translator", "where")
    ran = tinytf("repl", "-m", "tiny-translator", stdin="\n".join(lines).encode())
    assert ran.status == 0, ran.err
    assert f'"{SOURCE}" · ' in ran.out
    assert f'"{TARGET}" · 11 tokens' in ran.out


def test_states_in_a_file_are_what_a_decoder_reads(tinytf: Tinytf, tmp_path: Path) -> None:
    """The same states that the encoder of the model gives: the trace is that of the text."""
    model = load("tiny-translator")
    states = model.encoder.trace(SOURCE).last_hidden.numpy()
    np.savez(tmp_path / "states.npz", last_hidden_state=states[None], logits=states[:2])
    given = ("-m", "tiny-translator", "--at", "L1H1.cross.weights", "--json")
    ran = tinytf("trace", TARGET, "--source", str(tmp_path / "states.npz"), *given)
    plain = tinytf("trace", SOURCE, "--target-text", TARGET, *given)
    assert json.loads(ran.out)["values"] == json.loads(plain.out)["values"]


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({"x": (3, 63)}, ("-m", "tiny-translator"), "no tensor that is tokens × 64"),
        ({"x": (3, 64), "y": (3, 64)}, ("-m", "tiny-translator"), "2 tensors that are tokens × 64"),
        ({"x": (3, 64)}, ("-m", "tiny"), "one stack"),
        ({"x": (3, 64)}, ("-m", "tiny-translator", "--target-text", TARGET), "leave out --target-text"),
    ],
)
def test_a_file_of_states_that_no_decoder_reads_is_refused(
    tinytf: Tinytf, tmp_path: Path, arrays: dict[str, tuple[int, ...]], options: tuple[str, ...], words: str
) -> None:
    np.savez(tmp_path / "states.npz", **{name: np.zeros(shape) for name, shape in arrays.items()})
    ran = tinytf("trace", TARGET, "--source", str(tmp_path / "states.npz"), *options)
    assert ran.status != 0
    assert words in ran.err


@pytest.mark.parametrize(
    "line", [("trace", SOURCE), ("generate", SOURCE), ("heads", "--random", "--count", "1"), ("lens", SOURCE)],
    ids=lambda line: line[0],
)  # fmt: skip
def test_numbers_of_the_encoder_that_are_not_finite_are_named_there(
    tinytf: Tinytf, line: tuple[str, ...], tmp_path: Path
) -> None:
    model = load("tiny-translator", device="cpu")
    assert model.transformer.encoder is not None
    with torch.no_grad():
        model.transformer.encoder.blocks[1].ffn.up.weight[3, 4] = torch.nan
    save_run(tmp_path / "nan", model.transformer, model.tokenizer)
    target = ("--target-text", TARGET) if line[0] in ("trace", "lens") else ()
    ran = tinytf(*line, "-m", tmp_path / "nan", *target)
    assert ran.status == 1
    assert "first at enc.L1.ffn.hidden" in ran.out or "enc.L1.ffn.hidden" in ran.err


def test_in_a_session_a_question_keeps_the_target_that_was_set(tinytf: Tinytf) -> None:
    lines = (f"run {SOURCE}", "run --target-text 2001-", "same", "diff --set L1H1.cross.scaled[3,3]=0")
    ran = tinytf("repl", "-m", "tiny-translator", stdin="\n".join(lines).encode())
    assert ran.status == 0, ran.err
    assert "generated" not in ran.err.partition("reads")[2]
    assert "The same in all 9 ways" in ran.out
    assert "A and B  <|endoftext|> 2 0 0 1 -" in ran.out


def test_the_lens_on_the_encoder_counts_the_states_that_are_nearest_to_their_own_token(tinytf: Tinytf) -> None:
    words = ("lens", "the ninth of July 2004", "-m", "tiny-translator", "--stack", "encoder")
    told = json.loads(tinytf(*words, "--json").out)
    ids = [token["id"] for token in told["tokens"]]
    kept = [sum(at["top"][0]["id"] == ids[at["position"]] for at in stage["at"]) for stage in told["stages"]]
    assert told["borrowed"] is True
    text = " ".join(tinytf(*words).out.split())
    assert f"{kept[0]} of {len(ids)} states of the encoder are nearest to their own token at the embedding" in text
    assert f"and {kept[-1]} at L1." in text
    assert "(the encoder has none, and both share one table of embeddings)" in text
    assert "the last row is what the decoder reads, to the last bit" in text
    assert "predict" not in text


def test_a_tuned_lens_of_the_encoder_is_refused(tinytf: Tinytf, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the third of May\n" * 40, "utf-8")
    ran = tinytf("lens", "--train", tmp_path / "lines.txt", "-m", "tiny-translator", "--stack", "encoder")
    assert is_a_clean_error(ran)


def test_a_comparison_of_two_sources_shows_both_and_one_of_two_models_the_one(tinytf: Tinytf) -> None:
    other = "the third of June 1994"
    line = ("diff", SOURCE, other, "-m", "tiny-translator", "--target-text", TARGET)
    shown = tinytf(*line).out
    assert "source A  the ·third ·of ·May" in shown
    assert "source B  the ·third ·of ·June" in shown
    assert [text["text"] for text in json.loads(tinytf(*line, "--json").out)["sources"]] == [SOURCE, other]
    assert "source A and B  the ·third ·of ·May" in tinytf("diff", *GIVEN, "--versus-dtype", "bfloat16").out
    assert json.loads(tinytf("diff", "The cat", "The dog", "--json").out)["sources"] == []


def test_the_sizes_of_a_model_name_both_stacks(tinytf: Tinytf) -> None:
    shown = tinytf("info", "tiny-translator").out
    assert "encoder          bidirectional, 2 layers × 2 heads, d_model 64, d_head 32, d_ff 256" in shown
    for part in ("norm", "W_XQ", "W_XK", "W_XV", "W_XO"):
        assert f"  cross-attention, {part} " in shown
    assert "(2·H + 2·G)·d_head" not in shown  # cross-attention has matrices too
