"""What the tokens of a text write into a state, and what is left of it after later ones.

Shapes: T tokens, S of them up to a token, K rows and D columns of the state of a head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.protocols import Site


@dataclass(frozen=True)
class Written:
    """Each token writes ``rows`` ⊗ ``columns``, (T, K) and (T, D); ``left`` times that is in the state after a token.

    ``left`` of a token broadcasts to (S, K, D). Everything is float64, on the CPU.
    """

    rows: Tensor
    columns: Tensor
    left: Callable[[int], Tensor]

    def state(self, token: int) -> Tensor:
        """The state after a token, (K, D)."""
        return torch.einsum("sk,skd,sd->kd", *self._up_to(token))

    def new(self, token: int) -> Tensor:
        """What the token itself wrote, (K, D)."""
        return torch.einsum("sk,skd,sd->kd", *(part[-1:] for part in self._up_to(token)))

    def along(self, direction: Tensor, token: int) -> Tensor:
        """The product of what each token left in the state after ``token`` and a direction (K, D): (S,)."""
        return torch.einsum("sk,skd,sd,kd->s", *self._up_to(token), direction)

    def _up_to(self, token: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.rows[: token + 1], self.left(token), self.columns[: token + 1]


def at_keys(core: Sequence[Site], head: int, left: Callable[[int], Tensor]) -> Written:
    """What a mixer writes that reads keys ⊗ values; ``core`` are its steps from fits to what is read, ``left`` (S,)."""
    keys, values = core[0].input(1), core[-1].input(1)
    rows, columns = keys[head // (len(values) // len(keys))], values[head]
    return Written(rows.cpu().double(), columns.cpu().double(), lambda token: left(token)[:, None, None])


def since(steps: Tensor, token: int) -> Tensor:
    """The sum of ``steps`` (T, …) after each token, up to ``token``: (S, …)."""
    total = steps.cumsum(dim=0)
    return total[token] - total[: token + 1]
