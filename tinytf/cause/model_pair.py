"""Two models that differ only in the numbers of some tensors, and the texts on which they are compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from tinytf.cause.damage import MeasuredText
from tinytf.cause.swaps import Swapping, Values
from tinytf.compare.alignment import same_vocabulary
from tinytf.config import FIELDS
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.text.chat import TextPair, Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite_texts
from tinytf.trace.parameters import ParameterAddress, addresses_of


@dataclass(frozen=True)
class Texts:
    """The texts to measure on: the first ``tokens`` of each (None: all); ``truncate`` cuts texts that are too long.

    ``token`` and ``versus_token`` are the two whose logits are compared at the end of each text; by default the two
    that the first model finds most likely there.
    """

    texts: Written | Sequence[Written]
    tokens: int | None = None
    truncate: bool = False
    token: str | int | None = None
    versus_token: str | int | None = None

    def encoded(self, model: TextModel) -> list[Encoding]:
        """The tokens of each text for ``model``. Raises UsageError as ``encode`` does."""
        texts = [self.texts] if isinstance(self.texts, Written) else self.texts
        if any(isinstance(text, TextPair) for text in texts):
            raise UsageError("tensors are swapped on single texts, not on pairs", "leave out --pair")
        encodings = [model.encode(text, truncate=self.truncate or self.tokens is not None) for text in texts]
        return [encoding if self.tokens is None else encoding.truncated(self.tokens) for encoding in encodings]

    def asked(self, model: TextModel) -> list[MeasuredText]:
        """What to measure on each text. Raises UsageError for one token without the other."""
        if (self.token is None) != (self.versus_token is None):
            raise UsageError(
                "a logit difference takes two tokens, and one is named", "give both --token and --versus-token"
            )
        pair = None
        if self.token is not None and self.versus_token is not None:
            pair = model.find_outcome(self.token, "--token"), model.find_outcome(self.versus_token, "--versus-token")
        return [MeasuredText.of(model.transformer, encoding.ids, pair) for encoding in self.encoded(model)]


def require_finite_on(model: TextModel, asked: Sequence[MeasuredText]) -> None:
    """Raise TinytfError, with the first step that is not finite, if the model's numbers on a text are not."""
    require_finite_texts(model.name, model.transformer, (text.ids[0].tolist() for text in asked))


class ModelPair:
    """Two models, the paths of the parameters that are ``changed``, and each side's values for the other.

    ``theirs`` are the second model's values for the first, ``ours`` the first model's for the second. Raises UsageError
    for models that differ in more than the numbers of their tensors, and for a model that does not choose one outcome.
    """

    def __init__(self, model: TextModel, versus: TextModel) -> None:
        model.transformer.require_choice("there are no predictions to compare")
        _require_alike(model, versus)
        self.first, self.second = Swapping(model.transformer), Swapping(versus.transformer)
        ours, theirs = (dict(side.transformer.named_parameters()) for side in (model, versus))
        self.changed = tuple(
            path
            for path, parameter in ours.items()
            if self.first.used[path] and not torch.equal(parameter, theirs[path].to(parameter.device))
        )
        self.same = len(ours) - len(self.changed)
        self.theirs: dict[str, Values] = {path: {path: theirs[path].data.to(ours[path])} for path in self.changed}
        self.ours: dict[str, Values] = {path: {path: ours[path].data.to(theirs[path])} for path in self.changed}

    @cached_property
    def places(self) -> dict[str, tuple[ParameterAddress, int | None]]:
        """The address of each parameter, with its layer."""
        return addresses_by_path(self.first.model)


def _require_alike(model: TextModel, versus: TextModel) -> None:
    """Raise UsageError unless the two differ only in the numbers of their tensors."""
    first, second = model.config, versus.config
    differing = [name for name in FIELDS if first.setting(name) != second.setting(name)]
    if differing:
        values = " and ".join(f"{config.setting(differing[0])}" for config in (first, second))
        raise UsageError(
            f"the models differ in more than their tensors: {differing[0]} is {values}",
            "tinytf diff compares models of different kinds",
        )
    if not same_vocabulary(model.tokenizer, versus.tokenizer):
        raise UsageError("the models have different vocabularies", "tinytf diff compares what they predict")


def addresses_by_path(model: Transformer) -> dict[str, tuple[ParameterAddress, int | None]]:
    """The address of each parameter by its path, with its layer."""
    addresses: dict[str, tuple[ParameterAddress, int | None]] = {}
    for address, layer in addresses_of(table_of(model.config)):
        addresses.setdefault(address.path(layer), (address, layer))
    return addresses
