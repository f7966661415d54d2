"""Two models that differ in the numbers of some tensors alone, and the texts that they are compared on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from tinytf.cause.damage import Asked
from tinytf.cause.swaps import Swapping, Values
from tinytf.compare.alignment import same_vocabulary
from tinytf.config import FIELDS
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.text.chat import Conversation, Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.parameters import ParameterAddress, addresses_of


@dataclass(frozen=True)
class Texts:
    """What is measured on: the first ``tokens`` of each text (None: all of it); with ``truncate`` long ones are cut.

    ``token`` and ``versus_token`` are the two whose logits are compared at the end of each text; without them the two
    that the first model finds most likely there.
    """

    texts: Written | Sequence[Written]
    tokens: int | None = None
    truncate: bool = False
    token: str | int | None = None
    versus_token: str | int | None = None

    def encoded(self, model: TextModel) -> list[Encoding]:
        """The tokens of each, as ``model`` takes them. Raises UsageError as ``encode`` does."""
        given = [self.texts] if isinstance(self.texts, str | Conversation) else self.texts
        found = [model.encode(text, truncate=self.truncate or self.tokens is not None) for text in given]
        return [one if self.tokens is None else one.truncated(self.tokens) for one in found]

    def asked(self, model: TextModel) -> list[Asked]:
        """The tokens of each text, with what is measured of it. Raises UsageError for one token without the other."""
        if (self.token is None) != (self.versus_token is None):
            raise UsageError(
                "a logit difference is of two tokens, and one is named", "give both --token and --versus-token"
            )
        pair = None
        if self.token is not None and self.versus_token is not None:
            pair = model.find_outcome(self.token, "--token"), model.find_outcome(self.versus_token, "--versus-token")
        return [Asked.of(model.transformer, one.ids, pair) for one in self.encoded(model)]


class ModelPair:
    """Two models with the paths of the parameters that are ``changed``, and the ``values`` of each side for the other.

    Raises UsageError for models that differ in more than the numbers of their tensors, and for a model that does not
    choose one outcome.
    """

    def __init__(self, model: TextModel, versus: TextModel) -> None:
        model.transformer.require_choice("there are no predictions to compare")
        _require_alike(model, versus)
        self.first, self.second = Swapping(model.transformer), Swapping(versus.transformer)
        own, others = (dict(one.transformer.named_parameters()) for one in (model, versus))
        self.changed = tuple(
            path
            for path, one in own.items()
            if self.first.used[path] and not torch.equal(one, others[path].to(one.device))
        )
        self.same = len(own) - len(self.changed)
        self.theirs: dict[str, Values] = {path: {path: others[path].data.to(own[path])} for path in self.changed}
        self.ours: dict[str, Values] = {path: {path: own[path].data.to(others[path])} for path in self.changed}

    @cached_property
    def places(self) -> dict[str, tuple[ParameterAddress, int | None]]:
        """The address of each parameter, with its layer."""
        return addresses_by_path(self.first.model)


def _require_alike(model: TextModel, versus: TextModel) -> None:
    """UsageError unless the two differ in the numbers of their tensors alone."""
    first, second = model.config, versus.config
    other = [name for name in FIELDS if first.setting(name) != second.setting(name)]
    if other:
        values = " and ".join(f"{config.setting(other[0])}" for config in (first, second))
        raise UsageError(
            f"the models differ in more than their tensors: {other[0]} is {values}",
            "tinytf diff compares models of two kinds",
        )
    if not same_vocabulary(model.tokenizer, versus.tokenizer):
        raise UsageError("the models have different vocabularies", "tinytf diff compares what they predict")


def addresses_by_path(model: Transformer) -> dict[str, tuple[ParameterAddress, int | None]]:
    """The address of each parameter by its path, with its layer."""
    found: dict[str, tuple[ParameterAddress, int | None]] = {}
    for where, layer in addresses_of(table_of(model.config)):
        found.setdefault(where.path(layer), (where, layer))
    return found
