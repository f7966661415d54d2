"""One layer: a mixer and a feed-forward, their norms, and how they add to the residual stream."""

from dataclasses import dataclass, field, replace
from types import ModuleType

from tinytf.errors import ConfigError
from tinytf.parts import (
    added_conv,
    altup,
    attention,
    cross,
    feed_forward,
    gated_delta,
    gated_streams,
    griffin,
    hyper,
    kimi_delta,
    laurel,
    layer_inputs,
    lightning,
    mamba,
    mamba2,
    memory,
    ngrams,
    norm,
    short_conv,
    side_conv,
)
from tinytf.parts.added_conv import AddedConvolutions
from tinytf.parts.altup import AltUp
from tinytf.parts.attention import Attention
from tinytf.parts.cross import Cross
from tinytf.parts.feed_forward import FeedForward
from tinytf.parts.gated_delta import GatedDelta
from tinytf.parts.griffin import Griffin
from tinytf.parts.kimi_delta import KimiDelta
from tinytf.parts.laurel import Laurel
from tinytf.parts.layer_inputs import LayerInputs
from tinytf.parts.lightning import Lightning
from tinytf.parts.mamba import Mamba
from tinytf.parts.mamba2 import Mamba2
from tinytf.parts.memory import Memory
from tinytf.parts.ngrams import Ngrams
from tinytf.parts.norm import Norms, Residual
from tinytf.parts.part import Part, kinds_of, merged
from tinytf.parts.row import ATTN, FFN, Step
from tinytf.parts.short_conv import ShortConvolution
from tinytf.parts.side_conv import SideConvolution


@dataclass(frozen=True, kw_only=True)
class NoMixer(Part):
    """A layer that only has a feed-forward (Nemotron-H)."""

    called = "none"
    state_size = 0

    @property
    def n_heads(self) -> int:
        return 0

    def words(self, causal: bool) -> dict[str, str]:
        return {"attention": "no mixer"}


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Part):
    """The parts of one layer."""

    mixer: Attention | GatedDelta | KimiDelta | ShortConvolution | Mamba2 | Mamba | Lightning | Griffin | NoMixer
    feed_forward: FeedForward
    norms: Norms = field(default_factory=Norms)
    residual: Residual = field(default_factory=Residual)
    layer_inputs: LayerInputs = field(default_factory=LayerInputs)
    side: SideConvolution = field(default_factory=SideConvolution)
    laurel: Laurel = field(default_factory=Laurel)
    streams: AltUp = field(default_factory=AltUp)
    ngrams: Ngrams = field(default_factory=Ngrams)
    memory: Memory = field(default_factory=Memory)
    added: AddedConvolutions = field(default_factory=AddedConvolutions)
    cross: Cross = field(default_factory=Cross)

    def require(self) -> None:
        norms, kind = self.norms, self.residual.residual
        if not self.feed_forward.d_ff and (norms.norm_order != "pre" or kind == "parallel"):
            raise ConfigError("d_ff is 0, but only a sequential pre-norm block can do without a feed-forward")
        if self.residual.layer_scale and norms.norm_order == "post":
            raise ConfigError("layer_scale multiplies a sum that nothing norms, but norm_order is 'post'")
        if self.residual.residual_of == "normed" and not (
            kind == "sequential"
            and norms.norm_order == "pre"
            and norms.input_norm
            and self.feed_forward.d_ff
            and not isinstance(self.mixer, NoMixer)
        ):
            raise ConfigError("residual_of 'normed' needs a sequential pre-norm block with a mixer and a feed-forward")
        if self.side.side_width and norms.norm_order != "post":
            raise ConfigError(f"a side_width needs norm_order 'post', not {norms.norm_order!r}")
        if isinstance(self.mixer, Attention) and self.mixer.head_experts:
            heads, experts = self.mixer.n_heads, self.feed_forward.mixture.experts
            if not experts or heads != self.mixer.n_kv_heads * experts:
                raise ConfigError(f"head_experts needs a head for each expert and key-value head, not {heads:,} heads")
        if self.streams.hyper.hyper:
            if norms.norm_order != "pre" or self.layer_inputs.d_layer_input or self.laurel.laurel_rank:
                raise ConfigError("hyper needs norm_order 'pre', without laurel_rank and d_layer_input")
            if norms.norm_below or norms.shortcut or self.memory.memory != "none" or self.cross.d_source:
                raise ConfigError("hyper needs layers that each read the streams alone")
        predicted = self.streams.extra_streams and not (self.streams.stream_rank or self.streams.hyper.hyper)
        if self.streams.stream_rank or self.ngrams.ngram_number:
            self._require_gated_streams()
        if predicted and not (norms.norm_order == "both" and self.layer_inputs.d_layer_input):
            raise ConfigError("extra_streams need hyper, a stream_rank, or norm_order 'both' and a d_layer_input")
        if self.streams.extra_streams and self.residual.layer_scale:
            raise ConfigError("layer_scale multiplies one stream, but there are extra_streams")
        if self.layer_inputs.d_layer_input and not (self.residual.layer_scale or self.streams.extra_streams):
            raise ConfigError("d_layer_input needs layer_scale or extra_streams")
        if (self.laurel.laurel_rank or predicted) and not (
            kind == "sequential"
            and norms.norm_order in ("pre", "both")
            and norms.input_norm
            and self.residual.residual_of == "stream"
            and self.feed_forward.d_ff
            and not isinstance(self.mixer, NoMixer)
        ):
            raise ConfigError("laurel_rank and extra_streams need a sequential block that norms what its parts read")
        if isinstance(self.mixer, NoMixer):
            if norms.norm_order != "pre" or kind == "parallel":
                raise ConfigError("mixer is 'none', but only a sequential pre-norm block can do without a mixer")
            if not self.feed_forward.d_ff:
                raise ConfigError("a layer without a mixer, mixer 'none', needs a feed-forward, and d_ff is 0")
        if norms.shared_norm and kind != "parallel":
            raise ConfigError(f"a shared norm needs a parallel residual, not {kind!r}")
        if kind == "parallel" and norms.norm_order != "pre":
            raise ConfigError(f"a parallel residual needs norm_order 'pre', not {norms.norm_order!r}")
        if norms.shortcut and (kind == "parallel" or not self.feed_forward.d_ff):
            raise ConfigError("a shortcut needs a sequential block with a feed-forward")
        if not norms.input_norm and (norms.norm_order != "pre" or kind == "parallel"):
            raise ConfigError("input_norm is false, but only a sequential pre-norm block can do without that norm")
        if self.memory.memory != "none":
            self._require_memory()
        if self.cross.d_source:
            self.cross.require_block(self)

    def _require_gated_streams(self) -> None:
        """Raise ConfigError for settings that do not fit streams that are read through gates."""
        norms, residual = self.norms, self.residual
        if not self.streams.stream_rank:
            raise ConfigError("ngram_number adds to streams that are read through gates, but stream_rank is 0")
        plain = norms.norm_order == "pre" and norms.input_norm and residual == Residual()
        if not plain or norms.shared_norm or norms.norm_below or norms.shortcut or self.laurel.laurel_rank:
            raise ConfigError("stream_rank needs a sequential pre-norm block, with nothing beside its parts")
        if not self.feed_forward.d_ff or isinstance(self.mixer, NoMixer) or self.layer_inputs.d_layer_input:
            raise ConfigError("stream_rank needs a mixer and a feed-forward in each layer, and no d_layer_input")

    def _require_memory(self) -> None:
        """Raise ConfigError for settings that a layer beside the stream, or the one above it, does not fit."""
        norms, residual, mixer, which = self.norms, self.residual, self.mixer, self.memory.memory
        plain = norms.norm_order == "pre" and norms.input_norm and not norms.norm_below
        if not plain or residual.residual_of != "stream" or residual.residual == "parallel" or residual.layer_scale:
            raise ConfigError(f"memory {which!r} needs a sequential pre-norm block that adds to the stream alone")
        if which == "takes":
            if isinstance(mixer, NoMixer):
                raise ConfigError("memory 'takes' adds to what a mixer reads, and this layer has none")
            return
        if not isinstance(mixer, Attention) or not self.feed_forward.d_ff or self.feed_forward.mixture.experts:
            raise ConfigError("memory 'gives' needs attention and a feed-forward without experts")
        if mixer.latent.kv_rank or mixer.latent.q_rank or mixer.attention_gate or mixer.shares_keys:
            raise ConfigError("memory 'gives' needs attention with keys of its own, and without gates")
        if residual.residual_scale != 1:
            raise ConfigError(
                f"residual_scale {residual.residual_scale:g} scales what layers add, and memory 'gives' adds nothing"
            )

    def words(self, causal: bool) -> dict[str, str]:
        parts = (
            self.residual, self.streams, self.ngrams, self.laurel, self.norms, self.mixer, self.feed_forward,
            self.layer_inputs, self.side, self.memory, self.added, self.cross,
        )  # fmt: skip
        return merged(*(part.words(causal) for part in parts))


MIXERS: tuple[type[Part], ...] = kinds_of(BlockConfig.__dataclass_fields__["mixer"].type)


def _rows_of(kind: type[Part], part: ModuleType) -> tuple[Step, ...]:
    return tuple(replace(row, mixer=kind.called) for row in part.ROWS)


ROWS: tuple[Step, ...] = (
    norm.INPUT, *altup.BEFORE_LAYER, *hyper.BEFORE_MIXER, *memory.READ, *ngrams.ROWS, *gated_streams.BEFORE_MIXER,
    *norm.BEFORE_MIXER, *_rows_of(Attention, attention),
    *_rows_of(GatedDelta, gated_delta), *_rows_of(KimiDelta, kimi_delta),
    *_rows_of(ShortConvolution, short_conv), *_rows_of(Mamba2, mamba2), *_rows_of(Mamba, mamba),
    *_rows_of(Lightning, lightning), *_rows_of(Griffin, griffin),
    added_conv.OF_MIXER, *norm.ATTENTION_ADDED, *laurel.ROWS, hyper.written("mid", "attention", ATTN), *norm.BETWEEN,
    *gated_streams.BEFORE_FFN, *cross.ROWS, *hyper.BEFORE_FFN, *norm.BEFORE_FFN,
    *feed_forward.ROWS, *memory.GIVEN, *added_conv.OF_FFN, *norm.FFN_ADDED,
    *altup.AFTER_LAYER, *layer_inputs.ROWS, *norm.AFTER, altup.OUT,
    hyper.written("out", "the feed-forward", FFN, recorded=True), gated_streams.OUT, *side_conv.ROWS,
)  # fmt: skip
"""One layer, from residual stream to residual stream."""
