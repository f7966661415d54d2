"""Embeddings of a text with masks: 0 at masks, the others scaled up with the share of masks (ESM, Lin et al. 2023)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


@dataclass(frozen=True)
class Keep(Operation):
    """x · (1 − ``share``) / (1 − the share of masks in this text), and 0 where a token is ``mask_id``.

    ``share`` is the share of tokens that were masked in training.
    """

    share: float
    mask_id: int

    words = "a multiplication"

    def factors(self, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The factor of each token, in float64: ids (…, T) -> (…, T, 1). Padding does not count as text."""
        masked = ids == self.mask_id
        count = ids.shape[-1] if padding_mask is None else padding_mask.sum(dim=-1, keepdim=True)
        unmasked_share = 1 - masked.sum(dim=-1, keepdim=True).double() / count
        return ((1 - self.share) / unmasked_share).masked_fill(masked, 0.0).unsqueeze(-1)

    def apply(self, x: Tensor, ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The vectors (…, T, C) times their factors, rounded once."""
        return (wide(x) * self.factors(ids, padding_mask).to(wide(x).dtype)).to(x.dtype)

    def _ids(self, site: Site, like: Tensor) -> Tensor:
        return torch.tensor(site.ids, device=like.device)

    def _factors_of(self, site: Site, like: Tensor) -> Tensor:
        return self.factors(self._ids(site, like)).to(like.dtype)  # (T, 1)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        assert now.ids is not None, "masks are found by their ids"
        return self.apply(inputs[0], now.ids, now.padding_mask)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.apply(site.input(), self._ids(site, site.input()))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g * self._factors_of(site, g),)

    def code(self, site: Site) -> str:
        lines = [
            f"masked = ids == {self.mask_id}",
            f"factor = {1 - self.share} / (1 - masked.double().mean())",
            f"factors = torch.where(masked, 0.0, factor).to({site.names[0]}.dtype)",
            f"{site.variable} = {site.names[0]} * factors[:, None]",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        source, ids = cell.source(0, *cell.index), cell.site.ids
        factor = float(self._factors_of(cell.site, cell.site.value)[cell.index[0], 0])
        masks = list(ids).count(self.mask_id)
        words = f"{1 - self.share:g} / (1 − {masks} / {len(ids)}), for {masks} masks among {len(ids)} tokens"
        if ids[cell.index[0]] == self.mask_id:
            words = "of a mask"
        series = single(
            f"{source.step.name} · factor", [(source.step.name, source.value), ("factor", factor)], (source,)
        )
        return Working(((source, 2),), series, before=(Value("factor", factor, words),), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        factor = self._factors_of(to.site, to.g)[to.row.place, 0]
        lines = ("factor is 0 at a mask",)
        return Summand(
            f"{to.symbol} · factor", to.incoming.values * factor, lines, (to.incoming, Quantity("factor", factor))
        )
