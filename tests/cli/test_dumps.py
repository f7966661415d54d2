"""What tinytf trace writes is compared again: with the model, step by step, and found wrong where it was changed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from driving import Tinytf, is_a_clean_error
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tinytf.loading import load

TEXT = "The cat sat"


@pytest.fixture
def traced(tmp_path: Path, tinytf: Tinytf) -> Path:
    path = tmp_path / "a.safetensors"
    assert tinytf("trace", TEXT, "-o", str(path)).status == 0
    return path


def changed(path: Path, name: str, place: tuple[int, ...], by: float) -> Path:
    tensors = load_file(path)
    tensors[name][place] += by
    other = path.with_name("changed.safetensors")
    save_file(tensors, other)
    return other


@pytest.mark.parametrize("form", ["safetensors", "json", "ndjson"])
def test_a_trace_in_any_form_is_the_same_as_the_model(tmp_path: Path, tinytf: Tinytf, form: str) -> None:
    path = tmp_path / f"a.{form}"
    tinytf("trace", TEXT, "-o", str(path))
    for words in ((), (TEXT,)):
        ran = tinytf("diff", *words, "--versus", str(path), "--json")
        assert ran.status == 0, ran.err
        found = json.loads(ran.out)
        assert found["first_difference"] is None
        assert len(found["steps"]) > 20
        assert max(one["largest"] for one in found["steps"]) < 1e-6
        assert found["second"]["dump"]["unmatched"] == []


def test_a_file_of_tensors_says_what_it_is_of(traced: Path) -> None:
    with safe_open(traced, framework="pt") as file:
        said = json.loads(file.metadata()["tinytf"])
    assert (said["text"], said["kind"], said["logit_rows"]) == (TEXT, "trace", [2])
    assert said["model"]["config"]["d_model"] == 128
    assert [token["id"] for token in said["tokens"]] == load_file(traced)["ids"].tolist()


def test_a_changed_number_is_found_at_its_step(traced: Path, tinytf: Tinytf) -> None:
    other = changed(traced, "L1.ffn", (1, 5), 0.25)
    found = json.loads(tinytf("diff", "--versus", str(other), "--json").out)
    assert found["first_difference"] == "L1.ffn"
    step = next(one for one in found["steps"] if one["name"] == "L1.ffn")
    assert step["at"] == [1, 5]
    assert step["largest"] == pytest.approx(0.25)
    assert "L0.q_rot" in found["missing"]
    assert tinytf("diff", "--versus", str(other), "--fail-over", "0.001").status == 1


def test_the_chosen_addresses_alone_are_written(tmp_path: Path, tinytf: Tinytf) -> None:
    path = tmp_path / "a.safetensors"
    tinytf("trace", TEXT, "--at", "L*.q_rot", "--at", "L1H2.weights", "-o", str(path))
    tensors = load_file(path)
    assert set(tensors) == {"ids", "L0.q_rot", "L1.q_rot", "L2.q_rot", "L3.q_rot", "L1H2.weights"}
    assert tensors["L1H2.weights"].shape == (3, 3)
    assert torch.equal(tensors["L1H2.weights"].sum(-1).round(decimals=5), torch.ones(3))
    found = json.loads(tinytf("diff", "--versus", str(path), "--json").out)
    assert [one["name"] for one in found["steps"]] == ["L0.q_rot", "L1.q_rot", "L1.weights", "L2.q_rot", "L3.q_rot"]
    assert found["first_difference"] is None


def test_another_text_than_that_of_the_file_is_refused(traced: Path, tinytf: Tinytf) -> None:
    ran = tinytf("diff", "The dog sat", "--versus", str(traced))
    assert ran.status == 2
    assert "at token 1 it has ·cat, and TEXT has ·dog" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("The cat sat", "--versus", "absent.npz"), "there is no file absent.npz"),
        (("The cat sat", "--versus", "folder.npz"), "cannot read folder.npz: it is a folder, not a file"),
        (("absent.npz", "b.safetensors"), "there is no file absent.npz"),
    ],
)
def test_what_is_no_file_is_said_to_be_none(
    tmp_path: Path, tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "folder.npz").mkdir()
    monkeypatch.chdir(tmp_path)
    ran = tinytf("diff", *words)
    assert ran.status == 1
    assert said in ran.err


def test_a_file_of_which_nothing_can_be_compared_fails_and_says_why(tmp_path: Path, tinytf: Tinytf) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"L0.q": torch.ones(7, 5, 3)}, path)
    ran = tinytf("diff", TEXT, "--versus", str(path))
    assert ran.status == 1
    assert "L0.q has 7 × 5 × 3 numbers, and 4 × 3 × 32 are expected" in ran.out


def test_the_table_of_steps_begins_at_the_first_difference(traced: Path, tinytf: Tinytf) -> None:
    ran = tinytf("diff", "--versus", str(changed(traced, "L2.ffn", (1, 5), 0.25)))
    lines = ran.out.splitlines()
    assert any(line.startswith("first difference at L2.ffn") for line in lines[:10])
    table = lines.index(next(line for line in lines if line.split()[:3] == ["step", "largest", "relative"]))
    assert lines[table + 1].split()[0] == "L2.ffn"
    assert len(lines) <= 45


def test_two_files_are_two_recordings_and_no_texts(traced: Path, tinytf: Tinytf) -> None:
    other = changed(traced, "L2.attn", (0, 0), 1.0)
    ran = tinytf("diff", str(traced), str(other), "--json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert (found["first_difference"], found["first"]["dump"]["file"]) == ("L2.attn", traced.name)
    assert [token["shown"] for token in found["second"]["tokens"]] == ["#267", "#514", "#374"]
    same = tinytf("diff", str(traced), str(traced))
    assert "nothing differs: all 45 steps are the same" in same.out
    shown = tinytf("diff", str(traced), str(other))
    assert "first difference at L2.attn" in shown.out
    with_model = tinytf("diff", str(traced), str(other), "-m", "tiny")
    assert "The ·cat ·sat" in with_model.out


@pytest.mark.slow
def test_a_dump_of_another_kind_of_model_is_compared_as_far_as_it_goes(traced: Path, tinytf: Tinytf) -> None:
    tensors = load_file(traced)
    del tensors["embed.tokens"]  # so that it may differ there: positions, which are computed, are computed again
    save_file(tensors, traced)
    ran = tinytf("diff", "--versus", str(traced), "-m", "tiny-encoder")
    assert ran.status == 0, ran.err
    assert "first difference at embed.out" in ran.out


def test_numbers_that_are_none_are_counted(traced: Path, tinytf: Tinytf) -> None:
    ran = tinytf("diff", "--versus", str(changed(traced, "L0.attn", (slice(2),), float("nan"))))
    assert "first difference at L0.attn" in ran.out
    assert "not finite: 256 of its 384 numbers are NaN or ∞ on one side alone" in ran.out
    assert "cause" not in ran.out


@pytest.mark.parametrize("command", ["trace", "attention", "score", "tokens", "generate", "diff"])
def test_a_file_is_never_taken_for_a_text(traced: Path, tinytf: Tinytf, command: str) -> None:
    ran = tinytf(command, str(traced))
    assert ran.status == 2
    assert "is a file" in ran.err
    if command == "diff":
        assert tinytf("diff", str(traced), TEXT).status == 2


@pytest.mark.slow
def test_what_cannot_be_compared_is_an_error_in_one_line(tmp_path: Path, traced: Path, tinytf: Tinytf) -> None:
    np.savez(tmp_path / "a.npz", cat=np.ones(3))
    np.savez(tmp_path / "b.npz", **{"L0.q": np.ones((4, 3, 32)), "L0.\x1b[31mk": np.ones(3)})
    np.savez(tmp_path / "many.npz", input_ids=np.arange(1000), **{"L0.q": np.ones((4, 3, 32))})
    np.savez(tmp_path / "large.npz", input_ids=[1, 99_999], **{"L0.q": np.ones((4, 2, 32))})
    np.savez(tmp_path / "ids.npz", input_ids=[1, 2])
    (tmp_path / "x.npy").write_bytes(b"x")
    (tmp_path / "names.toml").write_text('cat = "L0.cat"')
    for words in (
        ("--versus", "a.npz", TEXT),
        ("--versus", "b.npz"),
        ("--versus", "none.npz"),
        ("--versus", "many.npz"),
        ("--versus", "large.npz"),
        ("--versus", "ids.npz"),
        ("--versus", "x.npy"),
        ("a.npz", "b.npz"),
        ("--versus", "b.npz", TEXT, "--names", "none.toml"),
        ("--versus", "b.npz", TEXT, "--names", "names.toml"),
        (TEXT, "The dog", "--names", "names.toml"),
        ("--versus", str(traced), "-m", "preset:gpt2", "--head", "L99H0"),
    ):
        ran = tinytf(
            "diff", *(str(tmp_path / word) if word.endswith((".npz", ".npy", ".toml")) else word for word in words)
        )
        assert ran.status in (1, 2), words
        is_a_clean_error(ran, ran.status)
        assert "\nhint: " in ran.err, words
    ran = tinytf("diff", "--versus", str(tmp_path / "b.npz"), TEXT)
    assert ran.status == 0
    assert "\x1b" not in ran.out
    assert "LN.\\x1b[Nmk (1 tensor)" in ran.out


def test_settings_that_differ_are_said_before_the_steps(tmp_path: Path, tinytf: Tinytf) -> None:
    path = tmp_path / "a.safetensors"
    tinytf("trace", TEXT, "-o", str(path))
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        said = json.loads(file.metadata()["tinytf"])
    said["model"]["config"]["rope_theta"] = 123.0
    save_file(tensors, path, metadata={"tinytf": json.dumps(said)})
    ran = tinytf("diff", "--versus", str(path), "--json")
    assert json.loads(ran.out)["settings"] == [{"name": "rope_theta", "first": 10000.0, "second": 123.0}]
    said["model"]["config"]["n_heads"] = "many"
    save_file(tensors, path, metadata={"tinytf": json.dumps(said)})
    is_a_clean_error(tinytf("diff", "--versus", str(path)), 1)


def printed(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A log of llama-eval-callback with the outputs of blocks."""
    lines = ["number of input tokens = 3", *(f"  {i}" for i in tensors["input_ids"].tolist())]
    for n in range(4):
        x = tensors[f"L{n}.out"]
        lines += [f"ggml_debug: l_out-{n} = (f32) ADD(a{{1, 1, 1, 1}}, b{{1, 1, 1, 1}}}}) = {{{x.shape[1]}, 3, 1, 1}}"]
        rows = ([*row[:3].tolist(), *row[-3:].tolist()] for row in x)
        words = ([f"{number:12.4f}" for number in row] for row in rows)
        lines += ["[", "[", *(f"[{', '.join([*row[:3], '...', *row[3:]])}]," for row in words), "],", "]"]
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_a_printed_log_is_compared_as_far_as_it_goes(tmp_path: Path, traced: Path, tinytf: Tinytf) -> None:
    tensors = load_file(traced)
    tensors["input_ids"] = torch.tensor(load("tiny").encode(TEXT).ids)
    path = str(printed(tmp_path / "eval.log", tensors))
    ran = tinytf("diff", "--versus", path)
    assert ran.status == 0, ran.err
    assert ran.lines[0] == "Nothing printed differs, in 4 steps: 72 of 1,536 numbers were printed."
    tensors["L2.out"][1, 126] += 9
    printed(Path(path), tensors)
    ran = tinytf("diff", TEXT, "--versus", path, "--fail-over", "0.1", "--rows", "2")
    assert ran.status == 1
    assert ran.lines[0].startswith("They differ from L2.out (l_out-2) on: ")
    assert " at [1, 126]; 72 of 1,536 numbers were printed." in " ".join(ran.lines[:2])
    data = json.loads(tinytf("diff", "--versus", path, "--json").out)
    assert data["first_difference"] == "L2.out"
    assert [step["differs"] for step in data["steps"]] == [False, False, True, False]
    is_a_clean_error(tinytf("diff", TEXT + " on", "--versus", path), 2)
    is_a_clean_error(tinytf("diff", "--versus", path, "--floor", "bf16"), 2)
    is_a_clean_error(tinytf("diff", "--versus", path, "-m", "preset:llama-tiny"), 1)
    large = "ggml_debug: l_out-0 = (f32) ADD(a{1, 1, 1, 1}, }) = {9999999999, 99999, 1, 1}"
    Path(path).write_text(f"{large}\n[\n[\n[1.0000,", "utf-8")
    is_a_clean_error(tinytf("diff", TEXT, "--versus", path), 1)
