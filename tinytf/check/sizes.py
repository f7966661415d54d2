"""Names that files give to the sizes of a model, and a configuration that answers to all of them."""

from collections.abc import Mapping
from typing import Any

from tinytf.config import ModelConfig
from tinytf.errors import UsageError

_ALIASES = {
    "vocab_size": "vocab_size d_vocab n_vocab vocab vocabulary_size num_tokens padded_vocab_size num_embeddings "
    "ntoken ntokens",
    "d_model": "d_model n_embd n_embed emb_dim embed_dim embedding_dim embed_size hidden_size dim model_dim width "
    "emb_size c_model dmodel",
    "n_layers": "n_layers n_layer num_layers num_blocks n_blocks num_hidden_layers depth layers nlayers",
    "n_heads": "n_heads n_head num_heads num_attention_heads heads nhead nheads",
    "n_kv_heads": "n_kv_heads n_kv_head num_kv_heads num_key_value_heads kv_heads n_kv_groups",
    "d_head": "d_head head_dim head_size head_width d_k d_v dim_head",
    "d_ff": "d_ff ff_dim ffn_dim intermediate_size hidden_dim mlp_dim dim_feedforward d_hidden ffn_hidden d_mlp "
    "n_inner inner_dim hidden_features dff",
    "context": "context block_size context_length context_size max_seq_len max_seq_length max_len max_length seq_len "
    "n_ctx n_positions max_position_embeddings ctx_len sequence_length max_context maxlen",
    "norm_eps": "norm_eps eps layer_norm_eps layer_norm_epsilon rms_norm_eps ln_eps",
    "rope_theta": "rope_theta theta rope_base base",
    "dropout": "dropout drop_rate dropout_rate p_drop drop attn_dropout resid_dropout embd_dropout attn_pdrop "
    "resid_pdrop embd_pdrop dropout_p",
    "qkv_bias": "qkv_bias attn_bias attention_bias",
    "bias": "bias use_bias",
    "ffn_bias": "ffn_bias mlp_bias",
    "tied_head": "tied_head tie_weights weight_tying tie_word_embeddings tie_embeddings tied share_embeddings",
    "ff_ratio": "ff_ratio mlp_ratio ffn_mult ff_mult expansion expansion_factor ffn_ratio",
    "device": "device",
}
"""Names that files give to each size of a configuration."""


SIZES = {word: name for name, words in _ALIASES.items() for word in words.split()}


def sizes_of(config: ModelConfig) -> dict[str, Any]:
    """The sizes of a reference, by our name; dropout is off."""
    ratio, rest = divmod(config.d_ff, config.d_model)
    named = {name: getattr(config, name) for name in _ALIASES if hasattr(config, name)}
    return {
        **named,
        "dropout": 0.0,
        "bias": config.ffn_bias,
        "ff_ratio": config.d_ff / config.d_model if rest else ratio,
        "device": "cpu",
    }


class Sizes(dict[str, Any]):
    """A configuration for a constructor that declares no class for it: answers to any size name, as key or attribute.

    ``overrides`` are names and values that win. ``used`` are the names that were read; they describe the call.
    """

    def __init__(self, sizes: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        super().__init__(overrides)
        self.sizes = sizes
        self.used: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        if name not in SIZES:
            raise UsageError(f"the configuration has no {name!r} to fill in", f"set it with --args {name}=…")
        self.used[name] = self.sizes[SIZES[name]]
        return self.used[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The size of that name; ``default`` for a name that is not a size."""
        return self[name] if name in self or name in SIZES else default
