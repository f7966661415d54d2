"""The text part of a model that takes images or sound too: where its tensors lie, and what its head is."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import Draft, Group, Skip, Tensors
from tinytf.fields import Fields

_OUTSIDE = ("architectures", "tie_word_embeddings", "quantization_config")
"""Keys of the whole model, which count more than those of its text_config."""
SCALED_HEADS = frozenset(
    {
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "granite_docling",
        "inkling_mm_model",
        "mistral_large4",
        "paligemma",
    }
)
"""Whole models whose head applies the scale or the soft cap of the text_config; that of any other is a matrix alone."""
PUBLISHED = frozenset({"inkling_mm_model"})
"""Whole models whose files have other names than their modules in transformers."""
_NONE = "(?!)"
"""What no name matches."""
TOWERS: Mapping[str, str] = {
    kind: modules
    for modules, kinds in {
        "vision_tower|multi_modal_projector": (
            "aria aya_vision cohere2_vision fast_vlm gemma3 got_ocr2 internvl lfm2_vl lfm3_vl llava mistral3 molmo2 "
            "paligemma perception_lm pp_chart2table shieldgemma2 vipllava"
        ),
        "audio_tower|multi_modal_projector": (
            "audioflamingo3 fun_asr_nano glmasr moss_transcribe_diarize musicflamingo qwen2_audio qwen3_asr voxtral"
        ),
        "visual": (
            "exaone4_5 glm46v glm4v glm4v_moe glm5_next glm_ocr glmga qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe "
            "qwen3_vl qwen3_vl_moe qwen4_exp"
        ),
        "vision_tower|multi_modal_projector|image_newline": "llava_next llava_next_video llava_onevision",
        "vision_model|connector": "idefics2 idefics3 smolvlm",
        "vision_model|language_projection|qformer|query_tokens": "blip-2 instructblip instructblipvideo",
        "vision_model|multi_modal_projector": "llama4",
        "vision_model|audio_tower|multi_modal_projector": "nemotron_h_omni",
        "vision_tower|audio_tower|embed_vision|embed_audio": "gemma3n gemma4",
        "embed_vision|embed_audio|vision_embedder": "gemma4_unified",
        "vision_tower|audio_tower|visual|audio": "inkling_mm_model",
        "vision_tower|merger": "minicpm_ocr minicpmv4_6 minicpmv4_7",
        "vision_tower|mm_projector": "kimi_k25",
        "vision_tower|multi_modal_projector|patch_merge_mlp": "minimax_m3_vl",
        "vision_tower|vit": "hunyuan_vl",
        "vision_model|vit_large_projector|multi_modal_projector": "step3p7",
        "vision_tower|vision_model|multi_modal_projector|mlp1": "qianfan_ocr",
        "vision_tower|visual_embeddings_table": "ovis2",
        "vision_model|projector": "video_llama_3",
        "vision_model": "granite_docling",
        "visual|projector": "cosmos3_edge",
        r"vision_(encoder|tower|language_adapter)|patch_merger|(pre_mm|multi_modal)_projector\w*": "mistral_large4",
        "visual|blocks|merger|deepstack_merger_list|patch_embed|pos_embed": "cosmos3_omni",
        "vision_model|aligner": "deepseek_vl",
        r"vision_model|aligner|high_res_vision_\w+": "deepseek_vl_hybrid",
        r"vision_model|aligner|vqmodel|generation_\w+": "janus",
        r"audio_tower|multi_modal_projector|word_timestamp_\w+|perception|ctc_timestamp": "nemo_speechlm",
        "visual|vqmodel": "glm_image",
        "vision_encoder|vision_projection": "lighton_ocr",
        "vision_embed_tokens": "fuyu",
        "encoder|projector": "granite_speech granite_speech_plus",
        "image_tower|video_tower|multi_modal_projector": "video_llava",
        r"\w+_tokenizer_encoder|multi_modal_projector": "vibevoice_asr",
    }.items()
    for kind in kinds.split()
}
"""The modules of whole models beside their text part and head, by the model_type."""
_HEAD = "lm_head"
_RENAMED = (
    (r"^(blocks|encoder\.layers)\.(?=\d)", "layers."),
    (r"\.to_([qkv])\.", r".\1_proj."),
    (r"\.to_out\.", ".o_proj."),
    (r"\.norm_([qk])\.", r".\1_norm."),
)
"""Words of a tower or of diffusers that transformers, saving some models, puts into the names of the text part."""


@dataclass(frozen=True, kw_only=True)
class TextPart(Family):
    """The table of a family as the text part of a whole model, which has a prefix, and its head another.

    ``towers`` are the modules of its other parts, as a regular expression. One that is ``published`` with names of its
    own has those for its embeddings and its head too.
    """

    head_prefix: str = ""
    towers: str = ""
    published: bool = False

    def of_file(self, names: Collection[str]) -> "TextPart":
        """The table for a file with tensors of these ``names``.

        The text part lies where its embeddings do; the head lies beside it or further out.
        """
        names = [self._respelled(name) for name in names]
        embeddings = f"{self.stored['embed.tokens'].module}.weight"
        spelled = (self.spelled(name) for name in names)
        prefixes = [
            name.removesuffix(embeddings) for name in spelled if re.search(rf"(^|\.){re.escape(embeddings)}$", name)
        ]
        if not prefixes:
            return self
        modules = {layout.module.split(".")[0] for layout in self.stored.values()}
        prefix = max(prefixes, key=lambda prefix: sum(_first(name, prefix) in modules for name in names))
        parents = [prefix[: dot.end()] for dot in re.finditer(r"\.", prefix)][::-1]
        head_prefix = next((parent for parent in parents if any(n.startswith(parent + _HEAD) for n in names)), "")
        return replace(
            self,
            prefix=prefix,
            head_prefix=head_prefix,
            skipped=(
                *self.skipped,
                Skip(rf"(model\.)?({self.towers})(\..*)?", "the parts for images or sound", noted=True),
            ),
        )

    def head_of_class(self, name: str) -> str:
        """Our word for the head of a class of transformers; that of a whole model predicts tokens."""
        return super().head_of_class(name) if name.endswith("Model") else "lm"

    def plain(self, stored: str) -> str:
        """A stored name without the prefix of its part."""
        stored = self._respelled(stored)
        head = stored.removeprefix(self.head_prefix)
        if head.startswith(f"{_HEAD}."):
            return head
        if not stored.startswith(self.prefix):
            return stored.removeprefix("model.")
        for word, usual in _RENAMED if self.prefix else _RENAMED[1:]:
            stored = re.sub(word, usual, stored.removeprefix(self.prefix))
        return super().plain(stored)

    def _respelled(self, name: str) -> str:
        """A stored name in the current spelling, with its prefix."""
        return self.spelled(name) if self.published else name

    def prefixed(self, plain: str) -> str:
        """The stored name: with the prefix of the text part, or for its head with that of the head."""
        return (self.head_prefix if plain.startswith(self.outside) else self.prefix) + plain


def _first(name: str, prefix: str) -> str:
    """The first word of a name after the prefix; empty for a name without it."""
    return name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else ""


def keys_of_text(data: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the text part: those of its own table ``text``, and those of the whole model that count more."""
    keys = {**text, **{key: data[key] for key in _OUTSIDE if key in data}}
    if text.get("tie_word_embeddings"):  # either one ties them in some models; it counts where no head is stored
        keys["tie_word_embeddings"] = True
    if data.get("model_type") == "paligemma":  # its mask is made outside, and is causal but for a marked prefix
        keys.pop("use_bidirectional_attention", None)
    return keys


def notes_on(whole: Mapping[str, Any]) -> list[str]:
    """What else a user of a whole model should know."""
    if whole.get("model_type") != "paligemma":
        return []
    return ["a prompt is read causally, as the model does alone; PaliGemma's processor lets its tokens see later ones"]


def text_part(family: Family, whole: str) -> TextPart:
    """The table of a family as the text part of a whole model of this model_type, whose head it has."""
    plain_head = {} if whole in SCALED_HEADS else {"logit_cap": 0.0, "logit_scale": 1.0}

    def read(data: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        stored = f"{_HEAD}.weight" in tensors
        classes = data.array("architectures", str, ())
        predicts = any(not name.endswith("Model") for name in classes)
        untied = data.data.get("tie_word_embeddings") is False
        tied = not (stored or untied) and (
            predicts or draft["tied_head"]
        )  # transformers unties a stored head that differs
        if not (stored or tied):
            return {}
        return {"head": "lm", "tied_head": tied, "head_bias": f"{_HEAD}.bias" in tensors, **plain_head}

    values = {field.name: getattr(family, field.name) for field in fields(family)}
    own = {"settings": (*family.settings, Group(read)), "towers": TOWERS.get(whole, _NONE)}
    return TextPart(**values | own, published=whole in PUBLISHED)
