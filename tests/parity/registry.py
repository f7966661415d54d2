"""Tries every text architecture that transformers registers: right, refused, wrong or crashed.

``python tests/parity/registry.py [--only NAME ...] [--flags]``: a line an architecture, then the counts. Each that
tinytf knows by name gets a tiny random model with odd sizes, saved by transformers and opened by tinytf, whose logits
are compared. With ``--flags`` each boolean setting is also turned the other way once: a difference that is neither
computed nor refused is wrong. With ``--through`` each that no table opens runs through transformers, and its line says
how many module outputs were computed again. Exits 1 where one is wrong or crashed.
"""

import argparse
import inspect
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import torch
import transformers
from architectures import enliven, furthest
from reference import Pair, last_of
from torch import nn
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tinytf.checkpoints.huggingface.load import FAMILIES, read_directory
from tinytf.checkpoints.unsupported import explain_unsupported
from tinytf.errors import TinytfError
from tinytf.through.model import open_through
from tinytf.through.traced import trace_through

TOLERANCE = 2e-5
SECONDS = 120
V, C, N, H, T = 41, 24, 3, 4, 32
_SIZES: tuple[tuple[str, int], ...] = (
    ("vocab_size", V),
    ("hidden_size d_model n_embd dim emb_dim", C),
    ("num_hidden_layers num_layers n_layers n_layer decoder_layers encoder_layers", N),
    ("num_attention_heads n_head n_heads encoder_attention_heads decoder_attention_heads attention_heads num_heads", H),
    ("num_key_value_heads n_kv_heads num_experts_per_tok moe_topk top_k num_experts_per_token", 2),
    ("intermediate_size n_inner hidden_dim ffn_dim decoder_ffn_dim encoder_ffn_dim dff ffn_hidden_size d_ff", 40),
    ("max_position_embeddings n_positions max_seq_len n_ctx", T),
    ("num_experts n_routed_experts num_local_experts moe_num_experts", 6),
    ("moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size", 16),
    ("sliding_window window_size", 4),
    ("embedding_size head_dim", 10),
    ("kv_lora_rank", 7),
    ("q_lora_rank", 9),
    ("qk_rope_head_dim", 6),
    ("qk_nope_head_dim v_head_dim", 8),
    ("bos_token_id eos_token_id pad_token_id cls_token_id sep_token_id", 0),
)
"""What the keys of a configuration with these names get."""
_SECTIONS = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 1, 1]}
_GROWING = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 500.0,
    "original_max_position_embeddings": 4,
    "llama_4_scaling_beta": 0.3,
}
_AROUND = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_LATENT = {"head_dim": 6, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_key_value_heads": H}
_INDEXED = {**_LATENT, "index_head_dim": 8, "index_n_heads": 9, "index_topk": 4}
_DELTA = {"linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 10, "linear_value_head_dim": 5}
_MAMBA2 = {"mamba_n_heads": 12, "mamba_d_head": 4, "mamba_n_groups": 3, "mamba_chunk_size": 4}
_OWN: dict[str, dict[str, Any]] = {
    **{
        kind: {"rope_parameters": _SECTIONS, "head_dim": 6}
        for kind in ("glm4v_text", "glm_ocr_text", "glm_image_text", "cosmos3_edge_text")
    },
    "codegen": {"rotary_dim": 4},
    "granite_docling_text": {"tie_word_embeddings": False},
    "hunyuan_vl_text": {"rope_parameters": _SECTIONS, "head_dim": 6, "tie_word_embeddings": False},
    "qwen3_vl_moe_text": {"tie_word_embeddings": False},
    "glm4v_moe_text": {"rope_parameters": {**_SECTIONS, "partial_rotary_factor": 0.6}, "head_dim": 10},
    "squeezebert": {"embedding_size": C, "post_attention_groups": 1},
    "luke": {"entity_vocab_size": 11, "entity_emb_size": 10},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1], [["global"], 1]]},
    "helium": {"head_dim": C // H},
    "openai_privacy_filter": {"rope_parameters": {**_GROWING, "truncate": False}},
    "phi": {"hidden_size": 32},
    "persimmon": {"hidden_size": 32},
    "qwen2_vl_text": {"rope_parameters": _SECTIONS},
    "qwen2_5_vl_text": {"rope_parameters": _SECTIONS},
    "stablelm": {"hidden_size": 32},
    "gemma3n_text": {
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "hidden_size_per_layer_input": 7,
        "vocab_size_per_layer_input": V - 9,
        "activation_sparsity_pattern": [0.6, 0.0, 0.0],
        "laurel_rank": 5,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 7,
        "vocab_size_per_layer_input": V,
    },
    "deepseek_v2": {**_LATENT, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "v_head_dim": 7},
    "deepseek_v3": _LATENT,
    "glm4_moe_lite": _LATENT,
    "minicpm3": _LATENT,
    "youtu": _LATENT,
    "mistral4": {**_LATENT, "head_dim": 14, "rope_parameters": _GROWING},
    "dots1": {"head_dim": 6, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "routed_scaling_factor": 1.5},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 300.0, "clip_qkv": 0.7}, "ffn_config": {"moe_top_k": 2}},
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "granitemoehybrid": {**_MAMBA2, **_AROUND},
    "mamba": {"intermediate_size": 2 * C},
    "mamba2": {"num_heads": 12, "head_dim": 4, "n_groups": 3, "chunk_size": 4},
    "qwen3_5_moe_text": _AROUND,
    "qwen3_5_text": _AROUND,
    "qwen3_next": _AROUND,
    "inkling_text": {
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
        "swa_num_attention_heads": 6,
        "swa_num_key_value_heads": 3,
        "swa_head_dim": 4,
        "sliding_window_size": 4,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "qwen4_exp_text": {
        **_AROUND,
        "hc_lowrank": 10,
        "ple_layer_ids": [1],
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 9,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 4,
        "indexer_n_heads": 7,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 12,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "olmo_hybrid": {**_AROUND, **_DELTA},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "sliding_window": None,
        "n_groups": 2,
        "mamba_num_heads": 6,
        "mamba_head_dim": 8,
    },
    "glm5_next_text": {
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "linear_num_heads": 6,
        "linear_head_dim": 5,
        "num_key_value_heads": H,
        "qk_rope_head_dim": 0,
        "head_dim": 0,
        "index_head_dim": 8,
        "index_n_heads": 9,
        "index_topk": 4,
        "index_kpool": 2,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 3,
    },
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_key_value_heads": H,
        "q_lora_rank": None,
    },
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 48},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "mamba_dt_rank": 3},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_key_value_heads": H,
        "n_mamba_heads": 6,
    },
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1, "mamba_dt_rank": 3},
    "falcon_mamba": {"intermediate_size": 2 * C},
    **dict.fromkeys(("axk1", "axk2", "longcat_flash"), _LATENT),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "hy_v4", "mistral_large4_text", "dots3_note_text"), _INDEXED),
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "head_dim": 10,
        "qk_rope_head_dim": 4,
        "o_groups": 2,
        "o_lora_rank": 5,
        "index_head_dim": 8,
        "index_n_heads": 9,
        "index_topk": 2,
        "hc_mult": 2,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
    },
    "bailing_hybrid": {**_LATENT, "num_expert_group": 1, "layer_group_size": 2},
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 500.0} for kind in ("full_attention", "sliding_attention")
        },
    },
    "blt": {
        f"{part}_config": {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 40}
        for part in ("patcher", "encoder", "decoder", "global")
    },
    "reformer": {"hidden_size": C, "axial_pos_embds_dim": (8, 16), "axial_pos_shape": (4, 8), "attention_head_size": 6},
    "zaya": {"num_experts_per_tok": 1},
}
"""Settings of single architectures, where those sizes do not fit."""
_NOT_FLAGS = {
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "is_encoder_decoder", "torchscript",
    "gradient_checkpointing", "reorder_and_upcast_attn", "is_decoder", "add_cross_attention", "output_router_logits",
}  # fmt: skip
"""Booleans that choose what is returned, or another kind of model."""


def registered(only: list[str]) -> Iterator[tuple[str, str]]:
    """Each model_type, of those in ``only`` if any, whose model reads token ids alone in one stack, and its class."""
    masked, causal, base = (
        getattr(auto, f"MODEL{name}_MAPPING_NAMES") for name in ("_FOR_MASKED_LM", "_FOR_CAUSAL_LM", "")
    )
    every = {*masked, *causal, *base}
    for kind in sorted(every & {*only} if only else every):
        name = masked.get(kind) or causal.get(kind) or base[kind]
        name = name if isinstance(name, str) else name[0]
        try:
            config, model = CONFIG_MAPPING[kind], getattr(transformers, name)
            parameters = inspect.signature(model.forward).parameters
        except Exception:  # its class cannot be imported here: it needs a library for images or sound
            continue
        if "input_ids" in parameters and not _other_inputs(config, parameters):
            yield kind, name


def _other_inputs(config: Any, parameters: Any) -> bool:
    """Whether a model also takes images, sound, boxes, or a second text."""
    both = getattr(config, "is_encoder_decoder", False) is True
    others = ("pixel_values", "input_features", "input_values", "bbox", "decoder_input_ids", "audio_codes")
    sub = any(part in name for name in config.sub_configs for part in ("vision", "audio", "speech", "codec", "text"))
    return both or sub or any(name in parameters for name in others)


@dataclass(frozen=True)
class Outcome:
    word: str
    why: str = ""


def _model_type(kind: str) -> str:
    """What the config.json of an architecture calls it: gpt-sw3 is a gpt2."""
    return str(CONFIG_MAPPING[kind].model_type)


def config_of(kind: str, **settings: Any) -> Any:
    """The configuration of an architecture, tiny and with odd sizes."""
    known = {**CONFIG_MAPPING[kind]().to_dict(), **dict.fromkeys(CONFIG_MAPPING[kind].attribute_map)}
    sizes = {name: number for names, number in _SIZES for name in names.split() if name in known}
    return CONFIG_MAPPING[kind](**{**sizes, **_OWN.get(kind, {}), **settings})


def flags_of(kind: str) -> dict[str, bool]:
    """The boolean settings of an architecture, each the other way."""
    keys = config_of(kind).to_dict()
    return {name: not value for name, value in keys.items() if isinstance(value, bool) and name not in _NOT_FLAGS}


def model_of(kind: str, name: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = getattr(transformers, name)(config_of(kind, **settings))
    fixed = [(parameter, parameter.clone()) for parameter in model.parameters() if not parameter.requires_grad]
    with torch.no_grad():
        enliven(model, 7)
        for parameter, computed in fixed:  # sines and cosines
            parameter.copy_(computed)
        for buffer in model.buffers():
            if not bool(buffer.isfinite().all()):  # left as it was allocated
                buffer.zero_()
    return model.eval()


@torch.no_grad()
def outcome(kind: str, name: str, **settings: Any) -> Outcome:
    """What tinytf does with an architecture; one that it refuses by its name is not built."""
    if _model_type(kind) not in FAMILIES:
        return Outcome("refused", explain_unsupported(kind, CONFIG_MAPPING[kind]().to_dict()))
    try:
        theirs = model_of(kind, name, **settings)
        theirs.set_attn_implementation("eager")
        ids = torch.randint(3, V, (2, 13), generator=torch.Generator().manual_seed(9))
        expected = theirs(ids)
    except Exception as error:
        return Outcome("not built", line_of(error))
    with tempfile.TemporaryDirectory() as folder:
        try:
            theirs.save_pretrained(folder)
        except Exception as error:
            return Outcome("not built", line_of(error))
        try:
            ours = read_directory(Path(folder)).load().transformer
            without_head = (
                ours.head is not None and "logits" not in expected
            )  # theirs is the stack alone, its head tied
            result = ours.hidden(ids) if without_head else ours(ids)
            last, found = last_of(Pair(theirs, ours), expected, result)
        except TinytfError as error:
            return Outcome("refused", line_of(error).replace(f"{folder}/", "").replace(folder, "it"))
        except Exception as error:
            return Outcome("crashed", line_of(error))
    difference = furthest(found, last)
    return Outcome("right" if difference <= TOLERANCE else "wrong", f"{difference:.1e}")


@torch.no_grad()
def through(kind: str, name: str) -> Outcome:
    """What a trace through transformers says of an architecture; wrong where its check fails."""
    try:
        theirs = model_of(kind, name)
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            try:
                traced = trace_through(open_through(folder), "3 5 8 13 21 34 7")
            except TinytfError as error:
                return Outcome("refused", line_of(error).replace(folder, "it"))
            except Exception as error:
                return Outcome("crashed", line_of(error))
    except Exception as error:
        return Outcome("not built", line_of(error))
    check = traced.check
    return Outcome("through" if check.holds else "wrong", f"{check.proved} of {check.made} outputs computed again")


def line_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removeprefix("CheckpointError: ").split("\n")[0][:150]


def of_all(kind: str, name: str, flags: bool, others: bool) -> Outcome:
    """The outcome as it is; where it is right and ``flags``, the worst with each flag turned, and which it was.

    With ``others`` that of a refused one is its outcome through transformers.
    """
    plain = outcome(kind, name)
    if others and plain.word == "refused":
        return through(kind, name)
    if not flags or plain.word != "right":
        return plain
    turned = {flag: outcome(kind, name, **{flag: value}) for flag, value in flags_of(kind).items()}
    bad = [f"{flag}: {found.word} {found.why}" for flag, found in turned.items() if found.word in ("wrong", "crashed")]
    refused = [flag for flag, found in turned.items() if found.word == "refused"]
    if bad:
        return Outcome("wrong", "; ".join(bad))
    return Outcome("right", plain.why + (f"; refuses the other {', '.join(refused)}" if refused else ""))


def _send(pipe: Any, *given: Any) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        pipe.send(of_all(*given))


def in_a_process(*given: Any) -> Outcome:
    """The outcome from a process of its own: one that crashes or hangs does not end the others."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, *given))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(SECONDS) else Outcome("crashed", f"no answer in {SECONDS} s")
    except EOFError:
        process.join()
        return Outcome("crashed", f"exit status {process.exitcode}")
    finally:
        process.kill()
        process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", default=[], nargs="+", help="only these model_types")
    parser.add_argument("--flags", action="store_true", help="turn each boolean setting the other way, too")
    parser.add_argument("--through", action="store_true", help="run what no table opens through transformers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = dict(registered(options.only))
    if strays := {*options.only} - {*found}:
        parser.error(f"not registered as a model of text in one stack: {', '.join(sorted(strays))}")
    counts: Counter[str] = Counter()
    for kind in found:
        is_built = options.through or _model_type(kind) in FAMILIES
        result = (in_a_process if is_built else of_all)(kind, found[kind], options.flags, options.through)
        counts[result.word] += 1
        sys.stdout.write(f"{result.word:9} {kind:24} {result.why}\n")
        sys.stdout.flush()
    told = ", ".join(f"{number} {word}" for word, number in counts.most_common())
    sys.stdout.write(f"{len(found)} architectures: {told}\n")
    return int(counts["wrong"] + counts["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
