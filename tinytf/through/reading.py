"""Score, continue and read a text through transformers; the reports are those of models that tinytf computes."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.continuing import Streaming, with_ends
from tinytf.generate.loop import figures, steps_of
from tinytf.generate.report import Generation
from tinytf.generate.score import SCORE_LIMIT, Score, TokenScore
from tinytf.generate.underway import Underway
from tinytf.look.lens import Lens, Stage, expected_of, reading_of
from tinytf.report import About
from tinytf.text.chat import Written
from tinytf.text.library import Limit
from tinytf.text.tokenizer import Encoding
from tinytf.text.words import positions_in
from tinytf.text_model import in_turn_of_all
from tinytf.through.model import ThroughModel
from tinytf.through.recording import tensors_in, unbatched


@in_turn_of_all
def score_through(model: ThroughModel, text: Written, *, truncate: bool = False, limit: int = SCORE_LIMIT) -> Score:
    """How well the model predicts each token of a text that fits its context.

    Raises UsageError for a model that does not predict the next token, and for fewer than two tokens.
    """
    _require_next(model, "score")
    if model.config.starts is not None:
        raise UsageError(f"{model.name} reads TEXT in an encoder, which predicts none of its tokens", "try generate")
    most = Limit(min(limit, model.config.context), "score through transformers", "--truncate cuts the text")
    encoding = model.encode(text, truncate=truncate, limit=most)
    ids = encoding.ids
    if len(ids) < 2:
        raise UsageError(f"{len(ids)} token is too few: only a token that follows another is predicted", "give more")
    logits = _finite(model.logits(ids))
    scored = (TokenScore(i, ids[i], *figures(logits[i - 1], ids[i])) for i in range(1, len(ids)))
    return Score(tuple(scored), about=About(model, encoding))


class ThroughRunner:
    """The logits of texts that grow by a token at a time, each computed whole: no cache, so nothing to go wrong.

    The texts of a decoder begin with the prompt; those of a decoder beside an encoder with its start token.
    """

    dropped, note = 0, ""

    def __init__(self, model: ThroughModel, prompt: list[int]) -> None:
        self.model, self.prompt, starts = model, prompt, model.config.starts
        self.texts = [list(prompt) if starts is None else [starts]]

    @property
    def full(self) -> bool:
        """Whether one more token would exceed the context."""
        return len(self.texts[0]) >= self.model.config.context

    def first(self) -> Tensor:
        """The logits after the prompt, (1, V)."""
        return self._last()

    def go_on(self, rows: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Append one of ``ids`` to each of the texts ``rows``; the logits after it, (rows, V)."""
        self.texts = [[*self.texts[row], token_id] for row, token_id in zip(rows, ids, strict=True)]
        return self._last()

    def undisturbed(self) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def _last(self) -> Tensor:
        beside = self.model.config.starts is not None
        runs = ((self.prompt, text) if beside else (text, None) for text in self.texts)
        return torch.stack([_finite(self.model.logits(ids, answer))[-1] for ids, answer in runs])


def generate_through(model: ThroughModel, prompt: Encoding, options: Streaming) -> Underway[Generation]:
    """The texts that follow ``prompt``, or that a decoder answers, token by token. Raises UsageError for an encoder."""
    _require_next(model, "generate")
    if options.max_tokens < 1:
        raise UsageError(f"{options.max_tokens} new tokens are fewer than 1", "ask for at least 1")
    runner, about = ThroughRunner(model, prompt.ids), About(model)
    options = with_ends(model.tokenizer, options)
    before = prompt.ids if model.config.starts is None else []

    def steps(more: dict[str, Any]) -> Iterator[Any]:
        return steps_of(lambda: runner, before, options, None)

    return Underway(about=about, begun=Generation.begin(about, prompt, options), model=model.transformer, start=steps)


@torch.no_grad()
@in_turn_of_all
def lens_through(
    model: ThroughModel,
    text: Written,
    *,
    position: str | None = None,
    top: int = 5,
    track: Sequence[str | int] = (),
    truncate: bool = False,
) -> Lens:
    """Read the output of each layer by the model's own final norm and head, as ``tinytf.look.lens.lens`` does.

    Raises UsageError where the model has no such two modules, or where its logits are not what they give.
    """
    followed = [model.find_outcome(word, "--track") for word in track]
    encoding = model.encode(text, truncate=truncate)
    recording, roles = model.record(encoding)
    norm, head, layers = roles.first("final norm"), roles.first("head"), roles.layers
    if not layers or norm is None or head is None or recording.logits is None:
        raise UsageError(f"{model.name} has no final norm and head to read its layers with", "try trace")
    outputs = {call.path: call.output for call in recording.calls}
    modules = [model.transformer.get_submodule(path) for path in (norm, head)]

    def read(state: Tensor) -> Tensor:
        for module in modules:
            state = next(tensors_in(module(state)))
        return unbatched(state)

    own, last = recording.logits, read(outputs[layers[-1]])
    difference = float((last.double() - own.double()).abs().max()) if last.shape == own.shape else float("inf")
    if difference:
        raise UsageError(
            f"the logits of {model.name} are not {head} of {norm} of its last layer, so a lens would mislead",
            "try trace",
        )
    shown = [token.shown for token in encoding.tokens]
    if len(own) != len(shown):
        raise UsageError(f"{model.name} answers TEXT by another stack, which has no token of it", "try trace")
    positions = tuple(range(len(shown)) if position is None else positions_in(position, shown, "--position"))
    rows, chosen = list(positions), torch.tensor(followed, dtype=torch.int64, device=own.device)
    expected = expected_of(own[rows])
    stages = tuple(
        Stage(path, number, *(part.cpu() for part in reading_of(
            read(outputs[path])[rows], expected, min(top, own.shape[-1]), chosen)))
        for number, path in enumerate(layers)
    )  # fmt: skip
    return Lens(
        positions, tuple(followed), stages, f"{norm} and {head}", difference, None, about=About(model, encoding)
    )


def _require_next(model: ThroughModel, command: str) -> None:
    if not (model.config.causal and model.config.predicts_tokens):
        reason = "reads later tokens too" if model.config.predicts_tokens else "has no head of tokens"
        raise UsageError(f"{model.name} {reason}, and {command} needs a model of the next token", "try trace")


def _finite(logits: Tensor | None) -> Tensor:
    """Logits (T, V) in float32 on the processor. Raises GenerationError where they are not finite."""
    if logits is None or not bool(logits.isfinite().any(-1).all()) or bool(logits.isnan().any()):
        raise GenerationError("the logits are not finite", "the weights overflow in this dtype; try --dtype float32")
    return logits.float().cpu()
