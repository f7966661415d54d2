"""Encoders with rotary positions for embeddings of texts: Jina embeddings v3 and GTE."""

from dataclasses import replace

from tinytf.checkpoints.huggingface.bert import BERT, ROBERTA, mlm_head
from tinytf.checkpoints.huggingface.modernbert import NOMIC_BERT
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.table import Key, Stored, fused

_JINA = "encoder.layers.{n}.mixer"
JINA_V3 = replace(
    NOMIC_BERT,
    name="Jina embeddings v3",
    model_type="jina_embeddings_v3",
    prefix="roberta.",
    classes={"none": "JinaEmbeddingsV3Model", "mlm": "JinaEmbeddingsV3ForMaskedLM"},
    only={"use_qk_norm": (False,)},
    fixed={**BERT.fixed, "positions": "rotary"},
    settings=(
        Key("head_dim", "d_head", 0),
        *BERT.settings[:-1],
        rope(20_000.0),
        mlm_head("lm_head.dense.weight", "gelu"),
    ),
    stored={
        **{name: layout for name, layout in NOMIC_BERT.stored.items() if name != "blocks.{n}.ffn.gate"},
        **{
            name: replace(layout, instead=Stored(f"encoder.layers.{{n}}.self_attn.{name[-1]}_proj"))
            for name, layout in fused(f"{_JINA}.Wqkv").items()
        },
        "blocks.{n}.attention.o": Stored(f"{_JINA}.out_proj"),
        "blocks.{n}.ffn.up": Stored("encoder.layers.{n}.mlp.fc1"),
        "blocks.{n}.ffn.down": Stored("encoder.layers.{n}.mlp.fc2"),
        "head.dense": Stored("lm_head.dense"),
        "head.norm": Stored("lm_head.layer_norm"),
        "head.decoder": Stored("lm_head.decoder"),
    },
    spellings=(  # names of a model in memory
        *(pair for pair in NOMIC_BERT.spellings if ".mlp." not in pair[1]),
        (r"\.attn\.out_proj\.", ".mixer.out_proj."),
    ),
    copies={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.bias": "lm_head.decoder.bias"},
    outside=("lm_head.", "classifier.", "qa_outputs."),
    heads=ROBERTA.heads,
)
"""Sturua et al. 2024, without its adapters: XLM-RoBERTa with rotary positions."""

_GTE = "encoder.layer.{n}"


def _half(part: int) -> Stored:
    name = "gate" if part else "up"
    joint = Stored(f"{_GTE}.mlp.up_gate_proj", part=part, parts=("d_ff", "d_ff"))
    return replace(joint, instead=Stored(f"{_GTE}.mlp.{name}_proj"))


GTE = replace(
    JINA_V3,
    name="GTE",
    model_type="gte",
    prefix="new.",
    classes={"none": "GteModel", "mlm": "GteForMaskedLM"},
    only={},
    needs=(),
    fixed={**BERT.fixed, "positions": "rotary", "gated": True, "up_bias": False},
    settings=(
        Key("head_dim", "d_head", 0),
        Key("type_vocab_size", "n_token_types", 1),
        *(setting for setting in BERT.settings[:-1] if getattr(setting, "name", "") != "type_vocab_size"),
        rope(160_000.0),
        mlm_head("lm_head.dense.weight", "gelu"),
    ),
    stored={
        **JINA_V3.stored,
        "embed.norm": BERT.stored["embed.norm"],
        **{
            name: replace(layout, instead=Stored(f"{_GTE}.self_attn.{name[-1]}_proj"))
            for name, layout in fused(f"{_GTE}.attention.qkv_proj").items()
        },
        "blocks.{n}.attention.o": Stored(f"{_GTE}.attention.o_proj"),
        "blocks.{n}.norm1": Stored(f"{_GTE}.attn_ln"),
        "blocks.{n}.ffn.up": _half(0),
        "blocks.{n}.ffn.gate": _half(1),
        "blocks.{n}.ffn.down": Stored(f"{_GTE}.mlp.down_proj"),
        "blocks.{n}.norm2": Stored(f"{_GTE}.mlp_ln"),
        "head.norm": Stored("lm_head.norm"),
    },
    spellings=(  # names of a model in memory
        (r"^gte\.", ""),
        (r"^layers\.", "encoder.layer."),
        (r"\.self_attn\.o_proj\.", ".attention.o_proj."),
        (r"\.post_attention_layernorm\.", ".attn_ln."),
        (r"\.post_mlp_layernorm\.", ".mlp_ln."),
        (r"^lm_head\.layer_norm\.", "lm_head.norm."),
    ),
    copies={"lm_head.decoder.weight": "embeddings.word_embeddings.weight"},
    heads=BERT.heads,
)
"""Zhang et al. 2024 (mGTE): only the last matrix of the feed-forward has a bias."""
