"""Embeddings, blocks and heads, and the Transformer that they make.

Shapes: B batch, T tokens, C d_model, V vocabulary.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.memory import require_free
from tinytf.model.attention import SelfAttention, Tap, make_attention, make_core
from tinytf.model.cache import KVCache, LayerCache
from tinytf.model.experts import Experts, make_experts
from tinytf.model.linear import Linear, linear
from tinytf.model.parts import (
    Embedding,
    FeedForward,
    Kept,
    LearnedPositions,
    Scaled,
    SinusoidalPositions,
    make_norm,
)
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.table import table_of

ADDED = ("attention.o.weight", ".down.weight")
"""The ends of the names of the matrices whose products are added to the residual stream."""


class Embeddings(nn.Module):
    """Token vectors, plus positions and token types, normed: each where the architecture has it.

    Narrow ones are projected to the width of the stream: the token vectors (OPT), or the normed sum (ELECTRA).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = Embedding(config.vocab_size, config.embed_width, config.embed_scale)
        self.kept = Kept(config) if config.masked_share else None
        self.positions: nn.Module | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config)
        elif config.positions.startswith("sinusoidal"):
            self.positions = SinusoidalPositions(config)
        self.types = Embedding(config.n_token_types, config.summed_width) if config.n_token_types else None
        self.norm = make_norm(config, config.summed_width) if config.embed_norm else nn.Identity()
        self.projection: nn.Module | None = None
        if config.d_embed:
            self.projection = Linear(config.d_embed, config.d_model, bias=config.projection_bias)
        # By place, first or last: a tuple, as in Block.
        self.widen = (None, self.projection) if config.embed_norm else (self.projection, None)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, ids: Tensor, token_types: Tensor | None = None, start: int = 0, padding_mask: Tensor | None = None
    ) -> Tensor:
        first, last = self.widen
        x = self.tokens(ids)  # (B, T) -> (B, T, C)
        x = x if first is None else first(x)
        x = x if self.kept is None else self.kept(x, ids, padding_mask)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids) if token_types is None else token_types)
        if self.positions is not None:
            x = x + self.positions(ids, x.dtype, start)
        x = self.dropout(self.norm(x))
        return x if last is None else last(x)


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection; an order of norms is which slots are filled.

    ``norm1`` and ``norm2`` stand ``before`` attention and feed-forward (GPT-2, Llama), or ``after`` each residual sum
    (the paper, BERT); ``attn_norm`` and ``ffn_norm`` norm what is added (Gemma 2), which ``attn_scale`` and
    ``ffn_scale`` multiply (Granite). A ``parallel`` feed-forward reads what attention reads (GPT-NeoX), with a
    ``shared`` norm after the same norm1 (GPT-J).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        before, after, added = (config.norm_order in orders for orders in _NORM_SLOTS)
        none = nn.Identity()
        self.norm1 = make_norm(config) if (before or after) and config.input_norm else none
        self.attention = make_attention(config)
        self.attn_norm = make_norm(config) if added else none
        self.norm2 = make_norm(config) if (before or after) and not config.shared_norm else none
        self.ffn = Experts(config) if config.experts else FeedForward(config)
        self.ffn_norm = make_norm(config) if added else none
        self.attn_scale, self.ffn_scale = (
            none if config.residual_scale == 1 else Scaled(config.residual_scale) for _ in range(2)
        )
        self.dropout = nn.Dropout(config.dropout)
        # The slots by place: tuples, so that a norm is registered under one name alone.
        self.before = (self.norm1, self.norm2) if before else (none, none)
        self.after = (self.norm1, self.norm2) if after else (none, none)
        self.parallel = config.residual == "parallel"
        self.shared = config.shared_norm

    def forward(self, x: Tensor, start: int, padding_mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        (into_attention, into_ffn), (after_attention, after_ffn) = self.before, self.after
        read = into_attention(x)
        attn = self.attn_scale(self.attn_norm(self.attention(read, start, padding_mask, cache)))
        mid = after_attention(x + self.dropout(attn))
        ffn = self.ffn(read if self.shared else into_ffn(x if self.parallel else mid))
        return after_ffn(mid + self.dropout(self.ffn_scale(self.ffn_norm(ffn))))


_NORM_SLOTS = (("pre", "both"), ("post",), ("both", "output"))
"""The orders with a norm before each part, after each residual sum, and on what is added."""


class Unembedding(nn.Module):
    """Hidden states to logits of tokens or classes; a tied one borrows the token embedding, another owns its matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = None if config.tied_head else nn.Parameter(torch.empty(config.n_outcomes, config.head_width))
        self.bias = nn.Parameter(torch.empty(config.n_outcomes)) if config.head_bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return linear(x, embedding if self.weight is None else self.weight, self.bias)


class LanguageModelHead(nn.Module):
    """Logits of the next token: the hidden state unembedded, and what the step table has after that."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.decoder = Unembedding(config)
        self.steps = table_of(config).over_vocabulary

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.named(x, embedding)[self.steps[-1].name]

    def named(self, x: Tensor, embedding: Tensor) -> dict[str, Tensor]:
        """Every step over the vocabulary, by its name; the logits come last."""
        first, *after = self.steps
        values = {first.name: self.decoder(x, embedding)}
        for step in after:
            assert step.operation is not None, "a step of the head has an operation"
            values[step.name] = step.operation.forward(*(values[name] for name in step.inputs))
        return values


class NarrowLanguageModelHead(LanguageModelHead):
    """The same after a projection to the width of the embeddings (OPT-350m)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.projection = Linear(config.d_model, config.d_embed, bias=config.projection_bias)

    def named(self, x: Tensor, embedding: Tensor) -> dict[str, Tensor]:
        return super().named(self.projection(x), embedding)


class TransformedHead(LanguageModelHead):
    """A head with a dense layer, its activation and a norm before the logits, each where the architecture has it.

    All three make BERT's head for a masked token (Devlin et al. 2019), the first two its head for a class.
    """

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)  # and the rest here: random weights are drawn in the order in which they are made
        masked, none, width = config.head.kind == "mlm", nn.Identity(), config.head_width
        dense = masked or config.head_dense
        self.dense = Linear(config.d_model, width, bias=config.head_dense_bias) if dense else none
        self.activation = ACTIVATIONS[config.head_activation] if dense else none
        self.norm = make_norm(config, width) if masked or config.head_norm else none
        self.decoder = Unembedding(config)
        self.steps = table_of(config).over_vocabulary

    def named(self, x: Tensor, embedding: Tensor) -> dict[str, Tensor]:
        """The same after dense, activation and norm."""
        return super().named(self.norm(self.activation(self.dense(x))), embedding)


_DECISIONS = {"several": "a probability to each class by itself", "number": "a number"}


class Transformer(nn.Module):
    """One stack for decoders and encoders; every choice is resolved from the configuration here, once."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config.at(layer)) for layer in range(config.n_layers))
        self.final_norm = make_norm(config) if config.final_norm else nn.Identity()
        self.pooler = Linear(config.d_model, config.d_model) if config.pooler else None
        plain = NarrowLanguageModelHead if config.d_embed else LanguageModelHead
        head = plain if config.head.kind == "lm" else TransformedHead
        self.head = head(config) if config.head.kind != "none" else None
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
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() >= 2 and not name.endswith("bias"):
                    adds = name.endswith(ADDED)
                    parameter.normal_(0.0, residual if adds else std, generator=generator)
                else:
                    parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            for buffer in model.buffers():
                buffer.zero_()
            if look_back:
                next(model._attentions()).look_back(config, generator)
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

    def _attentions(self) -> Iterator[SelfAttention]:
        return (module for module in self.modules() if isinstance(module, SelfAttention))

    def use_attention(self, core: str, tap: Tap | None = None) -> None:
        """Replace the attention core in every block: ``fused`` where it can be, or ``steps`` with an optional tap."""
        if core == "fused" and tap is not None:
            raise UsageError("the fused core has no steps to tap", "use the core 'steps'")
        for attention in self._attentions():
            attention.core = make_core(attention.config, tap, stepwise=core == "steps", within=attention)

    def use_experts(self, core: str, tap: Tap | None = None) -> None:
        """Run the experts of every block ``fused``, or by ``steps`` with an optional tap."""
        for experts in self.modules():
            if isinstance(experts, Experts):
                experts.core = make_experts(experts.config, tap, stepwise=core == "steps")

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
        decoder = getattr(self.head, "decoder", None)
        own = decoder.weight if isinstance(decoder, Unembedding) else None
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
