"""A stored tensor that the model has no place for: what transformers ignores is ignored with a note, no other."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import registry
import transformers
from transformers import PreTrainedModel

from tinytf.checkpoints.huggingface.load import FAMILIES, read_directory
from tinytf.checkpoints.load import Checkpoint, Plan
from tinytf.errors import CheckpointError

KINDS = {kind: name for kind, name in registry.registered([]) if kind in FAMILIES}
NAMES = (
    *("mtp.layers.0.eh_proj.weight", "{base}mtp.layers.0.eh_proj.weight"),
    *(f"{{base}}layers.{layer}.self_attn.q_proj.weight" for layer in (45, 46, 47, 61, 78, 80, 92)),
    *(f"{{base}}{tower}.weight" for tower in ("vision_tower", "audio_tower", "embed_vision", "embed_audio")),
    *("model.language_model.layers.16.self_attn.q_proj.weight", "model.visual.patch_embed.weight"),
    *("time_embedder.linear.weight", "action_modality_embed", "action_proj_in.fc.weight", "proj_out.weight"),
    *("model.language_model.time_embedder.linear.weight", "model.language_model.norm_moe_gen.weight"),
    *("layers.0.input_layernorm_moe_gen.weight", "layers.1.post_attention_layernorm_moe_gen.weight"),
    *("layers.0.mlp_moe_gen.up_proj.weight", "layers.1.self_attn.add_q_proj.weight"),
    *("layers.1.self_attn.norm_added_k.weight", "layers.1.self_attn.k_norm_und_for_gen.weight"),
    *("{base}h.0.attn.bias", "{base}h.0.crossattention.bias"),
    *("{base}layers.0.attention.bias", "{base}layers.0.attention.masked_bias"),
    *("{base}embeddings.position_embeddings.weight", "{base}embeddings.position_ids", "{base}position_ids"),
    *("mask_predictions.dense.weight", "{base}rotary_emb.inv_freq", "{base}rotary_emb.original_inv_freq"),
    *("{base}layers.0.self_attn.rotary_emb.inv_freq", "{base}layers.1.self_attn.surprise.weight"),
    "{base}layers.1.shared_head.norm.weight",
    *(
        "{base}mtp_dspark.layers.0.norm.weight",
        "{base}mtp_layers.0.norm.weight",
        "{base}layers.1.surprise",
        "{base}surprise.weight",
        "surprise",
    ),
)
"""Names that some class of transformers ignores in a file, and some that none does."""


def patterns(kind: str) -> set[str]:
    """The names that the classes of an architecture ignore in a file, and those that a file may lack."""
    module = inspect.getmodule(getattr(transformers, KINDS[kind]))
    classes = [part for part in vars(module).values() if inspect.isclass(part) and issubclass(part, PreTrainedModel)]
    lists = ("_keys_to_ignore_on_load_unexpected", "_keys_to_ignore_on_load_missing")
    return {pattern for part in classes for name in lists for pattern in getattr(part, name) or ()}


def ignored_there(kind: str, model: Any, names: set[str]) -> set[str]:
    """The names that some class of the architecture ignores, and those that ``model`` takes off its warning."""
    found = SimpleNamespace(missing_keys=set(), unexpected_keys=names)
    model._adjust_missing_and_unexpected_keys(found)
    listed = {name for name in names if any(re.search(pattern, name) for pattern in patterns(kind))}
    return names - found.unexpected_keys | listed


def plan_with(opened: Checkpoint, name: str) -> Plan | None:
    """What is done with the tensors of a folder and one more; None if that is refused."""
    shapes = {**opened.weights.shapes, name: (3,)}
    try:
        return replace(opened, weights=SimpleNamespace(shapes=shapes)).plan()  # type: ignore[arg-type]
    except CheckpointError:
        return None


def comparable(opened: Checkpoint, names: set[str]) -> set[str]:
    """The names without prefixes, with one number for any layer beyond the last, of which transformers lists one."""
    plain = {opened.table.plain(name).removeprefix("language_model.") for name in names}
    return {re.sub(r"layers\.\d\d\.", "layers.99.", name) for name in plain}


def fitting(opened: Checkpoint, base: str) -> set[str]:
    """The names to try of a model: none that it has, nor that of a list of layers that it calls otherwise."""
    stored = {opened.table.plain(name) for name in opened.weights.shapes}
    lists = {"h", "layers"} - {name.split(".")[0] for name in stored}
    plain = {name: opened.table.plain(name) for name in (name.format(base=base) for name in NAMES)}
    return {name for name, bare in plain.items() if bare not in stored and bare.split(".")[0] not in lists}


def opened_beside(kind: str, folder: Path) -> tuple[Any, Checkpoint]:
    """A tiny model of an architecture, and what is opened of the folder that it is saved to."""
    model = registry.model_of(kind, KINDS[kind])
    model.save_pretrained(folder)
    return model, read_directory(folder)


@pytest.mark.share(24)
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_ignores_the_tensors_that_transformers_ignores_and_no_other(kind: str, tmp_path: Path) -> None:
    model, opened = opened_beside(kind, tmp_path)
    base = f"{model.base_model_prefix}."
    names, usual = fitting(opened, base), opened.plan().notes
    plans = {name: plan for name in names if (plan := plan_with(opened, name))}
    compared = {name for name, plan in plans.items() if name in plan.computed}
    noted = {name for name, plan in plans.items() if len(plan.notes) > len(usual)}
    there = ignored_there(kind, model, names)
    assert comparable(opened, noted) - comparable(opened, there) == set()
    assert comparable(opened, there) - comparable(opened, noted | compared) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_tried_are_those_of_every_list_of_transformers(kind: str) -> None:
    base = f"{getattr(transformers, KINDS[kind]).base_model_prefix}."
    names = [name.format(base=base) for name in NAMES]
    assert [pattern for pattern in patterns(kind) if not any(re.search(pattern, name) for name in names)] == []
