"""A key of config.json that transformers reads is read here, refused, or known to change nothing: never only noted."""

import copy
import json
import re
from typing import Any

import pytest
import torch
import transformers
from architectures import enliven, furthest
from config_reads import keys_read
from covering import sample
from reference import FAMILIES, saved
from transformers import CONFIG_MAPPING

from tinytf.checkpoints.huggingface.load import checkpoint_of, read_directory
from tinytf.checkpoints.load import Checkpoint
from tinytf.errors import TinytfError

IDS = torch.tensor([[13, 14, 15, 9, 22, 6, 5, 30, 11]])


def another(key: str, value: Any) -> Any:
    """A value of the same type; of a share, another share."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value / 2 + 0.25 if isinstance(value, float) and 0 <= value <= 1 else value + 1
    if value is None:
        return 0.5 if "dropout" in key else 3
    return "another" if isinstance(value, str) else value


def opened_with(family: str, config: dict[str, Any]) -> Checkpoint | None:
    """The model of ``family`` with this configuration, before its weights are read; None if it is refused."""
    weights = read_directory(saved(family)).weights
    try:
        return checkpoint_of(config, lambda: weights, saved(family), "config.json")
    except TinytfError:
        return None


def changes_of(family: str) -> dict[str, Any]:
    """Another value for every key that transformers reads of a family's configuration."""
    config = json.loads((saved(family) / "config.json").read_text("utf-8"))
    kind = CONFIG_MAPPING[config["model_type"].replace("kimi_k2", "deepseek_v3")]
    inside = {key for part in config.values() if isinstance(part, dict) for key in part}
    keys = sorted(keys_read(config["architectures"][0], kind) - inside)
    return {key: another(key, config.get(key, getattr(kind, key, None))) for key in keys}


@sample("family", FAMILIES, every=20)
def test_no_key_that_transformers_reads_is_only_noted(family):
    config = json.loads((saved(family) / "config.json").read_text("utf-8"))
    noted = []
    for key, value in changes_of(family).items():
        opened = opened_with(family, {**config, key: value})
        noted += [key] * (opened is not None and key in " ".join(opened.notes).replace(",", "").split())
    assert not noted


UNTRIED = r"return_dict|output_\w+|(torch_)?dtype|architectures|\w+_config|_is_quantized|sliding_window|head_dim"
"""Keys that change what a call returns besides the logits, or its types; the last two are set anew when read."""

SET_ANEW = (("umt5", "tie_word_embeddings"),)
"""Keys that a family sets anew when they are read, by its name."""


@torch.no_grad()
@sample("family", FAMILIES, every=20)
def test_what_changes_nothing_here_changes_nothing_in_transformers(family):
    """Their logits with another value of every key that is neither refused nor changes our configuration."""
    theirs = FAMILIES[family]()
    enliven(theirs, 7)
    config, opened = json.loads((saved(family) / "config.json").read_text("utf-8")), read_directory(saved(family))
    harmless = {}
    for key, value in changes_of(family).items():
        untried = re.fullmatch(UNTRIED, key) or (family, key) in SET_ANEW
        changed = None if untried else opened_with(family, {**config, key: value})
        if changed is not None and (changed.config, changed.table) == (opened.config, opened.table):
            harmless[key] = value
    before = run(theirs)
    if (after := run_with(theirs, harmless)) is None or furthest(after, before) > 1e-5:  # which of them?
        each = {key: run_with(theirs, {key: value}) for key, value in harmless.items()}
        assert not [key for key, after in each.items() if after is not None and furthest(after, before) > 1e-5]


def run_with(model: Any, changes: dict[str, Any]) -> torch.Tensor | None:
    """What the model says with other values in its configuration; None if it has no place for its weights then."""
    config = copy.deepcopy(model.config)
    try:
        for key, value in changes.items():
            setattr(config, key, value)
        again = type(model)(config)
        again.load_state_dict(model.state_dict())
        return run(again)
    except Exception:
        return None


def run(model: Any) -> torch.Tensor:
    model.set_attn_implementation("eager")
    result = model.eval()(IDS)
    return next(iter(result.values()))


@pytest.mark.parametrize(
    ("family", "name", "other"),
    [
        ("mixtral", "num_local_experts", "num_experts"),
        ("internlm 3", "attention_bias", "qkv_bias"),
        ("bloom", "n_head", "num_attention_heads"),
        ("bloom", "n_layer", "num_hidden_layers"),
        ("inkling", "sliding_window_size", "sliding_window"),
    ],
)
def test_another_name_is_read_and_may_not_say_another_value(family, name, other):
    config = json.loads((saved(family) / "config.json").read_text("utf-8"))
    opened, value = read_directory(saved(family)), config.pop(name)
    renamed = opened_with(family, {**config, other: value})
    assert renamed is not None
    assert (renamed.config, renamed.notes) == (opened.config, ())
    assert opened_with(family, {**config, name: value, other: another(other, value)}) is None


def test_the_older_name_of_rotary_settings_wins_as_in_transformers():
    config = json.loads((saved("llama") / "config.json").read_text("utf-8"))
    scaled = {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}
    opened = opened_with("llama", {**config, "rope_scaling": scaled})
    theirs = transformers.LlamaConfig(**config, rope_scaling=scaled).rope_parameters
    assert opened is not None
    assert (opened.config.rope_factor, opened.config.rope_theta) == (theirs["factor"], theirs["rope_theta"])


@pytest.mark.parametrize(("width", "opens"), [(None, True), (24, True), (25, False)])
def test_a_decoder_may_name_the_width_of_its_encoder_and_no_other(width, opens):
    config = json.loads((saved("bert to gpt-2") / "config.json").read_text("utf-8"))
    config["decoder"]["cross_attention_hidden_size"] = width
    opened = opened_with("bert to gpt-2", config)
    assert (opened is not None) == opens
    assert opened is None or opened.notes == ()
