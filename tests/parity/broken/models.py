"""Sound pairs: a model of transformers and the same one opened by tinytf."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from architectures import enliven
from torch import Tensor, nn

import tinytf
from tinytf.checkpoints.gguf.header import read_header
from tinytf.loading import Model


@dataclass(frozen=True)
class Both:
    """A model of transformers and the same one opened by tinytf."""

    theirs: Any
    ours: Model
    ids: tuple[int, ...]


def _real(pattern: str) -> Path:
    found = sorted(Path(os.environ.get("TINYTF_REAL_WEIGHTS", os.devnull)).rglob(pattern))
    if not found:
        raise SystemExit(f"TINYTF_REAL_WEIGHTS names no folder with {pattern}")
    return found[0]


def _weights(path: Path, arch: Any, empty: nn.Module, layers: int, turned: dict[str, int]) -> dict[str, Tensor]:
    """The weights of a GGUF file as transformers has them; ``turned`` matrices lie in pairs, with so many heads."""
    header, names, state = read_header(path), gguf.get_tensor_name_map(arch, layers), {}
    for name, parameter in empty.named_parameters():
        tensor = header.tensors[names.get_name(name, try_suffixes=(".weight",))]
        stored = np.fromfile(path, np.uint8, tensor.n_bytes, offset=tensor.start)
        numbers = torch.from_numpy(gguf.quants.dequantize(stored, tensor.kind)).view(parameter.shape)
        for part, heads in turned.items():
            if part in name:  # (H, D/2, 2, C) -> (H, 2, D/2, C)
                numbers = numbers.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        state[name] = numbers
    return state


def _smollm2() -> Both:
    path = _real("SmolLM2-135M-Instruct.Q4_1.gguf")
    said = {name.removeprefix("llama."): value for name, value in read_header(path).metadata.items()}
    config = transformers.LlamaConfig(
        vocab_size=said["vocab_size"],
        hidden_size=said["embedding_length"],
        intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"],
        num_attention_heads=said["attention.head_count"],
        num_key_value_heads=said["attention.head_count_kv"],
        max_position_embeddings=said["context_length"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": said["rope.freq_base"]},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(config)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    state = _weights(path, gguf.MODEL_ARCH.LLAMA, empty, config.num_hidden_layers, heads)
    return _both(transformers.LlamaForCausalLM, config, state, path)


def _gemma3() -> Both:
    path = _real("gemma-3-270m.gguf")
    header = read_header(path)
    said = {name.removeprefix("gemma3."): value for name, value in header.metadata.items()}
    base = {"rope_type": "default", "rope_theta": said["rope.freq_base"]}
    config = transformers.Gemma3TextConfig(
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=said["embedding_length"],
        intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"],
        num_attention_heads=said["attention.head_count"],
        num_key_value_heads=said["attention.head_count_kv"],
        head_dim=said["attention.key_length"],
        query_pre_attn_scalar=said["attention.key_length"],
        max_position_embeddings=said["context_length"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"],
        sliding_window=said["attention.sliding_window"],
        rope_parameters={"full_attention": base, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}},
    )
    with torch.device("meta"):
        empty = transformers.Gemma3ForCausalLM(config)
    state = _weights(path, gguf.MODEL_ARCH.GEMMA3, empty, config.num_hidden_layers, {})
    state = {name: one - 1 if name.endswith("norm.weight") else one for name, one in state.items()}
    return _both(transformers.Gemma3ForCausalLM, config, state, path)


def _both(kind: Any, config: Any, state: dict[str, Tensor], path: Path) -> Both:
    theirs = kind.from_pretrained(
        None, config=config, state_dict=state, attn_implementation="eager", dtype=torch.float32
    ).eval()
    return Both(theirs, tinytf.load(str(path), device="cpu"), ())


def _minilm() -> Both:
    path = str(_real("1_Pooling").parent)
    return Both(transformers.BertModel.from_pretrained(path, attn_implementation="eager").eval(), tinytf.load(path), ())


_SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
_DECODER = {**_SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, "pad_token_id": 0}
_EXPERTS: dict[str, Any] = {
    **_DECODER,
    "hidden_size": 40,
    "head_dim": 12,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 18,
    "norm_topk_prob": True,
    "experts_implementation": "eager",
}
_GPT2 = {"vocab_size": 61, "n_embd": 48, "n_layer": 4, "n_head": 6, "n_positions": 64, "attn_implementation": "eager"}
_LATENT: dict[str, Any] = {
    **_DECODER,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 10,
    "v_head_dim": 12,
}
_GROUPS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 18,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "experts_implementation": "eager",
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 700.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 700.0,
    "short_factor": [1.0, 1.1, 1.3, 1.4, 1.5, 1.6],
    "long_factor": [1.5, 4.0, 6.0, 7.0, 8.0, 9.0],
    "original_max_position_embeddings": 16,
}
_PART = {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.5}
_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.5,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
}
_MAMBA = {
    "vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 3, "num_heads": 12, "head_dim": 8, "n_groups": 3,
    "state_size": 5, "conv_kernel": 4, "chunk_size": 4, "residual_in_fp32": False,
}  # fmt: skip
_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "sliding_window": 6, "head_dim": 10}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHead", _GPT2),
    "llama": ("Llama", {**_DECODER, "rope_theta": 500.0}),
    "llama3": ("Llama", {**_DECODER, "rope_parameters": _LLAMA3}),
    "yarn": ("Llama", {**_DECODER, "rope_parameters": _YARN}),
    "longrope": ("Phi3", {**_DECODER, "rope_parameters": _LONG, "original_max_position_embeddings": 16}),
    "gemma2": ("Gemma2", {**_DECODER, **_CAPS, "query_pre_attn_scalar": 16}),
    "gemma": ("Gemma", {**_DECODER, "head_dim": 10, "tie_word_embeddings": True}),
    "bert": ("Bert", {**_SIZES, "type_vocab_size": 2}),
    "neox": ("GPTNeoX", {**_SIZES, "rope_parameters": _PART, "tie_word_embeddings": False}),
    "granite": ("Granite", {**_DECODER, **_MULTIPLIERS}),
    "gptoss": ("GptOss", {**_DECODER, "head_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 3,
                          "sliding_window": 6, "swiglu_limit": 0.7, "rope_parameters": _YARN,
                          "experts_implementation": "eager"}),
    "deepseek2": ("DeepseekV2", {**_LATENT, **_GROUPS, "topk_method": "group_limited_greedy",
                                 "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}),
    "deepseek3": ("DeepseekV3", {**_LATENT, **_GROUPS, "rope_parameters": {**_YARN, "mscale_all_dim": 1.0}}),
    "olmo2": ("Olmo2", _DECODER),
    "lfm2": ("Lfm2", {**_DECODER, "layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3,
                      "block_auto_adjust_ff_dim": False}),
    "mamba2": ("Mamba2", _MAMBA),
    "qwen2": ("Qwen2", {**_DECODER, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {**_DECODER, "head_dim": 16, "tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {**_DECODER, "num_local_experts": 6, "num_experts_per_tok": 2,
                            "experts_implementation": "eager"}),
    "phi": ("Phi", {**_DECODER, "rope_parameters": _PART}),
    "bloom": ("Bloom", {"vocab_size": 61, "hidden_size": 48, "n_layer": 4, "n_head": 6,
                        "attn_implementation": "eager"}),
    "moe": ("Qwen3Moe", _EXPERTS),
    "hybrid": ("Qwen3Next", {
        **_EXPERTS, "shared_expert_intermediate_size": 14, "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6, "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 3, "partial_rotary_factor": 0.5,
    }),
    "mistral": ("Mistral", {**_DECODER, "head_dim": 14, "sliding_window": 6}),
    "stablelm": ("StableLm", {**_DECODER, "use_qkv_bias": True, "rope_parameters": _PART}),
    "glm4": ("Glm4", {**_DECODER, "head_dim": 12, "attention_bias": True, "rope_parameters": _PART}),
    "smollm3": ("SmolLM3", {**_DECODER, "no_rope_layers": [1, 1, 1, 0]}),
    "seedoss": ("SeedOss", {**_DECODER, "head_dim": 12, "rms_norm_eps": 0.02}),
    "nemotron": ("Nemotron", {**_DECODER, "head_dim": 12, "rope_parameters": _PART}),
    "cohere": ("Cohere", {**_DECODER, "logit_scale": 0.25, "tie_word_embeddings": True}),
    "cohere2": ("Cohere2", {**_DECODER, "logit_scale": 0.25, "tie_word_embeddings": True, "sliding_window": 6,
                            "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}),
    "olmo": ("Olmo", {**_DECODER, "clip_qkv": 0.8}),
    "phi3": ("Phi3", _DECODER),
    "qwen2moe": ("Qwen2Moe", {**_EXPERTS, "hidden_size": 48, "norm_topk_prob": False,
                              "shared_expert_intermediate_size": 14}),
    "granitemoe": ("GraniteMoe", {**_DECODER, **_MULTIPLIERS, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "falcon": ("Falcon", {**_SIZES, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False,
                          "new_decoder_architecture": False}),
    "falcon40": ("Falcon", {**_SIZES, "num_kv_heads": 2, "new_decoder_architecture": True, "parallel_attn": True,
                            "bias": False, "alibi": False}),
    "gptj": ("GPTJ", {**_GPT2, "n_head": 4, "rotary_dim": 8, "tie_word_embeddings": False}),
    "gptneo": ("GPTNeo", {"vocab_size": 61, "hidden_size": 48, "num_layers": 4, "num_heads": 4, "window_size": 6,
                          "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 64,
                          "attn_implementation": "eager"}),
    "opt": ("OPT", {**_SIZES, "ffn_dim": 56, "word_embed_proj_dim": 48}),
    "roberta": ("Roberta", {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 66}),
    "distilbert": ("DistilBert", {"vocab_size": 61, "dim": 48, "n_layers": 4, "n_heads": 4, "hidden_dim": 56,
                                  "max_position_embeddings": 64, "attn_implementation": "eager"}),
    "modernbert": ("ModernBert", {
        **_SIZES, "global_attn_every_n_layers": 3, "local_attention": 8, "pad_token_id": 0,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 900.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 200.0}},
    }),
    "starcoder2": ("Starcoder2", {**_DECODER, "use_bias": True, "sliding_window": None}),
    "olmo3": ("Olmo3", {**_DECODER, "sliding_window": 6}),
    "exaone4": ("Exaone4", {**_DECODER, "sliding_window": 6, "sliding_window_pattern": 4}),
    "ministral": ("Ministral", {**_DECODER, "head_dim": 12, "sliding_window": 6,
                                "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "ministral3": ("Ministral3", {**_DECODER, "head_dim": 12, "sliding_window": None, "rope_parameters": {
        **_YARN, "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8}}),
    "mpt": ("Mpt", {"vocab_size": 61, "d_model": 48, "n_layers": 4, "n_heads": 6,
                    "max_seq_len": 64, "attn_implementation": "eager"}),
    "mamba": ("Mamba", {"vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 3, "state_size": 5,
                        "conv_kernel": 4, "expand": 2, "time_step_rank": 6, "residual_in_fp32": False}),
}  # fmt: skip
"""Families with random weights: the class of transformers, and settings at which nothing is 1, equal or a default."""


def made(name: str, **changed: Any) -> Any:
    """A small model of transformers, some of its settings changed, before its weights are drawn."""
    kind, settings = SMALL[name]
    config = getattr(transformers, f"{kind.removesuffix('LMHead')}Config")(**{**settings, **changed})
    encoders = dict.fromkeys(("Bert", "Roberta", "DistilBert", "ModernBert"), "ForMaskedLM")
    suffix = {"GPT2LMHead": "Model", **encoders}.get(kind, "ForCausalLM")
    return getattr(transformers, kind + suffix)(config).eval()


def _small(name: str) -> Both:
    torch.manual_seed(11)
    theirs = made(name)
    enliven(theirs, 7)
    generator = torch.Generator().manual_seed(3)
    for buffer in (one for path, one in theirs.named_buffers() if path.endswith("correction_bias")):
        buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    ids = torch.randint(3, 61, (19,), generator=generator).tolist()
    return Both(theirs, tinytf.load(theirs), tuple(ids))


@cache
def both(name: str) -> Both:
    """A sound pair, opened once."""
    with torch.no_grad():
        return {"smollm2": _smollm2, "gemma3": _gemma3, "minilm": _minilm}.get(name, lambda: _small(name))()
