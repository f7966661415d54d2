"""The train command: what it refuses, and what it leaves behind."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from driving import CORPUS, Tinytf, is_a_clean_error
from safetensors.torch import load_file, save_file


def test_a_trained_model_can_be_opened_and_what_it_learned_from_is_reported(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    ran = tinytf("train", corpus, "--recipe", recipe, "--out", out)
    assert ran.status == 0
    for words in ("vocabulary   characters", "first examples", "each y is the x that comes next", "the same, after"):
        assert words in ran.out
    assert "wrote" in ran.err.splitlines()[-1]
    assert {path.name for path in out.iterdir()} == {
        ".lock", "checkpoints", "config.json", "model.safetensors", "tokenizer.json", "recipe.json", "metrics.jsonl",
        "samples.jsonl", "speed.jsonl", "tokens", "corpus.json", "frames", "text.json",
    }  # fmt: skip
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in metrics] == [1, 2]
    assert tinytf("trace", "The cat", "-m", out).status == 0


def test_a_folder_a_file_and_a_pipe_train_the_same_model(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    folder = tmp_path / "texts" / "inside"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text(CORPUS[0], "utf-8")
    for name, given, stdin in (("a", [corpus], b""), ("b", [folder.parent], b""), ("c", ["-"], CORPUS[0].encode()),
                               ("d", [], CORPUS[0].encode())):  # fmt: skip
        assert tinytf("train", *given, "--recipe", recipe, "--out", tmp_path / name, stdin=stdin).status == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abcd"]
    assert weights.count(weights[0]) == 4


def test_a_run_is_never_overwritten(tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out).status == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ran = tinytf("train", corpus, "--recipe", recipe, "--out", out, "--seed", "1")
    assert is_a_clean_error(ran)
    assert "holds a run already" in ran.err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_folder_without_texts_is_no_corpus(tinytf: Tinytf, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.csv").write_text("text")
    ran = tinytf("train", tmp_path / "texts", "--out", tmp_path / "run")
    assert is_a_clean_error(ran)
    assert "holds no .txt or .md file" in ran.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "0"], "--steps: 0 is not from 1 to 1000000000"),
        (["--lr", "0"], "--lr: 0 is not more than 0"),
        (["--lr", "nan"], "--lr: nan is not more than 0"),
        (["--warmup", "3"], "warmup 3 is not between 0 and steps 2"),
        (["--warmup", "-1"], "warmup -1"),
        (["--seed", "-1"], "--seed: -1 is not"),
        (["--seed", "9" * 30], "--seed: 999999"),
        (["--block", "17"], "block 17 is longer than the model's context of 16"),
        (["--block", "1"], "--block: 1 is not from 2 to 1000000"),
        (["--batch", "0"], "--batch: 0 is not from 1 to 65536"),
        (["--batch", "9" * 30], "batch"),
        (["--tokenizer", "bpe", "--vocab-size", "5"], "needs at least 257"),
        (["--tokenizer", "bpe", "--vocab-size", "9" * 30], "vocab"),
        (["--objective", "masked"], "[MASK]"),
        (["--tokenizer", "words"], "'words' is not one of"),
    ],
)
def test_numbers_that_cannot_train_are_refused_and_leave_nothing(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path, options: list[str], said: str
) -> None:
    ran = tinytf("train", corpus, "--recipe", recipe, "--out", tmp_path / "run", *options)
    assert is_a_clean_error(ran, ran.status)
    assert said in ran.err
    assert ran.status in (1, 2)
    assert not (tmp_path / "run").exists()


def test_a_run_that_failed_can_be_tried_again_in_the_same_folder(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    ran = tinytf("train", corpus, "--recipe", recipe, "--out", out, "--lr", "1e38")
    assert ran.status == 1
    assert "\ntinytf: error: the loss is " in ran.err
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out, "--lr", "1e-3").status == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nowhere.txt"], "cannot read nowhere.txt"),
        (["-", "x.txt"], "-"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_said(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tinytf("train", *given, "--out", "run")
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_a_corpus_that_is_no_utf8_is_said_with_its_place(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9")
    ran = tinytf("train", path, "--out", tmp_path / "run")
    assert is_a_clean_error(ran)
    assert "byte 3" in ran.err


def test_an_empty_corpus_is_said(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("train", "--out", tmp_path / "run", stdin=b"\n \n")
    assert is_a_clean_error(ran)
    assert "the corpus has no word in it" in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [("x =", "is not TOML"), ("stepz = 3", "did you mean steps?"), ("steps = 'two'", "steps is 'two'"),
     ("[model]\nn_heads = 'x'", "n_heads is 'x'"), ("[model]\nn_head = 1", "did you mean n_heads?"),
     ("\x1b = 1", "TOML")],
)  # fmt: skip
def test_a_recipe_that_is_wrong_is_said(tinytf: Tinytf, tmp_path: Path, corpus: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, "utf-8")
    ran = tinytf("train", corpus, "--recipe", path, "--out", tmp_path / "run")
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_the_last_line_does_not_act_on_the_terminal(tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path) -> None:
    ran = tinytf("train", corpus, "--recipe", recipe, "--out", tmp_path / "r\x1b[31m\x1b]0;x\x07")
    assert ran.status == 0
    assert "\x1b" not in ran.err
    assert "\x07" not in ran.err


# What can be asked for


def test_every_field_of_recipe_and_model_is_an_option(tinytf: Tinytf, tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    small = ("--d-model", "16", "--n-heads", "2", "--n-layers", "1", "--d-ff", "16", "--context", "32")
    ran = tinytf(
        "train", corpus, "--out", out, "--tokenizer", "bpe:260", "--block", "8", "--steps", "3", "--schedule", "linear",
        "--accumulate", "2", "--keep", "1", "--beta2", "0.99", "--norm", "rmsnorm", "--positions", "rotary",
        "--dropout", "0.1", "--tied-head", "false", "--held-out", "0.1", *small,
    )  # fmt: skip
    assert ran.status == 0
    stored = json.loads((out / "recipe.json").read_text("utf-8"))
    assert (stored["tokenizer"], stored["vocab_size"], stored["schedule"]) == ("bpe", 260, "linear")
    assert stored["model"] == {
        "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "context": 32, "norm": "rmsnorm",
        "positions": "rotary", "dropout": 0.1, "tied_head": False,
    }  # fmt: skip
    assert "--d-model 256" in tinytf("train", "--help").out
    preset = tinytf(
        "train", corpus, "--out", tmp_path / "p", "--preset", "llama-tiny", "--tokenizer", "char", "--block", "8",
        "--steps", "1", "--batch", "1", *small, "--n-kv-heads", "1", "--d-head", "8",
    )  # fmt: skip
    assert preset.status == 0
    assert json.loads((tmp_path / "p" / "recipe.json").read_text("utf-8"))["model"]["gated"] is True


def test_a_model_is_trained_on_from_its_weights_with_its_tokenizer(
    tinytf: Tinytf, tmp_path: Path, decoder: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    given = ("train", corpus, "--from", decoder, "--block", "8", "--steps", "2", "--lr", "1e-9", "--warmup", "0")
    assert tinytf(*given, "--out", out).status == 0
    before, after = (json.loads(tinytf("score", "The cat sat", "-m", m, "--json").out) for m in (decoder, out))
    assert after["loss"] == pytest.approx(before["loss"], abs=1e-4)
    assert (out / "tokenizer.json").read_bytes() == (decoder / "tokenizer.json").read_bytes()
    assert json.loads((out / "recipe.json").read_text("utf-8"))["begun_from"] == str(decoder)
    assert is_a_clean_error(tinytf(*given, "--out", tmp_path / "x", "--d-model", "8"))
    assert is_a_clean_error(tinytf(*given, "--out", tmp_path / "x", "--tokenizer", "char"))
    assert is_a_clean_error(tinytf("train", corpus, "--from", "nothing", "--out", tmp_path / "x"))
    other = tinytf("train", corpus, "--tokenizer", decoder, "--block", "8", "--steps", "1", "--out", tmp_path / "y")
    assert other.status == 0
    assert (tmp_path / "y" / "tokenizer.json").read_bytes() == (decoder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("words", ["bpe:many", "char:20", "wordpiece:"])
def test_a_tokenizer_that_is_none_is_refused(tinytf: Tinytf, tmp_path: Path, corpus: Path, words: str) -> None:
    ran = tinytf("train", corpus, "--tokenizer", words, "--out", tmp_path / "run")
    assert is_a_clean_error(ran)
    assert "is not char, bpe:SIZE or wordpiece:SIZE" in ran.err


@pytest.mark.slow
def test_the_report_shows_windows_and_their_shift_and_the_loss_before_and_after(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tinytf("train", corpus, "--recipe", recipe, "--steps", "60", "--lr", "0.01", "--explain", "5", "--json")
    data = json.loads(ran.out)
    assert data["run"] == str(Path("runs") / "corpus")
    for x, y in zip(data["examples"]["x"], data["examples"]["y"], strict=True):
        assert x[1:] == y[:-1]
    first = json.loads((tmp_path / "runs" / "corpus" / "metrics.jsonl").read_text("utf-8").splitlines()[0])
    assert data["first_batch_loss"]["before"] == pytest.approx(first["loss"], rel=1e-7)
    assert data["first_batch_loss"]["after"] < first["loss"]
    assert [update["step"] for update in data["updates"]] == [5] * len(data["updates"])
    assert len(data["updates"]) >= 3
    assert max(update["difference"] for update in data["updates"]) < 1e-7
    again = tinytf("train", corpus, "--recipe", recipe, "--explain", "5")
    assert "runs/corpus-2" in again.err
    assert "step 5 was not among the steps of this run" in again.err


def test_a_vocabulary_that_the_text_cannot_fill_is_refused_and_one_without_a_size_is_smaller(
    tinytf: Tinytf, tmp_path: Path, corpus: Path
) -> None:
    small = ("--d-model", "8", "--n-layers", "1", "--n-heads", "1", "--d-ff", "8", "--block", "8", "--steps", "1")
    for given in (["--tokenizer", "bpe:2000"], ["--vocab-size", "2000"]):
        ran = tinytf("train", corpus, "--out", tmp_path / "run", *given, *small)
        assert is_a_clean_error(ran)
        assert "a vocabulary of 2,000 tokens is too large for this text, which yields 2" in ran.err
        assert not (tmp_path / "run").exists()
    assert is_a_clean_error(tinytf("train", corpus, "--out", tmp_path / "run", "--tokenizer", "bpe:0"))
    ran = tinytf("train", corpus, "--out", tmp_path / "run", "--json", *small)
    assert ran.status == 0
    size = json.loads(ran.out)["vocab_size"]
    assert f"tinytf: the text yields a vocabulary of {size} tokens, and 2,000 are usual\n" in ran.err


def test_what_was_measured_of_a_long_held_out_text_is_said(tinytf: Tinytf, tmp_path: Path) -> None:
    text = CORPUS[0] * 20
    fields = {"tokenizer": "char", "block": 2, "batch": 1, "steps": 2, "held-out": 0.5, "d-model": 8, "n-layers": 1,
              "n-heads": 1, "d-ff": 8}  # fmt: skip
    options = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    ran = tinytf("train", "--out", tmp_path / "run", *options, stdin=text.encode())
    assert ran.status == 0, ran.err
    batches = (len(text) // 2 - 1) // 2
    assert f"in the end, 8 of {batches:,} batches" in ran.out


def test_an_update_can_be_read_in_7_bits(tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path) -> None:
    ran = tinytf("train", corpus, "--recipe", recipe, "--out", tmp_path / "run", "--explain", "1", "--ascii")
    for said in ("dloss/dtheta.clip = ", "beta1.m + (1 - beta1).g", "m_hat", "theta.(1 - lr.lambda)"):
        assert said in ran.out
    assert "\\u" not in ran.out


def test_a_short_recipe_that_does_not_speak_of_a_warm_up_has_a_short_one(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    recipe.write_text(recipe.read_text("utf-8").replace("warmup = 0\n", "").replace("steps = 2", "steps = 20"), "utf-8")
    assert tinytf("train", corpus, "--recipe", recipe, "--out", tmp_path / "run").status == 0
    assert json.loads((tmp_path / "run" / "recipe.json").read_text("utf-8"))["warmup"] == 2


def test_the_weights_to_write_out_are_chosen(tinytf: Tinytf, corpus: Path, recipe: Path, tmp_path: Path) -> None:
    train = ("train", corpus, "--recipe", recipe, "--steps", "3", "--warmup", "0")
    one = ("--weight", "blocks.0.ffn.up.weight[2,1]", "--weight", "final_norm.weight")
    ran = tinytf(*train, "--out", tmp_path / "run", "--explain", "2", *one, "--json")
    assert ran.status == 0, ran.err
    updates = json.loads(ran.out)["updates"]
    assert [update["name"] for update in updates] == ["blocks.0.ffn.up.weight", "final_norm.weight"]
    assert updates[0]["index"] == [2, 1]
    alone = tinytf(*train, "--out", tmp_path / "alone", *one)
    assert (alone.status, "--weight needs --explain" in alone.err) == (2, True)
    unknown = tinytf(*train, "--out", tmp_path / "other", "--explain", "2", "--weight", "blocks.0.ffn.upp.weight")
    assert unknown.status == 2
    assert "did you mean blocks.0.ffn.up.weight" in unknown.err


def test_a_dry_run_foretells_what_the_training_then_does(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    given = ("train", corpus, "--recipe", recipe, "--out", out, "--steps", "7", "--warmup", "3", "--clip", "0.5")
    ran = tinytf(*given, "--dry-run", "--json")
    measured = json.loads(ran.out)
    assert measured["seconds"] == pytest.approx(measured["recipe"]["steps"] * measured["step_seconds"])
    assert measured["step_seconds"] > 0
    speed = measured["step_tokens"] / measured["step_seconds"]
    assert measured["mfu"] == pytest.approx(measured["flops_per_token"] * speed / measured["peak_flops"])
    assert (ran.status, ran.err) == (0, "")
    assert not out.exists()
    plan = json.loads(ran.out)
    assert tinytf(*given).status == 0
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert plan["schedule"] == [{"step": line["step"], "lr": pytest.approx(line["lr"])} for line in metrics]
    first = plan["first_batch"]
    assert (first["loss"], first["gradient_norm"]) == pytest.approx((metrics[0]["loss"], metrics[0]["grad_norm"]))
    assert first["clipped_by"] == pytest.approx(min(1.0, 0.5 / metrics[0]["grad_norm"]), rel=1e-4)
    index = json.loads((out / "tokens" / "index.json").read_text("utf-8"))
    assert (plan["tokens"], plan["held_out_tokens"]) == (index["train"]["tokens"], index["held_out"]["tokens"])
    assert plan["token_bytes"] == sum(path.stat().st_size for path in (out / "tokens").glob("*.bin"))
    newest = max((out / "checkpoints").iterdir())
    saved = load_file(newest / "model.safetensors") | load_file(newest / "optimizer.safetensors")
    numbers = [tensor for tensor in saved.values() if tensor.dtype == torch.float32 and tensor.dim()]
    assert plan["checkpoint_bytes"] == sum(tensor.nbytes for tensor in numbers)
    assert plan["parameters"] == sum(tensor.numel() for tensor in load_file(out / "model.safetensors").values())
    assert plan["checkpoints"] == 4
    assert plan["seen_tokens"] == 7 * 2 * 8


def test_a_dry_run_draws_schedule_and_clipping_on_one_screen(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    given = ("train", corpus, "--recipe", recipe, "--out", tmp_path / "run", "--dry-run")
    for options in ((), ("--steps", "2000", "--schedule", "linear"), ("--schedule", "constant", "--ascii")):
        ran = tinytf(*given, *options)
        assert (ran.status, ran.err) == (0, "")
        assert len(ran.lines) <= 45
        for words in ("learning rate by step", "factor by gradient norm", "would write", "checkpoints", "first loss"):
            assert words in ran.out
    assert "learning rate 0.012 at step 1" in tinytf(*given, "--plain").out


def test_a_dry_run_refuses_what_the_training_would(tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    given = ("train", corpus, "--recipe", recipe, "--out", out)
    assert tinytf(*given).status == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert "holds a run already" in tinytf(*given, "--dry-run").err
    assert is_a_clean_error(tinytf(*given, "--dry-run", "--resume"))
    assert tinytf(*given, "--dry-run", "--overwrite").status == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert is_a_clean_error(tinytf(*given, "--dry-run", "--overwrite", "--lr", "0"))


def test_the_report_says_the_best_held_out_loss_first_and_what_to_type_next_last(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    ran = tinytf("train", corpus, "--recipe", recipe, "--steps", "6", "--out", out)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    best = min((line for line in metrics if "held_out_loss" in line), key=lambda line: line["held_out_loss"])
    line = next(line for line in ran.lines if line.startswith("best held-out"))
    assert f"{best['held_out_loss']:.4f} nats per token" in line
    assert line.endswith(f"at step {best['step']}")
    assert ran.lines[0].startswith("After ")
    assert ran.lines.index(line) < 5
    assert any(line.startswith(f"  tinytf runs --film {out}") for line in ran.lines[-4:])
    assert tinytf("runs", "--film", out).status == 0


def test_plain_leaves_the_tokens_of_a_vocabulary_as_they_are(tinytf: Tinytf, tmp_path: Path) -> None:
    (tmp_path / "sums.txt").write_text("a + b / c\n\n" * 30, "utf-8")
    said = tinytf("train", tmp_path / "sums.txt", "--out", tmp_path / "run", "--steps", "2", "--tokenizer", "char",
                  "--block", "8", "--d-model", "8", "--plain").out  # fmt: skip
    assert "+ / a b c" in said
    assert not re.search(r"\b(plus|over)\b", said)


def test_a_weight_that_is_no_number_is_named_before_anything_is_trained_or_removed(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out, begun = tmp_path / "run", tmp_path / "begun"
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out).status == 0
    shutil.copytree(out, begun)
    weights = load_file(begun / "model.safetensors")
    weights["blocks.0.attention.q.weight"][0, 0] = float("nan")
    (begun / "model.safetensors").unlink()  # a second name of the checkpoint's
    save_file(weights, begun / "model.safetensors")
    before = (out / "model.safetensors").read_bytes()
    for words in (("--out", out, "--overwrite"), ("--out", tmp_path / "new"), ("--out", tmp_path / "new", "--dry-run")):
        ran = tinytf("train", corpus, "--from", begun, "--block", "8", "--steps", "2", "--warmup", "0", *words)
        assert is_a_clean_error(ran, 1)
        assert f"{begun}: the weights hold NaN or infinities: blocks.0.attention.q.weight" in ran.err
        assert "--lr" not in ran.err
    assert (out / "model.safetensors").read_bytes() == before


def test_far_more_threads_than_cores_are_refused_before_a_folder_is_made(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    ran = tinytf("train", corpus, "--recipe", recipe, "--threads", "1024", "--out", tmp_path / "run")
    assert is_a_clean_error(ran)
    assert "1,024 threads on" in ran.err
    assert not (tmp_path / "run").exists()
