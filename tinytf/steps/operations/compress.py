"""Blocks of tokens, each compressed to one vector: a weighted sum by a softmax within the block (DeepSeek-V4, 2026)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.mask import first_real
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, product


@dataclass(frozen=True)
class Compress(Operation):
    """Content and scores (…, T, W) and a bias (size, W) -> the blocks, each in the row of its last token, (…, T, D).

    A block has ``size`` tokens, and every dimension a softmax of its own over them; rows within a block are 0. If
    ``overlapping``, W is 2·D: the first half of a token's numbers belongs to the next block, the second to its own.
    Blocks begin with the first real token of a text. With a cache all tokens so far are compressed again.
    """

    size: int
    overlapping: bool

    words = "a weighted sum over a block"
    over_tokens = True
    remembers: ClassVar[tuple[tuple[int, str], ...]] = ((0, "block_content"), (1, "block_scores"))

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.b", "bias", ("block place", step.reads)),)

    def initialise(self, module: Any, std: float, generator: torch.Generator) -> None:
        module.bias.fill_(0.0)

    def forward(self, *inputs: Tensor) -> Tensor:
        content, scores, bias = (wide(x) for x in inputs)
        blocks = (self._shares(scores, bias) * self._laid(content)).sum(dim=-2)  # (…, N, D)
        rows = F.pad(blocks.unsqueeze(-2), (0, 0, self.size - 1, 0)).flatten(-3, -2)
        return F.pad(rows, (0, 0, 0, content.shape[-2] - rows.shape[-2])).to(inputs[0].dtype)

    def _laid(self, x: Tensor, before: float = 0.0) -> Tensor:
        """The numbers of each block, (…, T, W) -> (…, N, size or 2·size, D); ``before`` the first block."""
        count = x.shape[-2] // self.size
        x = x[..., : count * self.size, :].unflatten(-2, (count, self.size))
        if not self.overlapping:
            return x
        earlier, own = x.chunk(2, dim=-1)
        earlier = F.pad(earlier, (0, 0, 0, 0, 1, 0), value=before)[..., :count, :, :]
        return torch.cat((earlier, own), dim=-2)

    def _shares(self, scores: Tensor, bias: Tensor) -> Tensor:
        """The softmax over the tokens of each block."""
        count = scores.shape[-2] // self.size
        scores = scores[..., : count * self.size, :]
        return self._laid(scores + bias.repeat(count, 1), -torch.inf).softmax(dim=-2)

    def _back(self, g: Tensor, tokens: int) -> Tensor:
        """The transpose of ``_laid``: (N, size or 2·size, D) -> (T, W)."""
        if self.overlapping:
            earlier, own = g.chunk(2, dim=-2)
            g = torch.cat((F.pad(earlier[1:], (0, 0, 0, 0, 0, 1)), own), dim=-1)
        return F.pad(g.flatten(0, 1), (0, 0, 0, tokens - len(g) * self.size))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        first = None if now.padding_mask is None else first_real(now.padding_mask)
        if first is None or not bool(first.any()):
            return self.forward(*inputs, module.bias)
        places = torch.arange(inputs[0].shape[1], device=first.device)
        begun = [_rolled(x, places + first[:, None]) for x in inputs]
        return _rolled(self.forward(*begun, module.bias), places - first[:, None])

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(*site.inputs(), site.module.bias)

    def _gradients(self, site: Site, g: Tensor) -> tuple[Tensor, Tensor]:
        """Of the content w·g, and of the scores w ⊙ (c·g − Σ w·c·g), w being the shares of each block."""
        content, scores = (wide(x) for x in site.inputs())
        tokens = len(content)
        shares = self._shares(scores, wide(site.module.bias.detach()))
        g = wide(g)[self.size - 1 :: self.size][:, None]  # (N, 1, D)
        of_shares = self._laid(content) * g
        of_scores = shares * (of_shares - (shares * of_shares).sum(dim=-2, keepdim=True))
        return self._back(shares * g, tokens), self._back(of_scores, tokens)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.to(g.dtype) for gradient in self._gradients(site, g))

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        of_scores = self._gradients(site, g)[1]
        whole = of_scores[: len(of_scores) // self.size * self.size]
        yield f"{site.path}.bias", whole.unflatten(0, (-1, self.size)).sum(dim=0).to(g.dtype)

    def code(self, site: Site) -> str:
        content, scores = site.names
        (bias,) = self.operands(site)
        size, lines = self.size, [f"n = T // {self.size}"]
        for name, x, before in (("c", content, 0.0), ("s", scores, "-torch.inf")):
            lines.append(f"{name} = {x}[: n * {size}].unflatten(0, (n, {size}))" + f" + {bias}" * (name == "s"))
            if self.overlapping:
                lines.append(f"{name}, own = {name}.chunk(2, dim=-1)")
                lines.append(f"{name} = F.pad({name}, (0, 0, 0, 0, 1, 0), value={before})[:n]")
                lines.append(f"{name} = torch.cat(({name}, own), dim=1)")
        lines += [
            f"{site.variable} = torch.zeros(T, c.shape[-1], dtype=c.dtype)",
            f"{site.variable}[{size - 1}::{size}] = (s.softmax(1) * c).sum(1)",
        ]
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        token, width = cell.index
        content, scores = cell.source(0, token, width), cell.source(1, token, width)
        if (token + 1) % self.size:
            nothing = (Value("block", 0.0, f"no block of {self.size} tokens ends here"),)
            return Working(((content, 1), (scores, 1)), after=nothing, leads=())
        first, d = token + 1 - self.size, cell.site.value.shape[-1]
        places = [(at, width + d * self.overlapping) for at in range(first, token + 1)]
        if self.overlapping:
            places = [(at, width) for at in range(max(0, first - self.size), first)] + places
        bias = cell.site.module.bias
        cells = [(cell.source(0, *place), cell.source(1, *place)) for place in places]
        values = torch.tensor([[c.value, s.value] for c, s in cells], dtype=torch.float64)
        added = torch.tensor([float(bias[at % self.size, column]) for at, column in places], dtype=torch.float64)
        series = product(
            (content.step.name, "share"),
            (values[:, 0], (values[:, 1] + added).softmax(dim=0)),
            lambda i: f"{places[i][0]} {cell.token(places[i][0])}",
            lambda i: cells[i],
        )
        return Working(((content, 1), (scores, 1)), series)

    def summand(self, to: Consumer) -> Summand:
        result = self._gradients(to.site, to.g)[to.number][to.row.place].to(to.g.dtype)
        lines = (f"w: the shares in {to.site.step.name}", f"g: {to.symbol} of its block and, if they overlap, the next")
        content, scores = to.input_at_row(0), to.input_at_row(1)
        expression = "w ⊙ (c⊙g − Σ w⊙c⊙g)" if to.number else "w ⊙ g"
        return Summand(expression, result, lines, (content, Quantity(scores.name, scores.values)))


class CompressIndex(Compress):
    """The blocks that an indexer scores."""

    remembers = ((0, "index_content"), (1, "index_scores"))


def _rolled(x: Tensor, places: Tensor) -> Tensor:
    """The rows of each text at ``places`` (B, T), beyond the end again from the first: (B, T, W)."""
    index = (places % x.shape[1]).unsqueeze(-1).expand_as(x)
    return x.gather(1, index)
