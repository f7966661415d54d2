"""Short convolutions of keys, values and of what attention and the feed-forward give (Inkling, 2026)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.part import COUNT, Part, leaf
from tinytf.parts.row import ATTN, FFN, KV, VALUES, WIDE, Config, K, Step, V

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class AddedConvolutions(Part):
    """Keys, values, and the outputs of attention and feed-forward pass through convolutions over ``added_conv`` tokens.

    With ``ffn_scale`` the output of the feed-forward is multiplied by a learned number before.
    """

    added_conv: int = leaf(0, COUNT, said="convolutions over {} tokens of keys, values and outputs")
    ffn_scale: bool = leaf(False, said="the learned scale of feed-forwards")

    def fit(self, d_model: int, causal: bool) -> None:
        if self.added_conv and not causal:
            raise ConfigError(f"added_conv {self.added_conv} reads from left to right, but causal is false")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "convolution": f"keys and values and outputs over {self.added_conv} tokens" if self.added_conv else "",
            "feed-forward": "times a learned number" if self.ffn_scale else "",
        }


def windows_of(c: Config) -> int:
    """How many numbers a layer caches of a text of any length: the windows of its convolutions."""
    of_tokens = c.n_kv_heads * (c.d_head + c.value_width) + 2 * c.d_model
    return int((c.added_conv - 1) * of_tokens) if c.added_conv else 0


def _has(c: Config) -> bool:
    return bool(c.added_conv > 0)


def _convolve(o: "ModuleType", c: Config) -> Any:
    return o.ShortConv(c.added_conv or 1, tap="added tap")


def _convolve_wide(o: "ModuleType", c: Config) -> Any:
    return o.ShortConv(c.added_conv or 1, headed=False, tap="added tap")


def _scale(o: "ModuleType", _: Config) -> Any:
    return o.LearnedScale()


_NOT_SCALED = "feed-forwards are not scaled in this model"
_FORMULA, _NONE = "Σ w·{0} of the last {added_taps} tokens", "nothing but states is convolved in this model"

KEYS_AND_VALUES: tuple[Step, ...] = (
    Step("k_conv", "keys, convolved before any norm", _FORMULA, KV, (K,), "k", when=_has, absent=_NONE, make=_convolve,
         module="attention.k_conv", late=True),
    Step("v_conv", "values of attention, convolved", _FORMULA, VALUES, (V,), "v", when=_has, absent=_NONE,
         make=_convolve, module="attention.v_conv", late=True),
)  # fmt: skip
"""After the keys and values of attention."""
OF_MIXER = Step("attn_conv", "attention output, convolved", _FORMULA, WIDE, (ATTN,), "attention", when=_has,
                absent=_NONE, make=_convolve_wide, module="attn_conv", late=True)  # fmt: skip
"""After the output of attention."""
OF_FFN: tuple[Step, ...] = (
    Step("ffn_gain", "feed-forward output, times a learned number", "{0} · s", WIDE, (FFN,), "ffn",
         when=lambda c: c.ffn_scale and not c.experts, absent=_NOT_SCALED, make=_scale, module="ffn_gain", matrix="s",
         late=True),
    Step("ffn_gain", "experts, times a learned number", "{0} · s", WIDE, (FFN,), "ffn",
         when=lambda c: c.ffn_scale and c.experts > 0, make=_scale, module="ffn.gain", matrix="s", late=True),
    Step("ffn_conv", "feed-forward output, convolved", _FORMULA, WIDE, (FFN,), "ffn", when=_has, absent=_NONE,
         make=_convolve_wide, module="ffn_conv", late=True),
)  # fmt: skip
"""After the output of the feed-forward."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {"added_taps": str(c.added_conv)}
