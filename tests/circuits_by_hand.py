"""A decoder in float64, written out, in which every input reads a sum of its own over earlier nodes."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer

Edge = tuple[str, str]
"""The name of a sender and that of a receiver, such as ``("L0H1", "L1H2.q")``."""


class ByHand:
    """GPT-2 or Llama, with norms of the branches if the model has them; ``outputs`` are what nodes added last, (T, C).

    ``value`` gives what a receiver gets from a sender, from what that adds now: by default just that.
    """

    def __init__(self, model: Transformer) -> None:
        self.config: ModelConfig = model.config
        self.weights = {name: tensor.detach().double() for name, tensor in model.named_parameters()}
        self.outputs: dict[str, Tensor] = {}

    def embedded(self, ids: Sequence[int]) -> Tensor:
        x = self.weights["embed.tokens.weight"][list(ids)]
        positions = self.weights.get("embed.positions.weight")
        return x if positions is None else x + positions[: len(ids)]

    def lead(
        self,
        embedded: Tensor,
        answer: int,
        versus: int,
        value: Callable[[Edge, Tensor], Tensor] = lambda edge, now: now,
    ) -> Tensor:
        """The logit of ``answer`` less that of ``versus`` after the last token."""
        c, outputs = self.config, {"embed": embedded}

        def read(receiver: str) -> Tensor:
            return sum(value((name, receiver), now) for name, now in outputs.items())  # type: ignore[return-value]

        for layer in range(c.n_layers):
            at, shared, added = f"blocks.{layer}.", c.n_heads // c.n_kv_heads, list[Tensor]()

            def projected(role: str, number: int, name: str, at: str = at) -> Tensor:
                rows = slice(number * c.d_head, (number + 1) * c.d_head)
                x = self.norm(read(name), f"{at}norm1") @ self.weights[f"{at}attention.{role}.weight"][rows].T
                return x + self.weights.get(f"{at}attention.{role}.bias", torch.zeros(c.n_heads * c.d_head))[rows]

            for head in range(c.n_heads):
                group = head // shared
                first, last = group * shared, (group + 1) * shared - 1
                of_group = f"L{layer}H{first}" if first == last else f"L{layer}H{first}-{last}"
                q, k = projected("q", head, f"L{layer}H{head}.q"), projected("k", group, f"{of_group}.k")
                v = projected("v", group, f"{of_group}.v")
                if c.positions == "rotary":
                    q, k = self.turned(q), self.turned(k)
                scores = (q @ k.T / math.sqrt(c.d_head)).masked_fill(
                    torch.ones(len(q), len(q), dtype=torch.bool).triu(1), -math.inf
                )
                columns = slice(head * c.d_head, (head + 1) * c.d_head)
                added.append(scores.softmax(-1) @ v @ self.weights[f"{at}attention.o.weight"][:, columns].T)
            bias = self.weights.get(f"{at}attention.o.bias", torch.zeros(c.d_model))
            added = [x + bias / c.n_heads for x in added]
            if f"{at}attn_norm.weight" in self.weights:
                scale = (sum(added).square().mean(-1, keepdim=True) + c.norm_eps).sqrt()  # type: ignore[union-attr]
                added = [x / scale * self.weights[f"{at}attn_norm.weight"] for x in added]
            outputs |= {f"L{layer}H{head}": x for head, x in enumerate(added)}
            outputs[f"L{layer}.ffn"] = self.feed_forward(self.norm(read(f"L{layer}.ffn"), f"{at}norm2"), at)
        self.outputs = outputs
        last = self.norm(read("logits"), "final_norm")[-1]
        table = self.weights.get("head.decoder.weight", self.weights["embed.tokens.weight"])
        return last @ (table[answer] - table[versus])

    def norm(self, x: Tensor, name: str) -> Tensor:
        bias = self.weights.get(f"{name}.bias")
        if bias is not None:
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + self.config.norm_eps).sqrt() * self.weights[f"{name}.weight"]
        return x if bias is None else x + bias

    def turned(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * rates
        a, b, cos, sin = x[:, :half], x[:, half:], angles.cos(), angles.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def feed_forward(self, x: Tensor, at: str) -> Tensor:
        w = self.weights
        hidden = x @ w[f"{at}ffn.up.weight"].T + w.get(f"{at}ffn.up.bias", 0.0)
        if f"{at}ffn.gate.weight" in w:
            hidden = torch.nn.functional.silu(x @ w[f"{at}ffn.gate.weight"].T) * hidden
        else:
            hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        out = hidden @ w[f"{at}ffn.down.weight"].T + w.get(f"{at}ffn.down.bias", 0.0)
        return self.norm(out, f"{at}ffn_norm") if f"{at}ffn_norm.weight" in w else out


def only(kept: set[Edge], corrupt: Mapping[str, Tensor]) -> Callable[[Edge, Tensor], Tensor]:
    """Kept edges as they are now, all others as in the corrupt run; an edge such as ``("L0H1@3", "L1H2.q@3")`` is kept
    at that token alone.
    """

    def value(edge: Edge, now: Tensor) -> Tensor:
        is_kept = [edge in kept or (f"{edge[0]}@{at}", f"{edge[1]}@{at}") in kept for at in range(len(now))]
        return torch.where(torch.tensor(is_kept)[:, None], now, corrupt[edge[0]])

    return value
