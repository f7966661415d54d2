"""The card of a GGUF file: its statistics against numpy in float64, and what it says of files that were bent."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from covering import sample
from driving import Ran, Stream, streams
from gguf_conversion import CONVERSIONS, converted
from gguf_files import SMALL, Kind, Parts, model_and_parts, sentencepiece_parts

import tinytf
from tinytf.certification.card import Card, card
from tinytf.certification.contents import compare_contents, differing_settings
from tinytf.certification.conversations import CONVERSATIONS
from tinytf.certification.kept import DP_QUANTILES, KL_QUANTILES, Kept, cut, losses
from tinytf.checkpoints.gguf.load import settings_in
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import UsageError
from tinytf.report import ignore_progress
from tinytf.sources import GgufSource, find_source
from tinytf_cli.main import run

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
LINES = [
    "====== Perplexity statistics ======", "Mean PPL(Q)                   :", "Mean PPL(base)                :",
    "Cor(ln(PPL(Q)), ln(PPL(base))):", "Mean ln(PPL(Q)/PPL(base))     :", "Mean PPL(Q)/PPL(base)         :",
    "Mean PPL(Q)-PPL(base)         :", "====== KL divergence statistics ======", "Mean    KLD:", "Maximum KLD:",
    "99.9%   KLD:", "99.0%   KLD:", "95.0%   KLD:", "90.0%   KLD:", "Median  KLD:", "10.0%   KLD:", " 5.0%   KLD:",
    " 1.0%   KLD:", " 0.1%   KLD:", "Minimum KLD:", "====== Token probability statistics ======", "Mean    Δp:",
    "Maximum Δp:", "99.9%   Δp:", "99.0%   Δp:", "95.0%   Δp:", "90.0%   Δp:", "75.0%   Δp:", "Median  Δp:",
    "25.0%   Δp:", "10.0%   Δp:", " 5.0%   Δp:", " 1.0%   Δp:", " 0.1%   Δp:", "Minimum Δp:", "RMS Δp    :",
    "Same top p:",
]  # fmt: skip
"""How the lines of llama-perplexity --kl-divergence begin (tools/perplexity/perplexity.cpp of llama.cpp)."""


def parts(kind: Any = Kind.F32, **keys: Any) -> Parts:
    made = model_and_parts("llama", kind, **SMALL)[1]
    made.keys |= {"tokenizer.chat_template": TEMPLATE} | {f"tokenizer.{key}": value for key, value in keys.items()}
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in float32, exported for transformers too, and in Q4_0."""
    folder = tmp_path_factory.mktemp("cards")
    parts().write(folder / "f32.gguf")
    parts(Kind.Q4_0).write(folder / "q4.gguf")
    tinytf.load(folder / "f32.gguf", device="cpu").export(folder / "original")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Card:
    return card(str(folder / "q4.gguf"), versus=str(folder / "original"), pieces=9, device="cpu")


def ran(*words: object) -> Ran:
    out, err = Stream(), Stream()
    with streams(stdout=out, stderr=err, stdin=Stream(b"")):
        status = run([str(word) for word in words])
    return Ran(status, out.got(), err.got().decode("utf-8"))


def quantile(numbers: np.ndarray[Any, Any], at: float) -> float:
    """Between the two nearest, as llama.cpp's ``percentile``."""
    place = at * (len(numbers) - 1)
    low = int(place)
    ordered = np.sort(numbers)
    return float(ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]))


def with_error(numbers: np.ndarray[Any, Any]) -> list[float]:
    """Mean, and √((E[x²] − E[x]²) ÷ (n − 1)), as llama.cpp's ``mean_and_uncertainty``."""
    mean = numbers.mean()
    return [mean, max((numbers**2).mean() - mean**2, 0) ** 0.5 / (len(numbers) - 1) ** 0.5]


def test_the_statistics_are_those_of_numpy_from_the_logits_of_both(folder: Path, found: Card) -> None:
    models = [tinytf.load(folder / name, device="cpu") for name in ("q4.gguf", "original")]
    text = (Path(tinytf.__file__).parent / "assets" / "card.txt").read_text("utf-8")
    ids = models[1].tokenizer.encode(text).ids
    log_q, log_p, targets = [], [], []
    for start in range(0, 9 * 64, 64):
        piece = ids[start : start + 64]
        for logs, model in zip((log_q, log_p), models, strict=True):
            with torch.no_grad():
                logits = model.transformer(torch.tensor([piece]))[0, 32:63].double().numpy()
            top = logits.max(-1, keepdims=True)
            logs.append(logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))
        targets += piece[33:]
    q, p, rows = np.concatenate(log_q), np.concatenate(log_p), np.arange(len(targets))
    kl, loss, versus = (np.exp(p) * (p - q)).sum(-1), -q[rows, targets], -p[rows, targets]
    dp, kept = np.exp(-loss) - np.exp(-versus), found.kept
    assert (found.pieces, found.context, found.tokens) == (9, 64, 9 * 31)
    assert kept is not None
    assert found.perplexity is not None
    pairs = [(kept.kl, with_error(kl)), (kept.dp, with_error(dp)), (kept.log_ratio, with_error(loss - versus)),
             (kept.same_top, with_error((p.argmax(-1) == q.argmax(-1)).astype(float)))]  # fmt: skip
    for mean, expected in pairs:
        assert [mean.value, mean.error] == pytest.approx(expected, rel=1e-5, abs=1e-9)
    of_q, of_p = (np.exp(numbers.mean()) for numbers in (loss, versus))
    errors = [with_error(numbers)[1] for numbers in (loss, versus)]
    covariance = ((loss * versus).mean() - loss.mean() * versus.mean()) / (len(loss) - 1)
    assert [found.perplexity.value, found.perplexity.error] == pytest.approx([of_q, of_q * errors[0]], rel=1e-5)
    assert kept.versus_perplexity.error == pytest.approx(of_p * errors[1], rel=1e-5)
    assert kept.correlation == pytest.approx(covariance / (errors[0] * errors[1]), rel=1e-5)
    ratio_error = (errors[0] ** 2 + errors[1] ** 2 - 2 * covariance) ** 0.5
    assert [kept.ratio.value, kept.ratio.error] == pytest.approx([of_q / of_p, of_q / of_p * ratio_error], rel=1e-4)
    change_error = ((of_q * errors[0]) ** 2 + (of_p * errors[1]) ** 2 - 2 * of_q * of_p * covariance) ** 0.5
    assert [kept.change.value, kept.change.error] == pytest.approx([of_q - of_p, change_error], rel=1e-3)
    square, error = with_error(dp**2)
    assert [kept.dp_rms.value, kept.dp_rms.error] == pytest.approx([square**0.5, error / 2 / square**0.5], rel=1e-5)
    assert kept.kl_quantiles == pytest.approx([quantile(kl, at) for at in KL_QUANTILES], rel=1e-4, abs=1e-8)
    assert kept.dp_quantiles == pytest.approx([quantile(dp, at) for at in DP_QUANTILES], rel=1e-4, abs=1e-8)
    assert kept.kl.value > 1e-5


def test_two_models_that_predict_the_same_lose_nothing() -> None:
    loss = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    kept = Kept.of(torch.zeros(3).double(), loss, loss, torch.ones(3).double())
    assert (kept.kl.value, kept.dp_rms.value, kept.dp_rms.error, kept.same_top.error) == (0, 0, 0, 0)
    assert (kept.ratio.value, kept.change.value) == (1, 0)
    assert kept.correlation == pytest.approx(1)


def test_a_piece_begins_with_the_start_token_and_its_second_half_is_predicted(tmp_path: Path) -> None:
    model = tinytf.load(parts(**{"ggml.add_bos_token": True}).write(tmp_path / "a.gguf"), device="cpu")
    pieces = cut(model, "the cat sat on the mat " * 9, 16)
    start = model.tokenizer.start()
    assert start is not None
    assert {len(piece) for piece in pieces} == {16}
    assert {piece[0] for piece in pieces} == {start.ids[0]}
    assert pieces[1][1:] == model.tokenizer.encode("the cat sat on the mat " * 9).ids[17:32]
    (loss,) = losses(model, None, pieces[:2], ignore_progress)
    assert len(loss) == 2 * 7
    assert len(cut(model, "the cat sat on the mat", 512)) == 1, "a short text is one piece"
    with pytest.raises(UsageError, match="at least 4 are needed"):
        cut(model, "a", 512)


def test_the_errors_and_the_worst_tensor_are_those_of_blame(folder: Path, found: Card) -> None:
    model, original = (tinytf.load(folder / name, device="cpu") for name in ("q4.gguf", "original"))
    weights = [dict(side.transformer.named_parameters()) for side in (original, model)]
    stored = {tensor.address: tensor for tensor in found.weights}
    change = weights[1]["blocks.0.ffn.down.weight"] - weights[0]["blocks.0.ffn.down.weight"]
    down = stored["L0.ffn.W_down"]
    assert (down.name, down.kind) == ("blk.0.ffn_down", "Q4_0")
    norm = weights[0]["blocks.0.ffn.down.weight"].norm()
    assert down.error == pytest.approx(float(change.norm() / norm), rel=1e-5)
    kinds = {kind.kind: kind for kind in found.types}
    assert list(kinds) == ["Q4_0", "F32"]
    assert kinds["Q4_0"].bits == 4.5
    assert kinds["F32"].error == 0
    damages = [tensor.damage for tensor in found.weights[:6]]
    assert damages == sorted(damages, key=lambda damage: -(damage or 0))
    assert found.worst == found.weights[0]
    assert found.weights[6].damage is None


def test_the_page_has_the_lines_of_llama_cpp_in_a_fence(folder: Path, tmp_path: Path) -> None:
    words = ("info", "--card", folder / "q4.gguf", "--versus", folder / "original", "--device", "cpu", "--pieces", "3")
    printed = ran(*words, "--width", "120")
    assert printed.status == 0, printed.err
    begins = [line for line in printed.lines if any(line.startswith(begin) for begin in LINES)]
    assert [next(begin for begin in LINES if line.startswith(begin)) for line in begins] == LINES
    kld = next(line for line in begins if line.startswith("Mean    KLD"))
    assert re.fullmatch(r"Mean    KLD: {1,3}\d+\.\d{6} ± {1,3}\d+\.\d{6}", kld)
    assert ran(*words, "-o", tmp_path / "card.md").status == 0
    page = (tmp_path / "card.md").read_text("utf-8")
    fence = page.split("```\n")[1].splitlines()
    assert [line for line in fence if line] == begins
    assert "| ids | " in page
    assert page.splitlines()[0] == json.loads(ran(*words, "--json").out)["sentence"]


@pytest.mark.parametrize(
    ("bend", "name", "where"),
    [
        ({"chat_template": TEMPLATE.replace("\n", "\n\n")}, "template", "one question, token "),
        ({"chat_template": ""}, "template", "one question, token 0: none / "),
        ({"ggml.bos_token_id": 3}, "special tokens", "start: "),
        ({"ggml.add_bos_token": True}, "ids", "plain words, token 0: <|im_start|> #298 / "),
        ({"ggml.pre": "llama-bpe"}, "ids", ", token "),
    ],
)  # fmt: skip
def test_what_a_converter_got_wrong_is_named(
    folder: Path, tmp_path: Path, bend: dict[str, Any], name: str, where: str
) -> None:
    bent = parts(**bend).write(tmp_path / "bent.gguf")
    words = (
        "info",
        "--card",
        bent,
        "--versus",
        folder / "original",
        "--device",
        "cpu",
        "--pieces",
        "1",
        "--top",
        "0",
        "--json",
    )
    printed = ran(*words)
    assert printed.status == 1, printed.err
    told = json.loads(printed.out)
    check = next(check for check in told["checks"] if check["name"] == name)
    assert not check["holds"]
    assert not told["holds"]
    assert where in check["where"]
    assert name in told["sentence"]
    assert "differ" in told["sentence"]


def test_other_settings_are_named_and_no_tensor_is_swapped(folder: Path, tmp_path: Path) -> None:
    other = parts()
    other.keys["llama.rope.freq_base"] = 800.0
    found = card(str(other.write(tmp_path / "a.gguf")), versus=str(folder / "original"), pieces=1, device="cpu")
    settings = next(check for check in found.checks if check.name == "settings")
    assert settings.differing == ("rope_theta",)
    assert settings.where == "rope_theta: 800.0 / 700.0"
    assert not found.holds
    assert found.kept is not None
    assert found.kept.kl.value > 0
    assert found.notes[0].startswith("no tensor is measured alone: the models differ in more than their tensors")


def test_a_file_alone_is_described(folder: Path) -> None:
    found = card(str(folder / "q4.gguf"), pieces=2, device="cpu")
    assert found.holds
    assert found.kept is None
    assert {check.name: check.says for check in found.checks}["template"] == "writes 54 of 54 conversations"
    assert re.fullmatch(r"q4\.gguf stores a number in \d\.\d bits; its chat template writes .*", found.sentence)
    assert [tensor.error for tensor in found.weights] == [None] * len(found.weights)
    assert {event["type"] for event in found.events()} == {"card", "check", "type", "tensor"}


def test_models_of_two_vocabularies_have_no_kl(folder: Path, tmp_path: Path) -> None:
    other = sentencepiece_parts().write(tmp_path / "other.gguf")
    found = card(str(other), versus=str(folder / "original"), pieces=1, device="cpu")
    assert found.kept is None
    assert found.perplexity is not None
    assert "KL is not measured: the models have different vocabularies" in found.notes
    assert found.sentence.startswith("other.gguf and original differ in ids, template")


def test_there_are_54_conversations_and_a_model_agrees_with_itself() -> None:
    assert len(CONVERSATIONS) == 54
    model = tinytf.load("tiny", device="cpu")
    assert all(check.holds and check.differing == () for check in compare_contents(model, model))


@sample("name", [name for name in CONVERSIONS if name != "bloom"], every=8)  # a directory of BLOOM has no context
def test_a_sound_file_has_no_other_settings_than_its_original(tmp_path: Path, name: str) -> None:
    theirs, made = converted(CONVERSIONS[name])
    source = find_source(str(made.write(tmp_path / "a.gguf")))
    assert isinstance(source, GgufSource)
    theirs.save_pretrained(tmp_path / "original")
    configs = source.checkpoint.config, read_directory(tmp_path / "original").config
    differing = differing_settings(*(cast("Any", SimpleNamespace(config=config)) for config in configs))
    assert not differing.keys() & settings_in(source.header)


@pytest.mark.parametrize(("limit", "status"), [("1e-9", 1), ("1e9", 0)])
def test_a_kl_above_the_limit_fails_and_is_said(folder: Path, limit: str, status: int) -> None:
    words = (
        "info",
        "--card",
        folder / "q4.gguf",
        "--versus",
        folder / "original",
        "--device",
        "cpu",
        "--pieces",
        "1",
        "--top",
        "0",
    )
    printed = ran(*words, "--fail-over", limit, "--json")
    assert printed.status == status, printed.err
    told = json.loads(printed.out)
    assert told["holds"] is (status == 0)
    assert told["fail_over"] == float(limit)
    assert (", above 1e-09)" in told["sentence"]) is (status == 1)


def test_a_limit_without_a_kl_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="which is not measured here"):
        card(str(folder / "q4.gguf"), pieces=1, fail_over=0.1, device="cpu")
