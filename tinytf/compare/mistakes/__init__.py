"""Wrong formulas that people write, each tried: a reference that makes the mistake, computed by the step table.

A mistake says which steps it gives other values, from those before them. Everything after follows by the rows of the
table, so a mistake is confirmed by numbers: with it, the reference has the tensors that another program has.
"""

from tinytf.compare.mistakes.attention import heads, masks, scales, softmaxes
from tinytf.compare.mistakes.maps import activations, embeddings, experts, linears, logits, sums
from tinytf.compare.mistakes.mistake import Mistake
from tinytf.compare.mistakes.norms import norms
from tinytf.compare.mistakes.rotations import rotations
from tinytf.compare.mistakes.states import states

MISTAKES: tuple[Mistake, ...] = (
    *scales(), *masks(), *softmaxes(), *heads(), *rotations(), *norms(), *activations(), *sums(),
    *linears(), *embeddings(), *experts(), *logits(), *states(),
)  # fmt: skip
"""Every mistake that is tried."""
