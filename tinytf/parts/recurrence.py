"""What mixers with a state share: they read from left to right, and cache as much of a text of any length."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tinytf.errors import ConfigError
from tinytf.parts.part import COUNT, POSITIVE, Part, leaf
from tinytf.parts.row import Config

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Recurrence(Part):
    """A mixer with a state; ``noun`` names it in errors."""

    noun: ClassVar[str] = "a recurrence"
    n_heads: int = leaf(limits=POSITIVE, differs=True, said="{} heads")
    d_head: int = leaf(0, COUNT, differs=True, said="heads {} wide", zero="d_model / n_heads")

    def fit(self, d_model: int, causal: bool) -> None:
        if not causal:
            raise ConfigError(f"{self.noun} reads from left to right, but causal is false")


@dataclass(frozen=True, kw_only=True)
class MatrixState(Recurrence):
    """``n_heads`` value heads, ``d_value`` wide, and ``n_kv_heads`` query and key heads, ``d_head`` wide.

    Each passes through a convolution over ``conv_width`` tokens. A head's state is a matrix S (K, D), which each token
    scales by its decay before it writes to it.
    """

    conv_width: int = leaf(4, POSITIVE, said="a convolution over {} tokens")
    n_kv_heads: int = leaf(0, COUNT, differs=True, said="{} key heads", zero="n_heads")
    d_value: int = leaf(0, COUNT, differs=True, said="values {} wide", zero="d_head")

    def require(self) -> None:
        for name, default in (("n_kv_heads", self.n_heads), ("d_value", self.d_head)):
            if not getattr(self, name):
                object.__setattr__(self, name, default)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}")

    @property
    def state_size(self) -> int:
        """How many numbers a layer caches of a text of any length: the states, and the windows of the convolutions."""
        convolved = 2 * self.n_kv_heads * self.d_head + self.n_heads * self.d_value
        return self.n_heads * self.d_head * self.d_value + (self.conv_width - 1) * convolved

    def sizes_in_words(self) -> str:
        """The heads, their states and the convolutions in words."""
        shared = f" ({self.n_kv_heads} of queries and keys)" * (self.n_kv_heads != self.n_heads)
        state = f"a state of {self.d_head} × {self.d_value} numbers each"
        return f"{self.n_heads} heads{shared}, {state}, after convolutions over {self.conv_width} tokens"


def project(o: "ModuleType", _: Config) -> Any:
    """A matrix without a bias."""
    return o.Linear(False)


def activate(o: "ModuleType", _: Config) -> Any:
    """SiLU; of two inputs, it multiplies the second by the SiLU of the first."""
    return o.Activate("silu")


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of mixers with convolutions."""
    return {"taps": str(c.conv_width), "conv_bias": " + b" if c.conv_bias else ""}
