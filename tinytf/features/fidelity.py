"""How faithful a sparse coder is: what it keeps of a step, and of the predictions with its output in the place of it.

Shapes: T tokens of a text, n of them its own, O width of the step that is written, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.edits import edited
from tinytf.cause.interventions.hooks import hidden_with
from tinytf.compare.measures import loss
from tinytf.features.coder import SparseCoder
from tinytf.features.place import Place, own_positions
from tinytf.report import Data
from tinytf.text_model import TextModel
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Fidelity(Data):
    """How well a coder reconstructs a step, over the ``tokens`` of texts; tokens that the tokenizer adds do not count.

    ``l0`` is the mean number of active features of a token. ``explained_variance`` is 1 − Σ‖x − x̂‖² ÷ Σ‖x − x̄‖², with
    x̄ the mean of the tokens (None if they are equal); ``relative_error`` the mean of ‖x − x̂‖ ÷ ‖x‖, and ``cosine`` that
    between x and x̂. Losses are in nats a token: of the model, with x̂ in the place of x, and with zeros there; None
    for a model or a text that predicts no next token.
    """

    ALSO: ClassVar = ("loss_recovered",)

    tokens: int
    l0: float
    explained_variance: float | None
    relative_error: float
    cosine: float
    loss: float | None
    loss_reconstructed: float | None
    loss_zeroed: float | None

    @property
    def loss_recovered(self) -> float | None:
        """(zeroed − reconstructed) ÷ (zeroed − plain): 1 if no loss is added, 0 if as much as zeros add.

        None where zeros add nothing.
        """
        if self.loss is None or self.loss_reconstructed is None or self.loss_zeroed is None:
            return None
        added = self.loss_zeroed - self.loss
        return (self.loss_zeroed - self.loss_reconstructed) / added if added > 0 else None


@dataclass(frozen=True, eq=False)
class Reconstructed:
    """A step of one text and its reconstruction at its own tokens, (n, O); ``activations`` (T, F) are of all tokens.

    ``output`` (T, O) is the whole value of the step. ``losses`` are the three of ``Fidelity``.
    """

    own: list[int]
    activations: Tensor
    output: Tensor
    reconstruction: Tensor
    losses: tuple[float, float, float] | None


@torch.no_grad()
def reconstructed(
    model: TextModel, trace: Trace, coder: SparseCoder, read: Place, written: Place, own: Sequence[int] | None = None
) -> Reconstructed:
    """Encode and decode a step of a traced text, and run the text with the result in its place, and with zeros.

    ``own`` are the positions that count and are replaced, by default those of the text's own tokens.
    """
    own, value = list(own_positions(trace.encoding) if own is None else own), read.value(trace)
    activations, output = coder.encode(value), written.value(trace)
    reconstruction = coder.decode(activations, value)[own]

    def loss_with(replacement: Tensor) -> float:
        changed = output.clone()
        changed[own] = replacement.to(changed)
        value = loss(trace.model, trace.encoding, hidden_edited(model, trace, written, changed))
        assert value is not None
        return value

    plain = loss(trace.model, trace.encoding, trace.last_hidden)
    losses = None if plain is None else (plain, loss_with(reconstruction), loss_with(torch.zeros(())))
    return Reconstructed(own, activations, output, reconstruction, losses)


def hidden_edited(model: TextModel, trace: Trace, place: Place, value: Tensor) -> Tensor:
    """The last hidden states (T, C) of a forward pass with ``value`` (T, O) in the place of a step."""
    with edited(model, {str(place): value}):
        return hidden_with(trace, [])


def fidelity(texts: Sequence[Reconstructed]) -> Fidelity:
    """How faithful a coder is over all tokens of some texts, computed in float64."""
    x = torch.cat([text.output[text.own] for text in texts]).double()
    error = x - torch.cat([text.reconstruction for text in texts]).to(x)
    variance = float((x - x.mean(dim=0)).square().sum())
    sizes = x.norm(dim=-1).clamp(min=1e-300)
    predicting = [(text.losses, len(text.output) - 1) for text in texts if text.losses is not None]
    n_predicted = sum(count for _, count in predicting)
    losses: list[float | None] = [None] * 3
    if predicting:
        losses = [sum(values[i] * count for values, count in predicting) / n_predicted for i in range(3)]
    return Fidelity(
        tokens=len(x),
        l0=sum(int((text.activations[text.own] > 0).sum()) for text in texts) / len(x),
        explained_variance=1 - float(error.square().sum()) / variance if variance > 0 else None,
        relative_error=float((error.norm(dim=-1) / sizes).mean()),
        cosine=float(torch.cosine_similarity(x, x - error, dim=-1).mean()),
        loss=losses[0],
        loss_reconstructed=losses[1],
        loss_zeroed=losses[2],
    )
