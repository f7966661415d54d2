"""The Transformer and its parts: embeddings, blocks and heads.

Shapes: B batch, T tokens, C d_model, V vocabulary.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tinytf.config import ENC, ModelConfig
from tinytf.errors import UsageError
from tinytf.memory import require_free
from tinytf.model.cache import KVCache, LayerCache
from tinytf.model.turn import Turn, in_turn, using
from tinytf.steps.fused import kernels
from tinytf.steps.operations import Add
from tinytf.steps.operations.linear import Unembedding
from tinytf.steps.operations.lookup import Embedding
from tinytf.steps.operations.operation import Carried, Pass
from tinytf.steps.operations.rotate import rotary_frequencies
from tinytf.steps.program import STREAM, Program
from tinytf.steps.table import table_of

Stack = TypeVar("Stack")
ENCODER = "encoder."
"""What the names of parameters of the stack that is read begin with."""
PATHS = {"": "", ENC: ENCODER}
"""What the names of a stack's parameters begin with, by what its addresses begin with."""


def stack_at(parameter: str) -> str:
    """What the addresses of the stack begin with to which a parameter belongs."""
    return ENC * parameter.startswith(ENCODER)


ADDED = (".o", ".down")
"""Path suffixes of the matrices whose outputs are added to the residual stream."""


class Embeddings(Program):
    """Token vectors, plus positions and token types, normed and projected, as far as the architecture has these."""

    tokens: Embedding

    def __init__(self, config: ModelConfig) -> None:
        rows = [step for step in table_of(config).before if step.runs and step.path.startswith("embed.")]
        super().__init__(config, rows, "embed.", dropped=[rows[-1].name])

    def forward(
        self, ids: Tensor, token_types: Tensor | None = None, start: int = 0, padding_mask: Tensor | None = None
    ) -> Tensor:
        """ids (B, T) -> (B, T, C)."""
        return self.run({}, Pass(ids, token_types, start, padding_mask, table=self.tokens.weight))


class Streams(Program):
    """The streams that enter the first layer, from the embeddings, where there are several."""

    def __init__(self, config: ModelConfig) -> None:
        rows = [step for step in table_of(config).before if step.path.startswith("streams.")]
        super().__init__(config, rows, "streams.", outside=("embed.out",))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, n·C)."""
        return self.run({"embed.out": x}, Pass())


class Merged(Program):
    """The final norm of several streams: of their mean, each of one size."""

    def __init__(self, config: ModelConfig) -> None:
        rows = [step for step in table_of(config).after if step.path.startswith("final_norm.")]
        super().__init__(config, rows, "final_norm.")

    def forward(self, x: Tensor) -> Tensor:
        """(…, T, n·C) -> (…, T, C)."""
        return self.run({STREAM: x}, Pass())


class Read(Program):
    """What the head reads where that is no token: computed from all tokens, in every row."""

    def __init__(self, config: ModelConfig) -> None:
        table = table_of(config)
        rows = [step for step in table.after if step.path.startswith("averaged.")]
        super().__init__(config, rows, "averaged.", outside=(table.normed,))
        self.takes = table.normed

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """(…, T, C) -> (…, T, C)."""
        return self.run({self.takes: x}, Pass(padding_mask=padding_mask))


class Block(Program):
    """One layer of the stack."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        table, layer_config = table_of(config), config.at(layer)
        rows = table.in_layer(layer)
        sums = [step for step in rows if step.role == "residual" and isinstance(step.operation, Add)]
        added = [name for step in sums for name in step.inputs[1:]]
        self.lent = {step.name: name for step in rows if (name := step.full_name(layer)) in table.carried}
        super().__init__(
            layer_config,
            rows,
            dropped=added,
            find=partial(kernels, layer_config),
            taken={name: table.at(*place).full_name(place[1]) for name, place in table.taken(layer).items()},
            kept=self.lent,
        )

    def forward(
        self,
        x: Tensor,
        start: int = 0,
        padding_mask: Tensor | None = None,
        cache: LayerCache | None = None,
        carried: Carried | None = None,
    ) -> Tensor:
        """The residual stream after the layer: (B, T, C) -> (B, T, C); the first token is at position ``start``.

        What later layers take of this one is added to ``carried``.
        """
        if carried is None:
            return self.run({STREAM: x}, Pass(start=start, padding_mask=padding_mask, cache=cache))
        values = {STREAM: x, **carried.steps}
        now = Pass(carried.ids, carried.types, start, padding_mask, cache, source_mask=carried.source_mask)
        output = self.run(values, now)
        carried.steps.update({full: values[name] for name, full in self.lent.items()})
        return output


class Source:
    """What a stack reads of another: its last hidden states (1 or B, S, d_source), and which tokens are real (B, S).

    The ``trace`` of the other stack's text says more of it.
    """

    def __init__(self, states: Tensor, mask: Tensor | None = None, trace: Any = None) -> None:
        self.states, self.mask, self.trace = states, mask, trace

    def __deepcopy__(self, memo: dict[int, Any]) -> "Source":
        return self

    def read_by(self, stack: "Transformer | None", again: bool = False) -> Tensor:
        """The states; read ``again`` by the stack that gave them, also where some of its steps are replaced."""
        if stack is None or self.trace is None or not (again or stack.exchanged):
            return self.states
        return stack.hidden(torch.tensor([self.trace.encoding.ids], device=stack.embed.tokens.weight.device))


class Pooling(Program):
    """From the last hidden states of a text to its vector: pooling over the tokens, dense layers, length 1."""

    def __init__(self, config: ModelConfig) -> None:
        table = table_of(config)
        super().__init__(config, table.vector_steps, "pooling.", outside=(table.final,))
        self.takes = table.final

    def forward(self, x: Tensor) -> Tensor:
        """(…, T, C), of one length and without padding -> (…, E)."""
        return self.run({self.takes: x}, Pass())


class Head(Program):
    """The head: from the last hidden states to logits of tokens or classes, by all steps of the table."""

    decoder: Unembedding

    def __init__(self, config: ModelConfig) -> None:
        table = table_of(config)
        rows = [step for step in table.after if step.runs and not step.path.startswith(("final_norm", "averaged."))]
        super().__init__(config, rows, "head.", outside=(table.final,))
        self.takes, self.over_vocabulary = table.final, [step.name for step in table.over_vocabulary]

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """(…, C) -> (…, V); a tied head takes the ``embedding`` (V, C) of tokens."""
        return self.run({self.takes: x}, Pass(table=embedding))

    def named(self, x: Tensor, embedding: Tensor) -> dict[str, Tensor]:
        """All steps over the vocabulary by name; the logits come last."""
        values = {self.takes: x}
        self.run(values, Pass(table=embedding), keep=True)
        return {name: values[name] for name in self.over_vocabulary}


_DECISIONS = {"several": "a probability to each class by itself", "number": "a number"}


class Transformer(nn.Module):
    """One model for decoders and encoders; ``__init__`` resolves all choices of the configuration, once."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embeddings(config)
        self.streams = Streams(config) if config.extra_streams else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        steps_by_module = {
            step.module: step for step in table_of(config).after if step.module in ("final_norm", "pooler")
        }
        modules = {path: step.operation.make_module(config, step) for path, step in steps_by_module.items()}
        merged = Merged(config) if config.extra_streams else nn.Identity()
        self.final_norm, self.pooler = modules.get("final_norm", merged), modules.get("pooler")
        self.averaged = Read(config) if config.head_reads == "mean" else None
        self.pooling = Pooling(config) if config.pooling != "none" else None
        self.head = Head(config) if config.head.kind != "none" else None
        self.encoder = None if config.encoder is None else Transformer(config.encoder)
        for step in table_of(config).before:
            if step.of_source:
                self.add_module(step.path, step.operation.make_module(config, step))
        self.reads: Source | None = None
        self.identity = object()  # one in all copies that share its weights
        self.share_layers()
        # address and bytes of the buffers that weights were moved to, see tinytf.model.layout
        self.rooms: set[tuple[int, int]] = set()
        # full names of the steps that an intervention replaces, such as L3H5.head_out, where a recording differs from
        # what the model itself computes, see tinytf.cause.interventions
        self.exchanged: tuple[str, ...] = ()
        self.edited: tuple[str, ...] = ()  # the replaced steps that a function computes, see Model.edited
        # those of them whose function changes each position by itself, so that a cache works, see Model.steered
        self.by_position: tuple[str, ...] = ()
        # those whose function takes all tokens so far, which a cache holds beside the keys and values
        self.remembered: tuple[str, ...] = ()
        self.continued: tuple[KVCache, int] | None = None  # the cache of the running pass, and its new tokens
        self.mapped: tuple[Any, ...] = ()  # the files that parameters are views of
        self.turn = Turn()  # whose it is among threads
        self.outlines: tuple[Any, ...] = ()  # arguments of ``outline``, for a model without weights

    def __reduce__(self) -> Any:
        """Pickle the configuration and a copy of the weights, which may be views of a whole file.

        Raises UsageError for a model with interventions or edits, whose functions exist only in this process.
        """
        if self.outlines:
            return outline, self.outlines
        if self.exchanged:
            raise UsageError(
                f"a model in which {self.exchanged[0]} is replaced cannot be pickled", "pickle the original model"
            )
        with using(self):
            weights = {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}
        return _unpickled, (self.config, weights, self.reads)

    @in_turn
    def __deepcopy__(self, memo: dict[int, Any]) -> "Transformer":
        """Copy like any module, with its hooks, instead of by ``__reduce__``."""
        copied = memo[id(self)] = type(self).__new__(type(self))
        shares_weights = any(memo.get(id(tensor)) is tensor for tensor in self.parameters())
        memo[id(self.turn)] = Turn(self.turn.lock if shares_weights else None)
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        """As in torch; in another precision the model reads its source again."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if (read := self.reads) is not None:
            self.reads = Source(fn(read.states), read.mask, read.trace)
            with torch.no_grad():
                is_other = self.reads.states.dtype is not read.states.dtype
                self.reads.states = self.reads.read_by(self.encoder, again=is_other)
        return self

    @property
    def stacks(self) -> "dict[str, Transformer]":
        """The stacks by what their addresses begin with, in the order in which they run; see ``ModelConfig.stacks``."""
        return {"": self} if self.encoder is None else {ENC: self.encoder, "": self}

    @property
    def tokens_read(self) -> int:
        """How many tokens the source has that this stack reads; 0 without one."""
        return 0 if self.reads is None else self.reads.states.shape[1]

    def texts(self, own: Any) -> "dict[str, tuple[Transformer, Any]]":
        """The stacks that run on texts, with their encodings: ``own`` for this one, and that of what it reads."""
        texts = {ENC: self.reads and self.reads.trace and self.reads.trace.encoding, "": own}
        return {at: (stack, texts[at]) for at, stack in self.stacks.items() if texts[at] is not None}

    @classmethod
    def initialised(
        cls, config: ModelConfig, seed: int, device: torch.device | str = "cpu", *, look_back: bool = False
    ) -> "Transformer":
        """A model with random weights from ``seed``: normal with 1/√d_model, so that a map keeps the size of its input.

        Matrices that add to the residual stream start smaller by √(2·layers) (Radford et al. 2019). Norms start at 1,
        biases at 0. With ``look_back`` the biases of rotary queries and keys in the first block start so that half of
        the key heads prefer the previous token. Copying takes such a head and another one above it that matches what
        it brings; neither is useful without the other, so training alone takes long to find them (Olsson et al. 2022).

        Raises MemoryShortage where the weights do not fit.
        """
        with torch.device("meta"):
            model = cls(config)
        needed = sum(parameter.nbytes for parameter in model.parameters())
        require_free("the weights take", needed, torch.device("cpu"), "give a smaller d_model, d_ff or n_layers")
        # to_empty would import sympy
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
        model.share_layers()
        generator = torch.Generator().manual_seed(seed)
        std = config.d_model**-0.5
        residual = std / (2 * config.n_layers) ** 0.5
        step_at = {
            PATHS[at] + (step.path if layer is None else f"blocks.{layer}.{step.path}"): step
            for at, stack in config.stacks.items()
            for step, layer in table_of(stack).rows
        }
        drawn: set[int] = set()  # layers may share their parameters
        with torch.no_grad():
            for buffer in model.buffers():
                buffer.zero_()
            for path, module in model.named_modules():
                own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
                undrawn = {id(tensor) for tensor in own} - drawn
                if undrawn:
                    drawn |= undrawn
                    step_at[path].operation.initialise(module, residual if path.endswith(ADDED) else std, generator)
            if look_back:
                look_back_first(model.blocks[0], config, generator)
        return model.to(device).eval()

    def share_layers(self) -> None:
        """Point the layers that share parameters to the parameters of the first one."""
        for stack in self.stacks.values():
            table = table_of(stack.config)
            for layer, block in enumerate(stack.blocks if table.shares else ()):
                for path, module in block.named_modules():
                    first = stack.blocks[table.first_layer_with(path, layer)]
                    for leaf, _ in [] if first is block else list(module.named_parameters(recurse=False)):
                        setattr(module, leaf, getattr(first.get_submodule(path), leaf))
            if self.config.shares_embeddings:
                stack.embed.tokens.weight = self.embed.tokens.weight

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch, but ``state_dict`` needs only the first of the layers that share weights."""
        weights = dict(state_dict)
        if self.config.shares_embeddings:
            weights[f"{ENCODER}embed.tokens.weight"] = weights["embed.tokens.weight"]
        for at, stack in self.stacks.items():
            table = table_of(stack.config)
            for name, _ in stack.named_parameters(remove_duplicate=False) if table.shares else ():
                if name.startswith("blocks."):
                    _, layer, rest = name.split(".", 2)
                    first = table.first_layer_with(rest.rpartition(".")[0], int(layer))
                    weights[PATHS[at] + name] = weights[f"{PATHS[at]}blocks.{first}.{rest}"]
        loaded = super().load_state_dict(weights, strict, assign)
        self.share_layers()
        return loaded

    def fuse(self, fused: bool) -> None:
        """Allow or forbid kernels that replace several steps; they are allowed at first."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.fused = fused

    def cache(self, capacity: int | None = None, batch: int = 1) -> KVCache:
        """An empty cache for this model, on its device and in its dtype; ``capacity`` defaults to the context.

        Raises UsageError for a model whose earlier tokens change with every new one (see ``recomputes``).
        """
        if self.needs_whole_text:
            raise UsageError("a model in which such a step is edited has no cache: its function needs the whole text")
        weight = next(self.parameters())
        return KVCache(self.config, capacity, batch=batch, device=weight.device, dtype=weight.dtype)

    @contextmanager
    def continuing(self, cache: KVCache | None, tokens: int) -> Iterator[None]:
        """Context of a pass of ``tokens`` more tokens, in which edits find its cache."""
        self.continued = None if cache is None else (cache, tokens)
        try:
            yield
        finally:
            self.continued = None

    @in_turn
    def hidden(
        self,
        ids: Tensor,
        *,
        padding_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        cache: KVCache | None = None,
        source: Source | None = None,
    ) -> Tensor:
        """The last hidden states, after the final norm: ids (B, T) -> (B, T, C).

        ``padding_mask`` (B, T) is True for a real token. With a ``cache`` the ids follow the cached tokens and are
        added to the cache (without gradients: use torch.no_grad); a padding mask then covers both. A stack that reads
        another takes its ``source``, by default the one that it ``reads``. Raises UsageError without one, beyond the
        context, beyond the capacity of the cache, and where a cached text grows longer than ``config.rope_switch``.
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
        with self.continuing(cache, length):
            x = self.embed(ids, token_types, start, padding_mask)
            carried = self.carried(ids, x, token_types, source)
            x = self.streams(x)
            layers = [None] * len(self.blocks) if cache is None else cache.layers
            for block, layer in zip(self.blocks, layers, strict=True):
                x = block(x, start, padding_mask, layer, carried)
            x = self.finish(x, padding_mask)
        if cache is not None:
            cache.advance(length)
        return x

    def finish(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The last hidden states from the last block's output, (…, T, C) -> (…, T, C): normed, as the head reads them.

        All tokens of a text are needed where the head reads their mean.
        """
        x = self.final_norm(x)
        return x if self.averaged is None else self.averaged(x, padding_mask)

    def finish_rows(self, x: Tensor, rows: Sequence[int] | slice) -> Tensor:
        """Some rows of what ``finish`` gives for a text: (…, T, C) -> (…, P, C)."""
        return self.final_norm(x[..., rows, :]) if self.averaged is None else self.finish(x)[..., rows, :]

    def read(self, ids: Tensor | None, padding_mask: Tensor | None = None) -> Source | None:
        """What this stack reads of source ``ids`` (B, S), on any device: the last hidden states of its encoder.

        None without ids, and for a model without an encoder, which reads nothing.
        """
        if self.encoder is None or ids is None:
            return None
        ids = ids.to(self.encoder.embed.tokens.weight.device)
        return Source(self.encoder.hidden(ids, padding_mask=padding_mask), padding_mask)

    def carried(
        self, ids: Tensor, x: Tensor, types: Tensor | None = None, source: Source | None = None
    ) -> Carried | None:
        """What the blocks take beside the stream: ids, embeddings, token types and the source; None for nothing."""
        last = self.embed.rows[-1].name
        if not self.config.d_source:
            return Carried(ids, {last: x}, types) if table_of(self.config).reads_beside else None
        source = source or self.reads
        if source is None:
            hint = (
                "give it: model.reading(TEXT)" if self.encoder else "give its states: --source FILE, or model.reading"
            )
            raise UsageError("this model reads another text, its source, and has none", hint)
        states, steps = source.read_by(self.encoder).expand(len(ids), -1, -1), dict[str, Tensor]()
        for step in table_of(self.config).before:
            if step.of_source:
                steps[step.name] = states = self.get_submodule(step.path)(states)
        return Carried(ids, {last: x, **steps}, types, source.mask)

    @property
    def recomputes(self) -> bool:
        """Whether a new token changes earlier ones, so that no cache works: without the mask, or edited."""
        return self.config.looks_ahead or self.needs_whole_text

    @property
    @in_turn
    def needs_whole_text(self) -> bool:
        """Whether an edit's function takes tokens together that a cache does not hold."""
        return len(self.edited) > len(self.by_position) + len(self.remembered)

    @property
    @in_turn
    def has_functions(self) -> bool:
        """Whether an edit's function takes all tokens so far together."""
        return len(self.edited) > len(self.by_position)

    @property
    def unembedding(self) -> Tensor:
        """The matrix (V, C) of the logits: the head's own, or the token embeddings for a tied or missing head."""
        matrix = None if self.head is None else self.head.decoder.weight
        return self.embed.tokens.weight if matrix is None else matrix

    def require_head(self, so: str) -> nn.Module:
        """The head. Raises UsageError for a model without one; ``so`` says what is impossible without it."""
        if self.head is None:
            raise UsageError(
                f"this model has no language-model head, so {so}",
                "take a model that predicts tokens, such as tiny or tiny-encoder",
            )
        return self.head

    def require_choice(self, so: str) -> nn.Module:
        """The head if it gives shares over tokens or classes, else UsageError; ``so`` as in ``require_head``."""
        head, config = self.require_head(so), self.config
        if not table_of(config).chooses:
            output = "where an answer starts and ends" if config.head.kind == "question" else _DECISIONS[config.decides]
            raise UsageError(f"the head of this model gives {output}, not one choice, so {so}")
        return head

    def require_vocabulary(self, so: str) -> nn.Module:
        """The head if it predicts tokens, else UsageError; ``so`` as in ``require_head``."""
        head = self.require_head(so)
        if not self.config.predicts_tokens:
            raise UsageError(
                f"this model gives classes ({self.config.head.labels_in_words}), not tokens, so {so}",
                "tinytf trace shows its classes",
            )
        return head

    @in_turn
    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states: (…, C) -> (…, V). Raises UsageError for a model without a head."""
        head = self.require_head("it has no logits")
        return head(hidden, self.embed.tokens.weight)

    @in_turn
    def over_vocabulary(self, hidden: Tensor) -> dict[str, Tensor]:
        """The steps from hidden states (…, C) to logits, by name, (…, V) each; the logits come last."""
        return {} if self.head is None else self.head.named(hidden, self.embed.tokens.weight)

    @in_turn
    def pool(self, hidden: Tensor) -> Tensor:
        """BERT's pooled vector, tanh(W·x + b) of the first token: (B, T, C) -> (B, C). UsageError without one."""
        if self.pooler is None:
            raise UsageError("this model has no pooler")
        return torch.tanh(self.pooler(hidden[:, 0]))

    @in_turn
    def forward(self, ids: Tensor, *, padding_mask: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        """Logits at every position, or the hidden states of a model without a head: ids (B, T) -> (B, T, V or C).

        A head that reads one token has logits at every position too, which only mean something at that token.
        """
        hidden = self.hidden(ids, padding_mask=padding_mask, token_types=token_types)
        return hidden if self.head is None else self.unembed(hidden)


@torch.no_grad()
def look_back_first(block: Any, config: ModelConfig, generator: torch.Generator) -> None:
    """Set the rotary biases of half of the key heads so that their queries prefer the previous token.

    In pairs that turn fast enough to tell neighbours apart, a query's bias is the key's, turned one position back.
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


def outline(config: ModelConfig, like: Tensor, exchanged: tuple[str, ...], edited: tuple[str, ...]) -> Transformer:
    """A transformer whose weights are all the same NaN: it can be described, drawn and pickled, and refuses to run.

    Weights have the dtype and the device of ``like``, and take no memory.
    """
    with torch.device("meta"):
        model = Transformer(config)
    hollow = {name: like.new_full((), math.nan).expand(tensor.shape) for name, tensor in model.state_dict().items()}
    model.load_state_dict(hollow, assign=True)
    model.exchanged, model.edited, model.outlines = exchanged, edited, (config, like, exchanged, edited)
    return model.eval()


def run_each(stacks: Iterable[Stack], run: Callable[[Stack, Source | None], Tensor]) -> Tensor:
    """The last hidden states of the last of some stacks, each of which reads those of the one before."""
    source = None
    for stack in stacks:
        source = Source(run(stack, source))
    assert source is not None
    return source.states


@contextmanager
def facing(model: Transformer, source: Source | None) -> Iterator[None]:
    """Let a model read ``source`` in the block; None changes nothing."""
    before = model.reads
    model.reads = source or before
    try:
        yield
    finally:
        model.reads = before


def _unpickled(config: ModelConfig, weights: dict[str, Tensor], reads: Source | None) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(weights, assign=True)
    model.reads = reads
    return model.eval()


def reading(model: Transformer, source: Source) -> Transformer:
    """A copy of a model of two stacks that shares its weights, and reads ``source`` in every pass."""
    shared = {id(one): one for one in (model.identity, *model.parameters(), *model.buffers())}
    bound = copy.deepcopy(model, shared)
    bound.reads = source
    return bound


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context in evaluation mode, without dropout, for this thread alone."""
    with using(model):
        training = model.training
        if training:  # eval() walks through all modules, too slow for every decoded token
            model.eval()
        try:
            yield
        finally:
            if training:
                model.train()
