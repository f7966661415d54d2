"""Branches: runs that continue from a checkpoint of another run, with other settings or without some heads."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tinytf.checkpoints.run import load_run
from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of, read_config
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace.address import parse_block
from tinytf.training.checkpoint import (
    RANDOM,
    RunState,
    checkpoint_folder,
    read_progress,
    require_intact,
    save_checkpoint,
)
from tinytf.training.data.setup import fingerprint_of
from tinytf.training.recipe import Recipe, stored_recipe

_MOMENTS = ("exp_avg", "exp_avg_sq")
_FIXED = ("freeze", "model", "tokenizer", "vocab_size", "objective", "held_out")
"""Fields that a branch inherits from its parent: its weights or its held-out text depend on them."""


def branch_recipe(parent: Path, step: int, without: Sequence[str], changes: Mapping[str, Any]) -> Recipe:
    """The recipe of a branch from ``step`` on: the recipe of its parent with ``changes``, ``without`` some heads.

    Raises UsageError where the parent has no checkpoint of that step, and for a change that a branch cannot make.
    """
    stored = stored_recipe(parent)
    if stored is None:
        raise UsageError(f"there is no run in {parent}", "--from RUN --at-step N continues from a checkpoint of a run")
    if stored.lora:
        raise UsageError(f"{parent} was trained by LoRA, which does not support branches yet", "begin from its model")
    steps = [checkpoint_step(checkpoint) for checkpoint in checkpoints_of(parent)]
    if step not in steps:
        available = ", ".join(f"{step_saved:,}" for step_saved in steps) or "none"
        raise UsageError(
            f"{parent} has no checkpoint of step {step:,}; it has: {available}",
            "train with --keep N to keep more of them",
        )
    config = read_config(checkpoint_folder(parent, step))
    for text in without:
        _heads_of(text, config)
    for name, value in changes.items():
        if name in _FIXED and value != getattr(stored, name):
            raise UsageError(
                f"a branch inherits the {name.replace('_', ' ')} of its parent", "begin another run to change it"
            )
    recipe = dataclasses.replace(
        stored, **changes, begun_from=os.path.abspath(parent), at_step=step, without=(*stored.without, *without)
    )
    if recipe.steps <= step:
        raise UsageError(
            f"the branch begins after step {step:,}, but its recipe has only {recipe.steps:,} steps", "add --steps"
        )
    return recipe


def begin_branch(corpus: Corpus, recipe: Recipe, out: Path) -> None:
    """Write the first checkpoint of a branch: its parent's, with the heads cut out of weights and moments.

    A seed other than the parent's restarts the random numbers here.
    """
    parent = Path(recipe.begun_from)
    checkpoint = checkpoint_folder(parent, recipe.at_step)
    require_intact(checkpoint)
    trunk, model, moments = stored_recipe(parent), load_run(checkpoint), load_file(checkpoint / "optimizer.safetensors")
    with torch.no_grad():
        for name, columns in _columns_of(model, recipe.without):
            moments_of_heads = [moments[f"{name}.{kind}"] for kind in _MOMENTS if f"{name}.{kind}" in moments]
            for tensor in (model.get_parameter(name), *moments_of_heads):
                tensor[:, columns] = 0.0
    if trunk is None or trunk.seed != recipe.seed:
        generator = torch.Generator()
        for rank, name in enumerate(sorted(name for name in moments if name.startswith(RANDOM))):
            moments[name] = generator.manual_seed(recipe.seed + rank).get_state()
    progress = dataclasses.replace(
        read_progress(checkpoint), corpus=fingerprint_of(corpus), best=None, best_step=0, pending={}
    )
    state = RunState(model.config, {name: parameter.detach() for name, parameter in model.named_parameters()}, moments)
    save_checkpoint(out, state, Tokenizer.load(checkpoint / "tokenizer.json"), progress)


def block_gradients(model: Transformer, without: Sequence[str]) -> None:
    """Block the gradients of the heads that were cut out, so that they stay at zero."""
    for name, columns in _columns_of(model, without):
        model.get_parameter(name).register_hook(lambda gradient, columns=columns: _zeroed(gradient, columns))


def _zeroed(gradient: torch.Tensor, columns: slice) -> torch.Tensor:
    gradient = gradient.clone()
    gradient[:, columns] = 0.0
    return gradient


def _columns_of(model: Transformer, heads: Sequence[str]) -> Iterator[tuple[str, slice]]:
    """For each of these heads, the name of the output matrix that reads it, and its columns there."""
    for layer, head in (pair for text in heads for pair in _heads_of(text, model.config)):
        name = f"blocks.{layer}.attention.o.weight"
        width = model.get_parameter(name).shape[1] // model.config.at(layer).n_heads
        yield name, slice(head * width, (head + 1) * width)


def _heads_of(text: str, config: ModelConfig) -> list[tuple[int, int]]:
    """Layers and heads of an address such as L1H2 or L0-1H*. Raises UsageError for anything else."""
    address = parse_block(text, table_of(config))
    if address.layers is None or address.heads is None or address.letter != "H":
        raise UsageError(f"--without takes heads, such as L1H2, not {text!r}")
    return [(layer, head) for layer in address.layers for head in address.heads]
