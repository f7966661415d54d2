"""The config.json of a folder as it was published: keys that it leaves out, and keys of the model's first code."""

import json
from pathlib import Path
from typing import Any

import pytest
import registry
import transformers
from transformers import CONFIG_MAPPING

from tinytf.checkpoints.huggingface.keys import NamedFields, unknown_keys, with_keys_left_out
from tinytf.checkpoints.huggingface.load import FAMILIES
from tinytf.checkpoints.huggingface.modernbert import NOMIC_BERT
from tinytf.config import ModelConfig
from tinytf.errors import TinytfError

KINDS = [kind for kind, _ in registry.registered([]) if kind in FAMILIES]
APART = {
    ("flint", "mlp_only_layers"): "no published model leaves it out",
    ("zamba2", "attention_head_dim"): "head_dim stands beside it, which is another name of it there",
    ("dbrx", "rope_parameters"): "its attn_config has the base",
    ("olmo_hybrid", "rope_parameters"): "null, which is written for no positions, is a base of 10,000 there",
}
"""Keys whose default is another one here."""


def read(kind: str, data: dict[str, Any]) -> ModelConfig | None:
    """Our configuration; None if this one is refused."""
    try:
        return FAMILIES[kind].read(NamedFields(with_keys_left_out(data, FAMILIES[kind]), Path("config.json")), {})
    except TinytfError:
        return None


def written(config: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return data


@pytest.mark.share(20)
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_left_out_is_what_transformers_takes_for_it_or_is_refused(kind: str) -> None:
    data = written(registry.config_of(kind))
    assert read(kind, data) is not None
    for key in data.keys() - {"model_type"} - {key for of, key in APART if of == kind}:
        rest = {name: value for name, value in data.items() if name != key}
        if (found := read(kind, rest)) is None:
            continue
        try:
            theirs = CONFIG_MAPPING[kind](**{name: value for name, value in rest.items() if name != "model_type"})
        except Exception:  # it cannot do without
            continue
        assert found == read(kind, written(theirs)), key


PUBLISHED_NOMIC = {
    "model_type": "nomic_bert", "activation_function": "swiglu", "attn_pdrop": 0.0, "causal": False,
    "fused_bias_fc": True, "dense_seq_output": True, "fused_dropout_add_ln": True, "layer_norm_epsilon": 1e-5,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False, "mlp_fc2_bias": False, "n_embd": 24, "n_head": 4, "n_inner": 40, "n_layer": 3,
    "n_positions": 64, "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False,
    "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 900, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_weights": True, "type_vocab_size": 2, "use_flash_attn": True, "use_rms_norm": False,
    "use_xentropy": True, "vocab_size": 41,
}  # fmt: skip
"""The keys of config.json at nomic-ai/nomic-embed-text-v1.5."""


def test_the_keys_that_a_model_was_first_published_with_are_read() -> None:
    now = transformers.NomicBertConfig(
        vocab_size=41, hidden_size=24, num_attention_heads=4, num_hidden_layers=3, intermediate_size=40,
        layer_norm_eps=1e-5, max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 900.0},
    )  # fmt: skip
    expected = NOMIC_BERT.read(NamedFields(now.to_dict(), Path("config.json")), {})
    fields = NamedFields(with_keys_left_out(PUBLISHED_NOMIC, NOMIC_BERT), Path("config.json"))
    found = NOMIC_BERT.read(fields, {})
    assert found == expected
    assert list(unknown_keys(fields, NOMIC_BERT, found)) == []


@pytest.mark.parametrize(("key", "value"), [("prenorm", True), ("causal", True), ("activation_function", "gelu")])
def test_such_a_key_that_changes_the_numbers_is_refused(key: str, value: object) -> None:
    data = with_keys_left_out({**PUBLISHED_NOMIC, key: value}, NOMIC_BERT)
    with pytest.raises(TinytfError, match=f"{key} .* is not implemented"):
        NOMIC_BERT.read(NamedFields(data, Path("config.json")), {})
