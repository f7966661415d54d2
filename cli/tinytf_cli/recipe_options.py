"""Recipes on the command line: options override a file, which overrides a preset; a resumed run has its own."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tinytf.config import FIELDS
from tinytf.errors import UsageError
from tinytf.training.recipe import FIELDS as RECIPE
from tinytf.training.recipe import TOKENIZERS, Recipe, require_same, resumed_recipe, stored_recipe
from tinytf_cli.command import DECLARED_BY, argument, option

if TYPE_CHECKING:
    from tinytf.fields import Field

_ABOUT = {field.name: field.metadata.get("help") for field in dataclasses.fields(Recipe)}
"""What --help says of a field of a recipe."""
_OF_THE_DATA = ("vocab_size", "causal")
"""Fields of a model that the text and the objective determine."""
_GROUPS = {
    "Data": (
        "objective", "document", "field", "vocab_size", "block", "batch", "held_out", "document_starts", "repeats",
        "repeats_first",
    ),
    "Optimiser": (
        "steps", "lr", "warmup", "schedule", "final_lr", "weight_decay", "beta1", "beta2", "clip",
        "lora", "lora_alpha", "first_weights", "seed",
    ),
    "Watching": (
        "eval_every", "patience", "save_every", "save_minutes", "keep", "probe_every", "sample_tokens", "frames",
    ),
    "Machine": ("accumulate", "dtype", "recompute", "threads", "kernel", "compile"),
}  # fmt: skip
"""The fields of a recipe that are options, by their groups in --help."""


def _declaring(group: str, fields: "Iterable[Field]", *, several: bool = False) -> type:
    """A class that declares an option for each field; --help hides those without a line that explains them.

    Where each takes ``several`` values, they are one text, separated by commas.
    """
    declared = []
    for field in fields:
        about = _ABOUT.get(field.name)
        choices = field.limits.choices
        kind: Any = {"type": click.Choice(tuple(choices)) if choices else field.kind}
        kind = {"is_flag": True, "default": None} if about and field.kind is bool else kind
        kind = {"type": str, "metavar": "VALUE,…"} if several else kind
        declared.append((field.name, Any, option(help=about, hidden=about is None, **kind)))
    return dataclasses.make_dataclass(group, declared, frozen=True, namespace={"GROUP": group})


@dataclass(frozen=True)
class Given:
    """The fields of a recipe and of its model that were given."""

    recipe: Mapping[str, Any]
    model: Mapping[str, Any]


def _given(declared: Any) -> Given:
    groups = {
        group: {name: value for name, value in vars(fields).items() if value is not None}
        for group, fields in vars(declared).items()
    }
    model = groups.pop("Model")
    return Given({name: value for group in groups.values() for name, value in group.items()}, model)


@dataclass(frozen=True)
class Axes:
    """The fields of a recipe and of its model that have several values, each as the text of them."""

    given: Mapping[str, str]


def _axes(declared: Any) -> Axes:
    given = _given(declared)
    return Axes({**given.recipe, **given.model})


_OF_MODEL = [field for name, field in FIELDS.items() if name not in _OF_THE_DATA]
for _made, _resolved in ((Given, _given), (Axes, _axes)):
    _several = _made is Axes
    _declared = [
        *(_declaring(group, [RECIPE[name] for name in names], several=_several) for group, names in _GROUPS.items()),
        _declaring("Model", _OF_MODEL, several=_several),
    ]
    DECLARED_BY[_made] = dataclasses.make_dataclass(
        "Declared", [(made.__name__, made) for made in _declared], frozen=True, namespace={"resolved": _resolved}
    )


@dataclass(frozen=True)
class RunOptions:
    """What a run learns from, where it is, and what it starts from."""

    GROUP: ClassVar = "Run"

    corpus: tuple[Path, ...] = argument(nargs=-1, type=click.Path(path_type=Path), metavar="[CORPUS]...")
    out: Path | None = option(type=click.Path(path_type=Path), help="Folder of the run; default: a new one in runs/.")
    resume: bool = option(
        is_flag=True,
        help="Continue the run in --out, as if it had never stopped; --steps and how it is watched may change.",
    )
    overwrite: bool = option(is_flag=True, help="Remove the run in --out first.")
    recipe: Path | None = option(
        type=click.Path(path_type=Path),
        metavar="FILE|NAME",
        help="A TOML file with model, data and optimiser, or book, chat, finetune or induction.",
    )
    preset: str | None = option(metavar="NAME", help="The architecture of a preset, such as llama-tiny.")
    begin_from: str | None = option("--from", metavar="MODEL", help="Begin from this model and its tokenizer.")
    at_step: int | None = option(
        type=click.IntRange(1), help="With --from RUN: branch off at its checkpoint of this step, with its recipe."
    )
    without: tuple[str, ...] = option(
        multiple=True, metavar="HEAD", help="With --at-step: cut out a head, such as L1H2, for good. Repeatable."
    )
    freeze: tuple[str, ...] = option(
        multiple=True, metavar="ADDRESS",
        help="Weights that stay as they are: L0-3, L2.attn, L2.ffn, L0.q, embed, head. Repeatable.",
    )  # fmt: skip
    tokenizer: str | None = option(metavar="KIND", help="char, bpe:SIZE, wordpiece:SIZE, or a model to take it from.")


def resolved_recipe(given: Given, options: RunOptions, resumed: Path | None) -> Recipe:
    """The stored recipe of the ``resumed`` run, or that of a file, a preset and the options together.

    Raises UsageError for an option that differs from the stored recipe, and that a resumed run cannot change.
    """
    from tinytf.presets import preset
    from tinytf.training.run.branch import branch_recipe

    changes, model = dict(given.recipe), given.model
    changes |= _tokenizer_fields(options.tokenizer)
    changes |= {"freeze": options.freeze} if options.freeze else {}
    if options.preset is not None:
        model = {**{k: v for k, v in preset(options.preset).to_dict().items() if k not in _OF_THE_DATA}, **model}
    if options.begin_from is not None:
        if model:
            raise UsageError("--from brings its own architecture", "leave out --preset and the model's fields")
        changes["begun_from"] = options.begin_from
    if options.at_step is None and options.without:
        raise UsageError("--without cuts heads out of a branch", "name its start by --from RUN --at-step N")
    if options.at_step is not None:
        if options.begin_from is None:
            raise UsageError("--at-step is a step of another run", "name it by --from RUN")
        if options.recipe is not None:
            raise UsageError("a branch has the recipe of its run", "give what differs as options")
        del changes["begun_from"]
        return branch_recipe(Path(options.begin_from), options.at_step, options.without, changes)
    file = None if options.recipe is None else Recipe.load(options.recipe)
    if resumed is not None and (stored := stored_recipe(resumed)) is not None:
        changes |= {"model": {**stored.model, **model}} if model else {}
        of_file = {} if file is None else file.to_dict()
        require_same(resumed, stored, {name: value for name, value in of_file.items() if name not in changes})
        return resumed_recipe(resumed, stored, changes)
    if model:
        changes["model"] = {**({} if file is None else file.model), **model}
    if str(options.recipe) in ("chat", "finetune") and not options.begin_from:
        raise UsageError(f"the recipe {options.recipe} trains a model on", "name it, --from MODEL")
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
