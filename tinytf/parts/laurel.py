"""LAuReL: a learned residual beside attention, of low rank (Menghani et al. 2024)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.norm import has_laurel, make_norm
from tinytf.parts.part import COUNT, Part, leaf
from tinytf.parts.row import ATTN, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Laurel(Part):
    """What attention reads, plus a normed map of it of rank ``laurel_rank``, is added beside attention (Gemma 3n).

    The sum is divided by √2.
    """

    laurel_rank: int = leaf(0, COUNT, said="a rank of {} of LAuReL")

    def words(self, causal: bool) -> dict[str, str]:
        return {"residual": f"a learned one of rank {self.laurel_rank} beside attention" if self.laurel_rank else ""}


def _linear(o: "ModuleType", _: Config) -> Any:
    return o.Linear(False)


_NONE = "there is no low-rank residual beside attention in this model"

ROWS: tuple[Step, ...] = (
    Step("laurel.left", "low-rank residual, narrowed", "{0}·W_left", ("token", "laurel_rank"), ("norm1",), "ffn",
         when=has_laurel, absent=_NONE, make=_linear, module="laurel.left", matrix="W_left", late=True),
    Step("laurel.right", "low-rank residual, widened", "{0}·W_right", WIDE, ("laurel.left",), "ffn", when=has_laurel,
         absent=_NONE, make=_linear, module="laurel.right", matrix="W_right", late=True),
    Step("laurel.norm", "low-rank residual, normed", "{norm}({0})", WIDE, ("laurel.right",), "ffn", when=has_laurel,
         absent=_NONE, make=make_norm, module="laurel.norm", matrix="gain", late=True),
    Step("laurel.out", "what the low-rank residual adds", "{inputs}", WIDE, ("norm1", "laurel.norm"), "ffn",
         recorded=True, when=has_laurel, absent=_NONE, make=lambda o, _: o.Add()),
    Step("laurel.sum", "residual after attention, to be scaled", "{inputs}", WIDE,
         ("<entering>", ATTN, "laurel.out"), when=has_laurel, absent=_NONE, make=lambda o, _: o.Add()),
)  # fmt: skip
"""From the input of attention to the residual stream after it, before the scale."""
