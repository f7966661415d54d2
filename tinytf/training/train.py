"""Train a model, and report on it: examples, the loss before and after, updates worked out."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from tinytf.checkpoints.run_config import checkpoints_of
from tinytf.errors import UsageError
from tinytf.files import path_exists, to_json
from tinytf.kept import Kept
from tinytf.model.transformer import Transformer
from tinytf.outputs import require_unfenced, write_state, writing
from tinytf.report import Report
from tinytf.runs.history import History, Spike
from tinytf.runs.reader import read_history
from tinytf.runs.run_files import RECIPE, SPEED, remove_run
from tinytf.runs.runs import RunReport
from tinytf.sentences import choices
from tinytf.text.corpus import Corpus, find_files, find_rows
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.branch import begin_branch
from tinytf.training.claim import claimed, require_free, require_inputs_elsewhere
from tinytf.training.clashes import require_compatible
from tinytf.training.data.examples import IGNORED, Batch, Examples
from tinytf.training.data.setup import Setup
from tinytf.training.data.tokens import Stage
from tinytf.training.loop import Loop, Observer, Schedule
from tinytf.training.metrics import Metrics
from tinytf.training.observers.held_out import HeldOut
from tinytf.training.observers.inside import Explanation, GradientNoise, Heads
from tinytf.training.observers.log import Files, Log, SpeedLog
from tinytf.training.observers.samples import Samples
from tinytf.training.observers.saving import Saving
from tinytf.training.observers.tensorboard import EventFiles
from tinytf.training.recipe import Recipe
from tinytf.training.remembered import remember
from tinytf.training.start import started
from tinytf.training.tuning.losses import Objective, measured_loss, worst_example
from tinytf.training.tuning.noise import why_no_noise
from tinytf.training.tuning.peak import peak_of
from tinytf.training.tuning.processes import TIMEOUT, processes
from tinytf.training.tuning.speed import Speed, candidates, fastest
from tinytf.training.tuning.update import Update

_EXAMPLES, _SPIKES = 3, 3
_THREADS_A_CORE = 16
"""The most threads for each core: far more only wait for each other."""

Source = Corpus | Examples | Path | str | Iterable[str | Path | Mapping[str, Any]]
"""A path, or several; a text; texts or rows of a data set; or batches of one's own."""


@dataclass(frozen=True)
class Run:
    """A run that was trained as far as it goes: its folder, its model, and the ``last`` line of its metrics."""

    path: Path
    setup: Setup
    last: Metrics
    updates: tuple[Update, ...] = ()

    @property
    def report(self) -> RunReport:
        """What ``tinytf runs`` says of it."""
        return RunReport(self.path.name, self.path, read_history(self.path))


def train(
    corpus: Source,
    recipe: Recipe,
    out: Path | str,
    device: torch.device | str = "cpu",
    *,
    observers: Sequence[Observer] = (),
    objective: Objective | None = None,
    schedule: Schedule | None = None,
    resume: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    overwrite: bool = False,
    explain: int = 0,
    explained: Sequence[str] = (),
    shard: bool = False,
    timeout: float = TIMEOUT,
    tensorboard: bool = False,
    choose_speed: bool = False,
    on_progress: Stage = lambda *_: None,
    on_note: Callable[[str], None] = lambda _: None,
    within: Kept | None = None,
) -> Run:
    """Train a model in the run directory ``out``, on files, a text, texts, rows of a data set, or your own examples.

    A str is the path of a file if there is one of this name, and a text if it has white space. ``observers`` watch the
    loop. An ``objective`` replaces the cross-entropy, and a ``schedule`` the recipe's learning rates; held-out losses
    stay cross-entropies.

    ``resume`` continues the run in ``out`` from its newest checkpoint, bit for bit as if it had not stopped (on the
    same machine and number of threads); a finished run stays as it is. The FREE fields of the recipe may differ from
    those of the run; ``on_note`` gets a line for each that does. ``overwrite`` removes a run in ``out`` once the new
    one can begin. ``interrupted`` is called after each step; if it returns True, the run saves a checkpoint and stops.
    ``model`` and ``tokenizer``, if given, are trained instead of new ones. At step ``explain`` (from 1; 0: never) the
    updates of the ``explained`` weights (see ``choose_weight``), or of some default ones, are recorded. ``shard``
    divides model, gradients and moments among several processes, which wait for each other at most ``timeout`` seconds.
    ``tensorboard`` writes event files too. ``on_progress`` reports the stages before the first step, and the last
    measurement of the held-out text. ``within`` a sweep, ``out`` lies in its folder.

    Raises UsageError if ``out`` holds a run that is neither resumed nor overwritten, or anything else; if it lies in a
    kept folder; if its recipe or text differs; if it is to use far more threads than there are cores; if ``overwrite``
    would remove the text or the model to start from; or if another process trains it.
    Raises TrainingError if a number is not finite or a checkpoint cannot be written (the last good one stays).
    """
    out, device = Path(out), torch.device(device)
    require_free(out, resume=resume, overwrite=overwrite, within=within)
    cores = os.cpu_count() or 1
    if recipe.threads > (most := _THREADS_A_CORE * cores):
        raise UsageError(f"{recipe.threads:,} threads on {cores} cores wait for each other", f"use {most} at most")
    require_compatible({**vars(recipe), "shard": shard, "explain": explain, "new_model": model is None})
    with (
        processes(device, shard=shard, timeout=timeout, on_note=on_note) as group,
        claimed(out, writes=group.writes, wait=group.wait),
    ):
        examples = corpus if isinstance(corpus, Examples) else None
        files = Corpus(()) if isinstance(corpus, Examples) else _corpus(corpus, recipe)
        if not group.writes:
            on_progress, on_note = (lambda *_: None), (lambda _: None)
        if overwrite:
            require_inputs_elsewhere(out, files, recipe.begun_from)
        if recipe.at_step and (overwrite or not checkpoints_of(out)):
            if group.writes:
                if overwrite:
                    remove_run(out)
                with writing(out, "give another --out"):
                    remember(out, files)
                    write_state(out / RECIPE, to_json(recipe.to_dict()))
                begin_branch(files, recipe, out)
            group.wait()
            resume, overwrite = True, False
        loop = started(
            files, recipe, out, device, group, resume=resume, overwrite=overwrite, tokenizer=tokenizer,
            model=model, examples=examples, objective=objective, schedule=schedule, on_progress=on_progress,
            on_note=on_note,
        )  # fmt: skip
        explanation = Explanation(loop, explain, explained)
        give_observers(loop, files, explanation, observers, tensorboard, on_progress, on_note)
        if choose_speed and not loop.progress.step:
            _choose_speed(loop, on_note)
        if loop.recipe.compile:
            require_unfenced("compile kernels")
            loop.loss = torch.compile(loop.loss)  # type: ignore[assignment]
            on_progress("compiling the model, which takes minutes", 0, 0)
        loop.interrupted = interrupted
        last = loop.run()
        loop.loss = loop.batch_loss  # which refers to no other process
        if loop.adapters is not None:
            loop.adapters.merge_into_model()
        loop.model.eval()
        return Run(out, loop.setup, last, tuple(explanation.updates))


def give_observers(
    loop: Loop,
    corpus: Corpus,
    explanation: Explanation,
    observers: Sequence[Observer],
    tensorboard: bool,
    on_progress: Stage,
    on_note: Callable[[str], None],
) -> None:
    """Give the loop its observers. Each adds to the line of a step, the last ones write it and save the run."""
    recipe, group, heads = loop.recipe, loop.group, Heads(loop)
    log, events = Log(), [EventFiles()] if tensorboard and group.writes else []
    saving = Saving([log.flush, *(files.flush for files in events)])
    no_noise = why_no_noise(recipe, group)
    if recipe.probe_every and no_noise:
        on_note(f"the noise of the gradient is not measured: {no_noise}")
    loop.observers = [
        Files(corpus, on_note),
        heads,
        *([] if no_noise else [GradientNoise(heads)]),
        explanation,
        HeldOut(on_progress, saving.save_last),
        Samples(loop, heads),
        *(observer for observer in observers if not observer.reads_files),
        log,
        *(
            [SpeedLog(loop.out / SPEED, lambda: peak_of(loop.model.config, recipe, loop.device, group.count, on_note))]
            if group.writes
            else []
        ),
        *events,
        saving,
        *(observer for observer in observers if observer.reads_files),
    ]


def _corpus(source: Corpus | Path | str | Iterable[str | Path | Mapping[str, Any]], recipe: Recipe) -> Corpus:
    """The corpus of a path, a text, or several paths, texts or rows."""
    if isinstance(source, Corpus):
        return source
    if isinstance(source, str) and not path_exists(source):
        if source and not any(map(str.isspace, source)):
            raise UsageError(f"there is no file {source!r}", "a text has white space; or give a list of texts")
        return find_files(source, recipe.reading)
    if isinstance(source, (str, Path)):
        return find_files([Path(source)], recipe.reading)
    rows = list(source)
    if rows and all(isinstance(row, Path) for row in rows):
        return find_files(rows, recipe.reading)  # type: ignore[arg-type]
    return find_rows(rows, recipe.reading)  # type: ignore[arg-type]


def _choose_speed(loop: Loop, on_note: Callable[[str], None]) -> None:
    """Measure threads and kernels, and put the fastest into the recipe: the last bits of sums depend on them."""
    settings = candidates(Speed(loop.recipe.threads, loop.recipe.kernel), loop.recipe.dtype)
    if len(settings) == 1 or loop.device.type != "cpu" or loop.group.count > 1 or loop.recipe.compile:
        return
    observers, loop.observers = loop.observers, ()
    best, summary = fastest(lambda: loop.gradient(Metrics(1)), settings)
    loop.observers = observers
    loop.optimiser.zero_grad(set_to_none=True)
    loop.recipe = replace(loop.recipe, threads=best.threads, kernel=best.kernel)
    on_note(summary)


@dataclass(frozen=True)
class SpikeText:
    """A spike, and the example of its batch that has the ``worst`` loss in the trained model, with its ``text``."""

    spike: Spike
    example: int
    worst: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self.spike), "example": self.example, "worst_loss": self.worst, "text": self.text}


@dataclass(frozen=True)
class Training(Report):
    """A trained run. ``before`` and ``after`` are the loss of the first batch in nats per token.

    ``examples`` are the first rows of that batch. ``spikes`` are the highest of the history, at most three.
    """

    KIND = "train"
    EVENTS: ClassVar = {"updates": "update"}
    ALWAYS_SAID = True

    run: Path
    recipe: Recipe
    setup: Setup
    history: History
    examples: Batch
    before: float
    after: float
    updates: tuple[Update, ...]
    spikes: tuple[SpikeText, ...] = ()

    def in_a_sentence(self) -> str:
        """What its run says; without held-out text, how unsure the model is about its first batch, and was."""
        learned = f"as if it chose among {choices(self.after)} tokens; before, among {choices(self.before)}"
        batch = f"After {self.history.last:,} steps the model is as unsure about its first batch {learned}."
        return RunReport(self.run.name, self.run, self.history).sentence or batch

    def fields(self) -> dict[str, Any]:
        """Losses in nats per token; null for a position without a target."""
        summary = RunReport(self.run.name, self.run, self.history).summary()
        targets = [[None if t == IGNORED else t for t in row] for row in self.examples.targets.tolist()]
        return {
            "run": str(self.run),
            "recipe": self.recipe.to_dict(),
            "vocab_size": self.setup.tokenizer.vocab_size,
            "examples": {"x": self.examples.ids.tolist(), "y": targets},
            "steps": self.history.step.size,
            "first_batch_loss": {"before": self.before, "after": self.after},
            "best_held_out": summary["best_held_out"],
            **{name: summary[name] for name in ("epochs", "elapsed_seconds", "tokens_per_second", "mfu", "risen")},
            **{name: summary[name] for name in ("baselines", "verdict")},
            "spikes": [spike.to_dict() for spike in self.spikes],
            "held_out_loss": self.history.held_out[-1][1] if self.history.held_out else None,
            "thorough": [{"step": step, **vars(measured)} for step, measured in self.history.thorough],
            "held_out_exact": self.history.exact[-1][1] if self.history.exact else None,
            "milestones": [{"step": step, "words": words} for step, words in self.history.milestones],
            "sample": None if (sample := self.history.sample) is None else sample.prompt + sample.text,
            "updates": [{**vars(update), "difference": update.difference} for update in self.updates],
        }


def report_of(run: Path, recipe: Recipe, setup: Setup, updates: Sequence[Update] = ()) -> Training:
    """The report of the training in the folder ``run``."""
    history, batch = read_history(run), setup.examples.batch(recipe.at_step)
    after = measured_loss(setup.model, [batch], recipe.accumulate)
    assert after is not None  # otherwise the first step would have failed
    before, spikes = float(history.loss[0]), _spikes(history, setup)
    return Training(run, recipe, setup, history, batch[:_EXAMPLES], before, after, tuple(updates), spikes)


def _spikes(history: History, setup: Setup) -> tuple[SpikeText, ...]:
    """The highest spikes by step, with the worst text of each batch, which the seed and the step reproduce."""
    texts = []
    highest = sorted(history.spikes, key=lambda spike: spike.loss / spike.usual)[-_SPIKES:]
    for spike in sorted(highest, key=lambda spike: spike.step):
        batch = setup.examples.batch(spike.step - 1)
        row, loss = worst_example(setup.model, batch)
        ids = batch.ids[row] if batch.padding_mask is None else batch.ids[row][batch.padding_mask[row].bool()]
        texts.append(SpikeText(spike, row, loss, setup.tokenizer.decode(ids.tolist())))
    return tuple(texts)
