"""Training a tuned lens: translators that make each stage say what the last layer will say, measured on held-out text.

Each translator starts as the linear regression of the last stream on its own (Din et al. 2023, "Jump to Conclusions"),
and then learns to minimise KL(final ‖ here) with Adam (Belrose et al. 2023). Shapes: B sequences, T tokens, C d_model,
V vocabulary, N positions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.bulk.folder import RecordedCorpus
from tinytf.errors import TinytfError, UsageError
from tinytf.estimate import Estimate, mean_of
from tinytf.look.lens import require_readable
from tinytf.look.translators import Translators, stage_names
from tinytf.model.transformer import Transformer
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import plural
from tinytf.steps.operations import Positions
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.windows import text_windows
from tinytf.text_model import TextModel
from tinytf.trace.hooks import tap_steps

STEPS, BATCH, WINDOW = 100, 4, 128
"""Steps of training, windows of a step, and tokens of a window."""
HELD_OUT, _FEWEST = 16, 4
"""The most windows on which a lens is measured (a tenth of all if these are fewer), and the fewest of a corpus."""
_POSITIONS, _MEASURED = 64, 32
"""Positions of a step that are learned from, and of a window that are measured: each costs V numbers at every stage."""
_REGRESSED = 20_000
"""Tokens that the regression reads."""
_RATE = 1e-3
"""Adam's learning rate, which falls to 0 in a straight line."""
_Streams = Callable[[Tensor], tuple[list[Tensor], Tensor, Tensor]]
"""Of windows (B, T): the stream at each stage with a translator (B·T, C), the last one, and the last after the norm."""
_RIDGE = 1e-3
"""Of the mean square of the stream, added to the diagonal of the regression, where few tokens leave it open."""


@dataclass(frozen=True)
class TunedStage(Data):
    """One stage: the mean KL(final ‖ here) of both lenses on held-out text, in nats, and how much less the tuned lens
    has, each with its 95 % interval over windows.
    """

    ALSO: ClassVar = ("closer",)

    stage: str
    logit: Estimate
    tuned: Estimate
    less: Estimate

    @property
    def closer(self) -> bool:
        """Whether the tuned lens is closer to the model's own prediction: the interval of ``less`` is above 0."""
        return self.less.low is not None and self.less.low > 0


@dataclass(frozen=True, eq=False)
class TunedLens(Report):
    """A trained lens, measured on ``held_out`` windows of ``window`` tokens that it was not trained on.

    ``steps`` were made on ``training`` windows of the ``corpus``, of ``of_steps`` if Ctrl-C ended them.
    """

    KIND = "tuned_lens"
    EVENTS: ClassVar = {"stages": "stage"}

    corpus: str
    steps: int
    of_steps: int
    training: int
    held_out: int
    window: int
    seed: int
    stages: tuple[TunedStage, ...]
    translators: Translators = field(repr=False)

    @property
    def interrupted(self) -> bool:
        return self.steps < self.of_steps

    @property
    def mean(self) -> tuple[float, float]:
        """The mean KL over stages, of the logit lens and of the tuned lens."""
        count = len(self.stages)
        logit, tuned = (sum(kl) for kl in zip(*((s.logit.value, s.tuned.value) for s in self.stages), strict=True))
        return logit / count, tuned / count

    def in_a_sentence(self) -> str:
        """At how many stages the tuned lens is closer, and the mean KL of both."""
        closer, (logit, tuned) = sum(stage.closer for stage in self.stages), self.mean
        claim = f"the tuned lens is closer to the model's own prediction at {closer} of {len(self.stages)} stages"
        return f"On held-out text {claim}: its KL is {tuned:.2f} nats on average, that of the logit lens {logit:.2f}."

    def fields(self) -> dict[str, Any]:
        return self.members("corpus", "steps", "of_steps", "training", "held_out", "window", "seed", "stages")

    def stored(self) -> list[Array]:
        """The translators: ``L0.out.weight`` (C, C) and ``L0.out.bias`` (C,) of each stage."""
        return [
            Array.of(f"{stage.stage}.{name}", axes, tensors[number].detach().cpu())
            for number, stage in enumerate(self.stages)
            for name, axes, tensors in (
                ("weight", ["translated", "d_model"], self.translators.weights),
                ("bias", ["translated"], self.translators.biases),
            )
        ]

    def metadata(self) -> dict[str, Any]:
        """The metadata of the report, with its measurements."""
        return {**super().metadata(), **self.fields()}


def train_lens(
    model: TextModel,
    corpus: str | Path | RecordedCorpus | None = None,
    *,
    text: str | None = None,
    steps: int = STEPS,
    batch: int = BATCH,
    window: int = WINDOW,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> TunedLens:
    """Train a tuned lens on a file or folder of text, or on ``text``; by default on the model's own corpus, if known.

    A recorded corpus is read instead of run, ``window`` rows at a time: the outputs of all layers, and the embeddings
    if they depend on positions. Each of ``steps`` reads ``batch`` windows of ``window`` tokens; with 0 steps the
    translators are the regression. ``seed`` orders windows and draws positions. Ctrl-C ends the training, and what was
    trained is measured. Raises UsageError for a model without a head or with several streams, for too short a corpus,
    and for one recorded with other weights or without a stage; TinytfError where the predictions are not finite.
    """
    require_readable(model.transformer)
    recording = None
    if isinstance(corpus, RecordedCorpus):
        recording, corpus = corpus, corpus.folder
    config, own = model.config, model.corpus
    if config.extra_streams:
        raise UsageError("this model has several residual streams, and a translator maps one")
    source: Sequence[Path] | str
    if text is not None:
        name, source = "a text", text
    elif corpus is not None:
        name, source = str(corpus), [Path(corpus)]
    elif own is not None:
        name, source = f"{model.name}'s {own.name}", [own]
    else:
        raise UsageError("the text that this model was trained on is not known", "name a CORPUS")
    before = [] if recording else model.tokenizer.surrounding_ids()[0]
    length = max(1, min(window, config.context) - len(before))
    read: _Streams = partial(_streams, model.transformer)
    if recording is None:
        cut = text_windows(source, model.tokenizer, config.vocab_size, length, before)
    else:
        recording.require_model(model.transformer, model.name)
        read = partial(_recorded_streams, model.transformer, recording, _recorded_stages(recording, model.transformer))
        cut = (torch.arange(at, at + length) for at in range(0, len(recording) - length + 1, length))
    windows = list(islice(cut, max(steps * batch, _REGRESSED // length) + HELD_OUT))
    if len(windows) < _FEWEST:
        raise UsageError(
            f"the corpus has {plural(len(windows), 'window')} of {length:,} tokens, and at least {_FEWEST} are needed",
            "give more text",
        )
    held_out = min(HELD_OUT, max(2, len(windows) // 10))
    device, generator = next(model.transformer.parameters()).device, torch.Generator().manual_seed(seed)
    learned = [window.to(device) for window in windows[:-held_out]]
    translators, done = _regression(model.transformer, read, learned), 0
    try:
        for done in _trained(model.transformer, read, translators, learned, steps, batch, generator):
            on_progress(done, steps)
    except KeyboardInterrupt:
        pass
    measured = [window.to(device) for window in windows[-held_out:]]
    divergences = _divergences(model.transformer, read, translators, measured, generator)
    stages = tuple(
        TunedStage(stage, *(mean_of(column, seed) for column in (logit, tuned, logit - tuned)))
        for stage, (logit, tuned) in zip(stage_names(config), divergences, strict=True)
    )
    return TunedLens(
        name, done, steps, len(learned), held_out, length + len(before), seed, stages, translators, about=About(model)
    )


@torch.no_grad()
def _streams(model: Transformer, ids: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """The ``_Streams`` of ids."""
    table, streams = table_of(model.config), list[Tensor]()

    def keep(name: str, tensor: Tensor) -> Tensor:
        streams.append(tensor.flatten(0, 1))
        return tensor

    with tap_steps(model, keep, (table.embedded, table.output)):
        hidden = model.hidden(ids)
    *before, last = streams
    return before, last, hidden.flatten(0, 1)


def _recorded_stages(corpus: RecordedCorpus, model: Transformer) -> list[str]:
    """The addresses of ``_Streams``. Raises UsageError for one that is neither recorded nor a function of the ids."""
    table = table_of(model.config)
    last = model.config.n_layers - 1
    embedded, *outputs = [*stage_names(model.config), table.at(table.output, last).full_name(last)]
    by_position = any(isinstance(step.operation, Positions) for step in table.before)
    for name in (embedded, *outputs) if by_position else outputs:
        corpus.at(name)
    return [embedded, *outputs]


@torch.no_grad()
def _recorded_streams(
    model: Transformer, corpus: RecordedCorpus, names: Sequence[str], rows: Tensor
) -> tuple[list[Tensor], Tensor, Tensor]:
    """The ``_Streams`` of recorded rows, which are consecutive in each window."""
    weight, spans = model.embed.tokens.weight, [slice(int(own[0]), int(own[-1]) + 1) for own in rows]
    streams = [
        torch.cat([corpus.at(name)[span] for span in spans]).to(weight)
        if name in corpus.steps
        else model.embed(torch.stack([corpus.tokens[span] for span in spans]).to(rows)).flatten(0, 1)
        for name in names
    ]
    *before, last = streams
    return before, last, model.final_norm(last)


def _log_probabilities(model: Transformer, hidden: Tensor) -> Tensor:
    """Of hidden states after the final norm: (N, C) -> (N, V)."""
    return model.unembed(hidden).float().log_softmax(dim=-1)


def _divergence(model: Transformer, expected: Tensor, x: Tensor) -> Tensor:
    """KL(final ‖ x) of the stream x (N, C), read by the final norm and head: (N,)."""
    read = _log_probabilities(model, model.final_norm(x))
    return torch.nn.functional.kl_div(read, expected, reduction="none", log_target=True).sum(dim=-1)


@torch.no_grad()
def _regression(model: Transformer, read: _Streams, windows: Sequence[Tensor]) -> Translators:
    """Translators that take each stream to the last one with the least squared error, in float64 normal equations."""
    width, batches = model.config.d_model, max(1, _REGRESSED // (BATCH * len(windows[0])))
    translators = Translators.identity(model.config, windows[0].device)
    empty = torch.zeros(width + 1, width + 1, device=windows[0].device, dtype=torch.float64)
    squares = [empty.clone() for _ in translators.weights]
    products = [empty[:, :width].clone() for _ in translators.weights]
    for group in islice((windows[i : i + BATCH] for i in range(0, len(windows), BATCH)), batches):
        streams, last, _ = read(torch.stack(list(group)))
        for stage, stream in enumerate(streams):
            x = torch.nn.functional.pad(stream.double(), (0, 1), value=1.0)  # (B·T, C + 1)
            squares[stage] += x.T @ x
            products[stage] += x.T @ (last - stream).double()
    for stage, square in enumerate(squares):
        square.diagonal()[:width].add_(_RIDGE * square.diagonal()[:width].mean())
        solved = torch.linalg.solve(square, products[stage])  # (C + 1, C)
        translators.weights[stage].copy_(solved[:width].T)
        translators.biases[stage].copy_(solved[width])
    return translators


def _trained(
    model: Transformer,
    read: _Streams,
    translators: Translators,
    windows: Sequence[Tensor],
    steps: int,
    batch: int,
    generator: torch.Generator,
) -> Iterator[int]:
    """Make ``steps`` of Adam on the translators, and yield the number of each."""
    parameters = [tensor.requires_grad_() for tensor in (*translators.weights, *translators.biases)]
    optimiser, order = (
        torch.optim.Adam(parameters, lr=_RATE),
        torch.randperm(len(windows), generator=generator).tolist(),
    )
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = _RATE * (1 - step / steps)
        ids = torch.stack([windows[order[(step * batch + i) % len(order)]] for i in range(batch)])
        streams, _, hidden = read(ids)
        rows = torch.randperm(ids.numel(), generator=generator)[:_POSITIONS].to(ids.device)
        with torch.no_grad():
            expected = _log_probabilities(model, hidden[rows])
        for stage, stream in enumerate(streams):
            loss = _divergence(model, expected, translators(stage, stream[rows])).mean()
            loss.backward(inputs=[translators.weights[stage], translators.biases[stage]])
        optimiser.step()
        optimiser.zero_grad()
        yield step + 1


@torch.no_grad()
def _divergences(
    model: Transformer,
    read: _Streams,
    translators: Translators,
    windows: Sequence[Tensor],
    generator: torch.Generator,
) -> list[tuple[Tensor, Tensor]]:
    """For each stage the mean KL of every window, (windows,) in float64, by the logit lens and by the tuned lens."""
    measured = torch.zeros(len(translators.weights), 2, len(windows), dtype=torch.float64)
    for number, window in enumerate(windows):
        rows = torch.randperm(len(window), generator=generator)[:_MEASURED].to(window.device)
        streams, _, hidden = read(window[None])
        expected = _log_probabilities(model, hidden[rows])
        for stage, stream in enumerate(streams):
            x = stream[rows]
            for lens, seen in enumerate((x, translators(stage, x))):
                measured[stage, lens, number] = _divergence(model, expected, seen).double().mean()
    if not measured.isfinite().all():
        raise TinytfError("the lens reads predictions that are not finite", "tinytf trace shows where they begin")
    return [(logit, tuned) for logit, tuned in measured]
