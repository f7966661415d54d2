"""The data of a difference: JSON, events and tensors."""

from collections.abc import Iterator
from typing import Any

import torch

from tinytf.analysis.difference import Attention, Difference
from tinytf.loading import Model
from tinytf.text.tokenizer import Encoding
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.views.banner import model_data, text_data


class DifferenceData:
    """Two runs side by side, as numbers; ``fail_over`` is the relative difference from which on the status is 1."""

    def __init__(
        self, models: tuple[Model, Model], texts: tuple[Encoding, Encoding], found: Difference, fail_over: float | None
    ) -> None:
        self.models, self.texts, self.found, self.fail_over = models, texts, found, fail_over

    @property
    def holds(self) -> bool:
        """Whether nothing differs by more than was allowed; there is no limit unless one was given."""
        limit, worst = self.fail_over, self.found.worst
        return limit is None or (worst is not None and worst.relative <= limit)

    def data(self) -> dict[str, Any]:
        """The difference as one JSON object."""
        found, first, worst = self.found, self.found.first, self.found.worst
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "difference",
            "first": {"model": model_data(self.models[0]), **text_data(self.texts[0])},
            "second": {"model": model_data(self.models[1]), **text_data(self.texts[1])},
            "aligned": {
                "positions": found.alignment.positions,
                "changed": list(found.alignment.changed),
                "note": found.alignment.note,
            },
            "tolerance": found.tolerance,
            "equal": found.equal,
            "first_difference": None if first is None else first.name,
            "largest_difference": None if worst is None else worst.name,
            "steps": [one.to_dict() for one in found.steps],
            "incomparable": [{"name": one.name, "why": one.why} for one in found.incomparable],
            "attention": None if found.attention is None else _attention_data(found.attention),
            "positions": [
                {"index": one.index, "kl": one.kl, "first": _top(one.first), "second": _top(one.second)}
                for one in found.positions
            ],
            "predictions": [
                {
                    "position": one.position,
                    "other_position": one.other_position,
                    "kl": one.kl,
                    "top": [
                        {"id": i, "token": self.models[0].tokenizer.shown(i), "first": a, "second": b}
                        for i, a, b in zip(one.ids, one.first, one.second, strict=True)
                    ],
                }
                for one in found.predictions
            ],
            "losses": None if found.losses is None else list(found.losses),
            "weights": [one.to_dict() for one in found.moved],
            "check": {"fail_over": self.fail_over, "holds": self.holds},
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        kinds = (("step", "steps"), ("incomparable", "incomparable"), ("position", "positions"),
                 ("prediction", "predictions"), ("weights", "weights"))  # fmt: skip
        lists = {kind: data.pop(key) for kind, key in kinds}
        attention, check = data.pop("attention"), data.pop("check")
        yield {"type": data.pop("kind"), **data}
        for kind, rows in lists.items():
            for one in rows:
                yield {"type": kind, **one}
        if attention is not None:
            yield {"type": "attention", **attention}
        yield {"type": "check", **check}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights of the head that is shown, of both runs."""
        found = self.found.attention
        if found is None:
            return {}
        name = f"L{found.layer}H{found.head}.weights"
        return {f"first/{name}": found.first, f"second/{name}": found.second}


def _top(best: tuple[int, float]) -> dict[str, Any]:
    return {"id": best[0], "probability": best[1]}


def _attention_data(found: Attention) -> dict[str, Any]:
    maps = [
        (one if found.seen is None else one.masked_fill(~found.seen, float("-inf"))).tolist()
        for one in (found.first, found.second)
    ]
    return {
        "layer": found.layer,
        "head": found.head,
        "first": maps[0],
        "second": maps[1],
        "apart": [None if heads is None else list(heads) for heads in found.apart],
    }
