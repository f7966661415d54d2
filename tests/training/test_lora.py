"""LoRA trained here is what PEFT trains from the same first values, and its files are PEFT's."""

import json
import sys
import warnings
from pathlib import Path

import peft
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))

from architectures import enliven
from reference import FAMILIES, saved

from tinytf.checkpoints.huggingface.adapter import Adapter
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.run import load_run
from tinytf.errors import CheckpointError, UsageError
from tinytf.text.corpus import find_files
from tinytf.training.data.setup import prepare
from tinytf.training.plan import plan
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.optimiser import learning_rate

STORY = "\n\n".join(f"the {who} sat on the {what}" for who in ("cat", "dog", "hen") for what in ("mat", "log", "hat"))
RECIPE = Recipe(
    begun_from="base", lora=3, lora_alpha=5, tokenizer="char", block=12, batch=4, steps=6, warmup=2, eval_every=3,
    held_out=0.2, lr=1e-2, probe_every=0, sample_tokens=0,
)  # fmt: skip
IDS = torch.tensor([[7, 3, 12, 4, 5, 5, 9]])


def model_of(family: str):
    return read_directory(saved(family)).load().transformer


def run_of(family: str, out: Path, recipe: Recipe = RECIPE, **settings: object) -> Path:
    train(STORY, recipe, out, model=model_of(family), **settings)
    return out


@pytest.mark.share(4)
@pytest.mark.parametrize("family", ["llama 3", "gpt-j", "gpt2", "diffllama"])
def test_training_is_that_of_peft(family: str, tmp_path: Path) -> None:
    Adapters(model_of(family), RECIPE).save(tmp_path)  # the first values
    theirs = FAMILIES[family]().eval()
    with torch.no_grad():
        enliven(theirs, 7)
    warnings.filterwarnings("ignore", category=UserWarning)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter", is_trainable=True)
    trained = [one for one in theirs.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.1)
    examples = prepare(find_files(STORY), RECIPE, tmp_path / "tokens", model=model_of(family)).examples
    losses = []
    for step in range(6):
        batch = examples.batch(step)
        loss = F.cross_entropy(theirs(batch.ids).logits.flatten(0, 1), batch.targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.param_groups[0]["lr"] = learning_rate(step, RECIPE)
        optimiser.step()
        losses.append(float(loss.detach()))
    run = run_of(family, tmp_path / "run")
    said = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert said == pytest.approx(losses, abs=1e-4)
    ours, expected = load_file(run / "adapter" / "adapter_model.safetensors"), peft.get_peft_model_state_dict(theirs)
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=2e-4, msg=name)


def test_the_run_is_the_merged_model_and_its_adapter_the_rest(tmp_path: Path) -> None:
    run = run_of("llama 3", tmp_path / "run")
    theirs = FAMILIES["llama 3"]().eval()
    with torch.no_grad():
        enliven(theirs, 7)
        expected = peft.PeftModel.from_pretrained(theirs, run / "adapter").eval()(IDS).logits
        torch.testing.assert_close(load_run(run)(IDS), expected, rtol=1e-4, atol=1e-4)
        checkpoint = read_directory(saved("llama 3"))
        adapted = Adapter(run / "adapter").merge(checkpoint.load().transformer, checkpoint.table)
        torch.testing.assert_close(adapted(IDS), expected, rtol=1e-4, atol=1e-4)
    before, after = model_of("llama 3"), load_run(run)
    for name, weight in before.named_parameters():
        adapts = name.startswith("blocks.") and weight.dim() == 2
        assert torch.equal(weight, after.get_parameter(name)) != adapts, name


def test_it_goes_on_to_the_byte_from_the_model_that_it_began_from(tmp_path: Path) -> None:
    asked = iter([False] * 3 + [True] * 9)
    whole = run_of("llama 3", tmp_path / "whole")
    parts = run_of("llama 3", tmp_path / "parts", interrupted=lambda: next(asked))
    run_of("llama 3", tmp_path / "parts", resume=True)
    for name in ("model.safetensors", "metrics.jsonl", "adapter/adapter_model.safetensors"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_dry_run_knows_how_little_is_trained_and_how_much_a_checkpoint_takes(tmp_path: Path) -> None:
    found = plan(find_files(STORY), RECIPE, tmp_path / "run", model=model_of("llama 3"))
    run = run_of("llama 3", tmp_path / "run")
    adapter = load_file(run / "adapter" / "adapter_model.safetensors")
    assert found.trained == sum(one.numel() for one in adapter.values())
    place = run / "checkpoints" / "step-000006"
    saved = load_file(place / "model.safetensors") | load_file(place / "optimizer.safetensors")
    numbers = [one for one in saved.values() if one.dtype == torch.float32 and one.dim()]
    assert found.checkpoint_bytes == sum(one.nbytes for one in numbers)
    assert found.memory_bytes == found.checkpoint_bytes + sum(one.nbytes for one in adapter.values())  # gradients
    first = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[0])
    assert (found.loss, found.gradient_norm) == pytest.approx((first["loss"], first["grad_norm"]))


def test_another_model_below_the_adapters_is_noticed(tmp_path: Path) -> None:
    run_of("llama 3", tmp_path, interrupted=lambda: True)
    other = model_of("llama 3")
    with torch.no_grad():
        other.blocks[0].attention.q.weight += 0.1
    with pytest.raises(CheckpointError, match="is not what the run began from"):
        train(STORY, RECIPE, tmp_path, model=other, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"begun_from": ""}, "LoRA adapts a trained model"), ({}, "LoRA does not go with a new model")],
)
def test_lora_without_a_model_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        train(STORY, Recipe(**{**RECIPE.to_dict(), **changes}), tmp_path / "run")
