"""Rows of hashed tables, looked up for the last few tokens: n-gram embeddings (Qwen4-Exp, 2026)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.mask import real_tokens
from tinytf.steps.operations.operation import Operation, Parameter, Pass, width_of
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


@dataclass(frozen=True)
class LookupNgrams(Operation):
    """For each table the row that a hash of the last tokens names, side by side (…, T, H·W); all in one matrix (R, W).

    Each order 2 … N has as many tables, with so many rows (``sizes``), the first at row ``firsts`` of the matrix. The
    ids of the last tokens, times ``multipliers``, the last token's first, are XORed, and divided by the size. A token
    with the id ``end`` hides those before it from later ones; padding counts as such tokens, as does what precedes the
    text.
    """

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    firsts: tuple[int, ...]
    end: int

    words = "a lookup by hashes"
    over_tokens = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("ngram row", "d_ngram/table")),)

    @property
    def _back(self) -> int:
        """How many tokens before each are hashed with it."""
        return len(self.multipliers) - 1

    def rows(self, ids: Tensor, before: Tensor | None = None) -> Tensor:
        """The rows of the matrix, (…, T) -> (…, T, H); ids of as many tokens as are hashed come ``before``."""
        if before is None:
            before = ids.new_full((*ids.shape[:-1], self._back), self.end)
        windows = torch.cat((before, ids), dim=-1).unfold(-1, self._back + 1, 1)  # (…, T, N), the token itself last
        hashed, current = list[Tensor](), windows[..., -1]
        mixed, visible = current * self.multipliers[0], torch.ones_like(current, dtype=torch.bool)
        for back in range(1, self._back + 1):
            token = windows[..., -1 - back]
            mixed = mixed ^ (token.where(visible, self.end) * self.multipliers[back])
            visible = visible & (token != self.end)
            hashed.append(mixed)
        each = len(self.sizes) // self._back
        of_tables = torch.stack(hashed, dim=-1).repeat_interleave(each, dim=-1)
        sizes, firsts = (torch.tensor(numbers, device=ids.device) for numbers in (self.sizes, self.firsts))
        return of_tables % sizes + firsts

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        assert now.ids is not None
        ids = now.ids
        if now.padding_mask is not None:
            ids = ids.where(real_tokens(now.padding_mask, ids.shape[-1])[:, 0, :, 0], self.end)
        before = None if now.cache is None else now.cache.recall(module)
        if now.cache is not None:
            self._remember(module, now, ids, before)
        vectors: Tensor = module.weight[self.rows(ids, before)]
        return vectors.flatten(-2)  # (B, T, H, W) -> (B, T, H·W)

    def _remember(self, module: Any, now: Pass, ids: Tensor, before: Tensor | None) -> None:
        """Store the ids of the last tokens, and of those before the last token."""
        earlier = ids.new_full((len(ids), self._back), self.end) if before is None else before
        windows = torch.cat((earlier, ids), dim=-1).unfold(-1, self._back, 1)  # (B, T + 1, N − 1)
        now.cache.remember(module, ids.shape[-1], *(windows[:, place] for place in (-2, -1)))

    def _of_site(self, site: Site) -> Tensor:
        return self.rows(torch.tensor(site.ids, device=site.module.weight.device))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        vectors: Tensor = site.module.weight[self._of_site(site)]
        return vectors.flatten(-2)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each vector's gradient is added to its row."""
        weight, rows = site.module.weight, self._of_site(site)
        of_rows = g.unflatten(-1, (rows.shape[-1], -1)).flatten(0, 1)
        yield f"{site.path}.weight", g.new_zeros(weight.shape).index_add_(0, rows.flatten(), of_rows)

    def code(self, site: Site) -> str:
        back, each = self._back, len(self.sizes) // self._back
        lines = [
            f"windows = F.pad(ids, ({back}, 0), value={self.end}).unfold(0, {back + 1}, 1).flip(-1)",
            f"seen = F.pad((windows[:, 1:] != {self.end}).cumprod(-1), (2, 0), value=1)[:, :-1].bool()",
            f"mixed = windows.where(seen, {self.end}) * torch.tensor({list(self.multipliers)})",
            f"for back in range(1, {back + 1}):",
            "    mixed[:, back] ^= mixed[:, back - 1]",
            f"hashed = mixed[:, 1:].repeat_interleave({each}, -1) % torch.tensor({list(self.sizes)})",
            f"{site.variable} = {site.step.matrix}[hashed + torch.tensor({list(self.firsts)})].flatten(-2)",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        token, column = cell.index
        table, place = divmod(column, width_of(cell.site) // len(self.sizes))
        row = int(self._of_site(cell.site)[token, table])
        order = table // (len(self.sizes) // self._back) + 2
        last = ", ".join(str(number) for number in cell.site.ids[max(0, token + 1 - order) : token + 1])
        before = (Value("row", row, f"by a hash of the ids {last}, in table {table}"),)
        letter = cell.step.matrix
        value = float(cell.site.module.weight[row, place])
        return Working((), single(f"{letter}[{row},{place}]", [(letter, value)]), before=before)
