"""Print the tables of docs/steps.md, of the steps and of TransformerLens' names: python samples/step_table.py

The last column says which of some architectures have the step; together they have all.
"""

import dataclasses

from tinytf.presets import PRESETS
from tinytf.steps.table import STEPS, StepTable
from tinytf.trace.lens_names import Lens, known_names
from tinytf.trace.parameters import parse_any

_LLAMA = PRESETS["llama-tiny"]
ARCHITECTURES = {
    "GPT-2": PRESETS["gpt2"],
    "the paper's, of two stacks": PRESETS["paper-translation"],
    "BERT": PRESETS["bert-base"].but(head="mlm"),
    "Llama": _LLAMA,
    "Qwen3": _LLAMA.but(qk_norm=True),
    "BitNet": _LLAMA.but(out_norm=True, act_norm=True),
    "Ministral 3": _LLAMA.but(query_scale=0.1, query_scale_every=16_384),
    "BERT and GPT-2": PRESETS["gpt2"].but(
        d_source=512, source_projection=True, encoder=PRESETS["paper"].but(head="none").to_dict()
    ),
    "Gemma 2": _LLAMA.but(norm_order="both", attention_cap=50.0, logit_cap=30.0),
    "T5Gemma": _LLAMA.but(
        norm_order="both", attention_cap=50.0, d_source=_LLAMA.d_model,
        encoder=_LLAMA.but(causal=False, head="none").to_dict(),
    ),
    "Gemma 3n": _LLAMA.but(
        norm_order="both", qk_norm=True, v_norm=True, extra_streams=3, stream_gain=True, laurel_rank=64,
        d_layer_input=256, gate_sparsity=0.95,
    ),
    "Gemma 4": _LLAMA.but(
        norm_order="both", qk_norm=True, v_norm=True, layer_scale=True, d_layer_input=256,
        by_layer=(("values_of_keys", (False, True, False, False)), ("shares_keys", (False, False, True, True))),
    ),
    "Gemma 4 26B": _LLAMA.but(
        norm_order="both", layer_scale=True, experts=128, experts_per_token=8, d_expert=704, d_shared=2112,
        expert_norms=True,
    ),
    "Hunyuan 4": _LLAMA.but(hyper=True, extra_streams=3, index_keys=2048, index_heads=16, index_width=128),
    "GLM-5.3": _LLAMA.but(
        n_layers=2, hyper=True, extra_streams=3, sinkhorn_rounds=20, streams_averaged=True, positions="none",
        n_kv_heads=8, q_rank=64, kv_rank=64, decay_bound=5.0, index_keys=2048, index_heads=32, index_width=128,
        index_block=16, index_pooled=True, by_layer=(("mixer", ("kimi_delta", "attention")),),
    ),
    "DeepSeek-V4": _LLAMA.but(
        hyper=True, extra_streams=3, sinkhorn_rounds=20, n_kv_heads=1, q_rank=1024, latent_eps=1e-6, rope_width=16,
        window=128, qk_norm=True, q_norm_gain=False, values_turned=True, attention_sinks=True, o_groups=8, o_rank=1024,
        index_heads=64, index_width=128, experts=256, experts_per_token=6, d_expert=2048, d_shared=2048,
        router="sqrtsoftplus", choice_bias=True, glu_limit=10.0, glu_added=0.0,
        by_layer=(
            ("block_size", (0, 4, 128, 4)), ("block_overlap", (False, True, False, True)),
            ("index_keys", (0, 512, 0, 512)), ("chosen_by_id", (True, False, False, False)),
        ),
    ),
    "Mistral Large 4": _LLAMA.but(
        n_kv_heads=8, d_value=16, kv_rank=512, latent_eps=1e-6, rope_width=16, head_growth=True, index_keys=2048,
        index_heads=32, index_width=128, index_norm=True,
    ),
    "MiniMax M3": _LLAMA.but(
        qk_norm=True, glu_limit=7.0, glu_alpha=1.702, index_keys=2048, index_heads=2, index_width=128, index_block=128,
        index_by_head=True, index_near=1,
    ),
    "Granite": _LLAMA.but(residual_scale=0.22, logit_scale=0.125),
    "OLMo": _LLAMA.but(norm="layernorm", norm_gain=False, norm_bias=False, clip_qkv=8.0),
    "BLOOM": PRESETS["gpt2"].but(positions="alibi", embed_norm=True),
    "OPT-350m": PRESETS["gpt2"].but(norm_order="post", d_embed=512, position_offset=2),
    "MPNet": PRESETS["bert-base"].but(relative_buckets=32, head="mlm", pooler=False),
    "DeBERTa-v3": PRESETS["bert-base"].but(
        n_token_types=0, positions="none", head="mlm", pooler=False, attention_divisor=192**0.5, distances=256,
        farthest=512, distance_norm=True, distance_keys=True, distance_queries=True,
    ),
    "DeBERTa-v2 xlarge": PRESETS["bert-base"].but(
        n_token_types=0, positions="none", head="mlm", pooler=False, side_width=3, side_activation="gelu",
        by_layer=(("side_conv", (True, *[False] * 11)),),
    ),
    "XLNet": PRESETS["bert-base"].but(
        n_token_types=0, embed_norm=False, positions="none", head="lm", pooler=False, qkv_bias=False, o_bias=False,
        distances=512, distance_keys=True, distance_matrices=True, distance_waves=True, query_biases=True,
        segments=True,
    ),
    "ESM-2": PRESETS["bert-base"].but(
        norm_order="pre", positions="rotary", n_token_types=0, embed_norm=False, pooler=False,
        masked_share=0.12, mask_id=32, head="mlm",
    ),
    "DeepSeek-V3": _LLAMA.but(
        n_kv_heads=8, d_head=48, d_value=32, rope_width=16, q_rank=64, kv_rank=64,
        experts=8, experts_per_token=2, d_expert=64, d_shared=64, router="sigmoid", choice_bias=True,
    ),
    "GLM-5": _LLAMA.but(
        n_layers=2, n_kv_heads=8, d_head=48, d_value=32, rope_width=16, q_rank=64, kv_rank=64,
        index_keys=2048, index_heads=32, index_width=128, by_layer=(("shares_index", (False, True)),),
    ),
    "LongCat-Flash": _LLAMA.but(
        n_layers=3, d_value=32, rope_width=16, q_rank=64, kv_rank=64, kv_scale=2.0, experts_per_token=2, d_expert=64,
        identity_experts=2, choice_bias=True, routes_renormed=False,
        by_layer=(
            ("mixer", ("attention", "attention", "none")), ("n_heads", (8, 8, 0)), ("n_kv_heads", (8, 8, 0)),
            ("d_head", (48, 48, 0)), ("experts", (0, 0, 8)), ("shortcut", (False, False, True)),
        ),
    ),
    "Qwen2-MoE": _LLAMA.but(
        experts=8, experts_per_token=2, d_expert=64, d_shared=64, shared_gate=True, routes_renormed=False
    ),
    "Mixtral": PRESETS["mixtral-tiny"],
    "Llama 4": _LLAMA.but(
        qk_norm=True, qk_norm_last=True, experts=8, experts_per_token=1, d_expert=64, d_shared=64,
        router="sigmoid", routes_renormed=False, routes_first=True, chunk=16,
    ),
    "embedding models": PRESETS["bert-base"].but(
        head="none", pooler=False, pooling="mean", pooled_dense=(3072, 768), pooled_activation="tanh",
        unit_embedding=True,
    ),
    "ColBERT": PRESETS["bert-base"].but(
        head="none", pooler=False, pooling="tokens", pooled_dense=(1024, 128), unit_embedding=True
    ),
    "classes of the mean": PRESETS["bert-base"].but(
        head="sequence", tied_head=False, head_bias=True, labels=("bad", "good"), head_reads="mean", head_dense=True,
        pooler=False,
    ),
    "talking heads": _LLAMA.but(talking_heads=True),
    "DiffLlama": _LLAMA.but(lambda_init=0.2),
    "JetMoE": _LLAMA.but(
        n_heads=16, n_kv_heads=2, d_head=64, o_bias=True, experts=8, experts_per_token=2, head_experts=True,
        sum_bias=True,
    ),
    "Qwen3.5": PRESETS["qwen3.5-tiny"],
    "Qwen4-Exp": PRESETS["qwen3.5-tiny"].but(
        extra_streams=3, stream_rank=32, ngram_rows=1_000, index_keys=64, index_block=16, index_heads=4, index_width=32,
        by_layer=(*PRESETS["qwen3.5-tiny"].by_layer, ("ngram_number", (1, 0, 0, 0))),
    ),
    "Inkling": _LLAMA.but(
        positions="none", embed_norm=True, qk_norm=True, added_conv=4, ffn_scale=True, profiles=16,
        profile_extent=1_024, score_scale=0.1, score_scale_from=4_096, experts=8, experts_per_token=3,
        always_experts=1, d_expert=64, router="sigmoid", choice_bias=True,
    ),
    "OLMo Hybrid": PRESETS["qwen3.5-tiny"].but(attention_gate=False, rope_width=0, beta_scale=2.0),
    "LFM2": PRESETS["lfm2-tiny"],
    "Granite 4": PRESETS["granite4-tiny"],
    "Mamba": PRESETS["mamba-tiny"],
    "Jamba": PRESETS["mamba-tiny"].but(d_ff=256, gated=True, inner_norm="learned"),
    "MiniMax": _LLAMA.but(n_kv_heads=8, mixer="lightning", residual_of="normed", kept_scale=3.5),
    "Kimi Linear": _LLAMA.but(n_kv_heads=8, mixer="kimi_delta"),
    "RecurrentGemma": _LLAMA.but(n_kv_heads=8, mixer="griffin"),
    "Zamba2": _LLAMA.but(
        n_kv_heads=8, memory_sets=1, adapter_rank=64, adapted_attention=True,
        by_layer=(
            ("mixer", ("attention", "mamba2") * 2), ("memory", ("gives", "takes") * 2), ("d_ff", (_LLAMA.d_ff, 0) * 2),
        ),
    ),
    "gpt-oss": PRESETS["mixtral-tiny"].but(attention_sinks=True, glu_limit=7.0, glu_alpha=1.702),
}  # fmt: skip


def markdown() -> str:
    """The table, one row a step, in the order of the step table."""
    tables = {name: StepTable(config) for name, config in ARCHITECTURES.items()}
    order = dict.fromkeys(step.name for step in STEPS)
    lines = ["| step | what it is | formula | axes | in |", "|---|---|---|---|---|"]
    for name in order:
        having = [where for where, table in tables.items() if name in table.by_name]
        if not having:
            raise SystemExit(
                f"no model of ARCHITECTURES in samples/step_table.py has the step {name}: add one that has it"
            )
        step = tables[having[0]].by_name[name]
        full = step.full_name(0) if step.in_layer else name
        lacking = [name for name in tables if name not in having]
        where = (
            ", ".join(having) if len(having) <= len(lacking) else f"all but {', '.join(lacking)}" if lacking else "all"
        )
        formula = step.formula.replace("|", "\\|")
        lines.append(f"| `{full}` | {step.title} | {formula} | {', '.join(step.axes)} | {where} |")
    return "\n".join(lines)


def lens_markdown() -> str:
    """The names of TransformerLens: what each is here, in the models that have it; those of one tensor in one row."""
    meanings: dict[str, dict[str, tuple[str, str]]] = {}
    of_models = ("GPT-2", "Llama", "Gemma 2", "BERT", "Mixtral")
    for where in of_models:
        table = StepTable(ARCHITECTURES[where])
        for layer in (None, 0):
            for name, lens in known_names(table, layer).items():
                full = name if layer is None else f"blocks.0.{name}"
                meanings.setdefault(full, {})[where] = _meaning(full, lens, table)
    rows: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for full, by_model in meanings.items():
        models = {one: [model for model in by_model if by_model[model] == one] for one in by_model.values()}
        said = {one: "all" if len(having) == len(of_models) else ", ".join(having) for one, having in models.items()}
        rows.setdefault(tuple((*one, said[one]) for one in models), []).append(full)
    lines = ["| name | here | axes | in |", "|---|---|---|---|"]
    for found, names in rows.items():
        names = [names[0], *(one.removeprefix("blocks.0.") for one in names[1:])]
        for place, (here, axes, models) in enumerate(found):
            shown = "" if place else ", ".join(f"`{name}`" for name in names)
            lines.append(f"| {shown} | {here} | {axes} | {models} |")
    return "\n".join(lines)


def _meaning(full: str, lens: Lens | str, table: StepTable) -> tuple[str, str]:
    """What a name is here, and its axes."""
    if isinstance(lens, str):
        return f"refused: {lens}", ""
    where = parse_any(full, table)
    return lens.of(f"`{dataclasses.replace(where, lens=None)}`"), ", ".join(where.axes)


if __name__ == "__main__":
    print(markdown(), lens_markdown(), sep="\n\n")
