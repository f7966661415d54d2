"""What a recipe or a preset only derives from another setting follows that setting where it is changed."""

import json
import math
from pathlib import Path

import pytest

from tinytf.config import ModelConfig
from tinytf.errors import ConfigError
from tinytf.presets import PRESETS
from tinytf.training.recipe import Recipe
from tinytf.training.sweep import grid
from tinytf_cli.recipe_options import RecipeOverrides, RunOptions, resolved_recipe

RECIPES = {
    "nothing": "",
    "steps": "steps = 500\n",
    "warm-up": "warmup = 7\n",
    "a file of its own": "steps = 40\nlr = 1e-2\n[model]\nd_model = 64\n",
}
AXES = {
    "steps": {"steps": (30, 400, 5000)},
    "widths": {"d_model": (32, 96), "block": (64, 512)},
    "objectives": {"objective": ("causal", "masked")},
    "all": {"steps": (20, 3000), "d_model": (64, 32), "lr": (1e-3, 3e-3)},
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
@pytest.mark.parametrize("text", RECIPES.values(), ids=RECIPES)
def test_a_trial_is_the_recipe_that_its_settings_alone_would_make(text: str, axes: dict, tmp_path: Path) -> None:
    (path := tmp_path / "recipe.toml").write_text(text, "utf-8")
    trials = grid(Recipe.given(path), axes, seeds=1)
    assert len(trials) == math.prod(map(len, axes.values()))
    for trial in trials:
        changes = {name: getattr(trial.recipe, name) for name in axes if hasattr(trial.recipe, name)}
        if "d_model" in axes:
            changes["model"] = {**Recipe.given(path).get("model", {}), "d_model": trial.recipe.model["d_model"]}
        assert trial.recipe == Recipe.load(path, **changes)
        if "warmup" not in text:
            assert trial.recipe.warmup <= trial.recipe.steps // 10 + 1


def made(name: str, **sizes: int) -> ModelConfig:
    objective = {"bert-base": "masked", "paper": "masked", "paper-translation": "translate"}.get(name, "causal")
    options = RunOptions(
        corpus=(), out=None, resume=False, overwrite=False, recipe=None, preset=name, begin_from=None, at_step=None,
        without=(), freeze=(), tokenizer=None,
    )  # fmt: skip
    model = {**sizes, **({"head": "mlm"} if objective == "masked" else {})}
    recipe = resolved_recipe(RecipeOverrides({"objective": objective, "block": 32}, model), options, None)
    assert json.loads(json.dumps(recipe.model)) == recipe.model  # as a resumed run reads it
    return recipe.model_config(500)


SIZES = [
    {},
    {"d_model": 64},
    {"d_model": 384, "n_layers": 6, "n_heads": 6},
    {"n_layers": 2},
    {"n_layers": 7, "d_model": 192},
    {"n_heads": 2},
]


def proportions(config: ModelConfig, preset: ModelConfig) -> dict[str, float]:
    """What stands in proportion in the preset, computed from the settings alone."""
    ratios = {"d_ff": config.d_ff / config.d_model}
    if not dict(preset.by_layer):
        if preset.d_head * preset.n_heads == preset.d_model:
            ratios["d_head"] = config.d_head * config.n_heads / config.d_model
        if preset.n_kv_heads == preset.n_heads:
            ratios["n_kv_heads"] = config.n_kv_heads / config.n_heads
    if preset.embed_scale == math.sqrt(preset.d_model):
        ratios["embed_scale"] = config.embed_scale**2 / config.d_model
    return ratios


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_derives_follows_the_sizes_that_are_given(name: str, sizes: dict[str, int]) -> None:
    preset = PRESETS[name]
    divides = sizes.get("d_model", preset.d_model) % sizes.get("n_heads", preset.n_heads) == 0
    try:
        config = made(name, **sizes)
    except ConfigError as error:  # such heads cannot be; those of layers of several kinds may not fit each other
        assert "is not divisible by n_" in error.message  # noqa: PT017
        assert not divides or ("n_heads" in sizes and dict(preset.by_layer))
        return
    for size, value in sizes.items():
        assert getattr(config, size) == value
    assert proportions(config, preset) == pytest.approx(proportions(preset, preset), rel=0.02)
    if name == "paper-translation":
        assert config.encoder is not None
        assert config.encoder.d_model == config.d_model == config.d_source
        assert proportions(config.encoder, PRESETS["paper"]) == pytest.approx(proportions(config, preset))
    if not sizes:
        own = ("vocab_size", "causal", "head", "encoder", "start_id", "d_source")
        assert [(key, value) for key, value in config.to_dict().items() if key not in own] == [
            (key, value) for key, value in preset.to_dict().items() if key not in own
        ]
