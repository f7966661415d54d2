"""tinytf blame: one text and many, its data, what it draws, what it refuses, and what an interrupt leaves."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from driving import SENTENCE, Tinytf, digits, is_a_clean_error
from importance_files import old_format
from safetensors.torch import load_file, save_file

from tinytf.cause import blame
from tinytf.checkpoints.run import save_run
from tinytf.loading import Model, load


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, opened: Model) -> Path:
    """The decoder once more, with three other tensors: one of them does most."""
    model = load(opened.source, device="cpu").transformer
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for block, by in ((1, 2.0), (0, 0.1)):
            weight = model.blocks[block].ffn.down.weight
            weight += by * torch.randn(weight.shape, generator=generator)
        model.blocks[0].attention.q.weight *= 1.001
    folder = tmp_path_factory.mktemp("models") / "other"
    save_run(folder, model, opened.tokenizer)
    return folder


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text(f"{SENTENCE}\n\nthe dog sat\nthe mat\n", "utf-8")
    return path


def test_the_tensor_that_does_most_comes_first(tinytf: Tinytf, decoder: Path, other: Path) -> None:
    ran = tinytf("blame", SENTENCE, "-m", decoder, "--versus", other)
    assert ran.status == 0, ran.err
    start = next(i for i, line in enumerate(ran.lines) if line.startswith("most damage"))
    assert ran.lines[start + 2].split()[0] == "L1.ffn.W₂"
    assert "3 of 3 tensors measured" in ran.out
    assert "explain" in ran.out


def test_the_data_is_that_of_the_library(
    tinytf: Tinytf, decoder: Path, other: Path, opened: Model, lines: Path
) -> None:
    data = json.loads(tinytf("blame", "--texts", lines, "-m", decoder, "--versus", other, "--json").out)
    texts = [SENTENCE, "the dog sat", "the mat"]
    found = opened.blame(texts, load(str(other)))
    assert data["tensors"] == digits(json.loads(json.dumps(found.to_dict()["tensors"])))
    assert data["texts"] == 3
    assert [one["count"] for one in data["sets"]] == [1]
    assert {one["step"] for one in data["steps"]} > {"q", "ffn"}
    events = tinytf("blame", "--texts", lines, "-m", decoder, "--versus", other, "--format", "ndjson").lines
    kinds = [json.loads(line)["type"] for line in events]
    assert kinds[:4] == ["blame", "tensor", "tensor", "tensor"]


def test_all_maps_the_loss_and_the_two_logits_beside_the_kl(tinytf: Tinytf, decoder: Path, other: Path) -> None:
    shown = tinytf("blame", SENTENCE, "-m", decoder, "--versus", other, "--all").lines
    data = json.loads(tinytf("blame", SENTENCE, "-m", decoder, "--versus", other, "--json").out)
    worst = data["tensors"][0]
    for title, name in (("KL", "kl"), ("loss", "loss"), ("difference of the two logits", "margin")):
        start = next(i for i, line in enumerate(shown) if line.startswith(f"{title} of each tensor alone"))
        row = next(line for line in shown[start:] if line.split()[:1] == [worst["kind"]])
        drawn = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", row.partition(worst["kind"])[2])]
        expected = worst["damage"][name]["value"] * 1000
        assert drawn[worst["layer"]] == pytest.approx(expected, rel=1e-2), title


def test_texts_come_from_a_pipe_and_are_cut_to_their_first_tokens(tinytf: Tinytf, decoder: Path, other: Path) -> None:
    words = ("blame", "--texts", "-", "--tokens", "3", "-m", decoder, "--versus", other, "--json")
    data = json.loads(tinytf(*words, stdin=b"the cat sat on the mat\nthe dog sat on the mat\n").out)
    assert (data["texts"], data["positions"]) == (2, 6)


def test_equal_models_are_said_to_be_equal(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("blame", SENTENCE, "-m", decoder, "--versus", decoder)
    assert ran.status == 0, ran.err
    assert "no tensor differs: the models predict the same" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((SENTENCE,), "there is no other model to blame"),
        ((SENTENCE, "--versus", "tiny"), "the models differ in more than their tensors"),
        ((SENTENCE, "--versus", "tiny", "--budget", "1MB"), "--budget is about the first model alone"),
        ((SENTENCE, "--versus", "tiny", "--texts", "x.txt"), "two sets of texts"),
        (("--texts", "nowhere.txt", "--versus", "tiny"), "cannot read nowhere.txt"),
        ((SENTENCE, "--budget", "many"), "'many' is not a size"),
        ((SENTENCE, "--budget", "1MB", "--imatrix", "imatrix.gguf"), "--imatrix goes with --versus"),
        ((SENTENCE, "--versus", "tiny", "--tensor-types", "types.txt"), "--tensor-types goes with --budget"),
        ((SENTENCE, "--budget", "1MB", "--tensor-types", "types.txt"), "no GGUF names for the tensors of this model"),
        ((SENTENCE, "--budget", "10"), "bytes in their smallest types, and the budget is 10"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_line(
    tinytf: Tinytf, decoder: Path, words: tuple[str, ...], said: str
) -> None:
    ran = tinytf("blame", *words, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_an_interrupt_shows_the_texts_that_were_measured(
    tinytf: Tinytf, decoder: Path, other: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, done = blame._Blaming._alone, []

    def once(self: blame._Blaming, *arguments: object) -> torch.Tensor:
        if done:
            raise KeyboardInterrupt
        done.append(True)
        return measured(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(blame._Blaming, "_alone", once)
    ran = tinytf("blame", "--texts", lines, "-m", decoder, "--versus", other)
    assert "stopped after 1 of 3 texts" in ran.out
    assert "most damage" in ran.out


def test_the_types_of_a_budget_are_written_for_llama_quantize(tinytf: Tinytf, llama: Path, tmp_path: Path) -> None:
    path, words = tmp_path / "types.txt", ("blame", SENTENCE, "-m", llama, "--budget", "1MB", "--tensor-types")
    ran = tinytf(*words, path, "--json")
    assert ran.status == 0, ran.err
    assert f"wrote {path}" in ran.err
    assert path.read_text("ascii").splitlines() == json.loads(ran.out)["options"]
    for wrong, said in ((tmp_path, "is a folder"), (llama / "types.txt", "lies in the folder of a model")):
        refused = tinytf(*words, wrong)
        assert is_a_clean_error(refused)
        assert said in refused.err


@pytest.fixture
def noisy(llama: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(llama, tmp_path / "noisy"))
    generator = torch.Generator().manual_seed(5)
    tensors = load_file(folder / "model.safetensors")
    changed = {name: one + 0.05 * torch.randn(one.shape, generator=generator) for name, one in tensors.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_an_importance_matrix_is_shown_beside_the_damage(
    tinytf: Tinytf, llama: Path, noisy: Path, tmp_path: Path
) -> None:
    draw, matrices = torch.Generator().manual_seed(1), ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up")
    means = {f"blk.{layer}.{name}.weight": torch.rand(24, generator=draw) for layer in range(3) for name in matrices}
    path = old_format(tmp_path / "imatrix.dat", means, text=b"\x1b[31mcalibration.txt")
    words = ("blame", SENTENCE, "-m", llama, "--versus", noisy, "--imatrix")
    data = json.loads(tinytf(*words, path, "--json").out)
    first, other = load(str(llama)), load(str(noisy))
    report = first.blame(SENTENCE, other)
    found = first.importance(other, path, report.damages)
    assert data["importance"] == digits(json.loads(json.dumps(found.to_dict())))
    assert data["sentence"].endswith(f", and the importance matrix {found.verdict} with this ranking.")
    assert (len(found.tensors), found.chunks) == (15, 7)
    shown = tinytf(*words, path, "--rows", "0").out
    assert "\x1b[31m" not in shown
    assert "calibration.txt, 7 chunks" in shown
    lines = shown[shown.index("importance matrix   ") :].splitlines()[2:17]
    assert [line.split()[0] for line in lines] == [one.address for one in found.tensors]
    assert "not in the matrix: E, " in shown
    assert f"{found.rank_correlation:+.2f} the error" in shown
    of_another = old_format(tmp_path / "other.dat", {"blk.3.ffn_up.weight": torch.ones(24)})
    for wrong, status, said in (
        (of_another, 2, "is an importance matrix of another model: it has 'blk.3.ffn_up.weight'"),
        (tmp_path / "none.gguf", 1, "there is no file"),
        (llama / "model.safetensors", 1, "is not an importance matrix"),
    ):
        refused = tinytf(*words, wrong)
        assert is_a_clean_error(refused, status)
        assert said in refused.err


@pytest.mark.parametrize(("size", "limit"), [("1MB", 10**6), ("1.5MiB", 3 * 2**19), ("2000000", 2 * 10**6)])
def test_a_budget_is_a_size(tinytf: Tinytf, decoder: Path, size: str, limit: int) -> None:
    data = json.loads(tinytf("blame", SENTENCE, "-m", decoder, "--budget", size, "--json").out)
    assert data["limit"] == limit
    assert data["n_bytes"] <= limit
