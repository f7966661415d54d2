"""Prints a table of every family: what it needed, and how far it is from transformers at most.

``python tests/parity/differences.py``: a row a family, in Markdown, of the models that the parity tests compare.
"""

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import torch
from architectures import LLAMA, SIZES, furthest
from reference import FAMILIES, Pair, last_of, last_states, pair

from tinytf.checkpoints.huggingface import load
from tinytf.config import ModelConfig
from tinytf.steps.table import table_of

_SIZES = {*SIZES, "n_kv_heads", "d_head", "norm_eps", "head", "dropout", "rope_theta"}
_COMMON = {row.name for config in ({}, LLAMA) for row in table_of(ModelConfig(**{**SIZES, **config})).by_name.values()}


def fields_of(config: ModelConfig) -> set[str]:
    """The fields, but for sizes, that are not as in GPT-2."""
    names = {f.name for f in dataclasses.fields(config) if getattr(config, f.name) != f.default} - _SIZES
    return {name for name in names if name != "by_layer"} | {f"{name} by layer" for name, _ in config.by_layer}


def lines_of_tables() -> dict[str, int]:
    """How many lines the table of a family has, by its model_type."""
    found = {}
    for module in [module for name, module in sys.modules.items() if name.startswith(load.__package__ + ".")]:
        for statement in ast.parse(inspect.getsource(module)).body:
            named = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
            table = getattr(module, statement.targets[0].id, None) if named else None
            if hasattr(table, "model_type"):
                found[table.model_type] = statement.end_lineno - statement.lineno + 1
    return found


@torch.no_grad()
def difference(models: Pair) -> float:
    """The largest difference of any layer's output and of the logits, relative to the largest value above 1."""
    ids = torch.randint(3, models.ours.config.vocab_size, (2, 13), generator=torch.Generator().manual_seed(9))
    expected = models.theirs(ids, output_hidden_states=True)
    states: list[torch.Tensor] = []
    for block in models.ours.blocks:
        block.register_forward_hook(lambda module, given, result: states.append(result))
    found = models.ours(ids)
    states[-1] = last_states(models.ours, states[-1])
    pairs = [*zip(states, expected.hidden_states[1:], strict=True), last_of(models, expected, found)]
    return max(furthest(ours, theirs) for ours, theirs in pairs)


def rows() -> Iterator[str]:
    """The lines of the table."""
    lines = lines_of_tables()
    yield "| family | fields of the configuration | rows beyond GPT-2's and Llama's | lines | largest difference |"
    yield "|---|---|---|---:|---:|"
    needed: dict[str, tuple[set[str], set[str], float]] = {}
    for name in FAMILIES:
        models = pair(name)
        fields, steps, worst = needed.get(models.theirs.config.model_type, (set(), set(), 0.0))
        own = {row.name for row in table_of(models.ours.config).by_name.values()} - _COMMON
        worst = max(worst, difference(models))
        needed[models.theirs.config.model_type] = fields | fields_of(models.ours.config), steps | own, worst
    for kind, (fields, steps, worst) in needed.items():
        family = load.FAMILIES[kind]
        words = [", ".join(sorted(some)) or "–" for some in (fields, steps)]
        yield f"| {family.name} | {words[0]} | {words[1]} | {lines.get(kind, 0)} | {worst:.1e} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(rows()) + "\n")
