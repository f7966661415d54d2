"""Models of transformers as GGUF files, the way llama.cpp's convert_hf_to_gguf.py makes them.

Names of tensors are those of the gguf library's own map; what its converter does besides stands here, an architecture a
line: keys, and what becomes of tensors on the way.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from architectures import enliven
from gguf_files import Array, Kind, Parts, byte_level_keys, converted_factors, paired
from reference import class_named
from torch import nn

V, C, N, H, F, T = 320, 32, 3, 4, 48, 64
Tensors = Iterator[tuple[str, Array]]


def _as_it_is(name: str, numbers: Array, config: Any) -> Tensors:
    yield name, numbers


@dataclass(frozen=True)
class Conversion:
    """``keys`` are those besides the sizes; ``change`` makes the stored tensors of one of transformers'."""

    architecture: gguf.MODEL_ARCH
    make: Callable[[], nn.Module]
    keys: Callable[[Any], dict[str, Any]] = lambda config: {}
    change: Callable[[str, Array, Any], Tensors] = _as_it_is
    extra: Callable[[], dict[str, list[float]]] = dict


def _of(config: Any, *names: str) -> Any:
    config.allow_global_per_layer_attribute_access = True  # such as Gemma 4's widths of heads
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _sizes(config: Any) -> dict[str, Any]:
    """What the converter's TextModel writes of every model, where its configuration has it."""
    heads = _of(config, "num_attention_heads", "n_head")
    rope = _of(config, "rope_parameters") or {}
    found = {
        "block_count": _of(config, "num_hidden_layers", "n_layer"),
        "context_length": _of(config, "max_position_embeddings", "n_positions"),
        "embedding_length": _of(config, "hidden_size", "n_embd"),
        "feed_forward_length": _of(config, "intermediate_size", "n_inner"),
        "attention.head_count": heads,
        "attention.head_count_kv": _of(config, "num_key_value_heads"),
        "attention.key_length": _of(config, "head_dim"),
        "attention.value_length": _of(config, "head_dim"),
        "attention.layer_norm_rms_epsilon": _of(config, "rms_norm_eps"),
        "attention.layer_norm_epsilon": _of(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
        "rope.freq_base": rope.get("rope_theta"),
    }
    return {key: value for key, value in found.items() if value is not None}


@torch.no_grad()
def converted(conversion: Conversion) -> tuple[nn.Module, Parts]:
    """A model of transformers with odd weights, and the file that holds them in float32."""
    model = conversion.make().eval().float()  # what Apertus learns of its activation is bfloat16
    enliven(model, 11)
    config = model.config
    name = gguf.MODEL_ARCH_NAMES[conversion.architecture]
    keys = {key: value for key, value in (_sizes(config) | conversion.keys(config)).items() if value is not None}
    own = {f"{name}.{key}": value for key, value in keys.items()}
    parts = Parts({"general.architecture": name, **own, **byte_level_keys(V)})
    if types := _of(config, "type_vocab_size"):
        parts.keys["tokenizer.ggml.token_type_count"] = types
    names = gguf.get_tensor_name_map(conversion.architecture, config.num_hidden_layers)
    balance = {
        name: one for name, one in model.named_buffers() if name.endswith(("e_score_correction_bias", "expert_bias"))
    }
    for one in balance.values():
        one.copy_(torch.linspace(-0.5, 0.5, len(one)))
    scales = {name: one for name, one in model.named_buffers() if name.endswith("layer_scalar")}
    for number, one in enumerate(scales.values()):
        one.fill_(0.8 + 0.05 * number)
    constants = {name: one for name, one in model.named_buffers() if ".act_fn." in name}
    for theirs, parameter in {**dict(model.named_parameters()), **balance, **scales, **constants}.items():
        for changed, numbers in conversion.change(theirs, parameter.numpy(), config):
            if changed.startswith("xielu."):  # metadata, an array with a number for each layer
                parts.keys.setdefault(changed, []).append(numbers.item())
                continue
            of_library = names.get_name(changed, try_suffixes=(".weight", ".bias"))
            stored = changed if changed.startswith("blk.") else of_library  # names with other endings
            assert stored is not None, f"the library has no name for {changed}"
            parts.tensors[stored] = np.ascontiguousarray(numbers), Kind.F32
    for name, values in conversion.extra().items():
        parts.tensors[name] = np.array(values, np.float32), Kind.F32
    return model, parts


def _model(family: str, **settings: Any) -> Callable[[], nn.Module]:
    given = {
        "vocab_size": V,
        "hidden_size": C,
        "num_hidden_layers": N,
        "num_attention_heads": H,
        "intermediate_size": F,
        "max_position_embeddings": T,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        **settings,
    }
    name = (
        {"Gemma3Text": "Gemma3", "Gemma3nText": "Gemma3n", "Gemma4Text": "Gemma4"}.get(family, family)
        .replace("3_5Text", "3_5")
        .replace("MoeText", "Moe")
    )
    return lambda: getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{family}Config")(**given))


def _decoder(family: str, **settings: Any) -> Callable[[], nn.Module]:
    return _model(family, **{"num_key_value_heads": 2, "rms_norm_eps": 3e-5, **settings})


def _one_more(name: str, numbers: Array, config: Any) -> Tensors:
    """Gemma's norms multiply by 1 + weight, and llama.cpp's by the weight."""
    yield name, numbers + 1 if name.endswith("norm.weight") else numbers


def _transposed(name: str, numbers: Array, config: Any) -> Tensors:
    yield name, numbers.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else numbers


def _by_parts(name: str, numbers: Array, config: Any) -> Tensors:
    """GPT-NeoX and BLOOM keep q, k and v of a head together: (H, 3, D, …) -> (3, H, D, …)."""
    name = name.replace("transformer.", "")
    if ".query_key_value." in name:
        split = numbers.reshape(_of(config, "num_attention_heads", "n_head"), 3, -1, *numbers.shape[1:])
        numbers = split.swapaxes(0, 1).reshape(numbers.shape)
    yield name, numbers


def _t5(family: str = "T5", kind: str = "ForConditionalGeneration", **settings: Any) -> Callable[[], nn.Module]:
    given = {"vocab_size": V, "d_model": C, "d_kv": 6, "d_ff": F, "num_layers": N, "num_heads": H, **settings}
    odd = {"relative_attention_num_buckets": 8, "decoder_start_token_id": 0, "pad_token_id": 0, "n_positions": 512}
    return lambda: class_named(family + kind)(getattr(transformers, f"{family}Config")(**given, **odd))


def _of_t5(config: Any) -> dict[str, Any]:
    """The context is n_positions, as in published configurations; farthest away are 128, as in all of them."""
    keys = {
        "context_length": config.n_positions,
        "feed_forward_length": config.d_ff,
        "attention.value_length": config.d_kv,
        "attention.relative_buckets_count": config.relative_attention_num_buckets,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
    }
    if not config.is_encoder_decoder:
        return keys
    return {**keys, "decoder_block_count": config.num_decoder_layers, "decoder_start_token_id": 0}


def _permuted(name: str, numbers: Array, config: Any) -> Tensors:
    """LlamaModel.permute: llama.cpp's RoPE turns adjacent rows."""
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    kind = next((kind for kind in heads if f"{kind}_proj" in name), None)
    yield name, paired(numbers, heads[kind]) if kind else numbers


def _as_apertus(name: str, numbers: Array, config: Any) -> Tensors:
    yield f"xielu.{name.rpartition('.')[2]}" if ".act_fn." in name else name, numbers


def _squeezed(name: str, numbers: Array, config: Any) -> Tensors:
    yield name, numbers.squeeze()


_SWAPPED = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
    "input_linear.weight": ("gate_proj", "up_proj"),
    "output_linear.weight": ("down_proj",),
}


def _with_experts(change: Callable[[str, Array, Any], Tensors] = _as_it_is) -> Callable[[str, Array, Any], Tensors]:
    """Experts of a layer in one tensor a matrix, (E, F, C); transformers 5 has gates and ups in one as well."""

    def changed(name: str, numbers: Array, config: Any) -> Tensors:
        name = name.replace("block_sparse_moe.router.layer.", "mlp.gate.")
        ending = next((end for end in _SWAPPED if name.endswith(f".{end}") and numbers.ndim == 3), None)
        if ending is None:
            yield from change(name.replace("block_sparse_moe", "mlp"), numbers, config)
            return
        names = _SWAPPED[ending]
        layer = name.split("layers.")[1].split(".")[0]
        for one, part in zip(names, np.split(numbers, len(names), axis=1), strict=True):
            yield f"model.layers.{layer}.mlp.experts.{one}.weight", part

    return changed


_PHIMOE = {"num_local_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True}


def _of_phimoe(config: Any) -> dict[str, Any]:
    return {
        "rope.dimension_count": C // H,
        "attention.sliding_window": 0,
        "expert_count": 6,
        "expert_used_count": 2,
    }


def _as_phimoe(name: str, numbers: Array, config: Any) -> Tensors:
    yield from _with_experts()(name.replace("mlp.router", "mlp.gate"), numbers, config)


def _balanced(name: str, numbers: Array, config: Any) -> Tensors:
    name = name.replace("gate.moe_statics.", "moe_statics.").replace("expert_bias", "expert_bias.bias")
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    yield name, numbers.squeeze() if name.endswith("e_score_correction.bias") else numbers


def _latent(name: str, numbers: Array, config: Any) -> Tensors:
    """Keys and values of each head by themselves; of the keys the transposed matrix."""
    if not name.endswith("kv_b_proj.weight"):
        yield from _balanced(name, numbers, config)
        return
    heads = numbers.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    own = config.qk_nope_head_dim
    yield name.replace("kv_b", "k_b"), heads[:, :own].swapaxes(1, 2)
    yield name.replace("kv_b", "v_b"), heads[:, own:]


def _of_kimi(config: Any) -> dict[str, Any]:
    full = [kind == "full_attention" for kind in config.layer_types]
    return {
        **_of_experts(config),
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_gating_func": 2,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.head_count_kv": [1 if one else 0 for one in full],
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "kda.head_dim": config.linear_head_dim,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
    }


def _as_kimi(name: str, numbers: Array, config: Any) -> Tensors:
    """Convolutions of queries, keys and values by themselves, and rates as they are used."""
    name = name.replace("forget_gate.", "").replace("dt_bias", "dt_proj.bias")
    if name.endswith("conv1d.weight"):
        for part, one in zip("qkv", np.split(numbers, 3), strict=True):
            yield name.replace("conv1d", f"{part}_conv1d"), one.reshape(1, -1, 1, numbers.shape[-1])
        return
    yield from _latent(name, -np.exp(numbers) if name.endswith("A_log") else numbers, config)


def _of_routed(config: Any) -> dict[str, Any]:
    """The keys of DeepSeek-V3's router, from a configuration that has them."""
    return {
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "expert_gating_func": 1 if config.model_type == "deepseek_v2" else 2,
    }


def _of_latent(config: Any) -> dict[str, Any]:
    yarn = config.rope_parameters["rope_type"] == "yarn"
    scaling = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 0.07,
    }
    return {
        **_of_routed(config),
        **({"attention.q_lora_rank": config.q_lora_rank} if config.q_lora_rank else {}),
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.head_count_kv": 1,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "rope.freq_base": 700.0,
        **(scaling if yarn else {}),
    }


_ROUTED: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "n_group": 3,
    "topk_group": 2,
    "num_key_value_heads": 4,
    "rope_theta": 700.0,
}
_MLA = {"kv_lora_rank": 12, "qk_rope_head_dim": 6, "qk_nope_head_dim": 4, "v_head_dim": 7}


def _as_gpt_oss(name: str, numbers: Array, config: Any) -> Tensors:
    """Gate and up are in turns there, and matrices (in, out)."""
    if ".experts." not in name:
        yield name + (".weight" if name.endswith("sinks") else ""), numbers
        return
    module, kind = (name[:-5], "bias") if name.endswith("_bias") else (name, "weight")
    turned = numbers if kind == "bias" else numbers.swapaxes(1, 2)
    if module.endswith("gate_up_proj"):
        yield f"{module.replace('gate_up_proj', 'gate_proj')}.{kind}", turned[:, ::2]
        yield f"{module.replace('gate_up_proj', 'up_proj')}.{kind}", turned[:, 1::2]
    else:
        yield f"{module}.{kind}", turned


_NOMIC = {
    "self_attn.o_proj": "attn.out_proj",
    "mlp.gate_proj": "mlp.fc12",
    "mlp.up_proj": "mlp.fc11",
    "mlp.down_proj": "mlp.fc2",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}


def _as_nomic() -> Callable[[str, Array, Any], Tensors]:
    """The names of the model's own code, which transformers has changed: one tensor for queries, keys and values."""
    waiting: list[Array] = []

    def changed(name: str, numbers: Array, config: Any) -> Tensors:
        if not name.startswith("layers."):
            yield name, numbers
            return
        _, layer, *inside, kind = name.split(".")
        if ".".join(inside) in _NOMIC:
            yield f"encoder.layers.{layer}.{_NOMIC['.'.join(inside)]}.{kind}", numbers
            return
        waiting.append(numbers)  # q, k and v come in this order
        if len(waiting) == 3:
            yield f"encoder.layers.{layer}.attn.Wqkv.weight", np.concatenate(waiting)
            waiting.clear()

    return changed


def _nomic() -> nn.Module:
    sizes = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": N, "num_attention_heads": H}
    more = {"intermediate_size": F, "max_position_embeddings": T, "layer_norm_eps": 1e-4}
    return transformers.NomicBertModel(transformers.NomicBertConfig(**sizes, **more), add_pooling_layer=False)


def _without_pooler(name: str, numbers: Array, config: Any) -> Tensors:
    if not name.startswith("pooler."):
        yield name, numbers


def _of_gemma2(config: Any) -> dict[str, Any]:
    return {
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
        "attention.sliding_window": config.sliding_window,
    }


def _of_gemma3(config: Any) -> dict[str, Any]:
    return {
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "attention.sliding_window": config.sliding_window,
    }


def _of_bloom(config: Any) -> dict[str, Any]:
    return {"context_length": T, "feed_forward_length": 4 * C, "attention.head_count_kv": H}


def _of_neox(config: Any) -> dict[str, Any]:
    share = config.rope_parameters["partial_rotary_factor"]
    return {
        "rope.dimension_count": int(share * (config.hidden_size // config.num_attention_heads)),
        "use_parallel_residual": config.use_parallel_residual,
    }


_HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}


def _gpt2() -> nn.Module:
    sizes = {"vocab_size": V, "n_embd": C, "n_layer": N, "n_head": H, "n_inner": F, "n_positions": T}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, layer_norm_epsilon=1e-4))


def _bigcode() -> nn.Module:
    sizes = {"vocab_size": V, "n_embd": C, "n_layer": N, "n_head": H, "n_inner": F, "n_positions": T}
    return transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(**sizes, layer_norm_epsilon=1e-4))


def _bloom() -> nn.Module:
    sizes = {"vocab_size": V, "hidden_size": C, "n_layer": N, "n_head": H}
    return transformers.BloomForCausalLM(transformers.BloomConfig(**sizes, layer_norm_epsilon=1e-4))


def _mpt() -> nn.Module:
    sizes = {"vocab_size": V, "d_model": C, "n_layers": N, "n_heads": H, "max_seq_len": T}
    return transformers.MptForCausalLM(
        transformers.MptConfig(**sizes, layer_norm_epsilon=1e-4, attn_config={"clip_qkv": 0.5})
    )


def _neox(**settings: Any) -> Callable[[], nn.Module]:
    return _model("GPTNeoX", layer_norm_eps=1e-4, rope_parameters=_HALF, **settings)


def _bert() -> nn.Module:
    sizes = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": N, "num_attention_heads": H}
    more = {"intermediate_size": F, "max_position_embeddings": T, "layer_norm_eps": 1e-4}
    return transformers.BertModel(transformers.BertConfig(**sizes, **more))


def _falcon(**settings: Any) -> Callable[[], nn.Module]:
    return _model("Falcon", layer_norm_epsilon=1e-4, rope_theta=700.0, ffn_hidden_size=F, **settings)


def _of_falcon(config: Any) -> dict[str, Any]:
    return {
        "attention.head_count_kv": config.num_kv_heads,
        "tensor_data_layout": "jploski",
        "feed_forward_length": F,
    }


def _by_kind(name: str, numbers: Array, config: Any) -> Tensors:
    """Falcon keeps the queries of a group with its key and value: FalconModel puts all queries first, then keys."""
    if "query_key_value" in name:
        groups, width = config.num_kv_heads, C // H
        split = numbers.reshape(groups, -1, width, *numbers.shape[1:])
        parts = (split[:, :-2], split[:, -2], split[:, -1])
        numbers = np.concatenate([part.reshape(-1, *numbers.shape[1:]) for part in parts])
    yield name, numbers


def _modern_bert(**settings: Any) -> nn.Module:
    sizes = {
        "vocab_size": V,
        "hidden_size": C,
        "num_hidden_layers": 5,
        "num_attention_heads": H,
        "intermediate_size": F,
    }
    ids = dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id"), 0)
    config = transformers.ModernBertConfig(
        **sizes, **ids, max_position_embeddings=T, norm_eps=1e-4, local_attention=6, **settings
    )
    return transformers.ModernBertModel(config)


def _of_exaone4(config: Any) -> dict[str, Any]:
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
    }


def _with_head_norms() -> Callable[[str, Array, Any], Tensors]:
    """The gains of all heads in one tensor, (H, D)."""
    rows: dict[str, list[Array]] = {}

    def changed(name: str, numbers: Array, config: Any) -> Tensors:
        module, of_head, _ = name.partition(".norms.")
        if not of_head:
            yield name, numbers
            return
        rows.setdefault(module, []).append(numbers)
        if len(rows[module]) == (config.num_attention_heads if ".q_" in module else config.num_key_value_heads):
            yield f"{module}.weight", np.stack(rows.pop(module))

    return changed


def _of_experts(config: Any) -> dict[str, Any]:
    """The keys of a router, whatever its configuration calls them."""
    found = {
        "leading_dense_block_count": _of(config, "num_dense_layers", "moe_layer_start_index"),
        "expert_count": _of(config, "num_experts", "moe_num_experts"),
        "expert_used_count": _of(config, "num_experts_per_tok", "moe_k", "moe_topk"),
        "expert_feed_forward_length": _of(config, "moe_intermediate_size"),
        "expert_shared_count": _of(config, "num_shared_experts", "moe_num_shared_experts"),
        "expert_weights_scale": _of(config, "route_scale"),
        "attention.sliding_window": _of(config, "sliding_window"),
    }
    return {key: value for key, value in found.items() if value is not None}


_NO_SCALING = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 64}


def _of_hunyuan(config: Any) -> dict[str, Any]:
    theta, width = config.rope_parameters["rope_theta"], config.head_dim
    base = theta * config.rope_parameters["alpha"] ** (width / (width - 2))
    widths = dict.fromkeys(("expert_feed_forward_length", "expert_shared_feed_forward_length"), F)
    shared = widths if hasattr(config, "moe_topk") else {}
    return {**shared, **_of_experts(config), "rope.freq_base": base, **_NO_SCALING}


_DYNAMIC = {"rope_type": "dynamic", "alpha": 30.0, "rope_theta": 300.0, "factor": 1.0}


def _lfm2(family: str, **settings: Any) -> Callable[[], nn.Module]:
    layers = ["conv", "full_attention", "conv"]
    own = {"layer_types": layers, "conv_L_cache": 3, "norm_eps": 3e-5, "block_auto_adjust_ff_dim": False}
    return _decoder(family, rope_theta=700.0, **own, **settings)


def _of_lfm2(config: Any) -> dict[str, Any]:
    counts = [config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types]
    epsilon = {"attention.layer_norm_rms_epsilon": config.norm_eps, "attention.layer_norm_epsilon": None}
    return {"attention.head_count_kv": counts, "shortconv.l_cache": config.conv_L_cache, **epsilon}


def _as_lfm2(name: str, numbers: Array, config: Any) -> Tensors:
    yield from _balanced(name, numbers.squeeze(1) if name.endswith("conv.conv.weight") else numbers, config)


def _of_mamba(config: Any) -> dict[str, Any]:
    heads = _of(config, "mamba_n_heads", "mamba_num_heads", "num_heads")
    width = _of(config, "mamba_d_head", "mamba_head_dim", "head_dim")
    inner = heads * width if heads else config.intermediate_size
    norms = {"attention.layer_norm_epsilon": None} if heads is None or config.model_type == "mamba2" else {}
    return {
        "ssm.conv_kernel": _of(config, "mamba_d_conv", "conv_kernel"),
        "ssm.inner_size": inner,
        "ssm.state_size": _of(config, "mamba_d_state", "state_size"),
        "ssm.time_step_rank": heads or _of(config, "time_step_rank", "mamba_dt_rank"),
        "ssm.group_count": _of(config, "mamba_n_groups", "n_groups"),
        "ssm.dt_b_c_rms": True if config.model_type == "falcon_mamba" else None,
        "attention.layer_norm_rms_epsilon": _of(config, "layer_norm_epsilon", "rms_norm_eps"),
        **norms,
    }


def _of_mamba_alone(config: Any) -> dict[str, Any]:
    none = {"attention.head_count": 0, "feed_forward_length": 0, "attention.key_length": None, "context_length": 2**20}
    return {**_of_mamba(config), **none, "attention.value_length": None}


def _as_mamba(name: str, numbers: Array, config: Any) -> Tensors:
    """Rates as they are used, not their logarithms; of Mamba-2 those and D as columns, and the norm by groups."""
    if name.endswith("conv1d.weight"):
        numbers = numbers.squeeze(1)
    if name.endswith("A_log"):
        numbers = -np.exp(numbers)
    if name.endswith(("A_log", ".D")) and config.model_type not in ("mamba", "falcon_mamba", "jamba"):
        numbers = numbers[:, None]
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        numbers = numbers.reshape(_of(config, "mamba_n_groups", "n_groups"), -1)
    yield name.replace("dt_bias", "dt_proj.bias"), numbers


_INNER = {"intermediate_size": 2 * C}
_GRANITE_HYBRID = {
    "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 16, "mamba_d_head": 4, "mamba_n_groups": 2,
    "mamba_d_state": 6, "mamba_d_conv": 3, "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
    "attention_multiplier": 0.2, "logits_scaling": 0.7,
}  # fmt: skip


def _of_granite_hybrid(config: Any) -> dict[str, Any]:
    counts = [config.num_key_value_heads * (kind in ("attention", "full_attention")) for kind in config.layer_types]
    experts = {"expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 20}
    return {
        **_of_mamba(config), "attention.head_count_kv": counts, "embedding_scale": 3.0, "residual_scale": 0.4,
        "attention.scale": 0.2, "logit_scale": 0.7, "rope.scaling.finetuned": config.position_embedding_type == "rope",
        **(experts if config.num_local_experts else {}),
    }  # fmt: skip


def _as_granite_hybrid(name: str, numbers: Array, config: Any) -> Tensors:
    if ".mamba." in name:
        yield from _as_mamba(name, numbers, config)
    elif name.endswith("shared_mlp.input_linear.weight"):
        for one, part in zip(("gate_proj", "up_proj"), np.split(numbers, 2), strict=True):
            layer = name.split("layers.")[1].split(".")[0]
            yield f"model.layers.{layer}.mlp.{'shared_expert.' if config.num_local_experts else ''}{one}.weight", part
    elif name.endswith("shared_mlp.output_linear.weight"):
        layer = name.split("layers.")[1].split(".")[0]
        yield (
            f"model.layers.{layer}.mlp.{'shared_expert.' if config.num_local_experts else ''}down_proj.weight",
            numbers,
        )
    else:
        yield from _permuted(name, numbers, config)


_FALCON_H1 = {
    "mamba_d_ssm": 64, "mamba_n_heads": 16, "mamba_d_head": 4, "mamba_n_groups": 2, "mamba_d_state": 6,
    "mamba_d_conv": 3, "mlp_multipliers": [0.9, 1.4], "ssm_multipliers": [0.7, 1.2, 0.6, 1.1, 0.8],
    "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.7, "attention_in_multiplier": 1.2, "key_multiplier": 0.6,
    "attention_out_multiplier": 0.8, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.4,
}  # fmt: skip


def _as_falcon_h1(name: str, numbers: Array, config: Any) -> Tensors:
    """Weights times the multipliers of what they give or are given."""
    c, inner, state = config, config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    sections = np.repeat(c.ssm_multipliers, [inner, inner, state, state, c.mamba_n_heads]).astype(np.float32)
    factors = {
        "embed_tokens": c.embedding_multiplier,
        "lm_head": c.lm_head_multiplier,
        "q_proj": c.attention_in_multiplier,
        "k_proj": c.attention_in_multiplier * c.key_multiplier,
        "v_proj": c.attention_in_multiplier,
        "o_proj": c.attention_out_multiplier,
        "in_proj": c.ssm_in_multiplier * sections[:, None],
        "out_proj": c.ssm_out_multiplier,
        "gate_proj": c.mlp_multipliers[0],
        "down_proj": c.mlp_multipliers[1],
    }
    yield from _as_mamba(name, numbers * factors.get(name.split(".")[-2], 1.0), config)


_GEMMA4 = {
    "num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 12, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0, "final_logit_softcapping": 9.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip


def _of_gemma4(config: Any) -> dict[str, Any]:
    local = [kind == "sliding_attention" for kind in config.layer_types]
    wide = 1 if config.attention_k_eq_v else 2
    doubled = len(local) - config.num_kv_shared_layers if config.use_double_wide_mlp else len(local)
    experts = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 20}
    return {
        "attention.head_count_kv": [2 if here else wide for here in local],
        "attention.key_length": 12, "attention.value_length": 12,
        "attention.key_length_swa": 8, "attention.value_length_swa": 8,
        "attention.sliding_window": 4, "attention.sliding_window_pattern": local,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "feed_forward_length": [F * (1 + (n >= doubled)) for n in range(len(local))],
        "rope.freq_base": 700.0, "rope.freq_base_swa": 300.0,
        "rope.dimension_count": 12, "rope.dimension_count_swa": 8,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "final_logit_softcapping": config.final_logit_softcapping,
        **(experts if config.enable_moe_block else {}),
    }  # fmt: skip


def _as_gemma4(name: str, numbers: Array, config: Any) -> Tensors:
    layer = name.split("layers.")[1].split(".")[0] if "layers." in name else ""
    if name.endswith(".router.scale"):
        yield f"blk.{layer}.ffn_gate_inp.scale", numbers
    elif name.endswith(".router.per_expert_scale"):
        yield f"blk.{layer}.ffn_down_exps.scale", numbers
    else:
        whole = name.endswith(("layer_scalar", ".experts.gate_up_proj", ".experts.down_proj"))
        yield f"{name}.weight" if whole else name, numbers


_GEMMA3N = {
    "head_dim": 8, "sliding_window": 4, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "laurel_rank": 5,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "intermediate_size": [F, F, 2 * F, F],
    "activation_sparsity_pattern": [0.7, 0.0, 0.3, 0.0], "altup_num_inputs": 3, "hidden_size_per_layer_input": 6,
    "vocab_size_per_layer_input": V, "final_logit_softcapping": 2.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 700.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip


def _of_gemma3n(config: Any) -> dict[str, Any]:
    shares = torch.tensor(config.activation_sparsity_pattern)
    return {
        "attention.sliding_window": 4, "attention.shared_kv_layers": config.num_kv_shared_layers,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "rope.freq_base": 700.0, "rope.freq_base_swa": 300.0,
        "altup.active_idx": config.altup_active_idx, "altup.num_inputs": config.altup_num_inputs,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "activation_sparsity_scale": torch.distributions.Normal(0, 1).icdf(shares).tolist(),
        "final_logit_softcapping": config.final_logit_softcapping,
    }  # fmt: skip


def _stacked_streams() -> Callable[[str, Array, Any], Tensors]:
    """The projections of streams, which lie apart, each kind in one tensor after the last of them."""
    apart: dict[str, list[Array]] = {}

    def change(name: str, numbers: Array, config: Any) -> Tensors:
        if "projections." not in name:
            yield f"{name}.weight" if name.endswith("_scale") else name, numbers
            return
        kind = name.split(".")[1]
        matrices = apart.setdefault(kind, [])
        matrices.append(numbers)
        if len(matrices) == config.altup_num_inputs - 1:
            yield f"model.{kind}.weight", np.stack(apart.pop(kind))

    return change


_NEMOTRON = {
    "num_hidden_layers": 5, "head_dim": 8, "mamba_num_heads": 16, "mamba_head_dim": 4, "n_groups": 2,
    "ssm_state_size": 6, "conv_kernel": 3, "time_step_min": 1e-3, "layer_norm_epsilon": 3e-5, "mlp_hidden_act": "relu2",
    "num_key_value_heads": 2, "sliding_window": None,
}  # fmt: skip


def _of_nemotron(config: Any) -> dict[str, Any]:
    kinds = config.layers_block_type
    experts = {
        "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 20, "expert_shared_count": 1,
        "expert_shared_feed_forward_length": 28, "expert_weights_scale": 1.7, "expert_weights_norm": True,
        "expert_gating_func": 2, "expert_group_count": 1, "expert_group_used_count": 1,
    }  # fmt: skip
    return {
        **_of_mamba(config),
        "ssm.inner_size": 64, "ssm.time_step_rank": 16, "ssm.group_count": 2, "ssm.state_size": 6, "block_count": 5,
        "attention.head_count_kv": [2 * (kind in ("attention", "full_attention")) for kind in kinds],
        "feed_forward_length": [F * (kind in ("mlp", "moe")) for kind in kinds],
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        **(experts if "moe" in kinds else {}),
    }  # fmt: skip


def _as_nemotron(name: str, numbers: Array, config: Any) -> Tensors:
    for changed, part in _as_mamba(name, numbers, config):
        for balanced, one in _balanced(changed, part, config):
            if ".experts." in balanced:  # (E, rows, columns)
                yield f"{balanced.replace('mixer', 'mlp')}.weight", one
            else:
                yield balanced.replace("model.", "backbone."), one


def _of_jamba(config: Any) -> dict[str, Any]:
    attends = [n % config.attn_layer_period == config.attn_layer_offset for n in range(config.num_hidden_layers)]
    return {
        **_of_mamba(config), "attention.head_count_kv": [2 * here for here in attends], "ssm.inner_size": 2 * C,
        "ssm.time_step_rank": config.mamba_dt_rank, "expert_count": 5, "expert_used_count": 2,
    }  # fmt: skip


_DELTA = {
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 1,
    "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
_QWEN_EXPERTS = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28,
}  # fmt: skip


def _of_delta(config: Any) -> dict[str, Any]:
    experts = {
        "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 20,
        "expert_shared_feed_forward_length": 28,
    }  # fmt: skip
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "full_attention_interval": 4,
        "rope.dimension_count": 4,
        **(experts if hasattr(config, "num_experts") else {}),
    }


def _as_delta(name: str, numbers: Array, config: Any) -> Tensors:
    """Norms with their 1, rates as they are used; of Qwen3-Next queries, keys and values of all heads, and the gate."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        numbers = numbers + 1
    if name.endswith("conv1d.weight"):
        numbers = numbers.squeeze(1)
    if name.endswith("A_log"):
        numbers = -np.exp(numbers)
    if not name.endswith("in_proj_qkvz.weight"):
        yield name.replace("dt_bias", "dt_proj.bias"), numbers
        return
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    each = [config.linear_key_head_dim] * 2 + [config.linear_value_head_dim * values // keys] * 2
    grouped = numbers.reshape(keys, sum(each), -1)
    q, k, v, gate = (part.reshape(-1, numbers.shape[1]) for part in np.split(grouped, np.cumsum(each)[:-1], axis=1))
    yield name.replace("qkvz", "qkv"), np.concatenate([q, k, v])
    yield name.replace("qkvz", "z"), gate


def _in_turns(numbers: Array, config: Any, width: int) -> Array:
    """The value heads of all key heads in turns: the first of each, then the second of each, and so on."""
    keys = config.linear_num_key_heads
    rows = numbers.reshape(keys, config.linear_num_value_heads // keys, width, *numbers.shape[1:])
    return rows.swapaxes(0, 1).reshape(numbers.shape)


def _as_delta_in_turns(name: str, numbers: Array, config: Any) -> Tensors:
    """Qwen3.5's converter besides reorders value heads wherever they are."""
    width, keys = config.linear_value_head_dim, 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        numbers = np.concatenate([numbers[:keys], _in_turns(numbers[keys:], config, width)])
    elif name.endswith("in_proj_z.weight"):
        numbers = _in_turns(numbers, config, width)
    elif name.endswith(("in_proj_b.weight", "in_proj_a.weight", "linear_attn.dt_bias", "linear_attn.A_log")):
        numbers = _in_turns(numbers, config, 1)
    elif name.endswith("linear_attn.out_proj.weight"):
        numbers = _in_turns(numbers.T, config, width).T
    yield from _as_delta(name, numbers, config)


def _of_delta_in_turns(config: Any) -> dict[str, Any]:
    return {**_of_delta(config), "rope.dimension_sections": [1, 1, 0, 0]}


def _dbrx() -> nn.Module:
    ffn = {"ffn_hidden_size": 20, "moe_num_experts": 5, "moe_top_k": 2}
    sizes = {"vocab_size": V, "d_model": C, "n_layers": N, "n_heads": H, "max_seq_len": T}
    attention = {"kv_n_heads": 2, "rope_theta": 300.0, "clip_qkv": 0.7}
    config = transformers.DbrxConfig(**sizes, rope_theta=300.0, attn_config=attention, ffn_config=ffn)
    return transformers.DbrxForCausalLM(config)


def _of_dbrx(config: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": config.ffn_config.ffn_hidden_size,
        "attention.head_count_kv": config.attn_config.kv_n_heads,
        "attention.clamp_kqv": config.attn_config.clip_qkv,
        "attention.layer_norm_epsilon": 1e-5,
        "rope.freq_base": 300.0,
        "expert_count": 5,
        "expert_used_count": 2,
    }


def _as_dbrx(name: str, numbers: Array, config: Any) -> Tensors:
    """Experts by themselves, (E, F, C), and their last matrices transposed."""
    if ".experts.mlp." in name:
        numbers = numbers.reshape(5, -1, C)
        numbers = numbers.swapaxes(1, 2) if name.endswith("w2") else numbers
        name = f"{name}.weight"
    yield name, numbers


ARCH = gguf.MODEL_ARCH
_GEMMA3 = {
    "head_dim": 10,
    "query_pre_attn_scalar": 10,
    "sliding_window": 4,
    "num_hidden_layers": 7,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 300.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
CONVERSIONS: dict[str, Conversion] = {
    "qwen3": Conversion(ARCH.QWEN3, _decoder("Qwen3", head_dim=10, rope_theta=700.0)),
    "gemma": Conversion(ARCH.GEMMA, _decoder("Gemma", head_dim=10), change=_one_more),
    "gemma2": Conversion(
        ARCH.GEMMA2,
        _decoder(
            "Gemma2",
            head_dim=10,
            query_pre_attn_scalar=10,
            sliding_window=4,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        _of_gemma2,
        _one_more,
    ),
    "gemma3": Conversion(ARCH.GEMMA3, _decoder("Gemma3Text", **_GEMMA3), _of_gemma3, _one_more),
    "gemma3, stretched": Conversion(
        ARCH.GEMMA3,
        _decoder(
            "Gemma3Text",
            **_GEMMA3
            | {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                }
            },
        ),
        lambda config: (
            _of_gemma3(config) | {"rope.freq_base_swa": 50.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
        ),
        _one_more,
    ),
    "olmo2": Conversion(ARCH.OLMO2, _decoder("Olmo2", rope_theta=700.0)),
    "phi3": Conversion(
        ARCH.PHI3,
        _decoder("Phi3", sliding_window=5, rope_theta=700.0),
        lambda config: {"rope.dimension_count": C // H, "attention.sliding_window": config.sliding_window},
    ),
    "phi3, longrope": Conversion(
        ARCH.PHI3,
        _decoder(
            "Phi3",
            original_max_position_embeddings=32,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 700.0,
                "short_factor": [1.0, 1.5],
                "long_factor": [2.0, 3.5],
                "partial_rotary_factor": 0.5,
            },
        ),
        lambda config: {
            "rope.dimension_count": C // H // 2,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(T / 32) / math.log(32)),
        },
        extra=lambda: {"rope_factors_short.weight": [1.0, 1.5], "rope_factors_long.weight": [2.0, 3.5]},
    ),
    "smollm3": Conversion(ARCH.SMOLLM3, _decoder("SmolLM3", num_hidden_layers=5, rope_theta=700.0), change=_permuted),
    "qwen3, yarn": Conversion(
        ARCH.QWEN3,
        _decoder(
            "Qwen3",
            head_dim=16,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 700.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        ),
        lambda config: {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        },
    ),
    "starcoder": Conversion(ARCH.STARCODER, _bigcode, lambda config: {"attention.head_count_kv": 1}),
    "starcoder2": Conversion(
        ARCH.STARCODER2, _model("Starcoder2", num_key_value_heads=2, norm_epsilon=1e-4, sliding_window=None)
    ),
    "falcon": Conversion(ARCH.FALCON, _falcon(num_kv_heads=1), _of_falcon, _by_kind),
    "falcon 40b": Conversion(
        ARCH.FALCON,
        _falcon(num_kv_heads=2, new_decoder_architecture=True, tie_word_embeddings=False),
        _of_falcon,
        _by_kind,
    ),
    "falcon 2": Conversion(
        ARCH.FALCON,
        _falcon(num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1),
        _of_falcon,
        _by_kind,
    ),
    "phi2": Conversion(
        ARCH.PHI2,
        _model("Phi", layer_norm_eps=1e-4, rope_parameters=_HALF),
        lambda config: {"rope.dimension_count": C // H // 2},
    ),
    "bloom": Conversion(ARCH.BLOOM, _bloom, _of_bloom, _by_parts),
    "mpt": Conversion(
        ARCH.MPT,
        _mpt,
        lambda config: {
            "context_length": T,
            "embedding_length": C,
            "feed_forward_length": 4 * C,
            "block_count": N,
            "attention.head_count": H,
            "attention.clamp_kqv": 0.5,
            "attention.max_alibi_bias": 8.0,
        },
    ),
    "olmo": Conversion(
        ARCH.OLMO,
        _model("Olmo", num_key_value_heads=2, clip_qkv=0.4, rope_theta=700.0),
        lambda config: {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 0.4},
        _permuted,
    ),
    "command-r": Conversion(
        ARCH.COMMAND_R,
        _model("Cohere", num_key_value_heads=2, logit_scale=1.5, layer_norm_eps=1e-4, rope_theta=700.0),
        lambda config: {"logit_scale": 1.5, "rope.scaling.type": "none"},
    ),
    "command-r, heads normed": Conversion(
        ARCH.COMMAND_R,
        _model("Cohere", num_key_value_heads=2, use_qk_norm=True, logit_scale=1.5, layer_norm_eps=1e-4),
        lambda config: {"logit_scale": config.logit_scale, "rope.scaling.type": "none"},
    ),
    "cohere2": Conversion(
        ARCH.COHERE2,
        _model(
            "Cohere2",
            logit_scale=1.5,
            num_key_value_heads=2,
            layer_norm_eps=1e-4,
            sliding_window=4,
            num_hidden_layers=5,
            head_dim=8,
        ),
        lambda config: {
            "logit_scale": config.logit_scale,
            "attention.sliding_window": 4,
            "rope.scaling.type": "none",
            "rope.dimension_count": 8,
        },
    ),
    "granite": Conversion(
        ARCH.GRANITE,
        _decoder(
            "Granite",
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            attention_multiplier=0.2,
            logits_scaling=0.7,
            rope_theta=700.0,
        ),
        lambda config: {
            "embedding_scale": 3.0,
            "residual_scale": 0.4,
            "attention.scale": 0.2,
            "logit_scale": 0.7,
        },
        _permuted,
    ),
    "arcee": Conversion(ARCH.ARCEE, _decoder("Arcee", rope_theta=700.0, head_dim=8), change=_permuted),
    "apertus": Conversion(
        ARCH.APERTUS,
        _decoder(
            "Apertus",
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 700.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        lambda config: {"rope.dimension_count": C // H},
        _as_apertus,
        lambda: {"rope_freqs.weight": converted_factors(C // H, 700.0, 8.0, 32).tolist()},
    ),
    "exaone4": Conversion(
        ARCH.EXAONE4, _decoder("Exaone4", sliding_window=None, layer_types=["full_attention"] * N, rope_theta=700.0)
    ),
    "exaone4, windows": Conversion(
        ARCH.EXAONE4,
        _decoder("Exaone4", num_hidden_layers=5, sliding_window=4, sliding_window_pattern=4, rope_theta=700.0),
        _of_exaone4,
    ),
    "exaone-moe": Conversion(
        ARCH.EXAONE_MOE,
        _decoder(
            "ExaoneMoe",
            num_hidden_layers=5,
            sliding_window=4,
            sliding_window_pattern=4,
            rope_theta=700.0,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            num_shared_experts=1,
            routed_scaling_factor=1.7,
            head_dim=8,
        ),
        lambda config: {
            **_of_exaone4(config),
            **_of_experts(config),
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.7,
            "leading_dense_block_count": 1,
        },
        _with_experts(_balanced),
    ),
    "minicpm3": Conversion(
        ARCH.MINICPM3,
        _decoder(
            "MiniCPM3",
            num_key_value_heads=4,
            q_lora_rank=9,
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=6,
            v_head_dim=6,
            rope_theta=700.0,
        ),
        lambda config: {
            "attention.q_lora_rank": 9,
            "attention.kv_lora_rank": 8,
            "rope.dimension_count": 4,
            "attention.key_length": 10,
            "attention.value_length": 6,
        },
    ),
    "seed_oss": Conversion(ARCH.SEED_OSS, _decoder("SeedOss", rope_theta=700.0, head_dim=10)),
    "stablelm": Conversion(
        ARCH.STABLELM,
        _model("StableLm", num_key_value_heads=2, layer_norm_eps=1e-4, rope_parameters=_HALF, use_qkv_bias=True),
        lambda config: {"rope.dimension_count": C // H // 2, "use_parallel_residual": False},
    ),
    "stablelm, side by side": Conversion(
        ARCH.STABLELM,
        _model(
            "StableLm",
            num_key_value_heads=4,
            layer_norm_eps=1e-4,
            rope_parameters=_HALF,
            use_parallel_residual=True,
            qk_layernorm=True,
        ),
        lambda config: {"rope.dimension_count": C // H // 2, "use_parallel_residual": True},
        _with_head_norms(),
    ),
    "nemotron": Conversion(
        ARCH.NEMOTRON,
        _model("Nemotron", num_key_value_heads=2, norm_eps=1e-4, rope_parameters=_HALF, head_dim=8),
        lambda config: {"rope.dimension_count": C // H // 2},
        _one_more,
    ),
    "mixtral": Conversion(
        ARCH.LLAMA,
        _decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None, rope_theta=700.0),
        lambda config: {"expert_count": 4, "expert_used_count": 2},
        _with_experts(_permuted),
    ),
    "phimoe": Conversion(
        ARCH.PHIMOE,
        _decoder("Phimoe", sliding_window=5, **_PHIMOE, rope_theta=700.0),
        lambda config: {**_of_phimoe(config), "attention.sliding_window": 5},
        _as_phimoe,
    ),
    "phimoe, longrope": Conversion(
        ARCH.PHIMOE,
        _decoder(
            "Phimoe",
            **_PHIMOE,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 700.0,
                "short_factor": [1.0, 1.5, 1.2, 1.1],
                "long_factor": [2.0, 3.5, 4.5, 5.0],
                "short_mscale": 1.243163121016122,
                "long_mscale": 1.243163121016122,
                "original_max_position_embeddings": 32,
            },
        ),
        lambda config: {
            **_of_phimoe(config),
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(T / 32) / math.log(32)),
        },
        _as_phimoe,
        lambda: {
            "rope_factors_short.weight": [1.0, 1.5, 1.2, 1.1],
            "rope_factors_long.weight": [2.0, 3.5, 4.5, 5.0],
        },
    ),
    "qwen2moe": Conversion(
        ARCH.QWEN2MOE,
        _decoder(
            "Qwen2Moe",
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            shared_expert_intermediate_size=28,
            rope_theta=700.0,
        ),
        lambda config: {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 20,
            "expert_shared_feed_forward_length": 28,
        },
        _with_experts(_squeezed),
    ),
    "qwen3moe": Conversion(
        ARCH.QWEN3MOE,
        _decoder(
            "Qwen3Moe",
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            norm_topk_prob=True,
            head_dim=10,
            rope_theta=700.0,
        ),
        lambda config: {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 20},
        _with_experts(),
    ),
    "olmoe": Conversion(
        ARCH.OLMOE,
        _decoder("Olmoe", num_key_value_heads=4, num_experts=4, num_experts_per_tok=2, clip_qkv=0.5, rope_theta=700.0),
        lambda config: {"expert_count": 4, "expert_used_count": 2, "attention.clamp_kqv": 0.5},
        _with_experts(),
    ),
    "granitemoe": Conversion(
        ARCH.GRANITE_MOE,
        _decoder("GraniteMoe", num_local_experts=4, num_experts_per_tok=2, residual_multiplier=0.4, rope_theta=700.0),
        lambda config: {
            "expert_count": 4,
            "expert_used_count": 2,
            "residual_scale": 0.4,
            "attention.scale": 1.0,
            "logit_scale": 1.0,
        },
        _with_experts(_permuted),
    ),
    "gpt-oss": Conversion(
        ARCH.GPT_OSS,
        _decoder(
            "GptOss",
            head_dim=16,
            sliding_window=4,
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 700.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "truncate": False,
            },
        ),
        lambda config: {
            "attention.sliding_window": 4,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": F,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
        },
        _as_gpt_oss,
    ),
    "deepseek2": Conversion(
        ARCH.DEEPSEEK2,
        _decoder("DeepseekV3", **_ROUTED, **_MLA, q_lora_rank=9, norm_topk_prob=True),
        _of_latent,
        _with_experts(_latent),
    ),
    "deepseek2, V2 with queries as they are": Conversion(
        ARCH.DEEPSEEK2,
        _decoder(
            "DeepseekV2",
            **_ROUTED,
            **_MLA,
            q_lora_rank=None,
            topk_method="group_limited_greedy",
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 700.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 0.7,
                "mscale_all_dim": 0.7,
            },
        ),
        lambda config: {**_of_latent(config), "expert_weights_norm": False},
        _with_experts(_balanced),  # as in older files, keys and values together
    ),
    "kimi-linear": Conversion(
        ARCH.KIMI_LINEAR,
        _decoder(
            "KimiLinear",
            **_MLA,
            num_key_value_heads=H,
            q_lora_rank=None,
            linear_head_dim=5,
            linear_num_heads=4,
            linear_conv_kernel_dim=3,
            num_local_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            pad_token_id=0,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        _of_kimi,
        _with_experts(_as_kimi),
    ),
    "glm4moe": Conversion(
        ARCH.GLM4_MOE,
        _decoder(
            "Glm4Moe",
            **{**_ROUTED, "rope_theta": None},
            rope_parameters=_HALF,
            attention_bias=True,
            use_qk_norm=True,
        ),
        lambda config: {**_of_routed(config), "rope.dimension_count": C // H // 2},
        _with_experts(_balanced),
    ),
    "dots1": Conversion(ARCH.DOTS1, _decoder("Dots1", **_ROUTED), _of_routed, _with_experts(_balanced)),
    "minimax-m2": Conversion(
        ARCH.MINIMAXM2,
        _decoder("MiniMaxM2", num_local_experts=4, num_experts_per_tok=2, head_dim=8, rope_parameters=_HALF),
        lambda config: {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": F,
            "expert_gating_func": 2,
            "rope.dimension_count": 4,
        },
        _with_experts(_balanced),
    ),
    "ernie4_5": Conversion(ARCH.ERNIE4_5, _decoder("Ernie4_5", head_dim=8, rope_theta=700.0)),
    "ernie4_5-moe": Conversion(
        ARCH.ERNIE4_5_MOE,
        _decoder("Ernie4_5_Moe", moe_num_experts=5, moe_k=3, moe_intermediate_size=20, rope_theta=700.0),
        lambda config: {
            **_of_experts(config),
            "interleave_moe_layer_step": 1,
            "expert_shared_feed_forward_length": 40,
        },
        _with_experts(_balanced),
    ),
    "hunyuan-dense": Conversion(
        ARCH.HUNYUAN_DENSE, _decoder("HunYuanDenseV1", head_dim=8, rope_parameters=_DYNAMIC), _of_hunyuan
    ),
    "hunyuan-moe": Conversion(
        ARCH.HUNYUAN_MOE,
        _decoder("HunYuanMoEV1", num_experts=5, moe_topk=2, head_dim=8, rope_parameters=_DYNAMIC),
        _of_hunyuan,
        _with_experts(),
    ),
    "afmoe": Conversion(
        ARCH.AFMOE,
        _decoder(
            "Afmoe",
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            num_shared_experts=2,
            num_dense_layers=1,
            num_hidden_layers=4,
            route_scale=1.7,
            head_dim=8,
            sliding_window=4,
            mup_enabled=True,
        ),
        lambda config: {**_of_experts(config), "expert_weights_norm": True},
        _with_experts(_balanced),
    ),
    "dbrx": Conversion(ARCH.DBRX, _dbrx, _of_dbrx, _as_dbrx),
    "mamba2": Conversion(
        ARCH.MAMBA2,
        _model(
            "Mamba2",
            num_heads=16,
            num_attention_heads=16,
            head_dim=4,
            n_groups=2,
            state_size=6,
            conv_kernel=3,
            layer_norm_epsilon=3e-5,
        ),
        _of_mamba_alone,
        _as_mamba,
    ),
    "mamba": Conversion(
        ARCH.MAMBA,
        _model("Mamba", state_size=6, conv_kernel=3, layer_norm_epsilon=3e-5, **_INNER),
        _of_mamba_alone,
        _as_mamba,
    ),
    "falcon-mamba": Conversion(
        ARCH.MAMBA, _model("FalconMamba", state_size=6, layer_norm_epsilon=3e-5, **_INNER), _of_mamba_alone, _as_mamba
    ),
    "granitehybrid": Conversion(
        ARCH.GRANITE_HYBRID,
        _decoder("GraniteMoeHybrid", num_local_experts=0, shared_intermediate_size=F, **_GRANITE_HYBRID),
        _of_granite_hybrid,
        _as_granite_hybrid,
    ),
    "granitehybrid, experts, positions": Conversion(
        ARCH.GRANITE_HYBRID,
        _decoder(
            "GraniteMoeHybrid",
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=20,
            position_embedding_type="rope",
            rope_theta=700.0,
            **_GRANITE_HYBRID,
        ),
        _of_granite_hybrid,
        _with_experts(_as_granite_hybrid),
    ),
    "gemma3n": Conversion(ARCH.GEMMA3N, _decoder("Gemma3nText", **_GEMMA3N), _of_gemma3n, _stacked_streams()),
    "gemma4": Conversion(
        ARCH.GEMMA4,
        _decoder("Gemma4Text", **_GEMMA4),
        _of_gemma4,
        _as_gemma4,
        lambda: {"rope_freqs.weight": [1.0] * 3 + [1e30] * 3},
    ),
    "gemma4, embeddings of layers and shared keys": Conversion(
        ARCH.GEMMA4,
        _decoder(
            "Gemma4Text",
            **{
                **_GEMMA4,
                "attention_k_eq_v": False,
                "hidden_size_per_layer_input": 6,
                "vocab_size_per_layer_input": V,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
            },
        ),
        _of_gemma4,
        _as_gemma4,
        lambda: {"rope_freqs.weight": [1.0] * 3 + [1e30] * 3},
    ),
    "gemma4, experts": Conversion(
        ARCH.GEMMA4,
        _decoder(
            "Gemma4Text",
            **{
                **_GEMMA4,
                "enable_moe_block": True,
                "num_experts": 5,
                "top_k_experts": 2,
                "moe_intermediate_size": 20,
            },
        ),
        _of_gemma4,
        _as_gemma4,
        lambda: {"rope_freqs.weight": [1.0] * 3 + [1e30] * 3},
    ),
    "falcon-h1": Conversion(ARCH.FALCON_H1, _decoder("FalconH1", **_FALCON_H1), _of_mamba, _as_falcon_h1),
    "falcon-h1, normed": Conversion(
        ARCH.FALCON_H1,
        _decoder("FalconH1", **{**_FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
        _of_mamba,
        _as_falcon_h1,
    ),
    "nemotron_h": Conversion(
        ARCH.NEMOTRON_H,
        _model("NemotronH", layers_block_type=["mamba", "mlp", "attention", "mamba", "mlp"], **_NEMOTRON),
        _of_nemotron,
        _as_nemotron,
    ),
    "nemotron_h_moe": Conversion(
        ARCH.NEMOTRON_H_MOE,
        _model(
            "NemotronH",
            layers_block_type=["mamba", "moe", "attention", "mamba", "moe"],
            n_routed_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            moe_shared_expert_intermediate_size=28,
            routed_scaling_factor=1.7,
            **_NEMOTRON,
        ),
        _of_nemotron,
        _as_nemotron,
    ),
    "jamba": Conversion(
        ARCH.JAMBA,
        _decoder(
            "Jamba",
            num_hidden_layers=4,
            attn_layer_period=3,
            attn_layer_offset=1,
            num_experts=5,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_dt_rank=3,
            mamba_d_state=6,
            mamba_d_conv=3,
        ),
        _of_jamba,
        _with_experts(_as_mamba),
    ),
    "qwen3next": Conversion(
        ARCH.QWEN3NEXT, _decoder("Qwen3Next", **_DELTA, **_QWEN_EXPERTS), _of_delta, _with_experts(_as_delta)
    ),
    "qwen35": Conversion(ARCH.QWEN35, _decoder("Qwen3_5Text", **_DELTA), _of_delta_in_turns, _as_delta_in_turns),
    "qwen35moe": Conversion(
        ARCH.QWEN35MOE,
        _decoder("Qwen3_5MoeText", **{**_DELTA, "rms_norm_eps": 1e-3}, **_QWEN_EXPERTS),
        _of_delta_in_turns,
        _with_experts(_as_delta_in_turns),
    ),
    "lfm2": Conversion(ARCH.LFM2, _lfm2("Lfm2"), _of_lfm2, _as_lfm2),
    "lfm2moe": Conversion(
        ARCH.LFM2MOE,
        _lfm2("Lfm2Moe", num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20, num_dense_layers=1),
        lambda config: {
            **_of_lfm2(config),
            **_of_experts(config),
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
        },
        _with_experts(_as_lfm2),
    ),
    "gpt2": Conversion(ARCH.GPT2, _gpt2, change=_transposed),
    "gptneox": Conversion(ARCH.GPTNEOX, _neox(), _of_neox, _by_parts),
    "gptneox, one after the other": Conversion(ARCH.GPTNEOX, _neox(use_parallel_residual=False), _of_neox, _by_parts),
    "nomic-bert": Conversion(
        ARCH.NOMIC_BERT,
        _nomic,
        lambda config: {"attention.causal": False, "rope.freq_base": 1000.0},
        _as_nomic(),
    ),
    "modern-bert": Conversion(
        ARCH.MODERN_BERT,
        _modern_bert,
        lambda config: {
            "attention.causal": False,
            "attention.sliding_window": 6,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 160_000.0,
            "rope.scaling.type": "none",
        },
    ),
    "t5": Conversion(ARCH.T5, _t5(), _of_t5),
    "t5, gated, a bias for each layer": Conversion(
        ARCH.T5, _t5("UMT5", feed_forward_proj="gated-gelu", num_decoder_layers=2), _of_t5
    ),
    "t5encoder": Conversion(ARCH.T5ENCODER, _t5(kind="EncoderModel"), _of_t5),
    "bert": Conversion(ARCH.BERT, _bert, lambda config: {"attention.causal": False}, _without_pooler),
}
