"""What every run starts with: the loop of a recipe on a corpus, from its newest checkpoint or its first weights."""

from collections.abc import Callable
from pathlib import Path

import torch

from tinytf.checkpoints.run import load_run
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.runs.run_files import TOKENS, clear_leftovers, remove_run
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.branch import block_gradients
from tinytf.training.checkpoint import newest_intact, read_progress, restore
from tinytf.training.data.examples import Examples
from tinytf.training.data.setup import fingerprint_of, prepare
from tinytf.training.data.tokens import Stage
from tinytf.training.loop import Loop, Schedule
from tinytf.training.recipe import Recipe, resumed_recipe, stored_recipe
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.losses import Objective
from tinytf.training.tuning.optimiser import describe_changes
from tinytf.training.tuning.parts import freeze, recompute
from tinytf.training.tuning.processes import ALONE, Processes
from tinytf.training.tuning.sharding import shard_model


def started(
    corpus: Corpus,
    recipe: Recipe,
    out: Path,
    device: torch.device,
    group: Processes = ALONE,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    examples: Examples | None = None,
    objective: Objective | None = None,
    schedule: Schedule | None = None,
    on_progress: Stage = lambda *_: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Loop:
    """The loop of a run before its next step, without observers; arguments as for ``train``."""
    if group.writes:
        clear_leftovers(out)
    checkpoint = None if overwrite else newest_intact(out, on_note)
    stored = stored_recipe(out) if resume else None
    if stored is not None:
        recipe = resumed_recipe(out, stored, recipe.to_dict())
    torch.manual_seed(recipe.seed)
    if checkpoint:
        if read_progress(checkpoint).corpus != fingerprint_of(corpus):
            raise UsageError(f"{out} was trained on another text", "give the same files, in the same order")
        tokenizer = Tokenizer.load(checkpoint / "tokenizer.json")
        if not recipe.lora:
            model = load_run(checkpoint) if model is not None or recipe.begun_from else None
    if not group.writes:
        group.wait()  # the first process writes the tokens for all
    setup = prepare(corpus, recipe, out / TOKENS, tokenizer, model, on_progress, examples)
    if group.writes:
        if overwrite:
            remove_run(out)
        group.wait()
    if not checkpoint:
        for note in setup.notes(recipe, new_tokenizer=tokenizer is None):
            on_note(note)
    block_gradients(setup.model, recipe.without)
    freeze(setup.model, recipe.freeze)
    adapters = Adapters(setup.model, recipe).to(device) if recipe.lora else None
    if recipe.recompute:
        recompute(setup.model)
    if group.shard:
        shard_model(setup.model, device)
    else:
        setup.model.to(device)
    loop = Loop(setup, recipe, out, device, group, adapters=adapters, objective=objective, schedule=schedule)
    torch.manual_seed(recipe.seed + group.rank)  # dropout differs between the processes
    if checkpoint:
        loop.progress = restore(checkpoint, loop.model, loop.optimiser, group.rank, adapters)
        if loop.progress.processes != group.count:
            raise UsageError(
                f"{out} was trained by {loop.progress.processes} processes, but there are {group.count} now",
                f"torchrun --nproc-per-node {loop.progress.processes} -m tinytf_cli train …",
            )
        if stored is not None:
            for note in describe_changes(out, stored, recipe, loop.progress.step):
                on_note(note)
    return loop
