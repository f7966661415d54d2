"""Whole runs of a tiny model: the schedule, the same bytes from the same seed, and directories that are damaged."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from training_runs import Called

from tinytf.checkpoints.run import load_run, save_run
from tinytf.errors import CheckpointError, ConfigError, TrainingError, UsageError
from tinytf.files import to_json
from tinytf.loading import load
from tinytf.model.transformer import Transformer
from tinytf.training.data.setup import first_model
from tinytf.training.metrics import Metrics
from tinytf.training.recipe import Recipe, stored_recipe
from tinytf.training.train import train
from tinytf.training.tuning.losses import held_out_loss
from tinytf.training.tuning.optimiser import learning_rate

STORY = "\n\n".join(f"The {who} sat on the {what}. It was a {how} day." for who in ("cat", "dog", "hen", "fox")
                    for what in ("mat", "log") for how in ("fine", "wet", "long"))  # fmt: skip
MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "context": 32}
CAUSAL = Recipe(
    model=MODEL, tokenizer="char", block=16, batch=4, steps=6, warmup=2, eval_every=3, held_out=0.2, repeats=0.25
)
MASKED = Recipe(
    model={**MODEL, "norm_order": "post", "embed_norm": True, "dropout": 0.1}, tokenizer="wordpiece",
    objective="masked", block=16, batch=4, steps=6, warmup=2, eval_every=3, held_out=0.2,
)  # fmt: skip


def changed(recipe: Recipe, **changes) -> Recipe:
    return Recipe(**{**recipe.to_dict(), **changes})


# The schedule


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (60, 0.1 + 0.9 / 2), (110, 0.1)],
)
def test_the_learning_rate_warms_up_and_cools_down(step, expected):
    recipe = Recipe(lr=1.0, final_lr=0.1, warmup=10, steps=110)
    assert learning_rate(step, recipe) == pytest.approx(expected)


def test_a_quarter_of_the_way_down_is_a_quarter_of_half_a_cosine():
    recipe = Recipe(lr=2.0, final_lr=0.0, warmup=0, steps=100)
    assert learning_rate(0, recipe) == 2.0
    assert learning_rate(25, recipe) == pytest.approx(1 + math.sqrt(2) / 2)


def test_a_run_that_only_warms_up_ends_at_its_peak():
    recipe = Recipe(lr=1.0, warmup=5, steps=5)
    assert [learning_rate(step, recipe) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "both"}, "objective 'both' is not one of causal, masked, chat, translate"),
        ({"tokenizer": "words"}, "tokenizer 'words' is not one of char, bpe, wordpiece"),
        ({"steps": 0}, "steps 0 is below 1"),
        ({"block": 1}, "block 1 is below 2"),
        ({"lr": 0.0}, "lr 0.0 is not above 0"),
        ({"held_out": 1.0}, "held_out 1.0 is outside [0, 1)"),
        ({"warmup": 7, "steps": 6}, "warmup 7 is not between 0 and steps 6"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(changes, message):
    with pytest.raises(UsageError) as caught:
        Recipe(**changes)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"step": 5}, "r.toml: a recipe has no field 'step'", "did you mean steps?"),
        ({"steps": 5.0}, "r.toml: steps is 5.0, and has to be a whole number", ""),
        ({"model": 3}, "r.toml: model is 3, and has to be an object", ""),
    ],
)
def test_a_recipe_from_a_file_is_refused_by_field(fields, message, hint):
    with pytest.raises(UsageError) as caught:
        Recipe.from_dict(fields, "r.toml")
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_recipe_is_read_from_toml_with_changes_over_it(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("steps = 7\nwarmup = 1\nlr = 1\n[model]\nd_model = 64\n", "utf-8")
    recipe = Recipe.load(path, seed=5)
    assert (recipe.steps, recipe.lr, recipe.model, recipe.seed) == (7, 1, {"d_model": 64}, 5)
    with pytest.raises(UsageError, match="cannot read the recipe"):
        Recipe.load(tmp_path / "none.toml")
    path.write_text("steps = ", "utf-8")
    with pytest.raises(UsageError, match="is not TOML"):
        Recipe.load(path)


def test_a_block_longer_than_the_context_says_both():
    with pytest.raises(ConfigError, match=r"^block 64 is longer than the model's context of 32$"):
        changed(CAUSAL, block=64).model_config(50)


def test_a_model_of_the_other_objective_is_refused():
    with pytest.raises(ConfigError, match="objective 'causal' does not train a model with causal = False"):
        changed(CAUSAL, model={**MODEL, "causal": False}).model_config(50)


def test_a_decoder_may_be_trained_without_positions_and_not_without_its_mask():
    assert changed(CAUSAL, model={**MODEL, "positions": "none"}).model_config(50).positions == "none"
    maskless = {**MODEL, "mask": False}
    with pytest.raises(ConfigError, match="without its mask a decoder sees the token that it should predict"):
        changed(CAUSAL, model=maskless).model_config(50)


# Runs


@pytest.mark.parametrize("recipe", [CAUSAL, MASKED], ids=["causal", "masked"])
def test_a_run_learns_and_says_what_it_did(recipe, tmp_path):
    longer = changed(recipe, steps=40, eval_every=20, lr=1e-2)
    seen: list[Metrics] = []
    last = train(STORY, longer, tmp_path / "run", observers=[Called(lambda line, _: seen.append(line))]).last
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 41))
    assert [line["step"] for line in lines if "held_out_loss" in line] == [20, 40]
    assert [line["lr"] for line in lines] == [learning_rate(step, longer) for step in range(40)]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert seen[-1] == last
    assert stored_recipe(tmp_path / "run") == longer


def test_the_checkpoint_is_the_model_whose_loss_was_measured(tmp_path):
    trained = train(STORY, CAUSAL, tmp_path / "run")
    opened = load(str(tmp_path / "run"))
    model, tokenizer = opened.transformer, opened.tokenizer
    assert held_out_loss(model, trained.setup.examples) == pytest.approx(trained.last.held_out_loss, abs=1e-6)
    assert tokenizer.to_json() == trained.setup.tokenizer.to_json()
    assert not model.training
    assert all(torch.equal(t, trained.setup.model.state_dict()[name]) for name, t in model.state_dict().items())


def files_of(recipe: Recipe, out: Path) -> dict[str, bytes]:
    train(STORY, recipe, out)
    (out / "speed.jsonl").unlink()  # how fast it went is another matter
    seen = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    assert seen == sorted([
        "checkpoints", "config.json", "corpus.json", "frames", "metrics.jsonl", "model.safetensors", "piped",
        "recipe.json", "samples.jsonl", "text.json", "tokenizer.json", "tokens",
    ])  # fmt: skip
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("[!.]*") if path.is_file()}


@pytest.mark.parametrize(
    "recipe",
    [CAUSAL, changed(CAUSAL, tokenizer="bpe", vocab_size=270), MASKED],
    ids=["characters", "bpe", "masked"],
)
def test_one_seed_leaves_the_same_bytes(recipe, tmp_path):
    first, again = files_of(recipe, tmp_path / "first"), files_of(recipe, tmp_path / "again")
    assert [name for name in first if first[name] != again[name]] == []


def test_another_seed_leaves_others(tmp_path):
    first, other = files_of(CAUSAL, tmp_path / "first"), files_of(changed(CAUSAL, seed=1), tmp_path / "other")
    differ = {name for name in first if first[name] != other[name]}
    assert differ.issuperset(name for name in first if name.startswith("frames/step-"))
    assert {name.split("/")[-1] for name in differ if not name.startswith("frames/")} == {
        "metrics.jsonl", "samples.jsonl", "model.safetensors", "optimizer.safetensors", "recipe.json", "text.json",
        "training.json", "SHA256SUMS",
    }  # fmt: skip


def test_a_directory_with_a_run_is_refused_and_stays_as_it_was(tmp_path):
    train(STORY, CAUSAL, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("[!.]*") if path.is_file()}
    with pytest.raises(UsageError, match="holds a run already"):
        train(STORY, CAUSAL, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("[!.]*") if path.is_file()} == before


def test_a_run_that_never_came_to_a_checkpoint_may_begin_again(tmp_path):
    (tmp_path / "recipe.json").write_bytes(to_json(CAUSAL.to_dict()))
    (tmp_path / "metrics.jsonl").write_text("of a run that broke", "utf-8")
    train(STORY, CAUSAL, tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()) == CAUSAL.steps
    load_run(tmp_path)


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="cannot write"):
        train(STORY, CAUSAL, tmp_path / "run")


def test_too_short_a_text_says_both_numbers_and_leaves_nothing(tmp_path):
    with pytest.raises(TrainingError, match=r"^the text has 8 tokens to train on, but a block needs 17$"):
        train(["abcdefghij"], CAUSAL, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", " \n\n "])
@pytest.mark.parametrize("recipe", [CAUSAL, MASKED], ids=["causal", "masked"])
def test_no_text_is_refused(text, recipe, tmp_path):
    with pytest.raises(UsageError, match="the corpus has no word in it"):
        train(text, recipe, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
    said = "the loss is NaN at step 5, in example 0, first at final.norm; the checkpoint of step 3 stays"
    with pytest.raises(TrainingError, match=f"^{said}$"):
        train(STORY, CAUSAL, tmp_path / "run", observers=[Called(spoil_at(4))])
    model = load_run(tmp_path / "run")
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    assert len((tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()) == 4


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_named_by_the_parameter_nearest_to_the_loss(number, tmp_path):
    def spoil(metrics, setup):
        block = setup.model.blocks[0]
        if metrics.step == 2:
            for parameter in (block.norm1.weight, block.ffn.down.weight):
                parameter.register_hook(lambda gradient: gradient * number)

    said = r"the gradient norm is (NaN|∞) at step 3, first in the gradient of blocks\.0\.ffn\.down\.weight"
    with pytest.raises(TrainingError, match=f"^{said}"):
        train(STORY, CAUSAL, tmp_path / "run", observers=[Called(spoil)])


@pytest.mark.parametrize("lr", [1e25, 1e38])
def test_weights_that_are_no_numbers_are_never_saved_nor_their_loss_written(lr, tmp_path):
    with pytest.raises(TrainingError):
        train(STORY, changed(CAUSAL, lr=lr, warmup=0, eval_every=1), tmp_path / "run")

    def no_number(word):
        raise AssertionError(f"{word} is not JSON")

    for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines():
        json.loads(line, parse_constant=no_number)
    if (tmp_path / "run" / "model.safetensors").exists():
        saved = load_file(tmp_path / "run" / "model.safetensors")
        assert all(torch.isfinite(tensor).all() for tensor in saved.values())


def spoil_at(step):
    def spoil(metrics, setup):
        if metrics.step == step:
            with torch.no_grad():
                setup.model.final_norm.weight.fill_(math.nan)

    return spoil


# Run directories


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    train(STORY, CAUSAL, out)
    return out


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def edit(run: Path, change) -> None:
    tensors = load_file(run / "model.safetensors")
    change(tensors)
    save_file(tensors, run / "model.safetensors")


def edit_config(run: Path, change) -> None:
    data = json.loads((run / "config.json").read_text("utf-8"))
    change(data)
    (run / "config.json").write_text(json.dumps(data), "utf-8")


def refused(run: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(str(run))
    return caught.value


def test_a_run_comes_back_with_every_number(run, tmp_path):
    opened = load(str(run))
    model, tokenizer = opened.transformer, opened.tokenizer
    save_run(tmp_path / "again", model, tokenizer)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes(), name


def test_weights_in_half_precision_come_back_in_float32(run):
    edit(run, lambda tensors: tensors.update({name: t.bfloat16() for name, t in tensors.items()}))
    model = load_run(run)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    assert refused(run).message == f"there is no {name} in {run}"


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_damaged(run, kept):
    data = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(data[:kept])
    assert refused(run).message.startswith(f"{run / 'model.safetensors'} is damaged: ")


def test_a_wrong_shape_names_the_tensor_and_both_shapes(run):
    edit(run, lambda tensors: tensors.update({"blocks.0.attention.q.weight": torch.zeros(16, 15)}))
    message = "blocks.0.attention.q.weight has shape (16, 15), the configuration needs (16, 16)"
    assert refused(run).message == f"{run / 'model.safetensors'}: {message}"


def test_a_missing_tensor_is_named_and_counted(run):
    edit(run, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".norm2." in name])
    found = refused(run).message
    assert found.startswith(f"{run / 'model.safetensors'} lacks blocks.0.norm2.weight (1 of ")


def test_an_extra_tensor_is_named_with_the_nearest(run):
    edit(run, lambda tensors: tensors.update({"blocks.0.norm3.weight": torch.zeros(16)}))
    found = refused(run)
    assert found.message.endswith("holds 'blocks.0.norm3.weight', which the model has no place for")
    assert found.hint.startswith("did you mean blocks.0.norm")


def test_a_configuration_that_is_not_json_says_where(run):
    (run / "config.json").write_text('{"format": \n oops}', "utf-8")
    assert refused(run).message.endswith("config.json is not JSON: Expecting value at line 2, column 2")
    (run / "config.json").write_text("[1]", "utf-8")
    assert refused(run).message.endswith("config.json holds a list, not a JSON object")
    (run / "config.json").write_bytes(b'{"a": "\xff"}')
    assert "is not UTF-8 text" in refused(run).message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["model"].pop("d_model"), "the model configuration lacks d_model"),
        (lambda data: data["model"].update(d_modle=3), "the model configuration has no field 'd_modle'"),
        (lambda data: data["model"].update(n_heads=3), "n_heads 3 is not divisible by n_kv_heads 2"),
        (lambda data: data["model"].update(d_model="16"), "d_model is '16', and has to be a whole number"),
        (lambda data: data.pop("model"), "has no 'model' object"),
        (lambda data: data.pop("format"), "is not a tinytf configuration (format None)"),
        (lambda data: data.update(format_version=2), "has format version 2; this tinytf reads 1"),
    ],
)
def test_a_wrong_configuration_is_a_damaged_checkpoint(run, change, message):
    edit_config(run, change)
    found = refused(run)
    assert message in found.message
    assert found.exit_status == 1


@pytest.mark.parametrize(
    "fields",
    [{"d_ff": 10**30}, {"d_model": 2**62, "d_head": 8}, {"rope_theta": 10**400}],
    ids=["width", "size", "angle"],
)
def test_numbers_that_no_model_can_have_are_a_damaged_checkpoint(run, fields):
    edit_config(run, lambda data: data["model"].update(fields))
    assert "config.json" in refused(run).message


@pytest.mark.parametrize("text", ['{"a": ' + "9" * 5000 + "}", "[" * 100_000], ids=["digits", "depth"])
def test_json_that_python_cannot_hold_is_a_damaged_checkpoint(run, text):
    (run / "config.json").write_text(text, "utf-8")
    assert "config.json" in refused(run).message


def test_a_tokenizer_larger_than_the_model_is_refused_with_both_numbers(run):
    tokenizer = load(str(run)).tokenizer
    size = tokenizer.vocab_size
    edit_config(run, lambda data: data["model"].update(vocab_size=size - 1))
    assert refused(run).message == f"{run}: the tokenizer has {size} tokens, but the model takes {size - 1}"


def test_a_loaded_model_computes_what_was_saved(run):
    model = load_run(run)
    same = Transformer(model.config)
    same.load_state_dict(load_file(run / "model.safetensors"))
    ids = torch.arange(10)[None]
    assert torch.equal(model(ids), same.eval()(ids))


@pytest.mark.parametrize("fields", [{}, {"objective": "masked", "tokenizer": "wordpiece"}])
@pytest.mark.parametrize("head", [{}, {"tied_head": False}])
def test_a_new_model_begins_with_all_tokens_about_as_probable(fields, head):
    """The loss of random targets is then ln V, by numpy in float64."""
    model = first_model(Recipe(model=head, **fields), 2000)
    ids, targets = (torch.randint(0, 2000, (4, 64), generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    with torch.no_grad():
        logits = model(ids).double().numpy()
    found = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets.numpy()[..., None], -1)[..., 0]
    assert found.mean() == pytest.approx(np.log(2000), abs=0.06)
