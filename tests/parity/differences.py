"""Prints a table of every family: what it needed, and how far it is from transformers at most.

``python tests/parity/differences.py``: a row a family, in Markdown, of the models that the parity tests compare.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import torch
from architectures import BERT, LLAMA, SIZES, furthest
from reference import FAMILIES, Pair, last_of, last_states, pair, states_of

from tinytf.checkpoints.huggingface import load
from tinytf.config import FIELDS, ModelConfig
from tinytf.steps.table import table_of

_SIZES = {*SIZES, "n_kv_heads", "d_head", "d_expert", "norm_eps", "head", "dropout", "labels", "tied_head"}
_BASES = {
    name: ModelConfig.of(**{**SIZES, **config}) for name, config in {"GPT-2": {}, "Llama": LLAMA, "BERT": BERT}.items()
}
_COMMON = {row.name for base in _BASES.values() for row in table_of(base).by_name.values()}


def fields_of(config: ModelConfig) -> tuple[str, set[str]]:
    """The nearest of GPT-2, Llama and BERT, and the fields, but for sizes, that are not as in it."""
    every = {*FIELDS} - _SIZES - {"by_layer"}
    layers = {f"{name} by layer" for name, _ in config.by_layer}
    differing = {
        base: {name for name in every if config.setting(name) != fields.setting(name)}
        for base, fields in _BASES.items()
    }
    nearest = min(differing, key=lambda base: len(differing[base]))
    return nearest, {name for name in differing[nearest] if f"{name} by layer" not in layers} | layers


def lines_of_tables() -> dict[str, int]:
    """How many lines the table of a family has, by its model_type."""
    found = {}
    for module in [module for name, module in sys.modules.items() if name.startswith(load.__package__ + ".")]:
        for statement in ast.parse(inspect.getsource(module)).body:
            named = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
            table = getattr(module, statement.targets[0].id, None) if named else None
            if hasattr(table, "model_type"):
                count = statement.end_lineno - statement.lineno + 1
                found[table.model_type] = max(found.get(table.model_type, 0), count)
    return found


@cache
def kinds() -> dict[str, str]:
    """The model_type of every model of the parity tests."""
    return {name: pair(name).theirs.config.model_type for name in FAMILIES}


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
    pairs = [
        *(
            (states[layer - 1], theirs)
            for layer, theirs in zip((*models.begins[1:], 0), states_of(models, expected, ids)[1:], strict=True)
        ),
        last_of(models, expected, found),
    ]
    return max(furthest(ours, theirs) for ours, theirs in pairs)


def rows() -> Iterator[str]:
    """The lines of the table."""
    lines = lines_of_tables()
    yield "| family | model_type | like | but for these fields | and these steps | lines | difference |"
    yield "|---|---|---|---|---|---:|---:|"
    for kind, family in load.FAMILIES.items():
        models = [pair(name) for name in FAMILIES if kinds()[name] == kind]
        if not models:  # a decoder whose encoder is not opened, which tests/checkpoints/test_two_stacks.py compares
            yield f"| {family.name} | `{kind}` | GPT-2 | – | – | {lines.get(kind, 0)} | – |"
            continue
        told = [fields_of(one.ours.config) for one in models]
        like = min(told, key=lambda one: len(one[1]))[0]
        fields = set().union(*(some for base, some in told if base == like))
        steps = {row.name for one in models for row in table_of(one.ours.config).by_name.values()} - _COMMON
        words = [", ".join(f"`{name}`" for name in sorted(some)) or "–" for some in (fields, steps)]
        worst = max(map(difference, models))
        yield f"| {family.name} | `{kind}` | {like} | {words[0]} | {words[1]} | {lines.get(kind, 0)} | {worst:.1e} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(rows()) + "\n")
