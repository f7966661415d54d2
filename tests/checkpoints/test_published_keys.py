"""The config.json of a folder as it was published: keys of the model's first code."""

from pathlib import Path

import pytest
import transformers

from tinytf.checkpoints.huggingface.keys import NamedFields, unknown_keys
from tinytf.checkpoints.huggingface.modernbert import NOMIC_BERT
from tinytf.errors import TinytfError

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
    fields = NamedFields(NOMIC_BERT.with_names_now(PUBLISHED_NOMIC), Path("config.json"))
    found = NOMIC_BERT.read(fields, {})
    assert found == expected
    assert list(unknown_keys(fields, NOMIC_BERT, found)) == []


@pytest.mark.parametrize(("key", "value"), [("prenorm", True), ("causal", True), ("activation_function", "gelu")])
def test_such_a_key_that_changes_the_numbers_is_refused(key: str, value: object) -> None:
    data = NOMIC_BERT.with_names_now({**PUBLISHED_NOMIC, key: value})
    with pytest.raises(TinytfError, match=f"{key} .* is not implemented"):
        NOMIC_BERT.read(NamedFields(data, Path("config.json")), {})
