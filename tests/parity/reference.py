"""Pairs of one tiny random model with odd settings: transformers' own, and what tinytf opens of its directory."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures import SOURCE, enliven, facing
from torch import Tensor, nn

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.model.transformer import Transformer

V, C, N, H, F, T = 41, 24, 3, 4, 40, 32
_ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
GPT2: dict[str, Any] = {"vocab_size": V, "n_embd": C, "n_layer": N, "n_head": H, "n_positions": T, **_ENDS}
BERT: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": C,
    "num_hidden_layers": N,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": T,
}
_ROBERTA: dict[str, Any] = {**BERT, **_ENDS, "eos_token_id": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_DISTILBERT: dict[str, Any] = {
    "vocab_size": V,
    "dim": C,
    "n_layers": N,
    "n_heads": H,
    "hidden_dim": F,
    "max_position_embeddings": T,
}
_LLAMA: dict[str, Any] = {**BERT, **_ENDS, "num_key_value_heads": 2, "rms_norm_eps": 3e-5}
_PART = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.67}
_SECTIONS = {"rope_type": "default", "rope_theta": 400.0, "mrope_section": [1, 1, 1]}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 700.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "sliding_window": 4}


def _ctrl(kind: str, **settings: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.CTRLConfig(**{**GPT2, "dff": F, **settings}))


def _bert(kind: str, **settings: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.BertConfig(**BERT, **settings))


_LABELS = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "label2id": {"no": 0, "perhaps": 1, "yes": 2}}
_SEVERAL = {**_LABELS, "problem_type": "multi_label_classification"}


_ESM: dict[str, Any] = {
    "pad_token_id": 1,
    "mask_token_id": 5,
    "token_dropout": True,
    "position_embedding_type": "rotary",
    "rope_theta": 300.0,
    "layer_norm_eps": 1e-5,
}
_EURO = {"pad_token_id": 0, "mask_token_id": 2}


def _classes(family: str, task: str, sizes: dict[str, Any], **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**{**sizes, **settings})
    return getattr(transformers, f"{family}For{task}")(config)


def _bert_generation(**settings: Any) -> nn.Module:
    return transformers.BertGenerationDecoder(transformers.BertGenerationConfig(**BERT, **settings))


def _xlm(family: str, **settings: Any) -> nn.Module:
    sizes = {"vocab_size": V, "emb_dim": C, "n_layers": N, "n_heads": H, "max_position_embeddings": T}
    config = getattr(transformers, f"{family}Config")(**sizes, **settings, pad_token_id=0)
    return getattr(transformers, f"{family}WithLMHeadModel")(config)


def _electra(kind: str, **settings: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.ElectraConfig(**{**BERT, **settings}))


def _albert(kind: str, **settings: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.AlbertConfig(**{**BERT, "embedding_size": 10, **settings}))


def _modernbert(kind: str, **settings: Any) -> nn.Module:
    ids = dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id"), 0)
    given = {**BERT, **_ENDS, **ids, "num_hidden_layers": 4, "local_attention": 6, **settings}
    return getattr(transformers, f"ModernBert{kind}")(transformers.ModernBertConfig(**given))


_V3 = {
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_buckets": 4,
    "max_relative_positions": 9,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}


def _deberta(kind: str, **settings: Any) -> nn.Module:
    return getattr(transformers, f"DebertaV2{kind}")(transformers.DebertaV2Config(**{**BERT, **settings}))


def _squeezebert(kind: str, **settings: Any) -> nn.Module:
    config = transformers.SqueezeBertConfig(**{**BERT, "embedding_size": C, **settings})
    return getattr(transformers, f"SqueezeBert{kind}")(config)


def _roformer(**settings: Any) -> nn.Module:
    """Its sines and cosines are made a buffer, which the tests do not fill with other numbers."""
    model = transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**BERT, **settings))
    table = model.roformer.encoder.embed_positions
    waves = table.weight.data
    del table.weight
    table.register_buffer("weight", waves)
    return model


def _gpt2(kind: str = "GPT2LMHeadModel", **settings: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.GPT2Config(**{**GPT2, **settings}))


def _decoder(family: str, kind: str = "ForCausalLM", **settings: Any) -> nn.Module:
    """A Llama-like model; biases of the choice of experts, which begin at 0, are drawn."""
    config = getattr(transformers, f"{family}Config")(**{**_LLAMA, **settings})
    name = family if family == "AriaText" else family.removesuffix("Text")
    model = getattr(transformers, f"{name}{kind}")(config)
    generator = torch.Generator().manual_seed(2)
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):
            buffer.copy_(torch.stack([torch.randperm(5, generator=generator)[:2] for _ in buffer]))
        if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar", "rotary_emb.alpha")):
            buffer.copy_(name.endswith("scalar") + 0.3 * torch.randn(buffer.shape, generator=generator))
    return model


_DELTA: dict[str, Any] = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 3,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 3,
}
"""Gated delta rules around a layer of attention."""


def _inkling(**settings: Any) -> nn.Module:
    given = {
        "head_dim": 8,
        "swa_num_attention_heads": 6,
        "swa_num_key_value_heads": 3,
        "swa_head_dim": 4,
        "sliding_window_size": 4,
        "d_rel": 3,
        "rel_extent": 6,
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
        "moe_intermediate_size": 16,
        "n_routed_experts": 5,
        "num_experts_per_tok": 2,
        "route_scale": 1.5,
    }
    return _decoder("InklingText", **{**given, **settings})


def _qwen4(**settings: Any) -> nn.Module:
    given = {
        **_DELTA,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 14,
        "hc_count": 3,
        "hc_lowrank": 10,
        "ple_layer_ids": [1, 3],
        "ple_embed_dim": 16,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 9,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 4,
        "indexer_n_heads": 7,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 12,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    }
    model = _decoder("Qwen4ExpText", **{**given, **settings})
    model.size = 1.0  # rounding grows where streams are normed again and again
    return model


_OLMO_HYBRID = {name: value for name, value in _DELTA.items() if name != "head_dim"} | {"pad_token_id": 0}
_OLMO_HYBRID |= {"linear_key_head_dim": 10, "linear_value_head_dim": 5}  # it writes the convolutions in equal thirds
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 12,
    "mamba_d_head": 4,
    "mamba_n_groups": 3,
    "mamba_d_state": 5,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 4,
}


def _mamba(kind: str = "Mamba", **settings: Any) -> nn.Module:
    given = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": 2, **_ENDS, "state_size": 5, "conv_kernel": 3}
    odd = {"time_step_rank": 3, "residual_in_fp32": False}
    config = getattr(transformers, f"{kind}Config")(**{**given, **odd, **settings})
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def _jamba(**settings: Any) -> nn.Module:
    odd = {"attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 4, "mamba_d_state": 5, "mamba_d_conv": 3}
    return _decoder("Jamba", **{**odd, "mamba_dt_rank": 5, "pad_token_id": 0, **settings})


def _minimax(**settings: Any) -> nn.Module:
    return _decoder("MiniMax", num_local_experts=5, num_experts_per_tok=2, **{"head_dim": 6, **settings})


def _jetmoe(**settings: Any) -> nn.Module:
    return _decoder("JetMoe", **{"num_experts_per_tok": 2, "num_key_value_heads": 2, "kv_channels": 6, **settings})


def _kimi_linear(**settings: Any) -> nn.Module:
    odd = {"linear_head_dim": 5, "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "num_local_experts": 6}
    return _decoder("KimiLinear", **{**_OF_LATENT, "q_lora_rank": None, **odd, "num_experts_per_tok": 3,
                                     "moe_intermediate_size": 16, "pad_token_id": 0, **settings})  # fmt: skip


def _xlnet(kind: str, **settings: Any) -> nn.Module:
    given = {"vocab_size": V, "d_model": C, "n_layer": N, "n_head": H, "d_inner": F, "pad_token_id": 0}
    return getattr(transformers, f"XLNet{kind}")(transformers.XLNetConfig(**{**given, **_ENDS, **settings}))


def _longcat(kind: str = "ForCausalLM", **settings: Any) -> nn.Module:
    experts = {"n_routed_experts": 5, "zero_expert_num": 3, "moe_topk": 4, "expert_ffn_hidden_size": 9}
    odd = {**_WIDTHS, "num_hidden_layers": 4, "num_key_value_heads": H, "kv_lora_rank": 7, "head_dim": 6}
    return _decoder("LongcatFlash", kind, **{**odd, **experts, "ffn_hidden_size": F, **settings})


def _zamba2(**settings: Any) -> nn.Module:
    odd = {"mamba_d_state": 5, "mamba_d_conv": 3, "n_mamba_heads": 6, "mamba_ngroups": 2, "chunk_size": 4}
    return _hybrid("Zamba2", **{**odd, "num_key_value_heads": H, "adapter_rank": 5, "rms_norm_eps": 1e-5, **settings})


def _zamba(**settings: Any) -> nn.Module:
    return _hybrid("Zamba", **{"mamba_d_state": 5, "mamba_d_conv": 3, "mamba_dt_rank": "auto", **settings})


def _hybrid(family: str, layers: str = "mhmh", **settings: Any) -> nn.Module:
    """A Zamba of layers with Mamba alone, m, and hybrid ones, h."""
    kinds = [{"m": "linear_attention", "h": "hybrid"}[letter] for letter in layers]
    model = _decoder(family, layers_block_type=kinds, num_hidden_layers=len(kinds), pad_token_id=0, **settings)
    model.size = 0.6
    return model


def _recurrent_gemma(**settings: Any) -> nn.Module:
    return _decoder("RecurrentGemma", hidden_activation="gelu", pad_token_id=0, **settings)


def _falcon_h1(scaled: bool, **settings: Any) -> nn.Module:
    scales = {
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.3,
        "attention_in_multiplier": 1.2,
        "key_multiplier": 0.6,
    }
    scales |= {"attention_out_multiplier": 0.8, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.4}
    several = {"mlp_multipliers": [0.9, 1.4], "ssm_multipliers": [0.7, 1.2, 0.6, 1.1, 0.8]}
    odd = {**_MAMBA2, "mamba_d_ssm": 48, "mamba_chunk_size": 4}
    return _decoder("FalconH1", **{**odd, **(scales | several if scaled else {}), **settings})


def _nemotron_h(*kinds: str, **settings: Any) -> nn.Module:
    odd = {"mamba_num_heads": 12, "mamba_head_dim": 4, "n_groups": 3, "ssm_state_size": 5, "conv_kernel": 3}
    odd |= {"chunk_size": 4, "head_dim": 8, "layer_norm_epsilon": 1e-3, "time_step_min": 0.4, "rms_norm_eps": None}
    return _decoder("NemotronH", **{**odd, "layers_block_type": [*kinds], **settings})


def _mamba2(**settings: Any) -> nn.Module:
    sizes = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": 2, "num_heads": 12, "head_dim": 4, "n_groups": 3}
    given = {**sizes, **_ENDS, "state_size": 5, "conv_kernel": 3, "chunk_size": 4, "residual_in_fp32": False}
    return transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**{**given, **settings}))


def _bamba(**settings: Any) -> nn.Module:
    return _decoder("Bamba", **{**_MAMBA2, "num_attention_heads": 3, "num_key_value_heads": 1, **settings})


def _granite4(**settings: Any) -> nn.Module:
    scales = {"embedding_multiplier": 3.0, "logits_scaling": 2.5, "residual_multiplier": 0.4}
    kinds = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    given = {**_MAMBA2, **kinds, **scales, "attention_multiplier": 0.2, "shared_intermediate_size": 16}
    return _decoder("GraniteMoeHybrid", **{**given, **settings})


def _opt(**settings: Any) -> nn.Module:
    return transformers.OPTForCausalLM(transformers.OPTConfig(**{**BERT, "ffn_dim": F, **settings}))


def _neo(**settings: Any) -> nn.Module:
    kinds = {"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 4}
    given = {**BERT, **_ENDS, **kinds, "intermediate_size": None, **settings}
    return transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(**given))


def _neox(**settings: Any) -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.5}
    given = {**BERT, **_ENDS, "hidden_size": 32, "rope_parameters": rope, **settings}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**given))


def _gptj(**settings: Any) -> nn.Module:
    return transformers.GPTJForCausalLM(transformers.GPTJConfig(**{**GPT2, **settings}))


def _codegen(**settings: Any) -> nn.Module:
    return transformers.CodeGenForCausalLM(transformers.CodeGenConfig(**{**GPT2, **settings}))


def _bloom(**settings: Any) -> nn.Module:
    given = {"vocab_size": V, "hidden_size": C, "n_layer": N, "n_head": H, **_ENDS, **settings}
    return transformers.BloomForCausalLM(transformers.BloomConfig(**given))


def _mpt(*, n_heads: int = H, tie_word_embeddings: bool = True, **attention: Any) -> nn.Module:
    given = {"vocab_size": V, "d_model": C, "n_layers": N, "n_heads": n_heads, "max_seq_len": T}
    config = transformers.MptConfig(**given, tie_word_embeddings=tie_word_embeddings, attn_config=attention)
    return transformers.MptForCausalLM(config)


def _falcon(**settings: Any) -> nn.Module:
    # eager from the start, since it cannot be switched later; with ALiBi that adds the bias twice
    kind = "sdpa" if settings.get("alibi") else "eager"
    config = transformers.FalconConfig(**{**BERT, **_ENDS, **settings}, attn_implementation=kind)
    return transformers.FalconForCausalLM(config)


def _gemma2(**settings: Any) -> nn.Module:
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "sliding_window": 4, "head_dim": 10}
    return _decoder("Gemma2", **{**caps, "pad_token_id": 0, "num_hidden_layers": N, **settings})


_WIDTHS = {"q_lora_rank": 9, "kv_lora_rank": 8, "qk_rope_head_dim": 6, "qk_nope_head_dim": 4, "v_head_dim": 7}
_OF_LATENT: dict[str, Any] = {**_WIDTHS, "num_key_value_heads": H, "rope_theta": 300.0}


def _deepseek(version: int, **settings: Any) -> nn.Module:
    return _decoder(f"DeepseekV{version}", **{**_OF_LATENT, "kv_lora_rank": 7, "first_k_dense_replace": N, **settings})


class KimiK2Config(transformers.DeepseekV3Config):
    model_type = "kimi_k2"


def _kimi(**settings: Any) -> nn.Module:
    return transformers.DeepseekV3ForCausalLM(KimiK2Config(**{**_LLAMA, **_OF_LATENT, **_GROUPS, **settings}))


_ROUTED: dict[str, Any] = {
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}
_DENSE_BETWEEN = ["sparse", "dense", "sparse"]
_GROUPS = {**_ROUTED, "n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 3, "topk_group": 2}


_INDEXED: dict[str, Any] = {**_OF_LATENT, **_ROUTED, "index_head_dim": 8, "index_n_heads": 9, "index_topk": 4}
"""An indexer of odd sizes; with many heads no two of its scores are both 0."""


_HYPER: dict[str, Any] = {**_INDEXED, "hc_mult": 3, "swiglu_limit": 0.8, "pad_token_id": 0}
"""Several streams, and gates that are clamped."""


_BLOCKS: dict[str, Any] = {
    "num_key_value_heads": 1,
    "head_dim": 10,
    "q_lora_rank": 9,
    "qk_rope_head_dim": 4,
    "o_groups": 2,
    "o_lora_rank": 5,
    "moe_intermediate_size": 16,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "index_n_heads": 9,
    "index_head_dim": 8,
    "index_topk": 2,
    "sliding_window": 4,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 3,
    "swiglu_limit": 0.8,
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
}
"""Small blocks of both kinds beside a window, and experts by the id of a token in the first layer."""


def _dbrx(**attention: Any) -> nn.Module:
    ffn = {"ffn_hidden_size": 16, "moe_num_experts": 5, "moe_top_k": 2}
    sizes = {"vocab_size": V, "d_model": C, "n_layers": N, "n_heads": H, "max_seq_len": T, **_ENDS}
    attention = {"kv_n_heads": 2, "rope_theta": 300.0, **attention}
    return transformers.DbrxForCausalLM(
        transformers.DbrxConfig(**sizes, rope_theta=300.0, attn_config=attention, ffn_config=ffn)
    )


def _lfm2_moe(**settings: Any) -> nn.Module:
    given = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4, "norm_eps": 1e-3}
    mixed = {**_EXPERTS, "num_dense_layers": 1}
    return _decoder("Lfm2Moe", **{**given, **mixed, **settings})


_YARN = {"rope_type": "yarn", "rope_theta": 700.0, "factor": 4.0, "original_max_position_embeddings": 8}
_BY_KIND = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
_OLMO3 = {
    "full_attention": {**_YARN, "attention_factor": 1.2},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
DYNAMIC = {"rope_type": "dynamic", "factor": 3.5}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 700.0,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 4.0, 9.0],
    "partial_rotary_factor": 0.75,
}


def as_if_first(model: nn.Module) -> nn.Module:
    """The model, whose growing base no longer depends on the texts that it has read before this one."""

    def forget(rotary: Any, *_: Any) -> None:
        for name in [name for name in vars(rotary) if name.endswith("max_seq_len_cached")]:
            setattr(rotary, name, rotary.original_max_seq_len)
        for name in [name for name in rotary._buffers if name.endswith("original_inv_freq")]:
            rotary._buffers[name.replace("original_", "")] = rotary._buffers[name]

    for path, module in model.named_modules():
        if path.endswith("rotary_emb"):
            module.register_forward_pre_hook(forget)
    return model


_LFM3: dict[str, Any] = {
    "pad_token_id": 0,
    "head_dim": 10,
    "sliding_window": 4,
    "conv_L_cache": 4,
    "norm_eps": 1e-3,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "conv", "full_attention", "conv"],
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.62},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}


def _gemma3(kind: str = "ForCausalLM", **settings: Any) -> nn.Module:
    given = {"head_dim": 10, "sliding_window": 4, "pad_token_id": 0, "num_hidden_layers": N, **settings}
    config = transformers.Gemma3TextConfig(**{**_LLAMA, "sliding_window_pattern": 3, **given})
    return getattr(transformers, f"Gemma3{'Text' * (kind == 'Model')}{kind}")(config)


def _gemma4(kind: str = "Gemma4Text", **settings: Any) -> nn.Module:
    """Heads of two widths, the wide ones turned in part; the last layer has no window."""
    given = {
        "head_dim": 6,
        "global_head_dim": 10,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        **({"hidden_size_per_layer_input": 0} if kind == "Gemma4Text" else {}),
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.62},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    }
    return _decoder(kind, **{**given, **settings})


def _embedding_gemma2(**settings: Any) -> nn.Module:
    given = {
        "head_dim": 4,
        "global_head_dim": 6,
        "num_global_key_value_heads": 1,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "hidden_size_per_layer_input": 7,
        "embedding_dim": 9,
        "rms_norm_eps": 1e-4,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.62},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    }
    return _decoder("EmbeddingGemma2Text", "TextModel", **{**given, **settings})


def _gemma3n(**settings: Any) -> nn.Module:
    given = {
        "head_dim": 10,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "hidden_size_per_layer_input": 7,
        "vocab_size_per_layer_input": V - 9,
        "altup_num_inputs": 3,
        "laurel_rank": 5,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.7, 0.0, 0.3, 0.0],
        "final_logit_softcapping": 2.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 700.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    }
    return _decoder("Gemma3nText", **{**given, **settings})


def _phi3(**settings: Any) -> nn.Module:
    given = {"hidden_size": 32, "pad_token_id": 0, "original_max_position_embeddings": 9, **settings}
    return _decoder("Phi3", **given)


def _as_llama(family: str, **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**{**_LLAMA, "head_dim": 10, "pad_token_id": 0, **settings})
    return transformers.LlamaForCausalLM(config)


_YARN = {"rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 8}
_GROWING = {**_YARN, "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.3}


_MIMO: dict[str, Any] = {
    "head_dim": 10,
    "v_head_dim": 7,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "routed_scaling_factor": 1.5,
    "attention_value_scale": 0.6,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.34},
    },
}


def gpt_oss(**settings: Any) -> nn.Module:
    given = {"head_dim": 10, "sliding_window": 4, "num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_limit": 1.5}
    return _decoder("GptOss", **{**given, "rope_parameters": {**_YARN, "truncate": False}, **settings})


def _privacy_filter(kind: str = "Model", **settings: Any) -> nn.Module:
    given = {"head_dim": 10, "sliding_window": 3, "num_local_experts": 5, "num_experts_per_tok": 2, "pad_token_id": 0}
    return _decoder("OpenAIPrivacyFilter", kind, **given, rope_parameters={**_YARN, "truncate": False}, **settings)


def _llama4(**settings: Any) -> nn.Module:
    given = {"head_dim": 8, "attention_chunk_size": 2, "floor_scale": 3, "attn_scale": 0.4, "intermediate_size": 18}
    mixed = {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size_mlp": F, "no_rope_layer_interval": 2}
    config = transformers.Llama4TextConfig(**{**_LLAMA, **given, **mixed, **settings})
    return transformers.Llama4ForCausalLM(config)


def _waves_of(table: Any) -> Tensor | None:
    """The sines and cosines of a table of positions that counts them among its parameters."""
    if hasattr(table, "create_weight"):
        return table.create_weight()
    return table.get_embedding(*table.weight.shape, table.padding_idx) if hasattr(table, "make_weight") else None


def _two_stacks(family: str, kind: str = "ForConditionalGeneration", **settings: Any) -> nn.Module:
    """A model whose texts are targets: it reads SOURCE for each of them, as ours does (``architectures.facing``)."""
    model = class_named(family + kind)(getattr(transformers, f"{family}Config")(**settings))
    model.size = 1.2
    for stack in (model.get_encoder(), model.get_decoder()):
        table = getattr(stack, "embed_positions", None)
        waves = _waves_of(table)
        if waves is not None:  # a buffer, which the tests do not fill with other numbers
            del table.weight
            table.register_buffer("weight", waves)
    if hasattr(model, "final_logits_bias"):
        count = model.final_logits_bias.shape[-1]
        model.final_logits_bias.copy_(0.3 * torch.randn(count, generator=torch.Generator().manual_seed(2)))
    return model


def class_named(name: str) -> Any:
    """The class of transformers with this name, which takes targets if it has two stacks; None without it."""
    kind = getattr(transformers, name, None)
    if kind is None or not issubclass(kind, transformers.GenerationMixin):
        return kind
    return _facing(kind) if getattr(kind.config_class, "is_encoder_decoder", False) else kind


@cache
def _facing(kind: Any) -> Any:
    """The class, whose calls and ``generate`` take targets, and its losses those of the next token."""

    class Facing(kind):
        @wraps(kind.forward)
        def forward(self, input_ids: Any = None, attention_mask: Any = None, **settings: Any) -> Any:
            if "encoder_outputs" in settings or "decoder_input_ids" in settings:
                return super().forward(input_ids, attention_mask, **settings)
            settings.pop("position_ids", None)
            if "token_type_ids" in settings:
                settings["decoder_token_type_ids"] = settings.pop("token_type_ids")
            if (labels := settings.pop("labels", None)) is not None:
                settings["labels"] = torch.cat((labels[:, 1:], torch.full_like(labels[:, :1], -100)), dim=1)
            source = torch.tensor([SOURCE]).expand(len(input_ids), -1)
            target = {"decoder_input_ids": input_ids, "decoder_attention_mask": attention_mask}
            given = super().forward(source, **target, **settings)
            own = {"hidden_states": given.decoder_hidden_states, "attentions": given.decoder_attentions}
            return type(given)({"logits": given.logits, **given, **{key: one for key, one in own.items() if one}})

        def generate(self, target: Tensor, **settings: Any) -> Any:
            first = {"decoder_start_token_id": int(target[0, 0]), "forced_eos_token_id": None}
            return super().generate(torch.tensor([SOURCE]), decoder_input_ids=target, **first, **settings)

    Facing.__name__ = kind.__name__
    return Facing


T5: dict[str, Any] = {
    "vocab_size": V,
    "d_model": C,
    "d_kv": 5,
    "d_ff": F,
    "num_layers": N,
    "num_decoder_layers": 2,  # theirs generates with no more than in the encoder
    "num_heads": H,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
BART: dict[str, Any] = {
    "vocab_size": V,
    "d_model": C,
    "encoder_layers": 2,
    "decoder_layers": N,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": H,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": F,
    "max_position_embeddings": T,
    "scale_embedding": True,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def _t5gemma() -> nn.Module:
    """Stacks of two widths and depths, with windows in other layers."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "sliding_window": 3, "head_dim": 10}
    decoder = {**_LLAMA, **caps, "pad_token_id": 0, "query_pre_attn_scalar": 7}
    encoder = {**decoder, "hidden_size": 20, "num_hidden_layers": 4, "intermediate_size": 28}
    return _two_stacks("T5Gemma", encoder=encoder, decoder=decoder, vocab_size=V)


def _fsmt(**settings: Any) -> nn.Module:
    """Theirs, which leaves out the causal mask where it fills a cache, and that of the prompt of ``generate``."""
    kind = transformers.models.fsmt.modeling_fsmt.FSMTDecoder
    kind.forward = _seeing_the_past(getattr(kind.forward, "theirs", kind.forward))
    sizes = {key: value for key, value in BART.items() if key != "vocab_size"}
    model = _two_stacks("FSMT", src_vocab_size=V + 3, tgt_vocab_size=V, **sizes, **settings)
    model.get_encoder().config = model.config
    model.config.use_cache = model.generation_config.use_cache = False
    return model


def _seeing_the_past(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def forward(self: Any, ids: Tensor, *given: Any, **settings: Any) -> Any:
        size, dtype = ids.shape[1], self.embed_tokens.weight.dtype
        settings["decoder_causal_mask"] = torch.full((size, size), -torch.inf, dtype=dtype).triu(1)
        return theirs(self, ids, *given, **settings)

    forward.theirs = theirs  # type: ignore[attr-defined]
    return forward


def _nllb_moe(**settings: Any) -> nn.Module:
    """Theirs as in transformers 4: in 5.23 a mask of the chosen experts is read as their numbers."""
    transformers.models.nllb_moe.modeling_nllb_moe.NllbMoeExperts.forward = _by_chosen
    return _two_stacks("NllbMoe", **BART, num_experts=3, encoder_sparse_step=2, decoder_sparse_step=2, **settings)


def _by_chosen(self: Any, states: Tensor, first: Tensor, shares: Tensor) -> Tensor:
    kept = 1 - self.moe_token_dropout
    return sum(shares[:, n, None] * self[f"expert_{n}"](states) * kept for n in range(self.num_experts))


def _pair_of(encoder: tuple[str, dict[str, Any]], decoder: tuple[str, dict[str, Any]]) -> nn.Module:
    """The encoder of one family and the decoder of another."""
    sides = [getattr(transformers, f"{name}Config")(**sizes) for name, sizes in (encoder, decoder)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        *sides, decoder_start_token_id=2, pad_token_id=1
    )
    model = class_named("EncoderDecoderModel")(config)
    model.size = 1.2
    return model


TWO_STACKS: dict[str, Callable[[], nn.Module]] = {
    "t5": lambda: _two_stacks("T5", **T5),
    "t5 1.1": lambda: _two_stacks("T5", **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": lambda: _two_stacks("MT5", **T5, feed_forward_proj="gated-gelu"),
    "umt5": lambda: _two_stacks("UMT5", **T5, feed_forward_proj="gated-silu"),
    "longt5": lambda: _two_stacks("LongT5", **T5, local_radius=3),
    "t5gemma": _t5gemma,
    "bart": lambda: _two_stacks("Bart", **BART),
    "mbart": lambda: _two_stacks("MBart", **BART),
    "mvp": lambda: _two_stacks("Mvp", **BART),
    "plbart": lambda: _two_stacks("PLBart", **BART),
    "blenderbot": lambda: _two_stacks("Blenderbot", **BART),
    "blenderbot-small": lambda: _two_stacks("BlenderbotSmall", **BART),
    "pegasus": lambda: _two_stacks("Pegasus", **BART),
    "marian": lambda: _two_stacks("Marian", "MTModel", **{**BART, "decoder_start_token_id": 1}),
    "marian, two vocabularies": lambda: _two_stacks(
        "Marian",
        "MTModel",
        **{**BART, "vocab_size": V + 3},
        decoder_vocab_size=V,
        share_encoder_decoder_embeddings=False,
    ),
    "m2m-100": lambda: _two_stacks("M2M100", **BART),
    "nllb-moe": lambda: _nllb_moe(),
    "nllb-moe, biased router": lambda: _nllb_moe(router_bias=True, moe_token_dropout=0.0),
    "fsmt": lambda: _fsmt(),
    "bert to bert": lambda: _pair_of(("Bert", {**BERT, "num_hidden_layers": 2}), ("Bert", BERT)),
    "roberta to roberta": lambda: _pair_of(("Roberta", _ROBERTA), ("Roberta", _ROBERTA)),
    "bert to gpt-2": lambda: _pair_of(("Bert", BERT), ("GPT2", GPT2)),
    "roberta to a wider gpt-2": lambda: _pair_of(("Roberta", _ROBERTA), ("GPT2", {**GPT2, "n_embd": 32})),
    "bert to a narrower bart": lambda: _pair_of(("Bert", BERT), ("Bart", {**BART, "d_model": 16, "encoder_layers": N})),
    "albert to bert": lambda: _pair_of(("Albert", {**BERT, "embedding_size": 10}), ("Bert", BERT)),
    "distilbert to bert-generation": lambda: _pair_of(("DistilBert", _DISTILBERT), ("BertGeneration", BERT)),
}


_M3: dict[str, Any] = {
    "head_dim": 8,
    "intermediate_size": 16,
    "dense_intermediate_size": F,
    "shared_intermediate_size": 20,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
    "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
    "mlp_layer_types": _DENSE_BETWEEN,
    "index_n_heads": 2,
    "index_head_dim": 6,
    "index_block_size": 3,
    "index_topk_blocks": 2,
}
_GLM5_3: dict[str, Any] = {
    **{key: value for key, value in _HYPER.items() if key != "rope_theta"},
    "qk_rope_head_dim": 0,
    "head_dim": 0,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "linear_head_dim": 5,
    "linear_num_heads": 6,
    "linear_conv_kernel_dim": 3,
    "linear_lower_bound": -2.5,
    "index_kpool": 2,
    "hc_sinkhorn_iters": 3,
}
_LARGE4: dict[str, Any] = {
    **{key: value for key, value in _INDEXED.items() if key not in ("q_lora_rank", "rope_theta")},
    "n_routed_experts": 6,
    "pad_token_id": 0,
    "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.1},
}
_STEP: dict[str, Any] = {
    "head_dim": 8,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "pad_token_id": 0,
    "share_expert_dim": 20,
    "sliding_window": 4,
    "moe_router_scaling_factor": 1.7,
    "mlp_layer_types": _DENSE_BETWEEN,
    "num_sliding_attention_heads": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {**_LLAMA3, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}


def _glm5_3(**settings: Any) -> nn.Module:
    model = _decoder("Glm5NextText", "TextModel", **{**_GLM5_3, **settings})
    model.size = 1.0  # rounding grows where all streams are normed before each part
    return model


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    **TWO_STACKS,
    "t5, its encoder": lambda: transformers.T5EncoderModel(transformers.T5Config(**T5)),
    "umt5, its encoder": lambda: transformers.UMT5EncoderModel(transformers.UMT5Config(**T5)),
    "gpt2": lambda: _gpt2(n_inner=F, layer_norm_epsilon=1e-4),
    "gpt2, inner width left out": lambda: _gpt2(activation_function="gelu"),
    "gpt2, untied": lambda: _gpt2(tie_word_embeddings=False, activation_function="relu"),
    "gpt2, scores divided by layer": lambda: _gpt2(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False),
    "starcoder": lambda: transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(**GPT2, n_inner=F)),
    "starcoder, no heads shared": lambda: transformers.GPTBigCodeForCausalLM(
        transformers.GPTBigCodeConfig(**GPT2, multi_query=False, activation_function="relu", layer_norm_epsilon=1e-3)
    ),
    "gpt-neo": lambda: _neo(),
    "gpt-neo, windows everywhere and untied": lambda: _neo(
        attention_types=[[["local"], N]], tie_word_embeddings=False, intermediate_size=F, window_size=3
    ),
    "gpt-1": lambda: transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT2)),
    "opt": lambda: _opt(enable_bias=False, activation_function="gelu"),
    "opt 350m": lambda: _opt(do_layer_norm_before=False, word_embed_proj_dim=10),
    "opt, narrow and normed without gains": lambda: _opt(
        word_embed_proj_dim=10, layer_norm_elementwise_affine=False, tie_word_embeddings=False
    ),
    "xglm": lambda: transformers.XGLMForCausalLM(
        transformers.XGLMConfig(
            vocab_size=V, d_model=C, num_layers=N, attention_heads=H, ffn_dim=F, max_position_embeddings=T, **_ENDS
        )
    ),
    "ctrl": lambda: _ctrl("CTRLLMHeadModel"),
    "ctrl, an untied head": lambda: _ctrl("CTRLLMHeadModel", tie_word_embeddings=False),
    "ctrl with classes": lambda: _ctrl("CTRLForSequenceClassification", pad_token_id=1, **_LABELS),
    "biogpt": lambda: transformers.BioGptForCausalLM(transformers.BioGptConfig(**BERT, hidden_act="relu")),
    "bert with a masked head": lambda: _bert("BertForMaskedLM", hidden_act="relu", layer_norm_eps=1e-3),
    "bert with an untied head": lambda: _bert("BertForMaskedLM", tie_word_embeddings=False),
    "bert with classes": lambda: _classes("Bert", "SequenceClassification", BERT, **_LABELS),
    "bert with classes of tokens": lambda: _classes("Bert", "TokenClassification", BERT, **_LABELS),
    "bert with a question head": lambda: _classes("Bert", "QuestionAnswering", BERT),
    "roberta with several classes": lambda: _classes("Roberta", "SequenceClassification", _ROBERTA, **_SEVERAL),
    "distilbert with a number": lambda: _classes("DistilBert", "SequenceClassification", _DISTILBERT, num_labels=1),
    "llama with classes": lambda: _classes("Llama", "SequenceClassification", _LLAMA, pad_token_id=1, **_LABELS),
    "gpt2 with classes of tokens": lambda: _classes("GPT2", "TokenClassification", GPT2, **_LABELS),
    "modernbert": lambda: _modernbert("ForMaskedLM", norm_eps=1e-3),
    "modernbert, biases everywhere and local first": lambda: _modernbert(
        "ForMaskedLM",
        attention_bias=True,
        mlp_bias=True,
        norm_bias=True,
        classifier_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
        hidden_activation="silu",
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
        },
    ),
    "modernbert with classes": lambda: _modernbert("ForSequenceClassification", **_LABELS),
    "modernbert with classes of the mean": lambda: _modernbert(
        "ForSequenceClassification", **_LABELS, classifier_pooling="mean"
    ),
    "decoder modernbert": lambda: _classes(
        "ModernBertDecoder",
        "CausalLM",
        BERT,
        **_ENDS,
        **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id"), 0),
        local_attention=8,
        norm_eps=1e-3,
        classifier_activation="silu",
    ),
    "causal bert-generation": lambda: _bert_generation(is_decoder=True, tie_word_embeddings=False),
    "nomicbert": lambda: _classes("NomicBert", "MaskedLM", BERT, hidden_act="gelu", layer_norm_eps=1e-3),
    "nomicbert, stretched by yarn": lambda: _classes("NomicBert", "MaskedLM", BERT, rope_parameters=_YARN),
    "nomicbert with classes": lambda: _classes("NomicBert", "SequenceClassification", BERT, **_LABELS),
    "roberta of jina": lambda: _classes("JinaEmbeddingsV3", "MaskedLM", BERT, type_vocab_size=2, hidden_act="relu"),
    "roberta of jina with classes": lambda: _classes("JinaEmbeddingsV3", "SequenceClassification", BERT, **_LABELS),
    "bert of gte": lambda: _classes("Gte", "MaskedLM", BERT, type_vocab_size=0, hidden_act="silu"),
    "bert of gte with classes": lambda: _classes("Gte", "SequenceClassification", BERT, **_LABELS),
    "bert of xlm": lambda: _xlm("XLM", gelu_activation=False, layer_norm_eps=1e-3),
    "bert of flaubert": lambda: _xlm("Flaubert", tie_word_embeddings=False),
    "bert of xlnet": lambda: _xlnet("LMHeadModel", ff_activation="relu", layer_norm_eps=1e-3),
    "bert of xlnet, untied": lambda: _xlnet("LMHeadModel", tie_word_embeddings=False, n_layer=2),
    "bert of xlnet, without a head": lambda: _xlnet("Model", n_layer=2),
    "eurobert": lambda: _classes("EuroBert", "MaskedLM", _LLAMA, **_EURO, mlp_bias=True, attention_bias=True),
    "eurobert with classes": lambda: _classes(
        "EuroBert", "SequenceClassification", _LLAMA, **_EURO, **_LABELS, classifier_pooling="bos"
    ),
    "eurobert with classes of the mean": lambda: _classes(
        "EuroBert", "SequenceClassification", _LLAMA, **_EURO, **_LABELS, classifier_pooling="mean"
    ),
    "electra that finds replaced tokens": lambda: _electra("ElectraForPreTraining", embedding_size=10),
    "bert of many languages, rembert": lambda: _classes(
        "RemBert", "MaskedLM", BERT, input_embedding_size=10, output_embedding_size=14, hidden_act="relu"
    ),
    "bert of many languages, rembert with classes": lambda: _classes(
        "RemBert", "SequenceClassification", BERT, **_LABELS, input_embedding_size=10
    ),
    "electra with classes": lambda: _classes("Electra", "SequenceClassification", BERT, **_LABELS, embedding_size=16),
    "albert with a question head": lambda: _classes("Albert", "QuestionAnswering", BERT, embedding_size=16),
    "bert with a pooler": lambda: _bert("BertModel", hidden_act="gelu_new"),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**_ROBERTA, hidden_act="silu")),
    "roberta with a pooler": lambda: transformers.RobertaModel(transformers.RobertaConfig(**_ROBERTA, pad_token_id=1)),
    "xlm-roberta": lambda: transformers.XLMRobertaForMaskedLM(transformers.XLMRobertaConfig(**_ROBERTA)),
    "camembert": lambda: transformers.CamembertForMaskedLM(transformers.CamembertConfig(**_ROBERTA, pad_token_id=1)),
    "electra": lambda: _electra("ElectraForMaskedLM", embedding_size=10, hidden_act="relu"),
    "electra, as wide as the stream": lambda: _electra(
        "ElectraForMaskedLM", embedding_size=C, tie_word_embeddings=False, type_vocab_size=3
    ),
    "albert": lambda: _albert("AlbertForMaskedLM", hidden_act="relu"),
    "albert, two groups and a pooler": lambda: _albert("AlbertModel", num_hidden_groups=2, embedding_size=C),
    "bert-generation": lambda: _bert_generation(is_decoder=False, hidden_act="relu"),
    "roberta of whole numbers, before they are": lambda: transformers.IBertForMaskedLM(
        transformers.IBertConfig(**_ROBERTA)
    ),
    "ernie": lambda: transformers.ErnieForMaskedLM(transformers.ErnieConfig(**BERT)),
    "bert of splinter": lambda: transformers.SplinterModel(transformers.SplinterConfig(**BERT, hidden_act="relu")),
    "bert of images": lambda: transformers.VisualBertModel(transformers.VisualBertConfig(**BERT)),
    "roberta of entities": lambda: _classes("Luke", "MaskedLM", _ROBERTA, entity_vocab_size=11, entity_emb_size=10),
    "data2vec": lambda: transformers.Data2VecTextForMaskedLM(transformers.Data2VecTextConfig(**_ROBERTA)),
    "roberta with norms before": lambda: transformers.RobertaPreLayerNormForMaskedLM(
        transformers.RobertaPreLayerNormConfig(**_ROBERTA, hidden_act="relu")
    ),
    "xlm-roberta-xl": lambda: transformers.XLMRobertaXLForMaskedLM(transformers.XLMRobertaXLConfig(**_ROBERTA)),
    "megatron-bert": lambda: transformers.MegatronBertForMaskedLM(transformers.MegatronBertConfig(**BERT)),
    "roformer": lambda: _roformer(embedding_size=10),
    "esm": lambda: _classes("Esm", "MaskedLM", BERT, **_ESM, emb_layer_norm_before=True),
    "esm, learned positions": lambda: _classes(
        "Esm",
        "MaskedLM",
        BERT,
        **{**_ESM, "position_embedding_type": "absolute", "token_dropout": False},
        tie_word_embeddings=False,
    ),
    "esm with classes": lambda: _classes("Esm", "SequenceClassification", BERT, **_ESM, **_LABELS),
    "esm with classes of tokens": lambda: _classes("Esm", "TokenClassification", BERT, **_ESM, **_LABELS),
    "deberta v3": lambda: _deberta("ForMaskedLM", **_V3, legacy=False),
    "deberta v3 with classes": lambda: _deberta("ForSequenceClassification", **_V3, **_LABELS),
    "deberta v3 with a question head": lambda: _deberta("ForQuestionAnswering", **{**_V3, "pos_att_type": ["c2p"]}),
    "deberta v2, matrices of their own and every distance for itself": lambda: _deberta(
        "ForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=7, type_vocab_size=2
    ),
    "deberta v2, position to content alone": lambda: _deberta(
        "ForTokenClassification",
        **{**_V3, "pos_att_type": "p2c", "share_att_key": False, "norm_rel_ebd": "none"},
        layer_norm_eps=1e-3,
        **_LABELS,
    ),
    "deberta v2 xlarge, a convolution beside the first layer": lambda: _deberta(
        "ForMaskedLM", **_V3, conv_kernel_size=3, conv_act="gelu"
    ),
    "deberta v2 with a wider convolution and classes": lambda: _deberta(
        "ForSequenceClassification", **_V3, **_LABELS, conv_kernel_size=5, type_vocab_size=2, num_hidden_layers=2
    ),
    "deberta v2, one layer beside a convolution of one token": lambda: _deberta(
        "Model", relative_attention=False, conv_kernel_size=1, conv_act="relu", num_hidden_layers=1
    ),
    "deberta, keys without biases": lambda: _classes(
        "Deberta", "MaskedLM", BERT, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=7
    ),
    "deberta with classes, position to content alone": lambda: _classes(
        "Deberta",
        "SequenceClassification",
        BERT,
        **_LABELS,
        relative_attention=True,
        pos_att_type="p2c",
        position_biased_input=False,
        max_relative_positions=7,
        type_vocab_size=2,
    ),
    "deberta v2 without distances": lambda: _deberta("ForMaskedLM", pos_att_type=["c2p"], hidden_act="relu"),
    "squeezebert": lambda: _squeezebert("ForMaskedLM", q_groups=3, k_groups=3, v_groups=3),
    "squeezebert, a pooler after one matrix and eight": lambda: _squeezebert(
        "Model", q_groups=1, k_groups=1, v_groups=1, intermediate_groups=8, output_groups=8, hidden_act="relu"
    ),
    "squeezebert with classes": lambda: _squeezebert("ForSequenceClassification", **_LABELS),
    "mpnet": lambda: transformers.MPNetForMaskedLM(transformers.MPNetConfig(**BERT, hidden_act="relu")),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**_DISTILBERT)),
    "distilbert, relu and waves": lambda: transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(**_DISTILBERT, activation="relu", sinusoidal_pos_embds=True)
    ),
    "llama": lambda: _decoder("Llama", rope_theta=500.0),
    "llama, biases everywhere": lambda: _decoder("Llama", attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "llama, linear scaling and tied": lambda: _decoder(
        "Llama",
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0},
        head_dim=10,
        tie_word_embeddings=True,
    ),
    "llama 3": lambda: _decoder("Llama", rope_parameters=_LLAMA3, num_key_value_heads=1),
    "mistral": lambda: _decoder("Mistral", sliding_window=4),
    "mistral without a window": lambda: _decoder("Mistral", sliding_window=None, head_dim=8),
    "qwen2": lambda: _decoder("Qwen2", rope_theta=500.0),
    "qwen2 with a window": lambda: _decoder("Qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=0),
    "qwen3": lambda: _decoder("Qwen3", head_dim=10, tie_word_embeddings=True),
    "qwen2-vl": lambda: _decoder("Qwen2VLText", "TextModel", rope_parameters=_SECTIONS),
    "qwen2.5-vl with a window": lambda: _decoder(
        "Qwen2_5_VLText", "TextModel", rope_parameters=_SECTIONS, use_sliding_window=True, sliding_window=3
    ),
    "qwen3-vl": lambda: _decoder("Qwen3VLText", "TextModel", head_dim=6, rope_parameters=_SECTIONS),
    "qwen3-vl moe": lambda: _decoder(
        "Qwen3VLMoeText", "TextModel", **_EXPERTS, head_dim=6, rope_parameters=_SECTIONS, tie_word_embeddings=False
    ),
    "pythia": lambda: _neox(),
    "pythia, one after the other": lambda: _neox(use_parallel_residual=False, hidden_act="relu", layer_norm_eps=1e-3),
    "pythia, turned whole and tied": lambda: _neox(
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        attention_bias=False,
        tie_word_embeddings=True,
    ),
    "pythia, an odd share turned": lambda: _neox(
        hidden_size=C, rope_parameters={**_PART, "partial_rotary_factor": 0.6}
    ),
    "gpt-neox japanese": lambda: _classes(
        "GPTNeoXJapanese", "CausalLM", BERT, intermediate_multiple_size=2, rope_parameters=_PART
    ),
    "persimmon": lambda: _classes("Persimmon", "CausalLM", BERT, **_ENDS, rope_parameters=_PART, layer_norm_eps=1e-3),
    "persimmon, not normed and tied": lambda: _classes(
        "Persimmon", "CausalLM", BERT, **_ENDS, hidden_size=32, qk_layernorm=False, tie_word_embeddings=True
    ),
    "gpt-j": lambda: _gptj(rotary_dim=4, n_inner=F, layer_norm_epsilon=1e-3),
    "gpt-j, turned whole and tied": lambda: _gptj(rotary_dim=6, tie_word_embeddings=True, activation_function="relu"),
    "codegen": lambda: _codegen(rotary_dim=4, n_inner=F),
    "codegen, eight heads and tied": lambda: _codegen(n_embd=32, n_head=8, rotary_dim=4, tie_word_embeddings=True),
    "olmo": lambda: _decoder("Olmo", clip_qkv=0.8, rope_theta=700.0),
    "olmo, not clipped and tied": lambda: _decoder("Olmo", tie_word_embeddings=True, attention_bias=True),
    "command r": lambda: _decoder("Cohere", logit_scale=0.7, layer_norm_eps=1e-3),
    "command r, queries and keys normed": lambda: _decoder(
        "Cohere", use_qk_norm=True, tie_word_embeddings=False, attention_bias=True, logit_scale=1.0
    ),
    "command r7b": lambda: _decoder("Cohere2", sliding_window=4, sliding_window_pattern=2, logit_scale=0.7),
    "command r7b, windows everywhere and untied": lambda: _decoder(
        "Cohere2", sliding_window=5, layer_types=["sliding_attention"] * N, tie_word_embeddings=False, logit_scale=1.2
    ),
    "cohere 2 moe": lambda: _decoder(
        "Cohere2Moe",
        **_EXPERTS,
        head_dim=8,
        mlp_layer_types=["dense", "sparse", "sparse"],
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        num_shared_experts=2,
        shared_expert_combination_strategy="sum",
        expert_selection_fn="sigmoid",
        prefix_dense_intermediate_size=20,
    ),
    "nemotron": lambda: _decoder("Nemotron", head_dim=8, norm_eps=1e-3),
    "nemotron, biases everywhere": lambda: _decoder(
        "Nemotron",
        attention_bias=True,
        mlp_bias=True,
        hidden_act="gelu",
        rope_parameters={**_PART, "rope_theta": 700.0},
    ),
    "phi": lambda: _decoder("Phi", hidden_size=32, layer_norm_eps=1e-3),
    "phi, queries and keys normed": lambda: _decoder(
        "Phi", qk_layernorm=True, hidden_act="relu", rope_parameters=_PART
    ),
    "stablelm": lambda: _decoder("StableLm", hidden_size=32, use_qkv_bias=True),
    "stablelm, side by side and tied": lambda: _decoder(
        "StableLm", use_parallel_residual=True, qk_layernorm=True, tie_word_embeddings=True, rope_parameters=_PART
    ),
    "bloom": lambda: _bloom(),
    "bloom, six heads and untied": lambda: _bloom(n_head=6, tie_word_embeddings=False, layer_norm_epsilon=1e-3),
    "mpt": lambda: _mpt(clip_qkv=0.9),
    "mpt, six heads and untied": lambda: _mpt(n_heads=6, tie_word_embeddings=False, softmax_scale=0.6),
    "falcon": lambda: _falcon(ffn_hidden_size=F, rope_theta=700.0),
    "falcon, one after the other and less by distance": lambda: _falcon(
        parallel_attn=False, multi_query=False, alibi=True, bias=True, num_attention_heads=6
    ),
    "falcon 40b": lambda: _falcon(new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False),
    "falcon 2": lambda: _falcon(
        new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, activation="relu", bias=True
    ),
    "gemma 2": lambda: _gemma2(),
    "gemma 2, windows everywhere and untied": lambda: _gemma2(
        layer_types=["sliding_attention"] * N, tie_word_embeddings=False, query_pre_attn_scalar=70
    ),
    "gemma 2 without caps": lambda: _gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
    "qwen2, windows in the last layer alone": lambda: _decoder(
        "Qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=2
    ),
    "gemma": lambda: _decoder("Gemma", head_dim=10, pad_token_id=0, attention_bias=True),
    "gemma 3": lambda: _gemma3(rope_parameters=_BY_KIND, query_pre_attn_scalar=50),
    "gemma 3, capped and untied": lambda: _gemma3(
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        final_logit_softcapping=3.0,
        tie_word_embeddings=False,
    ),
    "embeddinggemma": lambda: _gemma3("Model", use_bidirectional_attention=True, sliding_window=5),
    "embeddinggemma 2": lambda: _embedding_gemma2(),
    "embeddinggemma 2, biases": lambda: _embedding_gemma2(
        attention_bias=True,
        sliding_window_pattern=2,
        layer_types=None,
        hidden_activation="silu",
        num_global_key_value_heads=4,
    ),
    "gemma 3n": lambda: _gemma3n(),
    "gemma 3n, another stream computed, layers of two widths, nothing shared": lambda: _gemma3n(
        altup_num_inputs=4,
        altup_active_idx=2,
        altup_correct_scale=False,
        vocab_size_per_layer_input=V,
        num_kv_shared_layers=0,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        activation_sparsity_pattern=[0.0, 0.6, 0.0],
        intermediate_size=[F, 2 * F, F],
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "gemma 4": lambda: _gemma4(),
    "gemma 4, values of their own, capped and untied": lambda: _gemma4(
        attention_k_eq_v=False, final_logit_softcapping=2.0, tie_word_embeddings=False, attention_bias=True
    ),
    "gemma 4, embeddings of layers and shared keys": lambda: _gemma4(
        attention_k_eq_v=False,
        hidden_size_per_layer_input=7,
        vocab_size_per_layer_input=V,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        num_hidden_layers=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"],
    ),
    "gemma 4, experts beside the feed-forward": lambda: _gemma4(
        enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=8
    ),
    "gemma 4 unified": lambda: _gemma4("Gemma4UnifiedText"),
    "vaultgemma": lambda: _decoder("VaultGemma", head_dim=10, sliding_window=4, pad_token_id=0, num_hidden_layers=N),
    "olmo 2": lambda: _decoder("Olmo2", attention_bias=True, pad_token_id=0),
    "olmo 3": lambda: _decoder("Olmo3", sliding_window=4, num_hidden_layers=4, pad_token_id=0, rope_parameters=_OLMO3),
    "granite": lambda: _decoder(
        "Granite",
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        logits_scaling=0.5,
        mlp_bias=True,
    ),
    "granite docling": lambda: _decoder(
        "GraniteDoclingText", "TextModel", attention_bias=True, tie_word_embeddings=False, pad_token_id=0
    ),
    "granite with windows": lambda: _decoder(
        "GraniteSWA", layer_rope_theta=[300.0, 0.0, 900.0], sliding_window=4, attention_multiplier=0.3, mlp_bias=True
    ),
    "granite moe with windows": lambda: _decoder(
        "GraniteMoeSWA", num_local_experts=3, shared_intermediate_size=20, sliding_window=4, pad_token_id=0
    ),
    "smollm 3": lambda: _decoder(
        "SmolLM3", no_rope_layer_interval=2, use_sliding_window=True, sliding_window=4, pad_token_id=0
    ),
    "smollm 3, stretched by yarn": lambda: _decoder("SmolLM3", pad_token_id=0, rope_parameters=_YARN, mlp_bias=True),
    "ministral, a window in one layer": lambda: _decoder(
        "Ministral",
        head_dim=8,
        sliding_window=4,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "ministral 3": lambda: _decoder("Ministral3", head_dim=8, sliding_window=9, rope_parameters=_GROWING),
    "exaone 4": lambda: _decoder("Exaone4", sliding_window=4, sliding_window_pattern=2, rope_parameters=_LLAMA3),
    "exaone 4 without windows": lambda: _decoder(
        "Exaone4", sliding_window=None, head_dim=8, layer_types=["full_attention"] * N
    ),
    "cwm": lambda: _decoder("Cwm", num_hidden_layers=N, head_dim=8, sliding_window=4, rope_parameters=_LLAMA3),
    "apertus": lambda: _decoder("Apertus", rope_parameters=_LLAMA3, attention_bias=True),
    "apertus, relu2 and tied": lambda: _decoder("Apertus", hidden_act="relu2", tie_word_embeddings=True),
    "cosmos 3": lambda: _decoder("Cosmos3EdgeText", "TextModel", head_dim=6, rope_parameters=_SECTIONS, mlp_bias=True),
    "bitnet": lambda: _decoder("BitNet", rope_parameters=_LLAMA3),
    "bitnet, silu and biases": lambda: _decoder(
        "BitNet", hidden_act="silu", attention_bias=True, tie_word_embeddings=True
    ),
    "arcee": lambda: _decoder("Arcee", mlp_bias=True, head_dim=8),
    "qwen3.5": lambda: _decoder("Qwen3_5Text", **_DELTA),
    "qwen3.5 moe": lambda: _decoder(
        "Qwen3_5MoeText", **_DELTA, **{**_EXPERTS, "num_experts": 6}, shared_expert_intermediate_size=16
    ),
    "qwen4-exp": lambda: _qwen4(),
    "qwen4-exp, gated by sigmoids, and n-grams of four tokens": lambda: _qwen4(
        output_gate_type="sigmoid",
        ple_layer_ids=[3],
        ngram_size=4,
        heads_per_ngram=1,
        ple_embed_dim=9,
        ple_conv_kernel_size=2,
        split_ngram_parts=3,
        eos_token_id=[4, 3],
        seed=7,
        hc_count=2,
        indexer_compress_ratio=3,
        indexer_budget=6,
        indexer_head_dim=10,
        rope_parameters={**_SECTIONS, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5},
        norm_topk_prob=False,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "qwen4-exp, without n-grams": lambda: _qwen4(ple_layer_ids=None),
    "inkling": lambda: _inkling(),
    "inkling, dense first, scores that grow, and rows of no token": lambda: _inkling(
        log_scaling_n_floor=3,
        log_scaling_alpha=0.4,
        mlp_layer_types=["dense", "sparse", "dense"],
        vocab_size=V + 3,
        unpadded_vocab_size=V,
        logits_mup_width_multiplier=3.0,
        hidden_act="gelu",
        n_shared_experts=1,
        conv_kernel_size=2,
        rms_norm_eps=1e-4,
    ),
    "qwen3-next": lambda: _decoder(
        "Qwen3Next",
        **_DELTA,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        mlp_only_layers=[1],
    ),
    "lfm2": lambda: _decoder(
        "Lfm2", layer_types=["conv", "full_attention", "conv"], conv_L_cache=4, block_multiple_of=8, norm_eps=1e-3
    ),
    "lfm3": lambda: _decoder("Lfm3", **_LFM3),
    "lfm3, biases, and neither gates nor norms after": lambda: _decoder(
        "Lfm3",
        **{
            **_LFM3,
            "attention_bias": True,
            "use_attention_gate": False,
            "use_sandwich_norm": False,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "conv", "full_attention", "conv"],
        },
    ),
    "lfm3, biases beside gates without one": lambda: _decoder(
        "Lfm3", **{**_LFM3, "attention_bias": True, "layer_types": None, "num_hidden_layers": 6}
    ),
    "lfm2 moe": lambda: _lfm2_moe(),
    "lfm2 moe, chosen by the router alone": lambda: _lfm2_moe(
        use_expert_bias=False, norm_topk_prob=False, routed_scaling_factor=1.5, num_dense_layers=0
    ),
    "bamba": lambda: _bamba(attn_layer_indices=[1], attention_bias=True, mlp_bias=True),
    "bamba, convolutions without biases": lambda: _bamba(
        mamba_conv_bias=False, mamba_n_groups=1, attn_layer_indices=[1]
    ),
    "granite 4": lambda: _granite4(num_local_experts=3, position_embedding_type="rope"),
    "granite 4, dense": lambda: _granite4(num_local_experts=0, tie_word_embeddings=True),
    "olmo hybrid": lambda: _decoder("OlmoHybrid", **_OLMO_HYBRID),
    "olmo hybrid, turned, and writing less": lambda: _decoder(
        "OlmoHybrid", **_OLMO_HYBRID, linear_allow_neg_eigval=False, rope_parameters=_YARN, attention_bias=True
    ),
    "mamba": lambda: _mamba(),
    "mamba, untied and convolutions without biases": lambda: _mamba(
        tie_word_embeddings=False, use_conv_bias=False, time_step_rank=4
    ),
    "falcon-mamba": lambda: _mamba("FalconMamba", mixer_rms_eps=1e-2, tie_word_embeddings=False),
    "jamba": lambda: _jamba(),
    "jamba, dense, and convolutions without biases": lambda: _jamba(
        num_experts=1, mamba_conv_bias=False, tie_word_embeddings=True, attn_layer_offset=0
    ),
    "jetmoe": lambda: _jetmoe(num_local_experts=5, rms_norm_eps=1e-3),
    "jetmoe, three of four experts, gelu and an untied head": lambda: _jetmoe(
        num_local_experts=4, num_experts_per_tok=3, activation_function="gelu", tie_word_embeddings=False
    ),
    "diffllama": lambda: _decoder("DiffLlama"),
    "diffllama, grouped heads, wide, and biases": lambda: _decoder(
        "DiffLlama", num_attention_heads=8, num_key_value_heads=2, head_dim=10, attention_bias=True
    ),
    "kimi linear": lambda: _kimi_linear(layer_types=["linear_attention", "full_attention", "linear_attention"]),
    "kimi linear, groups of experts, and attention first": lambda: _kimi_linear(
        layer_types=["full_attention", "linear_attention", "full_attention"],
        n_group=3,
        topk_group=2,
        norm_topk_prob=False,
        routed_scaling_factor=1.5,
        n_shared_experts=2,
        mlp_layer_types=["sparse", "dense", "sparse"],
    ),
    "longcat flash": lambda: _longcat(),
    "longcat flash, every expert with matrices, and scaled positions": lambda: _longcat(
        zero_expert_num=0,
        num_hidden_layers=2,
        routed_scaling_factor=1.0,
        tie_word_embeddings=True,
        rope_parameters={**_YARN, "mscale_all_dim": 0.7},
    ),
    "longcat flash, without a head": lambda: _longcat("Model", num_hidden_layers=2),
    "zamba": lambda: _zamba(),
    "zamba, three heads of Mamba, and a block first": lambda: _zamba(
        layers="hmhh", n_mamba_heads=3, mamba_conv_bias=False, mamba_dt_rank=5, hidden_act="silu", num_key_value_heads=4
    ),
    "zamba2": lambda: _zamba2(),
    "zamba2, adapters of attention, RoPE, and two blocks in turn": lambda: _zamba2(
        layers="hmhhmhh",
        num_mem_blocks=2,
        use_shared_attention_adapter=True,
        use_mem_rope=True,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        hidden_act="silu",
        mamba_ngroups=1,
        time_step_min=0.2,
    ),
    "zamba2, blocks of their own, and a key head for two": lambda: _zamba2(
        layers="mhh", num_mem_blocks=3, num_key_value_heads=2
    ),
    "recurrent gemma": lambda: _recurrent_gemma(num_key_value_heads=1),
    "recurrent gemma, wider states, biases, and attention first": lambda: _recurrent_gemma(
        lru_width=2 * C,
        head_dim=10,
        block_types=["attention", "recurrent"],
        attention_bias=True,
        attention_window_size=3,
        conv1d_width=2,
        logits_soft_cap=5.0,
        partial_rotary_factor=1.0,
    ),
    "falcon-h1": lambda: _falcon_h1(True),
    "falcon-h1, normed": lambda: _falcon_h1(
        False, mamba_rms_norm=True, mamba_norm_before_gate=False, tie_word_embeddings=True, num_hidden_layers=1
    ),
    "nemotron-h": lambda: _nemotron_h("mlp", "linear_attention", "full_attention", "linear_attention"),
    "nemotron-h, experts": lambda: _nemotron_h(
        "moe",
        "linear_attention",
        "full_attention",
        "mlp",
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=14,
        n_group=3,
        topk_group=2,
        use_conv_bias=False,
        routed_scaling_factor=1.5,
        mlp_hidden_act="silu",
    ),
    "minimax": lambda: _minimax(),
    "minimax, residuals scaled, blocks of 4, and lightning first": lambda: _minimax(
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        block_size=4,
        sliding_window=5,
        **{f"{part}_alpha_factor": 3.5 for part in ("full_attn", "linear_attn", "mlp")},
        **{f"{part}_beta_factor": 0.8 for part in ("full_attn", "linear_attn", "mlp")},
    ),
    "mamba 2": lambda: _mamba2(),
    "mamba 2, tied, one group and convolutions without biases": lambda: _mamba2(
        tie_word_embeddings=True, n_groups=1, use_conv_bias=False
    ),
    "nanochat": lambda: _decoder("NanoChat", pad_token_id=0),
    "seed-oss": lambda: _decoder("SeedOss", head_dim=8, attention_out_bias=True, pad_token_id=0),
    "internlm 3": lambda: _as_llama("InternLM3", attention_bias=True, mlp_bias=True),
    "llama, a base that grows with a longer text": lambda: as_if_first(
        _decoder("Llama", max_position_embeddings=9, rope_parameters={**DYNAMIC, "rope_theta": 500.0})
    ),
    "phi 3, long texts turned by other factors": lambda: _phi3(rope_parameters=_LONGROPE),
    "phi 3 with a window": lambda: _phi3(sliding_window=4, original_max_position_embeddings=T),
    "starcoder 2": lambda: _decoder("Starcoder2", norm_epsilon=1e-3, sliding_window=4),
    "glm": lambda: _decoder("Glm", head_dim=8, pad_token_id=0),
    "glm 4": lambda: _decoder("Glm4", head_dim=10, pad_token_id=0, attention_bias=False),
    "glm 4.1v": lambda: _decoder("Glm4vText", "TextModel", rope_parameters=_SECTIONS, pad_token_id=0),
    "glm ocr": lambda: _decoder("GlmOcrText", "TextModel", rope_parameters=_SECTIONS, pad_token_id=0),
    "glm image": lambda: _decoder("GlmImageText", "TextModel", rope_parameters=_SECTIONS, pad_token_id=0),
    "helium": lambda: _decoder("Helium", head_dim=C // H, pad_token_id=0, num_key_value_heads=4),
    "ernie 4.5": lambda: _decoder("Ernie4_5", head_dim=8, pad_token_id=0, use_bias=True),
    "mixtral": lambda: _decoder("Mixtral", num_local_experts=5, sliding_window=4, rope_theta=500.0),
    "mixtral, three a token": lambda: _decoder(
        "Mixtral", num_local_experts=4, num_experts_per_tok=3, hidden_act="gelu", head_dim=10, tie_word_embeddings=True
    ),
    "qwen3 moe": lambda: _decoder(
        "Qwen3Moe", **_EXPERTS, head_dim=10, norm_topk_prob=True, mlp_only_layers=[1], use_sliding_window=True
    ),
    "qwen3 moe, every second layer": lambda: _decoder(
        "Qwen3Moe", **_EXPERTS, decoder_sparse_step=2, attention_bias=True
    ),
    "qwen2 moe": lambda: _decoder(
        "Qwen2Moe",
        **{**_EXPERTS, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 20},
        mlp_only_layers=[0],
        use_sliding_window=True,
    ),
    "olmoe": lambda: _decoder("Olmoe", num_experts=5, num_experts_per_tok=2, clip_qkv=0.7, pad_token_id=0),
    "granite moe": lambda: _decoder(
        "GraniteMoe",
        num_local_experts=3,
        embedding_multiplier=3.0,
        logits_scaling=2.5,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        tie_word_embeddings=True,
    ),
    "qwen3, with biases": lambda: _decoder("Qwen3", head_dim=6, attention_bias=True),
    "deepseek v3, latent": lambda: _deepseek(3),
    "deepseek v2, queries not compressed": lambda: _deepseek(
        2, q_lora_rank=None, v_head_dim=12, kv_lora_rank=8, mlp_bias=True
    ),
    "gpt-oss": lambda: gpt_oss(),
    "gpt-oss, tied and without biases": lambda: gpt_oss(
        attention_bias=False, swiglu_alpha=1.2, tie_word_embeddings=True, layer_types=["full_attention"] * N
    ),
    "privacy filter": lambda: _privacy_filter(),
    "privacy filter with classes": lambda: _privacy_filter("ForTokenClassification", **_LABELS),
    "llama 4": lambda: _llama4(moe_layers=[0, 2]),
    "llama 4, longer chunks, stretched and without norms": lambda: _llama4(
        attention_chunk_size=5,
        use_qk_norm=False,
        attn_temperature_tuning=False,
        attention_bias=True,
        rope_parameters=_LLAMA3,
        num_experts_per_tok=1,
    ),
    "hunyuan": lambda: _decoder("HunYuanDenseV1", head_dim=10, attention_bias=True, pad_token_id=0),
    "hunyuan-vl": lambda: _decoder(
        "HunYuanVLText",
        "TextModel",
        head_dim=6,
        pad_token_id=0,
        tie_word_embeddings=False,
        rope_parameters={**_SECTIONS, "rope_type": "dynamic", "alpha": 30.0, "factor": 1.0},
    ),
    "deepseek v2, experts after the first layer": lambda: _deepseek(
        2,
        kv_lora_rank=8,
        first_k_dense_replace=1,
        n_routed_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        routed_scaling_factor=1.5,
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
    ),
    "deepseek v3, experts chosen with a bias": lambda: _deepseek(
        3,
        first_k_dense_replace=2,
        n_routed_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
    ),
    "deepseek v2, experts in the best groups": lambda: _deepseek(
        2,
        kv_lora_rank=8,
        first_k_dense_replace=1,
        n_routed_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        topk_method="group_limited_greedy",
        n_group=3,
        topk_group=2,
    ),
    "deepseek v3, experts in the best groups": lambda: _deepseek(
        3,
        first_k_dense_replace=0,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        n_group=4,
        topk_group=2,
    ),
    "kimi k2": lambda: _kimi(first_k_dense_replace=1),
    "glm 4.7 flash": lambda: _decoder("Glm4MoeLite", **{**_OF_LATENT, **_ROUTED}, mlp_layer_types=_DENSE_BETWEEN),
    "deepseek v3.2": lambda: _decoder("DeepseekV32", **{**_INDEXED, **_GROUPS}, first_k_dense_replace=1),
    "deepseek v3.2, few keys, stretched": lambda: _decoder(
        "DeepseekV32",
        **{**_INDEXED, "index_topk": 2, "index_head_dim": 6, "n_group": 1, "topk_group": 1},
        mlp_layer_types=_DENSE_BETWEEN,
        norm_topk_prob=False,
        tie_word_embeddings=True,
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 1.1},
    ),
    "deepseek v3.2, more keys than the text": lambda: _decoder(
        "DeepseekV32", **{**_INDEXED, "index_topk": 40}, first_k_dense_replace=N
    ),
    "glm 5": lambda: _decoder("GlmMoeDsa", **_INDEXED, first_k_dense_replace=1),
    "glm 5, the choice of an earlier layer": lambda: _decoder(
        "GlmMoeDsa",
        **{**_INDEXED, "index_topk": 3},
        indexer_types=["full", "shared", "shared"],
        mlp_layer_types=_DENSE_BETWEEN,
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    ),
    "glm 5.3": lambda: _glm5_3(),
    "glm 5.3, the choice of an earlier layer, decays without a bound, and groups of experts": lambda: _glm5_3(
        num_hidden_layers=4,
        layer_types=["indexed_attention", "indexed_attention", "linear_attention", "full_attention"],
        indexer_types=None,
        mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
        index_kpool=3,
        index_topk=3,
        hc_mult=2,
        hc_eps=0.04,
        n_routed_experts=6,
        n_group=3,
        topk_group=2,
        rms_norm_eps=1e-3,
        v_head_dim=12,
        index_topk_pattern="FSSF",
        linear_attn_config={"num_heads": 6, "gate_lower_bound": None, "safe_gate": False, "full_attn_layers": [1]},
        norm_topk_prob=False,
    ),
    "glm 5.3, one key a pool, and more of them than the text has": lambda: _glm5_3(
        index_kpool=1, index_topk=40, linear_attn_config={"head_dim": 6, "num_heads": 5}
    ),
    "mistral large 4": lambda: _decoder("MistralLarge4Text", "TextModel", **_LARGE4, no_rope_layers=[1, 0, 1]),
    "mistral large 4, the latent keys and the choice of earlier layers": lambda: _decoder(
        "MistralLarge4Text",
        "TextModel",
        **{**_LARGE4, "num_hidden_layers": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
        no_rope_layers=[1, 0, 1, 0, 1],  # without positions a repeated token of the first layer scores as the first
        kv_source_layers=[0, 1, 0, 1, 4],
        indexer_types=["full", "shared", "full", "full", "shared"],
        mlp_layer_types=["dense", "sparse", "sparse", "dense", "sparse"],
    ),
    "hunyuan 4": lambda: _decoder("HYV4", **_HYPER),
    "hunyuan 4, few keys, stretched, and two streams": lambda: _decoder(
        "HYV4",
        **{
            **_HYPER,
            "index_topk": 3,
            "index_head_dim": 6,
            "n_group": 3,
            "topk_group": 2,
            "n_routed_experts": 6,
            "hc_mult": 2,
            "swiglu_limit": 0.3,
        },
        indexer_types=["full", "shared", "full"],
        mlp_layer_types=_DENSE_BETWEEN,
        norm_topk_prob=False,
        tie_word_embeddings=True,
        hc_eps=0.04,
        hc_magnitude=0.7,
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 1.1},
    ),
    "deepseek v4": lambda: _decoder("DeepseekV4", **_BLOCKS),
    "deepseek v4, stretched, all blocks sparse": lambda: _decoder(
        "DeepseekV4",
        **{
            **_BLOCKS,
            "layer_types": ["compressed_sparse_attention"] * N,
            "mlp_layer_types": ["moe", "hash_moe", "moe"],
            "head_dim": 8,
            "o_groups": 1,
            "index_head_dim": 6,
            "index_topk": 1,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 1,
        },
        rope_parameters=_YARN,
        compress_rope_theta=700.0,
        scoring_func="sigmoid",
        tie_word_embeddings=True,
        hc_eps=0.04,
    ),
    "youtu": lambda: _decoder("Youtu", **_OF_LATENT, tie_word_embeddings=False),
    "minicpm 3": lambda: _decoder("MiniCPM3", **_OF_LATENT, scale_emb=3, scale_depth=1.1, dim_model_base=9),
    "mistral 4": lambda: _decoder(
        "Mistral4", **{**_OF_LATENT, **_ROUTED}, rope_parameters={**_GROWING, "mscale": 1.0, "mscale_all_dim": 0.7}
    ),
    "glm 4.5": lambda: _decoder("Glm4Moe", **_ROUTED, head_dim=8, use_qk_norm=True, attention_bias=True),
    "glm 4.5, experts in the best groups": lambda: _decoder("Glm4Moe", **_GROUPS, rope_parameters=_PART),
    "glm 4.5v": lambda: _decoder(
        "Glm4vMoeText", "TextModel", **_ROUTED, rope_parameters={**_SECTIONS, "partial_rotary_factor": 0.7}, head_dim=8
    ),
    "solar open": lambda: _decoder("SolarOpen", **_GROUPS, head_dim=8, norm_topk_prob=False, attention_bias=True),
    "dots.llm1": lambda: _decoder("Dots1", **_ROUTED, sliding_window=4, max_window_layers=1, attention_bias=True),
    "k-exaone": lambda: _decoder(
        "ExaoneMoe",
        **{**_EXPERTS, "num_shared_experts": 2, "sliding_window_pattern": 2, "rope_theta": 300.0},
        mlp_layer_types=_DENSE_BETWEEN,
    ),
    "hy3": lambda: _decoder(
        "HYV3", **_EXPERTS, num_shared_experts=2, head_dim=8, attention_bias=True, mlp_layer_types=_DENSE_BETWEEN
    ),
    "trinity": lambda: _decoder(
        "Afmoe",
        **_EXPERTS,
        num_shared_experts=1,
        route_scale=1.7,
        head_dim=8,
        mup_enabled=True,
        global_attn_every_n_layers=2,
    ),
    "laguna": lambda: _decoder(
        "Laguna",
        **_EXPERTS,
        head_dim=8,
        num_attention_heads_per_layer=[6, 4, 6],
        shared_expert_intermediate_size=20,
        moe_routed_scaling_factor=1.7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {**_YARN, "attention_factor": 1.2, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 1.0},
        },
    ),
    "laguna, every number gated": lambda: _decoder(
        "Laguna",
        **_EXPERTS,
        head_dim=8,
        gating="per-element",
        rope_parameters={"full_attention": {**_PART, "partial_rotary_factor": 0.75}},
    ),
    "mimo v2 flash": lambda: _decoder("MiMoV2Flash", **_MIMO),
    "mimo v2 flash, groups of experts, biases and values as they are": lambda: _decoder(
        "MiMoV2Flash",
        **{
            **_MIMO,
            **_GROUPS,
            "n_shared_experts": None,
            "norm_topk_prob": False,
            "attention_bias": True,
            "attention_value_scale": None,
            "layer_types": None,
            "mlp_layer_types": None,
            "sliding_window_size": 4,
        },
    ),
    "step 3.7": lambda: _decoder("Step3p7Text", "TextModel", **_STEP),
    "step 3.7, limits, biases and scaled scores": lambda: _decoder(
        "Step3p7Text",
        "TextModel",
        **{**_STEP, "rope_parameters": None, "num_sliding_attention_heads": 2},
        rope_theta=[300.0, 500.0, 300.0],
        partial_rotary_factors=[0.5, 1.0, 0.5],
        rope_scaling={**_LLAMA3, "rope_theta": 500.0},
        attention_bias=True,
        query_pre_attn_scalar=5.5,
        swiglu_limits=[0.2, None, 0.3],
        swiglu_limits_shared=[0.0, 0.25, 0.2],
    ),
    "minimax m2": lambda: _decoder("MiniMaxM2", num_local_experts=5, num_experts_per_tok=3, head_dim=8, rotary_dim=4),
    "minimax m3": lambda: _decoder("MiniMaxM3VLText", **_M3),
    "minimax m3, without near blocks, as published": lambda: _decoder(
        "MiniMaxM3VLText",
        "TextModel",
        **{**_M3, "layer_types": None, "mlp_layer_types": None, "rope_parameters": _LLAMA3},
        moe_layer_freq=[0, 1, 1],
        sparse_attention_config={
            "sparse_attention_freq": [0, 1, 1],
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 9,
            "sparse_block_size": 2,
            "sparse_topk_blocks": 3,
            "sparse_local_block": 0,
        },
        swiglu_alpha=1.2,
        swiglu_limit=0.5,
    ),
    "ernie 4.5 moe": lambda: _decoder(
        "Ernie4_5_Moe",
        moe_num_experts=5,
        moe_k=3,
        moe_intermediate_size=16,
        moe_layer_interval=2,
        moe_layer_end_index=1,
        pad_token_id=0,
    ),
    "hunyuan moe": lambda: _decoder(
        "HunYuanMoEV1",
        num_experts=5,
        moe_topk=[2] * N,
        head_dim=8,
        pad_token_id=0,
        attention_bias=True,
        rope_parameters={"rope_type": "dynamic", "alpha": 30.0, "rope_theta": 300.0, "factor": 1.0},
    ),
    "flex olmo": lambda: _decoder("FlexOlmo", num_experts=5, num_experts_per_tok=3, pad_token_id=0),
    "granite moe, shared": lambda: _decoder(
        "GraniteMoeShared",
        num_local_experts=3,
        shared_intermediate_size=20,
        residual_multiplier=0.4,
        logits_scaling=2.5,
    ),
    "aria": lambda: _decoder("AriaText", moe_num_experts=5, moe_topk=2, moe_num_shared_experts=3, attention_bias=True),
    "mellum 2": lambda: _decoder(
        "Mellum",
        **_EXPERTS,
        head_dim=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        mlp_layer_types=_DENSE_BETWEEN,
        rope_parameters={**_OLMO3, "full_attention": {**_YARN, "attention_factor": 1.2}},
    ),
    "dbrx": lambda: _dbrx(clip_qkv=0.7),
    "phimoe": lambda: _decoder(
        "Phimoe", num_local_experts=6, router_jitter_noise=0.3, lm_head_bias=True, attention_bias=True
    ),
    "phimoe, rotated by other factors": lambda: _decoder(
        "Phimoe",
        num_local_experts=6,
        router_jitter_noise=0.05,
        sliding_window=4,
        rope_parameters={
            **{key: value for key, value in _LONGROPE.items() if key != "partial_rotary_factor"},
            "short_mscale": 1.2,
            "long_mscale": 1.2,
            "original_max_position_embeddings": T,  # beyond it, transformers 5 keeps the short factors
        },
    ),
}


def is_encoder(family: str) -> bool:
    """By its name: making it takes a moment."""
    return bool(
        re.match(
            r"(distil|al|camem|megatron-|modern|nomic|euro|de)?bert|(xlm-)?roberta|electra|mpnet|esm|ernie(?! 4)"
            r"|data2vec|roformer|squeezebert|privacy filter|embeddinggemma",
            family,
        )
    )


@dataclass(frozen=True)
class Pair:
    theirs: nn.Module
    ours: Transformer
    table: Any = None

    @property
    def begins(self) -> list[int]:
        """The layers of ours that begin one of theirs."""
        split = {"longcat_flash": 3}.get(self.theirs.config.model_type, 1)
        blocks = enumerate(self.ours.config.blocks)
        inside = [block.norms.norm_below or block.memory.memory == "takes" or layer % split for layer, block in blocks]
        return [layer for layer, within in enumerate(inside) if not within]


def last_states(model: Transformer, hidden: Tensor) -> Tensor:
    """The last hidden states as theirs has them: normed, and projected where theirs are."""
    normed = model.final_norm(hidden)
    if model.config.pooled_dense:  # of EmbeddingGemma 2, which projects each token; ours their mean
        return model.pooling.dense(normed)
    return getattr(model.head, "projection", nn.Identity())(normed)


_saved = tempfile.TemporaryDirectory(prefix="tinytf-parity-")
"""Goes with the process."""


@cache
def saved(family: str) -> Path:
    """The directory that transformers writes of that model."""
    model = FAMILIES[family]()
    enliven(model, 7)
    directory = Path(tempfile.mkdtemp(dir=_saved.name))
    model.save_pretrained(directory)
    return directory


def pair(family: str) -> Pair:
    theirs = FAMILIES[family]()
    enliven(theirs, 7)
    theirs.set_attn_implementation("eager")
    opened = read_directory(saved(family))
    return Pair(theirs.eval(), facing(opened.load().transformer), opened.table)


def states_of(models: Pair, given: Any, ids: Tensor) -> tuple[Tensor, ...]:
    """Theirs before the first layer and after every one, normed after the last."""
    if models.theirs.config.model_type == "gemma3n_text":  # several streams, not normed after the last layer
        *before, last = (streams.movedim(0, -2).flatten(-2) for streams in given.hidden_states)
        return *before, models.ours.final_norm(last)
    if models.ours.config.hyper:  # (B, T, n, C) -> (B, T, n·C)
        return tuple(streams.flatten(2) for streams in given.hidden_states)
    if "mamba" not in models.theirs.config.model_type:
        return given.hidden_states
    *after, _, normed = given.hidden_states  # without the embeddings, and with the last layer twice
    return models.theirs.get_input_embeddings()(ids), *after, normed


def last_of(models: Pair, given: Any, result: Tensor, looked_at: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What theirs has ``given`` at last, and the same of ours: hidden states, or the logits of the tokens it reads.

    Only those are compared that are ``looked_at`` (B, T).
    """
    config = models.ours.config
    seen = torch.ones(result.shape[:2], dtype=torch.bool) if looked_at is None else looked_at
    if config.head.kind == "sequence":
        place = -1 if config.head_reads == "last" else 0
        return given.logits[seen[:, place]], result[:, place][seen[:, place]]
    if config.head.kind == "question":
        theirs = torch.stack([given.start_logits, given.end_logits], dim=-1)
    else:
        theirs = given.logits if "logits" in given else given.last_hidden_state
    if config.pooled_dense:
        result = models.ours.pooling.dense(result)
    theirs = theirs if theirs.dim() == 3 else theirs[..., None]  # one logit a token (ELECTRA)
    return theirs[seen], result[seen]
