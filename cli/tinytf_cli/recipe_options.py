"""Recipes on the command line: every field an option, over a file, over a preset, over what a run was begun with."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.config import CHOICES, ModelConfig
from tinytf.errors import UsageError
from tinytf.training.recipe import DTYPES, OBJECTIVES, SCHEDULES, TOKENIZERS, Recipe
from tinytf_cli.options import gathered

if TYPE_CHECKING:
    from dataclasses import Field

_HELP = {
    "objective": "Next token, or masked tokens.",
    "vocab_size": "Tokens of the vocabulary (not for char); 0 is 2,000, or as many as the text yields.",
    "block": "Training length in tokens.",
    "batch": "Examples a step.",
    "accumulate": "Parts that a batch goes through in.",
    "repeats": "Share of examples that are random tokens said again, which teaches copying.",
    "repeats_first": "Steps at the beginning that are nothing else.",
    "steps": "Optimiser steps.",
    "lr": "Peak learning rate.",
    "final_lr": "Share of it that is left in the end.",
    "warmup": "Steps of linear warm-up.",
    "schedule": "What follows the warm-up.",
    "weight_decay": "Of matrices; gains and biases have none.",
    "beta1": "Of Adam: how long the mean of gradients lasts.",
    "beta2": "Of Adam: how long the mean of their squares lasts.",
    "clip": "Largest global norm of the gradients.",
    "held_out": "Share of the text, from its end, that is never trained on.",
    "eval_every": "Steps between held-out losses.",
    "save_every": "Steps between checkpoints; 0 is as often as held-out losses.",
    "keep": "Checkpoints that are kept, beside the best.",
    "probe_every": "Steps between measurements of what the heads do; 0 is never.",
    "sample_tokens": "Length of the sample that comes with every held-out loss; 0 is none.",
    "dtype": "What is computed in; weights stay float32.",
    "compile": "Let torch write the kernels first.",
    "seed": "Makes first weights, order and dropout.",
}
_WORDS = {"objective": OBJECTIVES, "schedule": SCHEDULES, "dtype": DTYPES}
_OF_THE_DATA = ("vocab_size", "causal")
"""Fields of a model that text and objective decide."""


def _type_of(field: "Field[Any]", words: Mapping[str, tuple[str, ...]]) -> Any:
    return click.Choice(words[field.name]) if field.name in words else field.type


def _options() -> Iterator[Any]:
    """Every field of a recipe as an option, then those of the model, which --help leaves out."""
    for field in dataclasses.fields(Recipe):
        if field.name in _HELP:
            kind: dict[str, Any] = (
                {"is_flag": True, "default": None} if field.type is bool else {"type": _type_of(field, _WORDS)}
            )
            yield click.option(_name(field), field.name, help=_HELP[field.name], **kind)
    for field in dataclasses.fields(ModelConfig):
        if field.name not in _OF_THE_DATA:
            yield click.option(_name(field), f"model_{field.name}", type=_type_of(field, CHOICES), hidden=True)


def _name(field: "Field[Any]") -> str:
    return f"--{field.name.replace('_', '-')}"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


recipe_options = gathered("fields", _given, _options())
"""The fields of a recipe and of its model: the command gets those that were given, as ``fields``."""


def resolved_recipe(
    given: Mapping[str, Any],
    file: Path | None,
    preset_name: str | None,
    begin_from: str | None,
    tokenizer: str | None,
    run: Path | None,
) -> Recipe:
    """The recipe of a run: that of the ``run`` to go on with, or a file's, a preset's and the options' together.

    Raises UsageError for an option that differs from what the run was begun with.
    """
    from tinytf.files import read_json
    from tinytf.presets import preset

    changes = {name: value for name, value in given.items() if not name.startswith("model_")}
    model = {name.removeprefix("model_"): value for name, value in given.items() if name.startswith("model_")}
    changes |= _tokenizer_fields(tokenizer)
    if preset_name is not None:
        model = {**{k: v for k, v in preset(preset_name).to_dict().items() if k not in _OF_THE_DATA}, **model}
    if begin_from is not None:
        if model:
            raise UsageError("--from brings its own architecture", "leave out --preset and the model's fields")
        changes["begun_from"] = begin_from
    if run is not None and (run / "recipe.json").exists():
        stored = Recipe.from_dict(read_json(run / "recipe.json"), str(run / "recipe.json"))
        asked = {**(Recipe.load(file).to_dict() if file else {}), **changes}
        asked |= {"model": {**stored.model, **model}} if model else {}
        _require_same(stored, asked, run)
        return stored
    if model:
        changes["model"] = {**(Recipe.load(file).model if file else {}), **model}
    if file is not None:
        return Recipe.load(file, **changes)
    if changes.get("objective") == "masked":
        changes.setdefault("tokenizer", "wordpiece")
    return Recipe.from_dict(changes)


def _require_same(stored: Recipe, asked: Mapping[str, Any], run: Path) -> None:
    for name, value in asked.items():
        if getattr(stored, name) != value:
            raise UsageError(
                f"{run} was begun with {name} {getattr(stored, name)!r}, and {value!r} is asked for",
                "leave the option out, or begin another run",
            )


def _tokenizer_fields(tokenizer: str | None) -> dict[str, Any]:
    """``bpe:2000`` as fields of a recipe; nothing for the tokenizer of a model."""
    kind, colon, size = (tokenizer or "").partition(":")
    if kind not in TOKENIZERS:
        return {}
    if not colon:
        return {"tokenizer": kind}
    if not size.isdecimal() or not int(size) or kind == "char":
        raise UsageError(f"--tokenizer {tokenizer} is not char, bpe:SIZE or wordpiece:SIZE", "such as bpe:2000")
    return {"tokenizer": kind, "vocab_size": int(size)}
