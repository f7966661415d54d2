"""Score the heads of a model in training: four scores per head, on a fixed batch of random ids.

Shapes: B batch, H heads, T tokens (Q and K where query and key differ).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.look.heads.measures import (
    duplicate,
    entropy_share,
    induction,
    previous,
    repeated_tokens,
    spread_over_layers,
    stack_heads,
    visible_counts,
)
from tinytf.model.transformer import Transformer
from tinytf.runs.history import NAMES
from tinytf.steps.operations.mask import Sight
from tinytf.steps.table import table_of
from tinytf.trace.hooks import tap_steps
from tinytf.training.data.examples import IGNORED, Batch
from tinytf.training.tuning.losses import measured_loss

_SEQUENCES = 4
_LONGEST_COPY = 24
_SHORTEST_COPY = 3  # with copies of two tokens, induction and previous look at the same token
_BECOMES, _REMAINS = 0.5, 0.4

Scores = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class HeadScores:
    """Scores of every head, layers × heads, 0…1; NaN where weights are not finite, or a layer has no attention.

    ``entropy``: of a query's weights, divided by that of uniform attention to all visible keys, mean over the queries
    that see more than one key (0 where none does). ``previous``: mean weight on the previous token. ``duplicate`` and
    ``induction``: mean weight, in the second copy, on the same token in the first, and on the one after it (Olsson et
    al. 2022, "In-context Learning and Induction Heads"); None without repeated tokens.
    """

    entropy: Scores
    previous: Scores
    duplicate: Scores | None = None
    induction: Scores | None = None

    def to_dict(self) -> dict[str, list[list[float | None]]]:
        """Plain JSON data, rounded to 4 digits; without scores that are None, NaN as null."""
        return {
            name: [[round(score, 4) if math.isfinite(score) else None for score in layer] for layer in scores]
            for name, scores in vars(self).items()
            if scores is not None
        }

    @classmethod
    def read(cls, data: Mapping[str, Sequence[Sequence[float | None]]]) -> "HeadScores":
        """Read scores in the form of ``to_dict``."""

        def layer(row: Sequence[float | None]) -> tuple[float, ...]:
            return tuple(math.nan if score is None else float(score) for score in row)

        return cls(**{name: tuple(map(layer, rows)) for name, rows in data.items()})


class HeadProbe:
    """Scores the heads of models of one configuration, always on the same ids (B, T).

    A decoder reads repeated random ids, as many as ``block``, the context and a window let it see; ``length`` is the
    length of one copy. An encoder, a model of two stacks (both read them), or a decoder without room for two copies of
    three tokens, reads random ids once, and ``length`` is 0. Raises UsageError where not even two tokens fit.
    """

    def __init__(self, config: ModelConfig, *, block: int, seed: int = 0) -> None:
        room = min(block, config.context)
        if room < 2:
            raise UsageError(f"a block of {block} and a context of {config.context} leave no token before another")
        reach = config.window - 1 if config.window else room
        copy = min(_LONGEST_COPY, room // 2, reach)
        self.length = copy if config.causal and not config.encoder and copy >= _SHORTEST_COPY else 0
        repeated = repeated_tokens(config.vocab_size, self.length or min(2 * _LONGEST_COPY, room), _SEQUENCES, seed)
        self.ids = repeated if self.length else repeated[:, : repeated.shape[1] // 2]
        attending, tokens = table_of(config).attention_layers, self.ids.shape[1]
        self._visible = [visible_counts(Sight.of(config.at(layer)), tokens) for layer in attending]  # (Q,) each

    def _score(self, weights: Tensor, visible: Tensor) -> Tensor:
        """The scores of one layer: (B, H, Q, K) -> (H, scores), in the order of HeadScores."""
        scores = [entropy_share(weights, visible), previous(weights)]
        if self.length:
            scores += [duplicate(weights, self.length), induction(weights, self.length)]
        return torch.stack(scores, dim=-1).mean(dim=0)

    @torch.no_grad()
    def measure(self, model: Transformer) -> HeadScores:
        """Score every head in one forward pass; leaves the model and the random state unchanged."""
        layers: list[Tensor] = []

        def tap(name: str, tensor: Tensor) -> Tensor:  # (B, H, T, T), once per layer
            if table.attention_layers:  # without attention it is another map, which no score describes
                layers.append(self._score(tensor.float(), self._visible[len(layers)]))
            return tensor

        device, table = model.embed.tokens.weight.device, table_of(model.config)
        ids = self.ids.to(device)
        with tap_steps(model, tap, (table.weights,)), torch.autocast(device.type, enabled=False):
            model.hidden(ids, source=model.reads or model.read(ids))  # independent of a caller's autocast
        empty = torch.empty(0, 4 if self.length else 2, model.config.n_heads)
        all_layers = spread_over_layers(
            stack_heads(layers).movedim(-1, 1) if layers else empty, table.attention_layers, model.config.n_layers
        )
        by_score = all_layers.transpose(0, 1).tolist()  # (scores, layers, H), fetched from the device once
        return HeadScores(*(tuple(map(tuple, scores)) for scores in by_score))

    def copying(self, model: Transformer) -> float | None:
        """How much less the second copy costs than the same tokens in the first, in nats per token.

        The first token of each copy is left out, because nothing announces it. None without repeated tokens, or where
        the loss is not finite. Leaves the model and the random state unchanged.
        """
        if not self.length:
            return None
        losses = []
        for begin in (0, self.length):
            copy = slice(begin, begin + self.length - 1)
            targets = torch.full_like(self.ids, IGNORED)
            targets[:, copy] = self.ids[:, copy.start + 1 : copy.stop + 1]
            losses.append(measured_loss(model, [Batch(self.ids, targets, None)]) or 0.0)
        gain = losses[0] - losses[1]
        return gain if math.isfinite(gain) else None


def update_milestones(since: dict[str, dict[str, int]], scores: HeadScores, step: int) -> list[str]:
    """Update ``since`` with new scores; return a sentence for each head that took on or lost a kind at this step.

    A head has a kind from a score of 0.5 on, until it falls below 0.4. ``since``, plain JSON data for a checkpoint,
    maps each kind and head to the step when it began.
    """
    sentences = []
    for name, words in NAMES.items():
        started = since.setdefault(name, {})
        for layer, row in enumerate(getattr(scores, name) or ()):
            for head_index, score in enumerate(row):
                head = f"L{layer}H{head_index}"
                if head not in started and score >= _BECOMES:
                    started[head] = step
                    sentences.append(f"{head} became {words}, score {score:.2f}")
                elif head in started and score < _REMAINS:
                    del started[head]
                    sentences.append(f"{head} is no longer {words}, score {score:.2f}")
    return sentences
