"""T5 and its relatives: mT5, UMT5, LongT5 with local attention, and their encoders alone.

Raffel et al. 2020, Xue et al. 2021, Chung et al. 2023, Guo et al. 2022.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.heads import ClassHead
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family
from tinytf.checkpoints.huggingface.two_stacks import CLASSES, TWO, both, encoder
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields
from tinytf.model.transformer import ENCODER

_BLOCK = {
    "embed.tokens": Stored("shared"),
    **{
        f"blocks.{{n}}.attention.{name}": Stored(f"{{stack}}.block.{{n}}.layer.0.SelfAttention.{name}")
        for name in "qkvo"
    },
    "blocks.{n}.attention.relative": Stored("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"),
    "blocks.{n}.norm1": Stored("{stack}.block.{n}.layer.0.layer_norm"),
    "final_norm": Stored("{stack}.final_layer_norm"),
}
_FFN = {"gate": "wi_0", "up": "wi_1", "down": "wo"}


def _stored() -> dict[str, Stored]:
    """Where T5 keeps its modules: the feed-forward is number 1 in the encoder and 2 in the decoder."""
    stored = both(
        _BLOCK,
        {
            **{
                f"blocks.{{n}}.cross.{name}": Stored(f"{{stack}}.block.{{n}}.layer.1.EncDecAttention.{name}")
                for name in "qkvo"
            },
            "blocks.{n}.cross.norm": Stored("{stack}.block.{n}.layer.1.layer_norm"),
        },
    )
    for prefix, stack, number in (("", "decoder", 2), ("encoder.", "encoder", 1)):
        place = f"{stack}.block.{{n}}.layer.{number}"
        stored[f"{prefix}blocks.{{n}}.norm2"] = Stored(f"{place}.layer_norm")
        for ours, theirs in _FFN.items():
            stored[f"{prefix}blocks.{{n}}.ffn.{ours}"] = Stored(f"{place}.DenseReluDense.{theirs}")
    return {**stored, "head.decoder": Stored("lm_head", gives="logits")}  # its input is multiplied, here the logits


_FIXED = {
    "positions": "none", "qkv_bias": False, "o_bias": False, "ffn_bias": False, "norm": "rmsnorm",
    "attention_divisor": 1.0,
}  # fmt: skip


def _read_activation(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    word = fields.word("feed_forward_proj", _PROJECTIONS, "relu")
    return {"activation": word.removeprefix("gated "), "gated": word.startswith("gated ")}


_PROJECTIONS = {
    **ACTIVATIONS,
    **{f"gated-{name}": f"gated {ours}" for name, ours in ACTIVATIONS.items()},
    "gated-gelu": "gated gelu_tanh",
}


def _write_activation(config: ModelConfig) -> dict[str, Any]:
    ours = f"gated {config.activation}" if config.gated else config.activation
    return {"feed_forward_proj": next((word for word, meaning in _PROJECTIONS.items() if meaning == ours), None)}


def _says_scaled(fields: Fields) -> bool:
    """T5 1.1 says by an untied head that its logits are not scaled; transformers 5 ties it all the same."""
    return fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))


def _head(scaled: Callable[[Fields], bool]) -> Group:
    """A head that is tied unless the file has another one."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        return {
            "head": "lm",
            "tied_head": "lm_head.weight" not in tensors,
            "logit_scale": draft["d_model"] ** -0.5 if scaled(fields) else 1.0,
        }

    return Group(read, lambda config: {"tie_word_embeddings": config.logit_scale != 1})


_SIZES = (
    Key("vocab_size"),
    Key("d_model"),
    Key("num_heads", "n_heads"),
    Key("d_kv", "d_head"),
    Key("d_ff"),
    Key("n_positions", "context", 2**20),  # a bias of distance has no last position
    Key("relative_attention_num_buckets", "relative_buckets", 32),
    Key("relative_attention_max_distance", "relative_farthest", 128),
    Key("layer_norm_epsilon", "norm_eps", 1e-6),
    Group(_read_activation, _write_activation),
)


def _encoder_alone(family: Family, kind: str) -> Family:
    """The table of files that hold the encoder alone, which is a model of one stack."""
    return replace(
        family,
        name=f"{family.name} encoder",
        classes={"none": kind},
        only={},
        fixed={**family.fixed, "shares_embeddings": False, "causal": False, "head": "none"},
        settings=(Key("num_layers", "n_layers", 6), *family.settings[: len(_SIZES)]),
        harmless=(*family.harmless, "num_decoder_layers", "scale_decoder_outputs", "tie_word_embeddings"),
        stored={name.removeprefix(ENCODER): place for name, place in family.stored.items() if name.startswith(ENCODER)},
        copies={"encoder.embed_tokens.weight": "shared.weight"},
        skipped=(),
        heads={"token": ClassHead({"head.decoder": Stored("classifier")})},
        outside=("classifier",),
    )


T5 = Family(
    name="T5",
    model_type="t5",
    only=TWO,
    classes={"lm": "T5ForConditionalGeneration"},
    fixed={**_FIXED, "shares_embeddings": True},
    settings=(
        *_SIZES,
        Group(
            lambda fields, draft, tensors: {
                "n_layers": fields.whole("num_decoder_layers", fields.whole("num_layers", 6, least=1), least=1)
            },
            lambda config: {"num_decoder_layers": config.n_layers},
        ),
        Key("decoder_start_token_id", "start_id", 0),
        _head(_says_scaled),
        encoder(
            lambda fields, draft: {"n_layers": fields.whole("num_layers", 6, least=1)},
            lambda read: {"num_layers": read.n_layers},
        ),
    ),
    unties=True,
    written={"dropout_rate": 0.0},
    harmless=("initializer_factor", "classifier_dropout", "dense_act_fn", "is_gated_act", "is_decoder"),
    stored=_stored(),
    spellings=((r"\.wi\.", ".wi_1."), (r"^transformer\.", "")),
    heads=CLASSES,
    body_prefix="transformer.",
    outside=("classification_head",),
    written_as=lambda config: {} if config.gated else {"wi_1": "wi"},
    skipped=(
        Skip(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight", "a bias without a use"),
    ),
    copies=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
    ),
)

T5 = replace(T5, alone=_encoder_alone(T5, "T5EncoderModel"))
MT5 = replace(
    T5,
    name="mT5",
    model_type="mt5",
    classes={"lm": "MT5ForConditionalGeneration"},
    settings=(*T5.settings[:-2], _head(lambda fields: False), T5.settings[-1]),
    harmless=(*T5.harmless, "tie_word_embeddings"),
    alone=_encoder_alone(T5, "MT5EncoderModel"),
)
"""mT5, whose logits transformers never scales."""
_BY_LAYER = {
    prefix + "blocks.{n}.attention.relative": Stored(
        f"{stack}.block.{{n}}.layer.0.SelfAttention.relative_attention_bias"
    )
    for prefix, stack in (("", "decoder"), (ENCODER, "encoder"))
}
UMT5 = replace(
    MT5,
    name="UMT5",
    model_type="umt5",
    classes={"lm": "UMT5ForConditionalGeneration"},
    fixed={**T5.fixed, "relative_by_layer": True},
    settings=(*T5.settings[:-2], _head(lambda fields: True), T5.settings[-1]),
    harmless=(*MT5.harmless, "scalable_attention"),
    stored={**T5.stored, **_BY_LAYER},
)
UMT5 = replace(UMT5, alone=_encoder_alone(UMT5, "UMT5EncoderModel"))
"""UMT5, with a bias of distance for each layer; transformers 5 scales its logits, whatever its files say."""
LONG_T5 = replace(
    T5,
    name="LongT5",
    model_type="longt5",
    classes={"lm": "LongT5ForConditionalGeneration"},
    only={**TWO, "encoder_attention_type": ("local",)},
    settings=(
        *T5.settings[:-1],
        encoder(
            lambda fields, draft: {
                "n_layers": fields.whole("num_layers", 6, least=1),
                "window": fields.whole("local_radius", 127, least=1) + 1,
            },
            lambda read: {"num_layers": read.n_layers, "local_radius": read.window - 1},
        ),
    ),
    harmless=(*T5.harmless, "global_block_size"),
    stored={
        name: replace(place, module=place.module.replace("0.SelfAttention", "0.LocalSelfAttention"))
        if name.startswith(ENCODER)
        else place
        for name, place in T5.stored.items()
    },
    alone=None,
    heads={},
)
"""LongT5 with local attention: its encoder sees a window to each side."""
T5_FAMILIES = (T5, MT5, UMT5, LONG_T5)
