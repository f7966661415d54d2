"""Embeddings, blocks and heads, and the Transformer that they make.

Shapes: B batch, T tokens, C d_model, V vocabulary.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.memory import require_free
from tinytf.model.cache import KVCache, LayerCache
from tinytf.steps.fused import kernels
from tinytf.steps.operations import Add
from tinytf.steps.operations.linear import Unembedding
from tinytf.steps.operations.lookup import Embedding
from tinytf.steps.operations.operation import Pass
from tinytf.steps.operations.rotate import rotary_frequencies
from tinytf.steps.program import STREAM, Program
from tinytf.steps.table import table_of

ADDED = (".o", ".down")
"""The ends of the paths of the matrices whose products are added to the residual stream."""


class Embeddings(Program):
    """Token vectors, plus positions and token types, normed and projected: each where the architecture has it."""

    tokens: Embedding

    def __init__(self, config: ModelConfig) -> None:
        rows = [step for step in table_of(config).before if step.runs]
        super().__init__(config, rows, "embed.", dropped=["embed.norm" if config.embed_norm else "embed.out"])

    def forward(
        self, ids: Tensor, token_types: Tensor | None = None, start: int = 0, padding_mask: Tensor | None = None
    ) -> Tensor:
        """ids (B, T) -> (B, T, C)."""
        return self.run({}, Pass(ids, token_types, start, padding_mask, table=self.tokens.weight))


class Block(Program):
    """One layer: what its rows make of the stream, in their order."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        table, own = table_of(config), config.at(layer)
        rows = table.in_layer(layer)
        sums = [step for step in rows if step.role == "residual" and isinstance(step.operation, Add)]
        added = [name for step in sums for name in step.inputs[1:]]
        super().__init__(own, rows, dropped=added, find=partial(kernels, own))

    def forward(
        self, x: Tensor, start: int = 0, padding_mask: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """The stream of tokens whose first is at position ``start``: (B, T, C) -> (B, T, C)."""
        return self.run({STREAM: x}, Pass(start=start, padding_mask=padding_mask, cache=cache))


class Head(Program):
    """From the last hidden states to logits of tokens or classes, and what the table has on the way."""

    decoder: Unembedding

    def __init__(self, config: ModelConfig) -> None:
        table = table_of(config)
        rows = [step for step in table.after if step.runs and not step.from_stream]
        super().__init__(config, rows, "head.", outside=(table.final,))
        self.takes, self.over_vocabulary = table.final, [step.name for step in table.over_vocabulary]

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """(…, C) -> (…, V); a tied head takes the ``embedding`` (V, C) of tokens."""
        return self.run({self.takes: x}, Pass(table=embedding))

    def named(self, x: Tensor, embedding: Tensor) -> dict[str, Tensor]:
        """Every step over the vocabulary, by its name; the logits come last."""
        values = {self.takes: x}
        self.run(values, Pass(table=embedding), keep=True)
        return {name: values[name] for name in self.over_vocabulary}


_DECISIONS = {"several": "a probability to each class by itself", "number": "a number"}


class Transformer(nn.Module):
    """One stack for decoders and encoders; every choice is resolved from the configuration here, once."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        own = {step.module: step for step in table_of(config).after if step.module in ("final_norm", "pooler")}
        made = {path: step.operation.make_module(config, step) for path, step in own.items()}
        self.final_norm, self.pooler = made.get("final_norm", nn.Identity()), made.get("pooler")
        self.head = Head(config) if config.head.kind != "none" else None
        self.share_layers()
        # address and bytes of the memory that weights were moved to, see tinytf.generate.layout
        self.rooms: set[tuple[int, int]] = set()
        # full names of the steps that an intervention replaces, such as L3H5.head_out: what is recorded there is not
        # what the model computes, see tinytf.cause.interventions
        self.exchanged: tuple[str, ...] = ()
        self.edited: tuple[str, ...] = ()  # those of them that a function makes, see Model.edited
        self.mapped: tuple[Any, ...] = ()  # the files that parameters are views of

    def __reduce__(self) -> Any:
        """Pickled as its configuration and a copy of its weights, which may be views of a whole file.

        Raises UsageError for a model with interventions or edits, whose functions are in this process alone.
        """
        if self.exchanged:
            raise UsageError(f"a model in which {self.exchanged[0]} is replaced is not pickled", "pickle the whole one")
        return _unpickled, (self.config, {name: one.detach().clone() for name, one in self.state_dict().items()})

    def __deepcopy__(self, memo: dict[int, Any]) -> "Transformer":
        """As of any module, with its hooks."""
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__dict__ = copy.deepcopy(self.__dict__, memo)
        return other

    @classmethod
    def initialised(
        cls, config: ModelConfig, seed: int, device: torch.device | str = "cpu", *, look_back: bool = False
    ) -> "Transformer":
        """Random weights from ``seed``: normal 1/√d_model, so that a map keeps the size of what it maps.

        What is added to the residual stream starts smaller by √(2·layers) (Radford et al. 2019). Norms start at 1,
        biases at 0. With ``look_back`` rotary queries and keys that have biases get others: in the first block half of
        the key heads begin with a preference for the token before. Copying takes such a head and another one above it
        that matches what it brings, and neither is of use, so neither is learned for long, without the other (Olsson
        et al. 2022).

        Raises MemoryShortage where the weights do not fit.
        """
        with torch.device("meta"):
            model = cls(config)
        needed = sum(parameter.nbytes for parameter in model.parameters())
        require_free("the weights take", needed, torch.device("cpu"), "give a smaller d_model, d_ff or n_layers")
        model.to_empty(device="cpu")
        model.share_layers()
        generator = torch.Generator().manual_seed(seed)
        std = config.d_model**-0.5
        residual = std / (2 * config.n_layers) ** 0.5
        rows = table_of(config).rows
        made = {step.path if layer is None else f"blocks.{layer}.{step.path}": step for step, layer in rows}
        drawn: set[int] = set()  # layers may share their parameters
        with torch.no_grad():
            for path, module in model.named_modules():
                own = {id(parameter) for parameter in module.parameters(recurse=False)} - drawn
                if own:
                    drawn |= own
                    made[path].operation.initialise(module, residual if path.endswith(ADDED) else std, generator)
            for buffer in model.buffers():
                buffer.zero_()
            if look_back:
                look_back_first(model.blocks[0], config, generator)
        return model.to(device).eval()

    def share_layers(self) -> None:
        """Give the layers that share parameters those of the first one that has them."""
        table = table_of(self.config)
        for layer, block in enumerate(self.blocks if table.shares else ()):
            for path, module in block.named_modules():
                first = self.blocks[table.first_with(path, layer)]
                for leaf, _ in [] if first is block else list(module.named_parameters(recurse=False)):
                    setattr(module, leaf, getattr(first.get_submodule(path), leaf))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's, but that layers which share their weights need those of the first one alone."""
        table, found = table_of(self.config), dict(state_dict)
        for name, _ in self.named_parameters(remove_duplicate=False) if table.shares else ():
            if name.startswith("blocks."):
                _, layer, rest = name.split(".", 2)
                found[name] = found[f"blocks.{table.first_with(rest.rpartition('.')[0], int(layer))}.{rest}"]
        loaded = super().load_state_dict(found, strict, assign)
        self.share_layers()
        return loaded

    def fuse(self, fused: bool) -> None:
        """Whether kernels may stand in for several steps, as they do unless this says no."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.fused = fused

    def cache(self, capacity: int | None = None, batch: int = 1) -> KVCache:
        """An empty cache for this model, on its device and in its dtype; the whole context without a ``capacity``.

        Raises UsageError for a model that a new token makes compute the others again.
        """
        if self.edited:
            raise UsageError("a model whose steps are edited has no cache: a function is given all of the text")
        weight = next(self.parameters())
        return KVCache(self.config, capacity, batch=batch, device=weight.device, dtype=weight.dtype)

    def hidden(
        self,
        ids: Tensor,
        *,
        padding_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """The last hidden states, after the final norm: ids (B, T) -> (B, T, C).

        ``padding_mask`` (B, T) is True for a real token. With a ``cache`` the ids come after those that are in it,
        and are added to it (without gradients: use torch.no_grad); a padding mask then covers both. Raises UsageError
        beyond the context, beyond the room of the cache, and where a text that is in the cache gets longer than
        ``config.rope_switch``.
        """
        length, start = ids.shape[1], 0 if cache is None else cache.position
        if start + length > self.config.context:
            raise UsageError(
                f"{start + length} tokens are more than the model's context of {self.config.context}",
                "shorten the text, or cut it on purpose with --truncate",
            )
        if cache is not None:
            cache.require_room(len(ids), length)
            if cache.is_turned(start + length):
                raise UsageError(
                    f"a text of {start + length:,} tokens is turned by other angles than the cached keys",
                    "clear the cache, and compute the whole text again",
                )
        x = self.embed(ids, token_types, start, padding_mask)
        layers = [None] * len(self.blocks) if cache is None else cache.layers
        for block, layer in zip(self.blocks, layers, strict=True):
            x = block(x, start, padding_mask, layer)
        if cache is not None:
            cache.advance(length)
        return self.final_norm(x)

    @property
    def recomputes(self) -> bool:
        """Whether a new token changes what the others have, so no cache can hold it: without the mask, or edited."""
        return self.config.looks_ahead or bool(self.edited)

    @property
    def unembedding(self) -> Tensor:
        """The matrix (V, C) that makes logits: the head's own, or the token embeddings where they are tied."""
        own = None if self.head is None else self.head.decoder.weight
        return self.embed.tokens.weight if own is None else own

    def require_head(self, so: str) -> nn.Module:
        """The head. Raises UsageError for a model without one; ``so`` says what is missing for that reason."""
        if self.head is None:
            raise UsageError(
                f"this model has no language-model head, so {so}",
                "take a model that predicts tokens, such as tiny or tiny-encoder",
            )
        return self.head

    def require_choice(self, so: str) -> nn.Module:
        """The head, where it gives a distribution over tokens or classes. Raises UsageError; ``so`` as above."""
        head, config = self.require_head(so), self.config
        if not table_of(config).chooses:
            what = "where an answer starts and ends" if config.head.kind == "question" else _DECISIONS[config.decides]
            raise UsageError(f"the head of this model gives {what}, not one choice, so {so}")
        return head

    def require_vocabulary(self, so: str) -> nn.Module:
        """The head, where it predicts tokens. Raises UsageError; ``so`` as above."""
        head = self.require_head(so)
        if not self.config.predicts_tokens:
            raise UsageError(
                f"this model gives classes ({self.config.head.labels_in_words}), not tokens, so {so}",
                "tinytf trace shows its classes",
            )
        return head

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states: (…, C) -> (…, V). Raises UsageError for a model without a head."""
        head = self.require_head("it has no logits")
        return head(hidden, self.embed.tokens.weight)

    def over_vocabulary(self, hidden: Tensor) -> dict[str, Tensor]:
        """The steps from hidden states (…, C) to logits by name, (…, V) each; the logits come last."""
        return {} if self.head is None else self.head.named(hidden, self.embed.tokens.weight)

    def pool(self, hidden: Tensor) -> Tensor:
        """BERT's pooled vector, tanh(W·x + b) of the first token: (B, T, C) -> (B, C)."""
        if self.pooler is None:
            raise UsageError("this model has no pooler")
        return torch.tanh(self.pooler(hidden[:, 0]))

    def forward(self, ids: Tensor, *, padding_mask: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        """Logits at every position, or the hidden states of a model without a head: ids (B, T) -> (B, T, V or C).

        A head that reads one token has logits at every position too; they mean something at that token.
        """
        hidden = self.hidden(ids, padding_mask=padding_mask, token_types=token_types)
        return hidden if self.head is None else self.unembed(hidden)


@torch.no_grad()
def look_back_first(block: Any, config: ModelConfig, generator: torch.Generator) -> None:
    """Set the rotary biases of half of the key heads so that their queries prefer the token before.

    Of the pairs that turn fast enough to tell neighbours apart, a query's bias is the key's, one position back.
    """
    turn, q, k = rotary_frequencies(config.rope), block.attention.q, block.attention.k
    turn = turn[turn > 0.1]
    size, half = (2 * math.sqrt(config.d_head)) ** 0.5, config.d_head // 2
    for group in range(max(1, config.n_kv_heads // 2)):
        phase = 2 * math.pi * torch.rand(len(turn), generator=generator)
        heads = range(group * config.heads_per_kv, (group + 1) * config.heads_per_kv)
        for bias, head, angle in [(k.bias, group, phase), *((q.bias, head, phase - turn) for head in heads)]:
            for start, wave in ((0, angle.cos()), (half, angle.sin())):
                first = head * config.d_head + start
                bias[first : first + len(turn)] = size * wave


def _unpickled(config: ModelConfig, weights: dict[str, Tensor]) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(weights, assign=True)
    return model.eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A stretch in evaluation mode, without dropout."""
    training = model.training
    if training:  # a walk through all modules, which decoding does not want for every token
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
