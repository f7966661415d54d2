"""The logit lens: what a model would predict if the residual stream after each layer were its last.

Every state of the stream goes through the model's own final norm and head (nostalgebraist 2020, "interpreting GPT: the
logit lens"). The encoder of a model with two stacks predicts nothing and has no head: its states go through its own
final norm and the decoder's head, which says what tokens they are nearest to.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.translators import Translators, read_translators
from tinytf.memory import require_free
from tinytf.model.transformer import Transformer
from tinytf.report import About, Progress, Report, ignore_progress
from tinytf.sentences import from_where_on, listed
from tinytf.short_repr import ShortRepr
from tinytf.steps.operations.operation import wide
from tinytf.steps.table import StepKey
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.faults import first_not_finite
from tinytf.trace.trace import Text, Trace

_CHUNK_BYTES = 24 * 2**20
"""Bytes of the float64 logits that are unembedded at a time, a few positions of a layer."""

_UNREAD = "nothing reads its layers as tokens"
_NEAR = 10
"""The first so many tokens, which a sentence says that a token is among."""

_CACHE_BYTES = 4 * 2**20
"""Bytes of the logits that are summed at a time, which fit a processor's cache."""


@dataclass(frozen=True)
class Stage(ShortRepr):
    """The reading of the residual stream at one stage, for P positions.

    ``name`` is its address. ``top_ids`` and ``top_probabilities`` are (P, k), the most probable token first;
    ``entropy`` and ``divergence``, KL(final ‖ here), are (P,) in nats; ``ranks`` (from 1) and ``probabilities`` of the
    tracked tokens are (P, N).
    """

    name: str
    layer: int | None
    top_ids: Tensor
    top_probabilities: Tensor
    entropy: Tensor
    divergence: Tensor
    ranks: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class Lens(Report):
    """The stages in the order of the forward pass; the last is the model's own output.

    ``through`` names the modules that read them. ``difference`` is the largest between the last stage and the recorded
    output of the forward pass: the same modules on the same numbers, so exactly 0. If it is not finite,
    ``first_not_finite`` names the first step of the pass with NaN or infinity. ``tuned`` names the translators of a
    tuned lens, which come before the final norm at all stages but the last; empty for the logit lens.

    If it is ``borrowed``, the stack is an encoder and the head the decoder's: its output is no prediction, a token's
    probability says how near the state is to it, and ``difference`` is that of the states which the decoder reads.
    """

    KIND = "lens"
    TABLE = ("stages", "at", "top")
    EVENTS: ClassVar = {"tokens": "token", "stages": "stage", "check": "check"}

    positions: tuple[int, ...]
    tracked: tuple[int, ...]
    stages: tuple[Stage, ...]
    through: str
    difference: float
    first_not_finite: str | None
    tuned: str = ""
    borrowed: bool = False

    @property
    def holds(self) -> bool:
        return self.difference == 0.0

    def in_a_sentence(self) -> str:
        """From which stage on each tracked token, or the predicted one, is first and among the first ten.

        Of an encoder that reads several tokens, how many states are nearest to their own token, first and last.
        """
        row = self._telling()
        if row is None:
            return self._kept() if self.borrowed else ""
        names = [_called(stage, self.stages) for stage in self.stages]
        assert self.about is not None
        where = "After" if self.about.model.config.causal else "At"
        where = f"By the tuned lens, {where.lower()}" if self.tuned else where
        at = f"{where} {self.encoding.tokens[self.positions[row]].shown}"
        if self.tracked:
            return f"{at}, {listed([self._followed(row, i, names) for i in range(len(self.tracked))[:2]])}."
        best = [int(stage.top_ids[row, 0]) for stage in self.stages]
        first = from_where_on([token == best[-1] for token in best])
        assert first is not None
        still = f"; at {names[first - 1]} it is still {self.shown(best[first - 1])}" if first else ""
        what = "the encoder is nearest to" if self.borrowed else "the model's guess is"
        return f"{at}, {what} {self.shown(best[-1])} from {names[first]} on{still}."

    def _kept(self) -> str:
        """How many states of an encoder are nearest to the token that stands there."""
        own = torch.tensor([self.encoding.tokens[at].id for at in self.positions])
        first, last = (int((stage.top_ids[:, 0] == own).sum()) for stage in (self.stages[0], self.stages[-1]))
        name = _called(self.stages[-1], self.stages)
        return (
            f"By the decoder's head, {first:,} of {len(own):,} states of the encoder are nearest to their own token at "
            f"{_called(self.stages[0], self.stages)}, and {last:,} at {name}."
        )

    def _followed(self, row: int, i: int, names: Sequence[str]) -> str:
        """Where a tracked token enters the first ten and the first place, to stay there."""
        ranks = [int(stage.ranks[row, i]) for stage in self.stages]
        first, near = (from_where_on([rank <= most for rank in ranks]) for most in (1, _NEAR))
        token, last = self.shown(self.tracked[i]), f"number {ranks[-1]:,}"
        if near is None:
            best = min(range(len(ranks)), key=ranks.__getitem__)
            return f"{token} ends as {last}" + f", after number {ranks[best]:,} at {names[best]}" * (
                ranks[best] < ranks[-1]
            )
        if first == near:
            return f"{token} is first from {names[near]} on"
        then = f"ends as {last}" if first is None else f"first from {names[first]} on"
        return f"{token} is in the top {_NEAR} from {names[near]} on and {then}"

    def _telling(self) -> int | None:
        """The row of the position that a person asks about: the only or last one, or an encoder's first [MASK]."""
        assert self.about is not None
        model = self.about.model
        if len(self.positions) == 1 or model.config.causal:
            return len(self.positions) - 1
        tokens, mask = self.encoding.tokens, model.tokenizer.mask_id
        return next((row for row, at in enumerate(self.positions) if tokens[at].id == mask), None)

    def fields(self) -> dict[str, Any]:
        """The JSON data; entropy and KL(final ‖ here) are in nats."""
        return {
            **self.members("through"),
            **({"tuned": self.tuned} if self.tuned else {}),
            **({"borrowed": True} if self.borrowed else {}),
            "divergence": "KL(final ‖ here), in nats",
            **self.members("positions"),
            "tracked": [self.named(i) for i in self.tracked],
            "stages": [
                {"stage": stage.name, "layer": stage.layer, "at": list(self._at(stage))} for stage in self.stages
            ],
            "check": {
                "holds": self.holds,
                "largest_difference": self.difference,
                **({"first_not_finite": self.first_not_finite} if self.first_not_finite else {}),
            },
        }

    def _at(self, stage: Stage) -> Iterator[dict[str, Any]]:
        for row, position in enumerate(self.positions):
            best = zip(stage.top_ids[row].tolist(), stage.top_probabilities[row].tolist(), strict=True)
            ranks, probabilities = stage.ranks[row].tolist(), stage.probabilities[row].tolist()
            followed = zip(self.tracked, ranks, probabilities, strict=True)
            yield {
                "position": position,
                "entropy": float(stage.entropy[row]),
                "divergence": float(stage.divergence[row]),
                "top": [{self.outcome: self.shown(i), "id": i, "probability": p} for i, p in best],
                "tracked": [{"id": i, "rank": None if p != p else rank, "probability": p} for i, rank, p in followed],
            }

    def stored(self) -> list[Array]:
        """Every tensor by name, with a leading axis of stages, and the positions and tracked tokens."""
        axes = {"top_ids": ["rank"], "top_probabilities": ["rank"], "entropy": [], "divergence": [],
                "ranks": ["tracked"], "probabilities": ["tracked"]}  # fmt: skip
        stacked = {name: torch.stack([getattr(stage, name) for stage in self.stages]) for name in axes}
        arrays = [Array.of(name, ["stage", "position", *axes[name]], tensor) for name, tensor in stacked.items()]
        vectors = (("positions", "position"), ("tracked", "tracked"))
        return arrays + [Array.of(name, [axis], torch.tensor(getattr(self, name))) for name, axis in vectors]


def _called(stage: Stage, stages: Sequence[Stage]) -> str:
    """A stage in words: its layer where each has one stage, else its address."""
    if stage.layer is None:
        return "the embedding"
    return f"L{stage.layer}" if sum(other.layer == stage.layer for other in stages) == 1 else stage.name


def require_readable(model: Transformer) -> None:
    """Raise UsageError for a model without a head that can read its layers."""
    model.require_choice(_UNREAD)


def reader_of(model: TextModel) -> Transformer:
    """The stack whose head reads the layers of a model: its own, or for the encoder of two stacks the decoder.

    Raises UsageError like ``require_readable``, and for a decoder that is of another width or vocabulary.
    """
    whole, own = model.read_by, model.config
    if model.transformer.head is not None or whole is None:
        require_readable(model.transformer)
        return model.transformer
    decoder, read = whole.transformer, whole.config
    decoder.require_vocabulary(_UNREAD)
    differs = f"is {own.d_model:,} wide where the decoder's head reads {read.d_model:,}"
    if own.d_model == read.d_model:
        differs = "has another vocabulary than the decoder"
        if own.vocab_size == read.vocab_size and (model.tokenizer is whole.tokenizer or read.shares_embeddings):
            return decoder
    raise UsageError(
        f"the encoder has no head, and {differs}, so {_UNREAD}",
        "leave out --stack encoder to read the decoder; trace shows the encoder's numbers",
    )


@torch.no_grad()
def lens(
    model: TextModel,
    text: Text,
    *,
    position: str | None = None,
    top: int = 5,
    track: Sequence[str | int] = (),
    sublayers: bool = False,
    tuned: Translators | str | Path | None = None,
    on_progress: Progress = ignore_progress,
    truncate: bool = False,
    force: bool = False,
) -> Lens:
    """Read the residual stream of a text, or of its trace, after each layer, with ``sublayers`` also after attention.

    ``position`` is such as ``2``, ``0-3,7``, ``-1``, ``all`` or a token of the text; by default all positions of a
    decoder, the masked ones of an encoder (all, if none is masked). ``track`` are words whose rank and probability are
    followed, each one token. ``tuned`` are the translators of a tuned lens, or their file or folder. Only the last
    layer's logits, (positions, vocabulary), are in memory at once; the others are read a few positions at a time.

    The encoder of two stacks, ``model.encoder``, is read by the decoder's head.

    Raises UsageError for a model without a head, for an encoder that is of another width or vocabulary than its
    decoder, for a position or token that does not exist, and for translators of another model or with ``sublayers``,
    which have none; MemoryShortage if the logits of one layer exceed the free memory, unless ``force`` is true.
    """
    reader = reader_of(model)
    if tuned is not None and reader is not model.transformer:
        raise UsageError("a tuned lens predicts what its model does, and an encoder predicts nothing", "leave it out")
    translators = read_translators(tuned, model.config) if isinstance(tuned, str | Path) else tuned
    if translators is not None and sublayers:
        raise UsageError("a tuned lens has no translators after attention", "leave out --sublayers")
    followed = list(dict.fromkeys(model.find_outcome(word, "--track") for word in track))
    trace = model.trace(text, truncate=truncate, force=force)
    is_whole_text = trace.config.causal and trace.config.predicts_tokens
    table, transformer = trace.steps, trace.model
    borrowed = reader is not model.transformer
    reader = reader if borrowed else transformer  # of a changed model, as a session has one
    default_positions = range(len(trace.tokens)) if is_whole_text or borrowed else trace.recording.logit_rows
    positions = list(default_positions if position is None else trace.positions(position))
    chosen = torch.tensor(followed, dtype=torch.int64, device=trace.model_input.device)
    if not force:
        hidden = trace.last_hidden
        require_free(
            f"the logits of {len(positions):,} positions hold",
            len(positions) * trace.config.n_outcomes * hidden.itemsize,
            hidden.device,
            "choose fewer with --position, such as --position -1; --force reads them anyway",
        )
    sublayer_steps = [table.mid_stream] if sublayers and table.mid_stream else []
    steps: list[StepKey] = [
        (table.embedded, None),
        *(
            (name, layer)
            for layer in range(trace.config.n_layers)
            for name in (*sublayer_steps, table.output)
            if table.has(name, layer)
        ),
    ]  # in a post-norm model each is the output of a norm
    last = transformer.finish(trace.step(*steps[-1]))  # (T, C)
    final = _read(reader, last, positions)  # (P, V), the only logits of a whole layer
    vocabulary = final.shape[-1]
    count, few = (max(1, room // (8 * vocabulary)) for room in (_CHUNK_BYTES, _CACHE_BYTES))
    starts = range(0, len(positions), count)
    readings: list[list[tuple[Tensor, ...]]] = [[] for _ in steps]
    for number, start in enumerate(starts):
        rows = positions[start : start + count]
        expected = [expected_of(chunk) for chunk in final[start : start + count].split(few)]
        for index, step in enumerate(steps):
            logits = final[start : start + count]
            if index < len(steps) - 1:
                state, of = trace.step(*step), rows
                if transformer.averaged is None:  # else the head reads all tokens
                    state, of = state[rows], [*range(len(rows))]
                state = state if translators is None else translators(index, state)
                logits = reader.unembed(transformer.finish_rows(state, of))
            readings[index] += [
                reading_of(chunk, expected_chunk, min(top, vocabulary), chosen)
                for chunk, expected_chunk in zip(logits.split(few), expected, strict=True)
            ]
            on_progress(number * len(steps) + index + 1, len(starts) * len(steps))
    stages = tuple(
        Stage(
            table.at(*step).full_name(step[1]),
            step[1],
            *(torch.cat(parts).cpu() for parts in zip(*chunks, strict=True)),
        )
        for step, chunks in zip(steps, readings, strict=True)
    )
    through, difference = _through(trace, reader), _difference(trace, last, borrowed=borrowed)
    about = About(model, trace.encoding)
    fault = None if math.isfinite(difference) else first_not_finite(trace)
    source = "" if translators is None else translators.source or "translators"
    through = through if translators is None else f"a translator of each layer, then {through}"
    return Lens(tuple(positions), tuple(followed), stages, through, difference, fault, source, borrowed, about=about)


@torch.no_grad()
def most_probable_by_layer(trace: Trace, position: int) -> list[tuple[int, float]]:
    """The token that the lens reads after each layer at one position, with its probability."""
    model, table = trace.model, trace.steps
    states = [model.finish_rows(trace.step(table.output, n), [position]) for n in range(trace.config.n_layers)]
    logits = wide(model.unembed(torch.cat(states)))  # (layers, V)
    best = logits.max(dim=-1)
    shares = (best.values - logits.logsumexp(dim=-1)).exp()
    return list(zip(best.indices.tolist(), shares.tolist(), strict=True))


def _through(trace: Trace, reader: Transformer) -> str:
    titles = [step.title.removeprefix("head, ") for step in trace.steps.after if step.name.startswith("head.")]
    head = f"the head ({', '.join([*titles, 'unembedding'])})" if "dense" in titles else "the head"
    norm, ends = (
        ("the final norm and ", "")
        if trace.config.final_norm
        else ("", "there is no final norm: each block ends with one")
    )
    if reader is not trace.model:
        shared = reader.config.tied_head and reader.config.shares_embeddings
        tie = "and both share one table of embeddings" if shared else "and its embeddings are another matrix"
        norm, head = norm.replace("the", "the encoder's", 1), f"the decoder's head (the encoder has none, {tie})"
    return "; ".join(filter(None, (f"{norm}{head}", ends)))


def _read(model: Transformer, hidden: Tensor, rows: Sequence[int]) -> Tensor:
    """Logits (P, V) of all positions or some, by the model's own product, so equal to the last bit."""
    return model.unembed(hidden if list(rows) == list(range(len(hidden))) else hidden[list(rows)])


def _mean_log_probability(weights: Tensor, probs: Tensor, logits: Tensor) -> Tensor:
    """Σ w·ln p in each row, for weights that sum to 1: Σ w·x − ln Σ eˣ, the latter from the largest logit's p."""
    best, index = logits.max(dim=-1, keepdim=True)
    log_sum = (best - probs.gather(-1, index).log())[:, 0]
    return torch.linalg.vecdot(weights, logits) - log_sum


def expected_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The final distribution at some positions: probabilities (P, V), and Σ p·ln p (P,), in float64."""
    probs = logits.softmax(dim=-1, dtype=torch.float64)
    return probs, _mean_log_probability(probs, probs, logits.double())


def reading_of(logits: Tensor, expected: tuple[Tensor, Tensor], top: int, tracked: Tensor) -> tuple[Tensor, ...]:
    """The fields of a Stage for some positions, from its logits (P, V) and the result of ``expected_of``."""
    best = logits.topk(top, dim=-1).indices  # (P, k)
    probs, logits64 = logits.softmax(dim=-1, dtype=torch.float64), logits.double()
    entropy = -_mean_log_probability(probs, probs, logits64)
    divergence = expected[1] - _mean_log_probability(expected[0], probs, logits64)
    token_ids = tracked.expand(len(logits), -1)  # (P, N)
    ranks = [(logits > logits[:, token, None]).sum(dim=-1) + 1 for token in tracked]
    rank_matrix = torch.stack(ranks, dim=-1) if ranks else token_ids
    return best, probs.gather(-1, best), entropy, divergence.clamp(min=0.0), rank_matrix, probs.gather(-1, token_ids)


def _difference(trace: Trace, last: Tensor, *, borrowed: bool) -> float:
    """The largest difference of the last stage from the forward pass, in the last hidden state and its own logits."""
    rows = trace.recording.logit_rows
    pairs = [(last, trace.last_hidden)]
    pairs += [] if borrowed else [(_read(trace.model, last, rows), trace.recorded_logits)]
    return float(torch.stack([(ours.double() - theirs.double()).abs().max() for ours, theirs in pairs]).max())
