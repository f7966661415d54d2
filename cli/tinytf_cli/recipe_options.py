"""Recipes on the command line: options override a file, which overrides a preset; a resumed run has its own."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.config import CHOICES, ModelConfig
from tinytf.errors import UsageError
from tinytf.training.recipe import TOKENIZERS, Recipe, require_same, stored_recipe
from tinytf_cli.options import gathered, option

if TYPE_CHECKING:
    from dataclasses import Field

_OF_THE_DATA = ("vocab_size", "causal")
"""Fields of a model that the text and the objective determine."""


def _options() -> Iterator[Any]:
    """Every field of a recipe as an option, then those of the model, which --help omits."""
    for field in dataclasses.fields(Recipe):
        if help := field.metadata.get("help"):
            choices = field.metadata["limits"].choices
            kind: Any = {"type": click.Choice(choices) if choices else field.type}
            kind = {"is_flag": True, "default": None} if field.type is bool else kind
            yield click.option(_name(field), field.name, help=help, **kind)
    for field in dataclasses.fields(ModelConfig):
        if field.name not in _OF_THE_DATA:
            kind = click.Choice(CHOICES[field.name]) if field.name in CHOICES else field.type
            yield click.option(_name(field), f"model_{field.name}", type=kind, hidden=True)


def _name(field: "Field[Any]") -> str:
    return f"--{field.name.replace('_', '-')}"


@dataclass(frozen=True)
class RunOptions:
    """Where the run is, and what it starts from."""

    out: Path | None = option(type=click.Path(path_type=Path), help="Folder of the run; default: a new one in runs/.")
    resume: bool = option(is_flag=True, help="Continue the run in --out, as if it had never stopped.")
    overwrite: bool = option(is_flag=True, help="Remove the run in --out first.")
    recipe: Path | None = option(type=click.Path(path_type=Path), help="A TOML file with model, data and optimiser.")
    preset: str | None = option(metavar="NAME", help="The architecture of a preset, such as llama-tiny.")
    begin_from: str | None = option("--from", metavar="MODEL", help="Begin from this model and its tokenizer.")
    tokenizer: str | None = option(metavar="KIND", help="char, bpe:SIZE, wordpiece:SIZE, or a model to take it from.")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


recipe_options = gathered("fields", _given, _options())
"""The fields of a recipe and of its model: the command gets those given, as ``fields``."""


def resolved_recipe(given: Mapping[str, Any], options: RunOptions, resumed: Path | None) -> Recipe:
    """The stored recipe of the ``resumed`` run, or that of a file, a preset and the options together.

    Raises UsageError for an option that differs from the stored recipe.
    """
    from tinytf.presets import preset

    changes = {name: value for name, value in given.items() if not name.startswith("model_")}
    model = {name.removeprefix("model_"): value for name, value in given.items() if name.startswith("model_")}
    changes |= _tokenizer_fields(options.tokenizer)
    if options.preset is not None:
        model = {**{k: v for k, v in preset(options.preset).to_dict().items() if k not in _OF_THE_DATA}, **model}
    if options.begin_from is not None:
        if model:
            raise UsageError("--from brings its own architecture", "leave out --preset and the model's fields")
        changes["begun_from"] = options.begin_from
    file = None if options.recipe is None else Recipe.load(options.recipe)
    if resumed is not None and (stored := stored_recipe(resumed)) is not None:
        asked = {**({} if file is None else file.to_dict()), **changes}
        asked |= {"model": {**stored.model, **model}} if model else {}
        require_same(resumed, stored, asked)
        return stored
    if model:
        changes["model"] = {**({} if file is None else file.model), **model}
    if options.recipe is not None:
        return Recipe.load(options.recipe, **changes)
    if changes.get("objective") == "masked":
        changes.setdefault("tokenizer", "wordpiece")
    return Recipe.from_dict(changes)


def _tokenizer_fields(tokenizer: str | None) -> dict[str, Any]:
    """``bpe:2000`` as fields of a recipe; none for the tokenizer of a model."""
    kind, colon, size = (tokenizer or "").partition(":")
    if kind not in TOKENIZERS:
        return {}
    if not colon:
        return {"tokenizer": kind}
    if not size.isdecimal() or not int(size) or kind == "char":
        raise UsageError(f"--tokenizer {tokenizer} is not char, bpe:SIZE or wordpiece:SIZE", "such as bpe:2000")
    return {"tokenizer": kind, "vocab_size": int(size)}
