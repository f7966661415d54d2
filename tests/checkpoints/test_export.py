"""Written for transformers: it opens what we write and says the same, and so do we."""

import json

import pytest
import torch
import transformers
from architectures import BERT, LLAMA, SIZES, config_of, furthest, lively

import tinytf
from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.load import FAMILIES, read_directory
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.sources import ASSETS
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.tokenizer import Tokenizer

_OLMO = {"gated": True, "activation": "silu", **dict.fromkeys(("qkv_bias", "o_bias", "ffn_bias", "tied_head"), False)}
_COMMAND_R = {
    **LLAMA,
    "norm": "layernorm",
    "norm_bias": False,
    "residual": "parallel",
    "shared_norm": True,
    "logit_scale": 0.3,
    "qk_norm": True,
    "qk_norm_across": "heads",
    "n_kv_heads": 2,
}
_R7B = {"qk_norm": False, "qk_norm_across": "head", "by_layer": (("window", (4, 0)), ("positions", ("rotary", "none")))}
_BY_HEAD = {"qk_norm": True, "qk_norm_across": "heads", "qk_norm_bias": False}
_PHI = {"positions": "rotary", "residual": "parallel", "shared_norm": True, "tied_head": False, "head_bias": True}
_NEMOTRON = {"positions": "rotary", "activation": "relu2", "n_kv_heads": 2}
_FOURFOLD = {"d_ff": 96, "context": 2048}
_MPT = {
    "positions": "alibi",
    "norm_bias": False,
    "clip_qkv": 0.7,
    "attention_divisor": 3.0,
    **dict.fromkeys(("qkv_bias", "o_bias", "ffn_bias"), False),
}
_FALCON = {
    "rope_width": 0,
    "norm_bias": True,
    "ffn_bias": False,
    "head_bias": False,
    "logit_scale": 1.0,
    "n_kv_heads": 2,
}
LIKE_TINY = {**LLAMA, "qkv_bias": True, "tied_head": True, "embed_scale": 24**0.5}
_DIVISORS = (("attention_divisor", (6**0.5, 24**0.5)),)
_WINDOWS = (("window", (0, 4)),)
_LOCAL_BASES = (("window", (4, 0)), ("rope_theta", (300.0, 900.0)))
_HYBRID = (("window", (4, 0)), ("positions", ("rotary", "none")))
_GEMMA = {"activation": "gelu_tanh", "embed_scale": 24**0.5, "tied_head": True}
_OLMO2 = {"norm_order": "output", "qk_norm": True, "qk_norm_across": "all"}
_TURNED_IN_PART = {
    "d_head": 6,
    "rope_width": 4,
    "rope_short_factors": (1.0, 1.3),
    "rope_long_factors": (1.5, 9.0),
}
_LAYERNORM = {"norm": "layernorm", "gated": False, "activation": "gelu_tanh", "qkv_bias": True, "o_bias": True}
_V3 = {"distances": 4, "distance_keys": True, "attention_divisor": 12**0.5, "n_token_types": 0}
_GROUPED, _LATENT = "llama, grouped", "deepseek, latent keys and values"
_INDEXED = "deepseek v3.2, keys that an indexer chooses"
_BY_SIGMOID = {
    "experts": 4,
    "experts_per_token": 2,
    "d_expert": 16,
    "d_shared": 32,
    "router": "sigmoid",
    "choice_bias": True,
}
_GRANITE = "granite, what is added multiplied"
_SUNK = {"attention_sinks": True, "attention_divisor": 4.0}
_BARE_FIRST = (("window", (0, 4)), ("positions", ("none", "rotary")))
_GROWN = {
    "head": "none",
    "router": "softmax",
    "choice_bias": False,
    "query_scale": 0.3,
    "query_scale_every": 4,
    "rope_scaling": "yarn",
    "rope_original_context": 4,
    "rope_high_frequency": 32.0,
}
_ROBERTA = "roberta, positions from the third row"
_JINA = {"positions": "rotary", "position_offset": 0, "activation": "relu", "head_activation": "gelu"}
_BERT_MLM = "bert with a masked head"
_PYTHIA, _LAST_BIAS = "pythia, side by side and turned in part", (("o_bias", (False, True)),)
_MAMBA = "mamba 2, a state space before a layer of attention"
_MAMBA2 = {
    "by_layer": (), "mixer": "mamba2", "n_heads": 6, "n_kv_heads": 2, "d_head": 5, "d_value": 8, "d_ff": 0,
    "positions": "none", "context": 2**20, "norm_eps": 1e-5,
}  # fmt: skip
_SELECTIVE = "mamba, a selective state space before a layer of attention"
_MAMBA1 = {**_MAMBA2, "mixer": "mamba", "n_heads": 3, "n_kv_heads": 0, "d_value": 16}
_HEADS = (("n_heads", (6, 6)), ("n_kv_heads", (2, 2)), ("d_head", (5, 4)), ("d_value", (8, 4)))
WRITTEN = {
    "gpt2": ("GPT-2", config_of("gpt2")),
    "gpt2, scaled": ("GPT-2", config_of("gpt2", embed_scale=3.0)),
    "gpt2, scores divided by layer": ("GPT-2", config_of("gpt2", by_layer=_DIVISORS)),
    "starcoder": ("GPT-BigCode", config_of("gpt2", n_kv_heads=1)),
    "gpt-neo": ("GPT-Neo", config_of("gpt2", qkv_bias=False, attention_divisor=1.0, by_layer=_WINDOWS)),
    "gpt-1": ("GPT-1", config_of("gpt2", norm_order="post", d_ff=96)),
    "opt": ("OPT", config_of("gpt2", position_offset=2)),
    "opt 350m": ("OPT", config_of("opt 350m, narrow embeddings after the sum")),
    "xglm": ("XGLM", config_of("gpt2", positions="sinusoidal_halves", position_offset=2, embed_scale=24**0.5)),
    "ctrl": ("CTRL", config_of("ctrl, sines before cosines")),
    "biogpt": ("BioGPT", config_of("gpt2", position_offset=2, embed_scale=24**0.5)),
    "bert with a masked head": ("BERT", config_of("bert with a masked head", head_activation="gelu")),
    "bert, relu": ("BERT", config_of("bert with a masked head", activation="relu", head_activation="relu")),
    "bert with a pooler": ("BERT", config_of("bert with a pooler")),
    "roberta": ("RoBERTa", config_of("roberta, positions from the third row", head_activation="gelu")),
    "electra that finds replaced tokens": (
        "ELECTRA",
        config_of(
            "electra, narrow embeddings that are normed",
            head="token",
            labels=("replaced",),
            head_dense=True,
            decides="several",
            tied_head=False,
        ),
    ),
    "electra": ("ELECTRA", config_of("electra, narrow embeddings that are normed")),
    "roberta with norms before": (
        "RoBERTa-PreLayerNorm",
        config_of(_ROBERTA, norm_order="pre", head_activation="gelu"),
    ),
    "xlm-roberta-xl": (
        "XLM-RoBERTa-XL",
        config_of(_ROBERTA, norm_order="pre", embed_norm=False, head_activation="gelu"),
    ),
    "megatron-bert": ("Megatron-BERT", config_of("bert with a masked head", norm_order="pre", embed_norm=False)),
    "esm": ("ESM", config_of("esm, masks without embeddings", norm_eps=1e-5)),
    "esm, learned positions": (
        "ESM",
        config_of("bert with a masked head", norm_order="pre", n_token_types=0, position_offset=2, embed_norm=True),
    ),
    "squeezebert": ("SqueezeBERT", config_of("squeezebert, matrices in groups")),
    "mpnet": ("MPNet", config_of("mpnet, a bias of distance", relative_buckets=32)),
    "deberta v3": ("DeBERTa-v2", config_of("deberta v3, distances through the matrices of tokens")),
    "deberta": ("DeBERTa", config_of("deberta, keys without biases")),
    "deberta v2": ("DeBERTa-v2", config_of("deberta v2, distances through their own", head_bias=True)),
    "deberta v2 xlarge": ("DeBERTa-v2", config_of("deberta v2 xlarge, a convolution beside the first layer")),
    "deberta v3 with classes": (
        "DeBERTa-v2",
        config_of("bert with classes of the text", **_V3, head_dense=True, head_activation="tanh", positions="none"),
    ),
    "albert": ("ALBERT", config_of("electra, narrow embeddings that are normed", layer_groups=1)),
    "bert-generation": (
        "BERT-generation",
        config_of(_BERT_MLM, n_token_types=0, causal=True, head="lm", head_bias=True),
    ),
    "distilbert": ("DistilBERT", config_of("bert with a masked head", n_token_types=0)),
    "llama": ("Llama", config_of("llama, grouped")),
    "llama, biases": ("Llama", config_of("llama, grouped", qkv_bias=True, o_bias=True, ffn_bias=True, tied_head=True)),
    "llama 3": ("Llama", config_of("mistral, a window and stretched waves", window=0)),
    "mistral": ("Mistral", config_of("mistral, a window and stretched waves")),
    "qwen2, as tiny is": ("Qwen2", ModelConfig.of(**{**SIZES, **LIKE_TINY})),
    "qwen2 with a window": ("Qwen2", ModelConfig.of(**{**SIZES, **LIKE_TINY, "window": 3})),
    "qwen3": ("Qwen3", config_of("qwen3, normed queries and wide heads")),
    "pythia": ("GPT-NeoX", config_of("pythia, side by side and turned in part")),
    "gpt-neox japanese": (
        "GPT-NeoX-Japanese",
        config_of(_PYTHIA, residual="sequential", qkv_bias=False, ffn_bias=False, d_ff=48, by_layer=_LAST_BIAS),
    ),
    "persimmon": ("Persimmon", config_of(_PYTHIA, residual="sequential", activation="relu2", qk_norm=True)),
    "gpt-j": ("GPT-J", config_of("gpt-j, a norm for both", norm_bias=True, logit_scale=1.0)),
    "olmo": ("OLMo", config_of("olmo, norms that learn nothing", **_OLMO)),
    "command r": ("Cohere", ModelConfig.of(**{**SIZES, **_COMMAND_R})),
    "command r7b": ("Cohere 2", ModelConfig.of(**{**SIZES, **_COMMAND_R, **_R7B})),
    "cohere 2 moe": (
        "Cohere 2 MoE",
        ModelConfig.of(
            **{**SIZES, **_COMMAND_R, **_R7B},
            experts=4,
            experts_per_token=2,
            d_expert=16,
            d_shared=32,
            router="sigmoid",
            routes_renormed=False,
        ),
    ),
    "nemotron": ("Nemotron", ModelConfig.of(**{**SIZES, **_NEMOTRON})),
    "phi": ("Phi", ModelConfig.of(**{**SIZES, **_PHI, "rope_width": 4})),
    "stablelm": (
        "StableLM",
        ModelConfig.of(**{**SIZES, **LLAMA, **_BY_HEAD, "norm": "layernorm", "norm_eps": 1e-5, "rope_width": 2}),
    ),
    "bloom": ("BLOOM", config_of("bloom, less by distance", alibi_scale=1.0, **_FOURFOLD, activation="gelu_tanh")),
    "mpt": ("MPT", ModelConfig.of(**{**SIZES, **_FOURFOLD, **_MPT})),
    "falcon": ("Falcon", config_of("gpt-j, a norm for both", **_FALCON)),
    "gemma 2": ("Gemma 2", config_of("gemma 2, norms around each part and windows by layer", attention_divisor=4.0)),
    "qwen2, windows in some layers": ("Qwen2", config_of("llama, grouped", qkv_bias=True, by_layer=_WINDOWS)),
    "ministral": ("Ministral", config_of("llama, grouped", by_layer=_WINDOWS)),
    "ministral 3": ("Ministral 3", config_of("ministral 3, queries scaled by their position", window=4)),
    "llama 4": (
        "Llama 4",
        config_of("llama 4, chunks, and experts that take weighed tokens", norm_eps=1e-5, d_expert=10, d_shared=10),
    ),
    "qwen3.5": ("Qwen3.5", config_of("gated delta, and gated heads in one layer", norm_eps=1e-5)),
    "lfm2": ("LFM2", config_of("lfm2, short convolutions around grouped attention", norm_eps=1e-5)),
    "qwen3.5 moe": (
        "Qwen3.5-MoE",
        config_of(
            "gated delta, and gated heads in one layer",
            experts=4,
            experts_per_token=2,
            d_expert=40,
            d_shared=10,
            shared_gate=True,
        ),
    ),
    "qwen4-exp": (
        "Qwen4-Exp",
        config_of(
            "qwen4-exp, gated streams, n-grams, and keys that an indexer chooses in blocks",
            experts=4,
            experts_per_token=2,
            d_expert=40,
            d_shared=10,
            shared_gate=True,
        ),
    ),
    "inkling": (
        "Inkling",
        config_of(
            "inkling, convolutions of outputs, profiles of distance, and experts for every token",
            routes_epsilon=0.0,
            d_expert=8,
        ),
    ),
    "lfm3": ("LFM3", config_of("lfm3, a window after a convolution, gates without a bias", norm_eps=1e-5)),
    "lfm2 moe": (
        "LFM2-MoE",
        config_of(
            "lfm2, short convolutions around grouped attention",
            experts_per_token=2,
            d_expert=8,
            router="sigmoid",
            choice_bias=True,
            routes_epsilon=1e-6,
            by_layer=(("mixer", ("short_convolution", "attention")), ("experts", (0, 4))),
        ),
    ),
    "bamba": (
        "Bamba",
        config_of(_MAMBA, rope_width=2, d_head=0, by_layer=(("mixer", ("mamba2", "attention")), *_HEADS)),
    ),
    "granite 4": (
        "Granite 4",
        config_of(
            _MAMBA,
            positions="none",
            logit_scale=0.5,
            attention_divisor=4.0,
            experts=4,
            experts_per_token=2,
            d_expert=40,
            d_shared=16,
        ),
    ),
    "olmo hybrid": (
        "OLMo Hybrid",
        config_of("olmo hybrid, strong writing, and norms elsewhere in each kind of layer"),
    ),
    "mamba 2": ("Mamba-2", config_of(_MAMBA, **_MAMBA2)),
    "mamba": ("Mamba", config_of(_SELECTIVE, **_MAMBA1, tied_head=True)),
    "falcon-mamba": ("Falcon-Mamba", config_of(_SELECTIVE, **_MAMBA1, inner_norm="plain", inner_norm_eps=1e-3)),
    "jamba": (
        "Jamba",
        config_of(
            "jamba, a selective state space that is normed, and experts beside attention",
            d_expert=40,
            by_layer=(
                ("mixer", ("mamba", "attention")),
                ("experts", (0, 4)),
                ("n_heads", (3, 4)),
                ("d_head", (5, 6)),
                ("d_value", (16, 0)),
            ),
        ),
    ),
    "jetmoe": ("JetMoE", config_of("jetmoe, experts that are heads, and a bias on the sum of experts")),
    "diffllama": ("DiffLlama", config_of("diffllama, maps subtracted in pairs of heads", norm_eps=1e-5)),
    "kimi linear": (
        "Kimi Linear",
        config_of("kimi delta, a decay for each channel before latent attention without positions", norm_eps=1e-5),
    ),
    "xlnet": ("XLNet", config_of("xlnet, waves of distances and segments", context=512, distances=512)),
    "longcat flash": (
        "LongCat-Flash",
        config_of("longcat, a shortcut around two layers to experts, some without matrices", norm_eps=1e-5),
    ),
    "zamba": (
        "Zamba",
        config_of(
            "zamba, attention beside the stream, and a selective state space in heads",
            n_layers=6,
            attention_divisor=6**0.5,
            tied_head=True,
        ),
    ),
    "zamba2": (
        "Zamba2",
        config_of(
            "zamba2, attention beside the stream, with shared weights and adapters",
            norm_eps=1e-5,
            conv_bias=True,
            activation="gelu",
            attention_divisor=6**0.5,
            dt_floor=0.001,
            tied_head=True,
        ),
    ),
    "recurrent gemma": (
        "RecurrentGemma",
        config_of("griffin, gated linear recurrences before attention", rope_width=4, window=5, context=2**20),
    ),
    "minimax": (
        "MiniMax",
        config_of(
            "minimax, lightning attention, and residuals of normed inputs",
            d_expert=40,
            by_layer=(("mixer", ("lightning", "attention")), ("decay_scale", (1 + 1e-5, 1.0))),
        ),
    ),
    "nemotron-h": (
        "Nemotron-H",
        config_of(
            "nemotron-h, a mixer or a feed-forward a layer",
            n_layers=3,
            by_layer=(
                ("mixer", ("mamba2", "none", "attention")),
                ("d_ff", (0, 40, 0)),
                ("n_heads", (6, 0, 4)),
                ("n_kv_heads", (2, 0, 2)),
                ("d_head", (5, 0, 6)),
                ("d_value", (8, 0, 6)),
            ),
        ),
    ),
    "granite 4, dense": ("Granite 4", config_of(_MAMBA, logit_scale=0.5, attention_divisor=4.0, residual_scale=0.5)),
    "nanochat": ("nanochat", config_of("nanochat, turned the other way")),
    "hunyuan": ("HunYuan", config_of("hunyuan, normed after the rotation")),
    "gemma": ("Gemma", config_of("llama, grouped", **_GEMMA)),
    "gemma 3": (
        "Gemma 3",
        config_of(
            "llama, grouped", **_GEMMA, norm_order="both", qk_norm=True, attention_divisor=4.0, by_layer=_LOCAL_BASES
        ),
    ),
    "embeddinggemma": (
        "Gemma 3",
        config_of(
            "llama, grouped",
            **_GEMMA,
            norm_order="both",
            qk_norm=True,
            attention_divisor=4.0,
            by_layer=_LOCAL_BASES,
            causal=False,
            head="none",
        ),
    ),
    "gemma 3n": (
        "Gemma 3n",
        config_of("gemma 3n, streams that predict each other, a low-rank residual, and sparse gates"),
    ),
    "gemma 4": (
        "Gemma 4",
        config_of("gemma 4, wider heads whose values are keys, shared keys, and embeddings of layers"),
    ),
    "gemma 4, experts": (
        "Gemma 4",
        config_of(
            "gemma 4, experts beside the feed-forward, with norms of their own",
            d_ff=9,
            d_expert=8,
            attention_divisor=1.0,
            qk_norm=True,
            v_norm=True,
            embed_scale=24**0.5,
        ),
    ),
    "vaultgemma": (
        "VaultGemma",
        config_of("gemma 2, norms around each part and windows by layer", norm_order="pre", attention_divisor=4.0),
    ),
    "olmo 2": ("OLMo 2", config_of("olmo 2, queries and keys normed over all heads")),
    "olmo 3": ("OLMo 3", config_of("olmo 3, windows turned as they are and the others by yarn", **_OLMO2)),
    "granite": ("Granite", config_of(_GRANITE, attention_divisor=4.0)),
    "granite with windows": ("Granite with windows", config_of(_GRANITE, **_SUNK, by_layer=_BARE_FIRST)),
    "granite moe with windows": (
        "Granite-MoE with windows",
        config_of(_GRANITE, **_SUNK, experts=4, experts_per_token=2, d_shared=16, by_layer=_WINDOWS),
    ),
    "smollm 3": ("SmolLM3", config_of("smollm 3, layers without positions")),
    "exaone 4": ("EXAONE 4", config_of("llama, grouped", norm_order="output", qk_norm=True, by_layer=_HYBRID)),
    "apertus": ("Apertus", config_of("apertus, slopes that are learned")),
    "bitnet": ("BitNet", config_of("bitnet, norms before the last matrices")),
    "arcee": ("Arcee", config_of("llama, grouped", gated=False, activation="relu2")),
    "seed-oss": ("Seed-OSS", config_of("llama, grouped", qkv_bias=True, ffn_bias=True)),
    "phi 3": ("Phi-3", config_of("phi 3, long texts turned by other factors", **_TURNED_IN_PART)),
    "starcoder 2": ("StarCoder2", config_of("llama, grouped", **_LAYERNORM, window=4, tied_head=True, ffn_bias=True)),
    "glm": ("GLM", config_of("llama, grouped", qkv_bias=True, rope_width=4)),
    "glm 4": ("GLM-4", config_of("llama, grouped", qkv_bias=True, rope_width=2, norm_order="both")),
    "mixtral": ("Mixtral", config_of("experts, two a token", ffn_bias=False, router_bias=False)),
    "qwen3 moe": (
        "Qwen3-MoE",
        config_of(
            "experts beside a shared one, after a dense layer",
            d_shared=0,
            shared_gate=False,
            d_expert=8,
            qk_norm=True,
            window=3,
        ),
    ),
    "modernbert": (
        "ModernBERT",
        config_of("modernbert, windows to both sides"),
    ),
    "modernbert decoder": (
        "ModernBERT decoder",
        config_of("modernbert, windows to both sides", causal=True, head="lm", head_dense=True, head_norm=True),
    ),
    "jina": ("Jina embeddings v3", config_of(_ROBERTA, **_JINA)),
    "rembert": ("RemBERT", config_of("rembert, another width to unembed", head_activation="gelu")),
    "gte": ("GTE", config_of("gte, a bias on the last matrix of the feed-forward", head_activation="gelu")),
    "xlm": ("XLM", config_of(_BERT_MLM, n_token_types=0, d_ff=96, head="lm", head_bias=True)),
    "eurobert": ("EuroBERT", config_of("llama, grouped", causal=False, norm_eps=1e-5)),
    "bert with classes": ("BERT", config_of("bert with classes of the text")),
    "roberta with several classes": (
        "RoBERTa",
        config_of(
            "bert with several classes at once",
            position_offset=2,
            n_token_types=1,
            head_dense=True,
            head_activation="tanh",
        ),
    ),
    "bert with a question head": ("BERT", config_of("bert with a question head")),
    "qwen2 moe": (
        "Qwen2-MoE",
        config_of("experts beside a shared one, after a dense layer", d_expert=8, qkv_bias=True, window=3),
    ),
    "gpt-oss": (
        "gpt-oss",
        config_of(
            "gpt-oss, sinks and windows by layer", ffn_bias=True, experts=4, experts_per_token=2, router_bias=True
        ),
    ),
    "privacy filter": (
        "Privacy Filter",
        config_of(
            "gpt-oss, sinks and windows by layer",
            ffn_bias=True,
            experts=4,
            experts_per_token=2,
            router_bias=True,
            causal=False,
            head="none",
            tied_head=True,
            window=3,
            by_layer=(),
        ),
    ),
    "deepseek v2": ("DeepSeek-V2", config_of("deepseek, latent keys and values", kv_rank=8, routes_renormed=False)),
    "deepseek v3, experts chosen with a bias": (
        "DeepSeek-V3",
        config_of(
            "deepseek, latent keys and values",
            experts=4,
            experts_per_token=2,
            d_expert=16,
            d_shared=32,
            routed_scale=2.5,
            router="sigmoid",
            choice_bias=True,
            by_layer=(("experts", (0, 4)),),
        ),
    ),
    "deepseek v3.2": ("DeepSeek-V3.2", config_of(_INDEXED, **_BY_SIGMOID, by_layer=(("experts", (0, 4)),))),
    "glm 5": (
        "GLM-5",
        config_of(_INDEXED, **_BY_SIGMOID, by_layer=(("experts", (0, 4)), ("shares_index", (False, True)))),
    ),
    "glm 5.3": (
        "GLM-5.3",
        config_of(
            "glm 5.3, decays that are bounded, and pools of keys that an indexer chooses",
            head="none",
            norm_eps=0.01,
            hyper_magnitude=2.0,
            d_expert=16,
            d_shared=32,
        ),
    ),
    "mistral large 4": (
        "Mistral Large 4",
        config_of(
            "mistral large 4, latent keys of an earlier layer, and queries that each head learned to scale",
            head="none",
            norm_eps=1e-5,
            d_head=12,
            d_value=8,
            experts=4,
            experts_per_token=2,
            d_expert=16,
            d_shared=32,
            routed_scale=2.5,
        ),
    ),
    "step 3.7": (
        "Step 3.7",
        config_of(
            "step 3.7, more heads in a layer with a window, and limits of activated units", head="none", norm_eps=1e-5
        ),
    ),
    "minimax m3": (
        "MiniMax M3",
        config_of(
            "minimax m3, blocks of keys that an indexer chooses in some layers",
            **{**_BY_SIGMOID, "d_shared": 20},
            d_head=6,
        ),
    ),
    "glm 4.7 flash": ("GLM-4.7-Flash", config_of(_LATENT, **_BY_SIGMOID, by_layer=(("experts", (4, 0)),))),
    "minicpm 3": ("MiniCPM3", config_of(_LATENT, embed_scale=3.0, residual_scale=0.5, logit_scale=0.5)),
    "mistral 4": (
        "Mistral 4",
        config_of(_LATENT, **{**_BY_SIGMOID, **_GROWN}),
    ),
    "glm 4.5": ("GLM-4.5", config_of(_GROUPED, **_BY_SIGMOID, rope_width=4)),
    "dots.llm1": ("dots.llm1", config_of(_GROUPED, **_BY_SIGMOID, qk_norm=True, by_layer=_WINDOWS)),
    "k-exaone": (
        "K-EXAONE",
        config_of(_GROUPED, **_BY_SIGMOID, qk_norm=True, by_layer=(*_HYBRID, ("experts", (4, 0)))),
    ),
    "hunyuan 4": (
        "Hunyuan 4",
        config_of(
            "hunyuan 4, streams around a gate, sinks and an indexer, and gates of experts limited",
            d_expert=16,
            d_shared=32,
            hyper_magnitude=0.7,
            index_eps=0.1,
            by_layer=(("experts", (0, 4)),),
        ),
    ),
    "hy3": ("Hy3", config_of(_GROUPED, **_BY_SIGMOID, qk_norm=True, o_bias=True, qkv_bias=True)),
    "trinity": (
        "Trinity",
        config_of(_GROUPED, **_BY_SIGMOID, qk_norm=True, attention_gate=True, norm_order="both", by_layer=_HYBRID),
    ),
    "laguna": (
        "Laguna",
        config_of(
            "heads gated as a whole", **{**_BY_SIGMOID, "d_shared": 20}, d_value=0, qk_norm=True, by_layer=_LOCAL_BASES
        ),
    ),
    "embeddinggemma 2": (
        "EmbeddingGemma 2",
        config_of(
            "embeddinggemma 2, inputs of layers from embeddings, the mean projected",
            embed_scale=24**0.5,
            tied_head=False,
        ),
    ),
    "mimo v2 flash": (
        "MiMo-V2-Flash",
        config_of(
            "mimo, sinks and more key heads in layers with a window", **{**_BY_SIGMOID, "d_shared": 0}, norm_eps=1e-5
        ),
    ),
    "minimax m2": (
        "MiniMax M2",
        config_of(_GROUPED, **{**_BY_SIGMOID, **_OLMO2, "norm_order": "pre", "d_shared": 0, "d_expert": 40}),
    ),
    "ernie 4.5 moe": (
        "ERNIE 4.5 MoE",
        config_of(_GROUPED, **{**_BY_SIGMOID, "router": "softmax"}, by_layer=(("experts", (0, 4)),)),
    ),
    "hunyuan moe": (
        "HunYuan MoE",
        config_of("hunyuan, normed after the rotation", experts=4, experts_per_token=2, d_shared=40),
    ),
    "flex olmo": ("FlexOlmo", config_of(_GROUPED, **_OLMO2, experts=4, experts_per_token=2, routes_renormed=False)),
    "granite moe, shared": (
        "Granite-MoE, shared",
        config_of(_GRANITE, attention_divisor=4.0, experts=4, experts_per_token=2, d_shared=16),
    ),
    "aria": ("Granite-MoE, shared", config_of(_GROUPED, experts=4, experts_per_token=2, d_shared=80)),
    "mellum 2": (
        "Mellum 2",
        config_of(_GROUPED, qk_norm=True, experts=4, experts_per_token=2, d_expert=16, by_layer=_LOCAL_BASES),
    ),
    "dbrx": (
        "DBRX",
        config_of(
            _GROUPED, norm="layernorm", norm_bias=False, norm_eps=1e-5, clip_qkv=0.7, experts=4, experts_per_token=2
        ),
    ),
    "phimoe": (
        "PhiMoE",
        config_of(
            _GROUPED, norm="layernorm", norm_eps=1e-5, head_bias=True, experts=4, experts_per_token=2, route_margin=0.5
        ),
    ),
    "no head": ("Llama", config_of("llama, grouped", head="none")),
}
OPENERS = {
    "Step3p7TextModel": transformers.Step3p7TextModel,  # which no AutoModel knows
    "ForCausalLM": transformers.AutoModelForCausalLM,
    "LMHeadModel": transformers.AutoModelForCausalLM,
    "GenerationDecoder": transformers.AutoModelForCausalLM,
    "ForMaskedLM": transformers.AutoModelForMaskedLM,
    "ForPreTraining": transformers.AutoModelForPreTraining,
    "ForSequenceClassification": transformers.AutoModelForSequenceClassification,
    "ForQuestionAnswering": transformers.AutoModelForQuestionAnswering,
    "Model": transformers.AutoModel,
}
IDS = torch.tensor([[5, 3, 9, 30, 7, 7, 11], [8, 4, 4, 19, 22, 3, 6]])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(ASSETS / "tiny" / "tokenizer.json")


@pytest.fixture(scope="module")
def qwens_tokenizer(tmp_path_factory, tokenizer) -> Tokenizer:
    """The same vocabulary with the parts that transformers gives every Qwen2."""
    folder = tmp_path_factory.mktemp("qwen2")
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    (folder / "config.json").write_text('{"model_type": "qwen2"}', "utf-8")
    return load_tokenizer_directory(folder).tokenizer


def opened_by_transformers(directory, architecture):
    opener = next(opener for ending, opener in OPENERS.items() if architecture.endswith(ending))
    model, report = opener.from_pretrained(directory, output_loading_info=True)
    # heads that we have not, the pooler of SqueezeBERT, which no logits need, and what is computed again
    left = ("contact_head", "transformer.pooler", "inv_freq", "_decay", "slope_rate")
    assert not [name for name in report["missing_keys"] if not any(one in name for one in left)], report
    return model.eval()


@pytest.mark.share(4)
@torch.no_grad()
@pytest.mark.parametrize("kind", WRITTEN)
def test_transformers_and_we_open_what_was_written(kind, tokenizer, qwens_tokenizer, tmp_path):
    family, config = WRITTEN[kind]
    model = lively(config, 4)
    exported = export(model, qwens_tokenizer if family == "Qwen2" else tokenizer, tmp_path / "out")
    assert exported.family == family
    expected = model(IDS)
    theirs = opened_by_transformers(tmp_path / "out", exported.architecture)(IDS)
    read = expected[:, 0] if config.head.kind == "sequence" else expected
    read = model.pooling.dense(read) if config.pooled_dense else read
    if config.head.kind == "question":
        said = torch.stack([theirs.start_logits, theirs.end_logits], dim=-1)
    else:
        said = theirs.logits if config.head.kind != "none" else theirs.last_hidden_state
    assert furthest(said.view(read.shape), read) < 1e-5
    again = read_directory(tmp_path / "out").load()
    assert again.notes == ()
    if config.experts or len(config.labels) == 1:  # the sums of a product with few rows depend on where its matrix lies
        written = dict(again.transformer.named_parameters())
        rounding = 1e-7 if config.added_conv else 0.0  # 1 is added to a column of those
        assert all(furthest(written[name], one) <= rounding for name, one in model.named_parameters())
        assert furthest(again.transformer(IDS), expected) < 1e-6
        return
    assert torch.equal(again.transformer(IDS), expected), "to the last bit"


def test_tiny_is_a_model_of_transformers_with_its_tokenizer(tmp_path):
    model = tinytf.load("tiny")
    exported = export(model.transformer, model.tokenizer, tmp_path / "tiny")
    theirs = opened_by_transformers(tmp_path / "tiny", exported.architecture)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tiny")
    assert exported.family == "Llama", "a Qwen2 would get another tokenizer"
    for text in ("The cat 12345 don't I'LL", "  Emoji 🙂 and\ttabs\n\nnew lines ", "e\u0301 ünïcode"):
        ids = tokenizer(text)["input_ids"]
        assert ids == model.encode(text).ids
        with torch.no_grad():
            expected = model.transformer(torch.tensor([ids]))
            assert furthest(theirs(torch.tensor([ids])).logits, expected) < 1e-5
    again = tinytf.load(str(tmp_path / "tiny"))
    assert torch.equal(again.transformer(torch.tensor([ids])), expected)
    assert again.encode("The cat").ids == model.encode("The cat").ids
    assert tokenizer.eos_token_id == model.tokenizer.end_id
    settings = json.loads((tmp_path / "tiny" / "config.json").read_text("utf-8"))
    assert settings["eos_token_id"] == model.tokenizer.end_id


def test_an_architecture_of_no_family_is_refused_with_what_stands_in_the_way(tokenizer, tmp_path):
    model = Transformer.initialised(ModelConfig.of(**SIZES, norm_order="both", activation="gelu_tanh"), 1)
    with pytest.raises(UsageError) as caught:
        export(model, tokenizer, tmp_path / "out")
    assert caught.value.message == f"this architecture is none of the {len(FAMILIES)} that can be written"
    assert caught.value.hint == "the nearest is GPT-2; it differs in norm_order 'both', not 'pre'"
    assert not (tmp_path / "out").exists()


def test_sines_that_no_family_computes_are_written_as_learned_positions(tokenizer, tmp_path):
    config = ModelConfig.of(**SIZES, positions="sinusoidal", activation="gelu_tanh")
    model = Transformer.initialised(config, 1)
    exported = export(model, tokenizer, tmp_path / "out")
    ids = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        theirs = opened_by_transformers(tmp_path / "out", exported.architecture)(ids).logits
        assert exported.family == "GPT-2"
        assert furthest(theirs, model(ids)) < 1e-5


def test_token_types_are_not_quietly_dropped(tokenizer, tmp_path):
    config = ModelConfig.of(**{**SIZES, **BERT, "head": "none", "n_token_types": 3, "causal": False})
    assert export(lively(config), tokenizer, tmp_path / "out").family == "BERT"
    assert read_directory(tmp_path / "out").load().transformer.config.n_token_types == 3


def test_a_folder_with_something_in_it_stays_as_it_was(tokenizer, tmp_path):
    (tmp_path / "mine.txt").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="is not empty"):
        export(lively(config_of("gpt2")), tokenizer, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_made_is_one_clear_error(tokenizer, tmp_path):
    (tmp_path / "file").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="cannot write"):
        export(lively(config_of("gpt2")), tokenizer, tmp_path / "file" / "out")
