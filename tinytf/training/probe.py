"""What the heads of a model in training do: four scores a head, on a fixed batch of random ids, every so many steps.

Shapes: B batch, H heads, T tokens (Q and K where query and key differ).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tinytf.analysis.heads import choosing, duplicate, entropy_share, induction, previous
from tinytf.analysis.repeats import repeated_tokens
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.operations.mask import Sight
from tinytf.trace.hooks import stepwise

_SEQUENCES = 4
_LONGEST_COPY = 24
_SHORTEST_COPY = 3  # of two tokens, the one after the last time is the one before: induction is previous
_BECOMES, _REMAINS = 0.5, 0.4

NAMES = {
    "previous": "a previous-token head",
    "duplicate": "a duplicate-token head",
    "induction": "an induction head",
}
"""What a head is called that scores high."""

Scores = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class HeadScores:
    """Scores of every head, layers × heads, 0…1; NaN where the weights of the model are no numbers.

    ``entropy``: of a query's weights, divided by that of looking at all visible keys alike, mean over the queries that
    see more than one key (0 where none does). ``previous``: mean weight on the token before. ``duplicate`` and
    ``induction``: mean weight, in the second copy, on the same token in the first, and on the one after it (Olsson et
    al. 2022, "In-context Learning and Induction Heads"); None where nothing is said twice.
    """

    entropy: Scores
    previous: Scores
    duplicate: Scores | None = None
    induction: Scores | None = None

    def to_dict(self) -> dict[str, list[list[float | None]]]:
        """Plain JSON data, rounded to 4 digits: what is None is left out, NaN is null."""
        return {
            name: [[round(score, 4) if math.isfinite(score) else None for score in layer] for layer in scores]
            for name, scores in vars(self).items()
            if scores is not None
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The scores that ``to_dict`` wrote."""
        return cls(**{
            name: tuple(tuple(math.nan if score is None else float(score) for score in layer) for layer in scores)
            for name, scores in data.items()
        })  # fmt: skip


class Probe:
    """Scores the heads of models of one configuration, always on the same ids (B, T).

    A decoder reads random ids twice in a row, as much of them as ``block``, the context and a window let it look back
    on; ``length`` is that of one copy. An encoder reads random ids once, and so does a decoder without room for two
    copies of three tokens; ``length`` is then 0. Raises UsageError where not even two tokens fit.
    """

    def __init__(self, config: ModelConfig, *, block: int, seed: int = 0) -> None:
        room = min(block, config.context)
        if room < 2:
            raise UsageError(f"a block of {block} and a context of {config.context} leave no token before another")
        reach = config.window - 1 if config.window else room
        copy = min(_LONGEST_COPY, room // 2, reach)
        self.length = copy if config.causal and copy >= _SHORTEST_COPY else 0
        once = repeated_tokens(config.vocab_size, self.length or min(2 * _LONGEST_COPY, room), _SEQUENCES, seed)
        self.ids = once if self.length else once[:, : once.shape[1] // 2]
        self._visible = choosing(Sight.of(config), self.ids.shape[1])  # (Q,)

    def _score(self, weights: Tensor) -> Tensor:
        """The scores of one layer: (B, H, Q, K) -> (scores, H), in the order of HeadScores."""
        found = [entropy_share(weights, self._visible), previous(weights)]
        if self.length:
            found += [duplicate(weights, self.length), induction(weights, self.length)]
        return torch.stack(found).mean(dim=1)

    @torch.no_grad()
    def measure(self, model: Transformer) -> HeadScores:
        """Score every head in one forward pass; the model and the random state are left exactly as they were."""
        layers: list[Tensor] = []

        def tap(name: str, tensor: Tensor) -> Tensor:
            if name == "weights":  # (B, H, T, T), once a layer
                layers.append(self._score(tensor.float()))
            return tensor

        device = model.embed.tokens.weight.device
        with stepwise(model, tap), torch.autocast(device.type, enabled=False):  # no other scores in a caller's autocast
            model.hidden(self.ids.to(device))
        by_score = torch.stack(layers, dim=1).tolist()  # (scores, layers, H), fetched from the device once
        return HeadScores(*(tuple(map(tuple, scores)) for scores in by_score))


class Milestones:
    """Which heads became what.

    One counts as a previous-token, duplicate-token or induction head from a score of 0.5 on, until it is below 0.4.
    """

    def __init__(self) -> None:
        self.since: dict[str, dict[str, int]] = {name: {} for name in NAMES}  # name, then head, to the step

    def update(self, scores: HeadScores, step: int) -> list[str]:
        """A sentence for each head that became something, or is it no longer, at this step."""
        sentences = []
        for name, words in NAMES.items():
            counted = self.since[name]
            for layer, row in enumerate(getattr(scores, name) or ()):
                for number, score in enumerate(row):
                    head = f"L{layer}H{number}"
                    if head not in counted and score >= _BECOMES:
                        counted[head] = step
                        sentences.append(f"{head} became {words}, score {score:.2f}")
                    elif head in counted and score < _REMAINS:
                        del counted[head]
                        sentences.append(f"{head} is no longer {words}, score {score:.2f}")
        return sentences

    def state(self) -> dict[str, dict[str, int]]:
        """Since which step each head counts as what, as plain JSON data for a checkpoint."""
        return {name: dict(heads) for name, heads in self.since.items()}

    def restore(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Go on from what ``state`` gave."""
        self.since = {name: dict(state.get(name, {})) for name in NAMES}
