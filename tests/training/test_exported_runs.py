"""What is trained can leave: each preset and recipe opens in transformers, or says before training that it will not."""

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from architectures import furthest, lively
from training_runs import STORY

import tinytf

sys.path.insert(0, str(Path(__file__).parent))
from training_command import trained

from tinytf.checkpoints.huggingface.export import export
from tinytf.errors import TinytfError
from tinytf.presets import PRESETS
from tinytf.text.train import TRAINERS
from tinytf.training.recipe import OBJECTIVES, SHIPPED, Recipe
from tinytf_cli.commands.train import _say_if_unwritable
from tinytf_cli.recipe_options import RecipeOverrides, RunOptions, resolved_recipe

NEW = [path.stem for path in sorted(SHIPPED.glob("*.toml")) if path.stem not in ("chat", "finetune")]
ASKED = [
    (preset, recipe, objective)
    for preset, recipe, objective in itertools.product((None, *PRESETS), (None, *NEW), OBJECTIVES)
    if recipe is None or objective == Recipe.given(Path(recipe)).get("objective", "causal")
]


@pytest.mark.share(24)
@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_a_new_model_opens_in_transformers_or_it_is_said_before_that_it_will_not(asked, tmp_path: Path) -> None:
    preset, recipe, objective = asked
    options = RunOptions(
        corpus=(), out=None, resume=False, overwrite=False, recipe=None if recipe is None else Path(recipe),
        preset=preset, begin_from=None, at_step=None, without=(), freeze=(), tokenizer=None,
    )  # fmt: skip
    try:
        small = {"d_model": 32, "n_layers": 4} | ({} if preset and PRESETS[preset].by_layer else {"n_heads": 4})
        chosen = resolved_recipe(RecipeOverrides({"objective": objective, "block": 16}, small), options, None)
        tokenizer = TRAINERS[chosen.tokenizer]([STORY], 270)
        config = chosen.model_config(tokenizer.vocab_size)
    except TinytfError:
        return  # refused, which is said too
    notes: list[str] = []
    _say_if_unwritable(chosen, SimpleNamespace(note=notes.append))  # type: ignore[arg-type]
    model = lively(config)
    if notes:
        with pytest.raises(TinytfError):
            export(model, tokenizer, tmp_path / "hf")
        return
    exported = export(model, tokenizer, tmp_path / "hf")
    theirs = getattr(transformers, exported.architecture).from_pretrained(tmp_path / "hf").eval()
    ids = torch.tensor([[7, 3, 12, 4, 5, 5, 9]])
    both = {} if config.encoder is None else {"decoder_input_ids": ids}
    with torch.no_grad():
        read = model.eval().read(ids) if both else None
        assert furthest(model.unembed(model.hidden(ids, source=read)), theirs(ids, **both).logits) < 1e-4


def test_an_encoder_by_the_recipe_bert_leaves_and_reads_a_mask_as_here(tmp_path: Path) -> None:
    text, run = tmp_path / "story.txt", tmp_path / "run"
    text.write_text(STORY, "utf-8")
    few = ("--steps", "4", "--batch", "2", "--block", "32", "--eval-every", "2", "--probe-every", "2")
    small = ("--d-model", "16", "--n-layers", "2", "--n-heads", "2")
    ran = trained(str(text), "--recipe", "bert", "--out", str(run), *small, *few)
    assert ran.status == 0, ran.said
    assert "tinytf alone" not in ran.said
    model = tinytf.load(run, device="cpu")
    exported = model.export(tmp_path / "hf")
    assert exported.architecture == "BertForMaskedLM"
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    asked = "The cat [MASK] on the mat."
    given = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")(asked, return_tensors="pt")
    assert given["input_ids"][0].tolist() == model.encode(asked).ids
    with torch.no_grad():
        torch.testing.assert_close(theirs(**given).logits, model.transformer(given["input_ids"]), rtol=0, atol=1e-5)
    again = tinytf.load(tmp_path / "hf", device="cpu")
    assert again.config.but(dropout=0.0) == model.config.but(dropout=0.0)
