"""EncoderDecoderModel: the encoder of one family, and the decoder of another or the same (Rothe et al. 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinytf.checkpoints.huggingface.bert import ALBERT, BERT, CAMEMBERT, DISTILBERT, ELECTRA, ROBERTA, XLM_ROBERTA
from tinytf.checkpoints.huggingface.encoders import BERT_GENERATION
from tinytf.checkpoints.huggingface.given_states import BART_DECODER, MBART_DECODER, TROCR
from tinytf.checkpoints.huggingface.gpt2 import GPT2
from tinytf.checkpoints.huggingface.keys import part_of
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import Group, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted
from tinytf.model.transformer import ENCODER

_DECODER = "decoder."
_PROJECTION = "enc_to_dec_proj"
_READS = {"is_decoder": True, "add_cross_attention": True}


def _decoder(family: Family, kind: str, cross: Mapping[str, Stored]) -> Family:
    """A family as decoders that read an encoder.

    The head that fills masks in an encoder predicts the next token in a decoder, with the same layers.
    """
    biased = any(copy.endswith(".bias") for copy in family.copies)
    head = {"head": "lm", "head_bias": biased, **dict.fromkeys(("head_dense", "head_norm"), "mlm" in family.classes)}
    return replace(
        family,
        classes={"lm": kind},
        only={**family.only, **{key: (value,) for key, value in _READS.items()}},
        fixed={**family.fixed, "causal": True},
        settings=(*family.settings, Group(lambda fields, draft, tensors: head)),
        written={**family.written, **_READS},
        stored={**family.stored, **{f"blocks.{{n}}.cross.{ours}": place for ours, place in cross.items()}},
        heads={},
    )


_OF_BERT = {
    **{ours: Stored(f"encoder.layer.{{n}}.crossattention.self.{theirs}")
       for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value"))},
    "o": Stored("encoder.layer.{n}.crossattention.output.dense"),
    "norm": Stored("encoder.layer.{n}.crossattention.output.LayerNorm"),
}  # fmt: skip
_KEYS_AND_VALUES: dict[str, Any] = {"parts": ("n_kv_heads", "n_kv_heads"), "transposed": True}
_OF_GPT2 = {
    "q": Stored("h.{n}.crossattention.q_attn", transposed=True),
    "k": Stored("h.{n}.crossattention.c_attn", **_KEYS_AND_VALUES),
    "v": Stored("h.{n}.crossattention.c_attn", part=1, **_KEYS_AND_VALUES),
    "o": Stored("h.{n}.crossattention.c_proj", transposed=True),
    "norm": Stored("h.{n}.ln_cross_attn"),
}
DECODERS: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        _decoder(BERT, "BertLMHeadModel", _OF_BERT),
        _decoder(ROBERTA, "RobertaForCausalLM", _OF_BERT),
        _decoder(XLM_ROBERTA, "XLMRobertaForCausalLM", _OF_BERT),
        _decoder(CAMEMBERT, "CamembertForCausalLM", _OF_BERT),
        _decoder(BERT_GENERATION, "BertGenerationDecoder", _OF_BERT),
        _decoder(GPT2, "GPT2LMHeadModel", _OF_GPT2),
        BART_DECODER,
        MBART_DECODER,
        TROCR,
    )
}
ENCODERS: Mapping[str, Family] = {
    family.model_type: replace(family, prefix="", heads={})
    for family in (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ELECTRA, DISTILBERT, ALBERT, BERT_GENERATION)
}


@dataclass(frozen=True, kw_only=True)
class TwoFamilies(Family):
    """The table of files that hold the stacks of two families, each under a prefix and a key of its own.

    Without ``of_encoder`` the encoder reads images or sound, and its states are given.
    """

    of_encoder: Family | None
    of_decoder: Family

    @classmethod
    def of(cls, encoder: Family | None, decoder: Family, kind: str = "EncoderDecoder") -> "TwoFamilies":
        """The table of one family's encoder and another's decoder, in the model class of this ``kind``."""
        return cls(
            name=f"{kind} of {f'{encoder.name} and ' if encoder else ''}{decoder.name}",
            model_type=_KINDS[kind],
            classes={"lm": f"{kind}Model"},
            settings=(),
            fixed={"d_ff": 0},
            harmless=("vocab_size", "tie_encoder_decoder", "tie_word_embeddings", *("encoder",) * (encoder is None)),
            stored={
                **{
                    ENCODER + ours: _within(ENCODER, how)
                    for ours, how in (encoder.stored if encoder else {}).items()
                    if "head." not in ours
                },
                **{ours: _within(_DECODER, how) for ours, how in decoder.stored.items()},
                "source_projection": Stored(_PROJECTION),
            },
            copies={
                prefix + copy: prefix + original
                for prefix, family in ((ENCODER, encoder), (_DECODER, decoder))
                for copy, original in (family.copies if family else {}).items()
            },
            of_encoder=encoder,
            of_decoder=decoder,
        )

    def of_config(self, data: Mapping[str, Any]) -> "TwoFamilies":
        """The table of the families that a configuration names."""
        return self.of(
            None if self.of_encoder is None else _named(data, "encoder", ENCODERS),
            _named(data, "decoder", DECODERS),
            self.classes["lm"].removesuffix("Model"),
        )

    def read_fields(self, fields: Fields, tensors: Tensors) -> dict[str, Any]:
        """Our fields of the decoder, and the configuration of its encoder."""
        if not fields.flag("is_causal", True):
            raise fields.fault("is_causal False is not implemented for a pair", "transformers reads it in decoder")
        drafts = {}
        for prefix, family in self._sides:
            own = {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
            drafts[prefix] = family.read_fields(part_of(fields, prefix.rstrip("."), family), own)
        decoder = drafts[_DECODER]
        first = fields.data["decoder"].get("bos_token_id") or 0
        decoder |= {"start_id": fields.whole("decoder_start_token_id", first, least=0)}
        if self.of_encoder is None:
            width, given = decoder.get("d_source", decoder["d_model"]), Fields(fields.data["encoder"], fields.source)
            if projected := f"{_PROJECTION}.weight" in tensors:
                width = given.whole("output_hidden_size", given.whole("hidden_size", 0, least=0), least=1)
            return {**decoder, "d_source": width, "source_projection": projected}
        encoder = ModelConfig.of(**{**drafts[ENCODER], "head": "none", "head_bias": False, "tied_head": True})
        width = fields.parts["decoder"][0].whole("cross_attention_hidden_size", 0, least=0)
        projected = encoder.d_model != decoder["d_model"] and not width
        reads = width or decoder.get("d_source", decoder["d_model"])
        if not projected and reads != encoder.d_model:
            raise fields.fault(f"its decoder's cross-attention does not read the {encoder.d_model} of its encoder")
        return {**decoder, "encoder": encoder, "d_source": encoder.d_model, "source_projection": projected}

    def _write(self, config: ModelConfig) -> dict[str, Any] | None:
        if (config.encoder is None) != (self.of_encoder is None) or not config.d_source:
            return None
        both = {}
        for prefix, family in self._sides:
            keys = family.write(config.encoder if prefix == ENCODER and config.encoder is not None else config)
            if keys is None:
                return None
            both[prefix.rstrip(".")] = {"model_type": family.model_type, **keys}
        return {
            "architectures": [self.classes["lm"]],
            "is_encoder_decoder": True,
            **both,
            "decoder_start_token_id": config.start_id,
        }

    @property
    def _sides(self) -> tuple[tuple[str, Family], ...]:
        read = () if self.of_encoder is None else ((ENCODER, self.of_encoder),)
        return *read, (_DECODER, self.of_decoder)

    def _side(self, name: str) -> tuple[str, Family] | None:
        return next((side for side in self._sides if name.startswith(side[0])), None)

    def plain(self, stored: str) -> str:
        """A stored name without the family's prefix inside of its stack."""
        side = self._side(stored)
        return side[0] + side[1].plain(stored.removeprefix(side[0])) if side else stored

    def prefixed(self, plain: str) -> str:
        """The stored name: with the family's prefix inside of its stack."""
        side = self._side(plain)
        return side[0] + side[1].prefixed(plain.removeprefix(side[0])) if side else plain

    def why_skipped(self, plain: str, n_layers: int) -> Skip | None:
        """The reason of the stack's family to skip a tensor."""
        if self.of_encoder is None and plain.startswith(ENCODER):
            return _UNSEEN
        side = self._side(plain)
        return side[1].why_skipped(plain.removeprefix(side[0]), n_layers) if side else None


def _within(prefix: str, how: Stored) -> Stored:
    """A place inside of a stack."""
    return replace(
        how,
        module=prefix + how.module,
        bias=how.bias and prefix + how.bias,
        instead=how.instead and _within(prefix, how.instead),
    )


def _named(data: Mapping[str, Any], stack: str, known: Mapping[str, Family]) -> Family:
    """The family of a stack. Raises CheckpointError for one that is not among the ``known``."""
    kind = data[stack].get("model_type") if isinstance(data.get(stack), Mapping) else None
    if str(kind) not in known:
        raise CheckpointError(f"config.json has {stack} {quoted(str(kind))}", f"known are {', '.join(known)}")
    return known[str(kind)]


_KINDS = {
    "EncoderDecoder": "encoder-decoder",
    "VisionEncoderDecoder": "vision-encoder-decoder",
    "SpeechEncoderDecoder": "speech-encoder-decoder",
}
_UNSEEN = Skip(".*", "the encoder of images or sound: give its states with --source", True)
ENCODER_DECODERS = (
    TwoFamilies.of(ENCODERS["bert"], DECODERS["bert"]),
    TwoFamilies.of(None, DECODERS["trocr"], "VisionEncoderDecoder"),
    TwoFamilies.of(None, DECODERS["bart"], "SpeechEncoderDecoder"),
)
WRITTEN = tuple(TwoFamilies.of(encoder, decoder) for encoder in ENCODERS.values() for decoder in DECODERS.values())
"""The tables for models that are written."""
