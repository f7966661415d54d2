"""Recipes on the command line: options override a file, and a file overrides a preset. A resumed run keeps its own."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tinytf.config import FIELDS
from tinytf.errors import UsageError
from tinytf.training.recipe import FIELDS as RECIPE
from tinytf.training.recipe import TOKENIZERS, Recipe, require_same, resumed_recipe, stored_recipe, usual_lr
from tinytf_cli.command import DECLARED_BY, argument, option
from tinytf_cli.ranges import Whole, range_of

if TYPE_CHECKING:
    from tinytf.fields import Field

_HELP = {field.name: field.metadata.get("help") for field in dataclasses.fields(Recipe)}
"""The help text of each recipe field."""
_FROM_DATA = ("vocab_size", "causal")
"""Model fields determined by the text and the objective."""
_GROUPS = {
    "Data": (
        "objective", "document", "field", "vocab_size", "block", "batch", "held_out", "document_starts", "repeats",
        "repeats_first",
    ),
    "Optimiser": (
        "steps", "lr", "warmup", "schedule", "final_lr", "weight_decay", "beta1", "beta2", "label_smoothing",
        "balance", "clip", "lora", "lora_alpha", "first_weights", "seed",
    ),
    "Watching": (
        "eval_every", "patience", "save_every", "save_minutes", "keep", "probe_every", "sample_tokens", "frames",
    ),
    "Machine": ("accumulate", "dtype", "recompute", "threads", "kernel", "compile"),
}  # fmt: skip
"""The recipe fields that are options, by help group."""


def _make_group(group: str, fields: "Iterable[Field]", *, takes_lists: bool = False) -> type:
    """Make a class that declares an option for each field. --help hides fields without a help text.

    With ``takes_lists``, each option takes several values, separated by commas.
    """
    declared = []
    for field in fields:
        help_text = _HELP.get(field.name)
        choices = field.limits.choices
        is_number = field.kind in (int, float)
        numbers = range_of(field.kind, field.limits) if is_number else field.kind
        settings: Any = {"type": click.Choice(tuple(choices)) if choices else numbers}
        settings = {"is_flag": True, "default": None} if help_text and field.kind is bool else settings
        settings = {"type": str, "metavar": "VALUE,…"} if takes_lists else settings
        declared.append((field.name, Any, option(help=help_text, hidden=help_text is None, **settings)))
    return dataclasses.make_dataclass(group, declared, frozen=True, namespace={"GROUP": group})


@dataclass(frozen=True)
class RecipeOverrides:
    """The recipe and model fields set on the command line."""

    recipe: Mapping[str, Any]
    model: Mapping[str, Any]


def _overrides(declared: Any) -> RecipeOverrides:
    groups = {
        group: {name: value for name, value in vars(fields).items() if value is not None}
        for group, fields in vars(declared).items()
    }
    model = groups.pop("Model")
    return RecipeOverrides({name: value for group in groups.values() for name, value in group.items()}, model)


@dataclass(frozen=True)
class Axes:
    """The recipe and model fields to sweep: each name with its values, separated by commas."""

    values: Mapping[str, str]


def _axes(declared: Any) -> Axes:
    overrides = _overrides(declared)
    return Axes({**overrides.recipe, **overrides.model})


_MODEL_FIELDS = [field for name, field in FIELDS.items() if name not in _FROM_DATA]
for _type, _resolved in ((RecipeOverrides, _overrides), (Axes, _axes)):
    _takes_lists = _type is Axes
    _declared = [
        *(
            _make_group(group, [RECIPE[name] for name in names], takes_lists=_takes_lists)
            for group, names in _GROUPS.items()
        ),
        _make_group("Model", _MODEL_FIELDS, takes_lists=_takes_lists),
    ]
    DECLARED_BY[_type] = dataclasses.make_dataclass(
        "Declared", [(group.__name__, group) for group in _declared], frozen=True, namespace={"resolved": _resolved}
    )


@dataclass(frozen=True)
class RunOptions:
    """The text a run learns from, its folder, and its starting point."""

    GROUP: ClassVar = "Run"

    corpus: tuple[Path, ...] = argument(nargs=-1, type=click.Path(path_type=Path), metavar="[CORPUS]...")
    out: Path | None = option(type=click.Path(path_type=Path), help="Folder of the run.  [default: a new one in runs/]")
    resume: bool = option(
        is_flag=True,
        help="Continue a run as if it had never stopped: train --resume RUN, the one in --out, or else the newest that "
        "has steps left. --steps and the options of Watching may change.",
    )
    overwrite: bool = option(is_flag=True, help="Delete the run in --out first.")
    recipe: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="FILE|NAME",
        help="A TOML file, or a built-in recipe: bert, book, chat, finetune, induction or translate.",
    )
    preset: str | None = option(metavar="NAME", help="Use the architecture of this preset, such as llama-tiny.")
    begin_from: str | None = option("--from", metavar="MODEL", help="Start from this model and its tokenizer.")
    at_step: int | None = option(
        type=Whole(1), help="With --from RUN: branch off at its checkpoint of this step, with its recipe."
    )
    without: tuple[str, ...] = option(
        multiple=True, metavar="HEAD", help="With --at-step: remove a head for good, such as L1H2. Repeatable."
    )
    freeze: tuple[str, ...] = option(
        multiple=True, metavar="ADDRESS",
        help="Do not train these weights: L0-3, L2.attn, L2.ffn, L0.q, embed, head. Repeatable.",
    )  # fmt: skip
    tokenizer: str | None = option(metavar="KIND", help="char, bpe:SIZE, wordpiece:SIZE, or a model to take it from.")


def resolved_recipe(overrides: RecipeOverrides, options: RunOptions, resumed: Path | None) -> Recipe:
    """The stored recipe of the ``resumed`` run, or one made from a file, a preset and the options.

    Raises UsageError for an option that differs from the stored recipe and cannot change in a resumed run.
    """
    from tinytf.presets import settings_of
    from tinytf.sources import find_source
    from tinytf.training.branch import branch_recipe

    changes, model = dict(overrides.recipe), overrides.model
    changes |= _tokenizer_fields(options.tokenizer)
    changes |= {"freeze": options.freeze} if options.freeze else {}
    if options.begin_from is not None:
        if model or options.preset is not None:
            raise UsageError("--from brings its own architecture", "leave out --preset and the model's fields")
        changes["begun_from"] = options.begin_from
        if resumed is None and options.at_step is None:
            kind = "lora" if changes.get("lora") else "fine"
            rate = usual_lr(kind, find_source(options.begin_from).config().d_model)
            given = {} if options.recipe is None else Recipe.given(options.recipe)
            changes = {"lr": given.get("lr", rate), **changes}
    if options.at_step is None and options.without:
        raise UsageError("--without removes heads from a branch", "name where it starts with --from RUN --at-step N")
    if options.at_step is not None:
        if options.begin_from is None:
            raise UsageError("--at-step is a step of another run", "name the run with --from RUN")
        if options.recipe is not None:
            raise UsageError("a branch uses the recipe of its run", "change fields with options instead")
        del changes["begun_from"]
        return branch_recipe(Path(options.begin_from), options.at_step, options.without, changes)
    file = None if options.recipe is None else Recipe.load(options.recipe)
    if options.preset is not None:
        model = {**({} if file is None else file.model), **model}
        chosen = settings_of(options.preset, model)
        headless = ("head", "pooler") if chosen.get("head") == "none" else ()  # the objective brings its head
        left_out = {*_FROM_DATA, *headless} - model.keys()
        model = {name: value for name, value in chosen.items() if name not in left_out}
    if resumed is not None and (stored := stored_recipe(resumed)) is not None:
        changes |= {"model": {**stored.model, **model}} if model else {}
        file_fields = {} if file is None else file.to_dict()
        require_same(resumed, stored, {name: value for name, value in file_fields.items() if name not in changes})
        return resumed_recipe(resumed, stored, changes)
    if model:
        changes["model"] = {**({} if file is None else file.model), **model}
    if str(options.recipe) in ("chat", "finetune") and not options.begin_from:
        raise UsageError(f"the recipe {options.recipe} continues training a model", "name it with --from MODEL")
    if options.recipe is not None:
        return Recipe.load(options.recipe, **changes)
    return Recipe.from_dict(changes)


def _tokenizer_fields(tokenizer: str | None) -> dict[str, Any]:
    """The recipe fields of a tokenizer such as ``bpe:2000``; none for the tokenizer of a model."""
    kind, colon, size = (tokenizer or "").partition(":")
    if kind not in TOKENIZERS:
        return {}
    if not colon:
        return {"tokenizer": kind}
    if not size.isdecimal() or not int(size) or kind == "char":
        raise UsageError(f"--tokenizer {tokenizer} is not char, bpe:SIZE or wordpiece:SIZE", "such as bpe:2000")
    return {"tokenizer": kind, "vocab_size": int(size)}
