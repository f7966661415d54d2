"""Watch somebody else's training loop: the folder of a run, written from any loop of torch."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.files import to_json
from tinytf.outputs import write_state, writing
from tinytf.runs.lines import append_line, keep_lines
from tinytf.runs.run_files import METRICS, RECIPE, SPEED, remove_run
from tinytf.sentences import sign_of
from tinytf.text_model import TextModel
from tinytf.training.checkpoint import Progress
from tinytf.training.claim import claimed, require_free
from tinytf.training.data.examples import Batch, Examples
from tinytf.training.data.setup import Setup
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.observers.inside import Heads
from tinytf.training.observers.labels import Labels
from tinytf.training.observers.layers import Layers, first_module
from tinytf.training.observers.log import Log, SpeedLog
from tinytf.training.observers.spikes import Spikes
from tinytf.training.observers.tensorboard import EventFiles
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.processes import ALONE

_UNKNOWN_STEPS = 1000


class NotFinite(Observer):
    """Adds a sentence to the first step whose loss or gradients are not finite: the module where that began."""

    def __init__(self, watch: "Watch") -> None:
        self.watch, self.words = watch, ""

    def gradients(self, line: Metrics) -> None:
        if not self.words and not math.isfinite(line.grad_norm):
            self._find()

    def step(self, line: Metrics) -> None:
        if not self.words and not math.isfinite(line.loss):
            self._find()
        if self.words and self.words != "told":
            fault = "the gradients are not finite" if math.isfinite(line.loss) else f"the loss is {sign_of(line.loss)}"
            line.milestones = (*line.milestones, f"{fault}; the first number that is not finite is {self.words}")
            self.words = "told"

    def _find(self) -> None:
        """Before the weights change: repeat the last pass with a look at every module."""
        where = first_module(self.watch.model, self.watch.repeat)
        lost = [n for n, p in self.watch.model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        self.words = where or (f"in the gradient of {lost[-1]}" if lost else "outside of the model")


class _Shown(Examples):
    """The text of a film."""

    def __init__(self, ids: Sequence[int]) -> None:
        text = torch.tensor([ids])
        self.example = Batch(text[:, :-1], text[:, 1:], None)

    def held_out(self, limit: int | None = None) -> Iterator[Batch]:
        return iter([self.example])


class Watch:
    """Writes the folder of a run from any loop of torch, as a context: call ``step`` after each of its steps.

    Gradients are those that the optimiser gets, so after clipping. ``steps`` are planned, and ``done`` are taken
    already in a run that goes on. Layers are looked at every ``every`` steps. ``opened`` is
    ``tinytf.load(model, tokenizer)``, which shares the weights: with it and a ``text``, heads are scored and the film
    is taken. ``overwrite`` replaces a run in the folder, ``tensorboard`` writes event files too, and ``observers`` are
    as in ``train``.

    Raises UsageError if the folder holds another run or other files, or if another process trains there.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: Path | str,
        *,
        steps: int = 0,
        done: int = 0,
        every: int = 50,
        opened: TextModel | None = None,
        text: str = "",
        overwrite: bool = False,
        tensorboard: bool = False,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.model, self.optimiser = model, getattr(optimizer, "optimizer", optimizer)
        self.out, self.group, self.pending = Path(run), ALONE, None
        self._overwrite, self._steps = overwrite, steps
        self.recipe = Recipe(steps=steps or max(_UNKNOWN_STEPS, 2 * done), warmup=0, probe_every=every)
        self.progress, self.line = Progress(step=done), Metrics(done)
        self.observers: list[Observer] = [Spikes(), NotFinite(self)]
        if opened is None:
            self.observers.append(Layers(every))
        else:
            if not text:
                raise UsageError("a film needs a text to show", "give it as text=…")
            shown = _Shown(opened.tokenizer.encode(text).ids)
            self.setup, self.batch = Setup(opened.transformer, opened.tokenizer, shown), shown.example
            self.observers.append(Heads(cast(Loop, self)))
        self._pace = SpeedLog(self.out / SPEED)
        self.observers += [Labels(every), *observers, Log(), self._pace, *([EventFiles()] if tensorboard else [])]
        self._losses: list[Tensor] = []
        self._adds_up = False
        self._pass: Callable[[], object] = lambda: None
        self._began = self._tokens = 0.0
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        require_free(self.out, resume=bool(self.progress.step), overwrite=self._overwrite)
        self._ends.enter_context(claimed(self.out, writes=True, wait=lambda: None))
        if self._overwrite:
            remove_run(self.out)
        with writing(self.out, "give another run"):
            self._write_recipe()
            for name in (METRICS, SPEED):
                keep_lines(self.out / name, self.progress.step)
        for observer in self.observers:
            observer.begin(cast(Loop, self))
            self._ends.callback(observer.end)
        for handle in (
            self.model.register_forward_pre_hook(self._before_pass, with_kwargs=True),
            self.model.register_forward_hook(self._after_pass, with_kwargs=True),
            self.optimiser.register_step_pre_hook(self._before_step),
        ):
            self._ends.callback(handle.remove)
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pace.write(self.progress.step, last=True)
        self._ends.close()
        if error is None and not self._steps and self.progress.step:
            self._steps = self.progress.step
            self.recipe = self._with_steps(self._steps)
            self._write_recipe()

    def held_out(self, loss: float) -> None:
        """Note the held-out loss of the latest step."""
        self._last.held_out_loss = float(loss)
        append_line(self.out / METRICS, self._last.to_dict())  # of two lines of a step the last one counts

    def step(self, loss: Tensor | float | None = None, **own: float) -> None:
        """Note a step of the loop, after that of the optimiser: its loss, and any other numbers by name.

        Without a loss it is the mean of those that the model returned since the last step.
        """
        self._last, self.line = self.line, Metrics(self.progress.step + 2)
        line = self._last
        line.step = self.progress.step = self.progress.step + 1
        if loss is None:
            loss = torch.stack(self._losses).mean() if self._losses else torch.tensor(math.nan)
            loss = loss * len(self._losses) if self._adds_up else loss
        loss = loss.item() if isinstance(loss, Tensor) else float(loss)
        line.loss, line.own = loss, {name: float(own[name]) for name in own}
        line.seconds, line.tokens = time.monotonic() - self._began, int(self._tokens)
        if line.step > self.recipe.steps:
            self.recipe = self._with_steps(2 * self.recipe.steps)
            self._write_recipe()
        for observer in self.observers:
            observer.step(line)
        self._losses, self._tokens, self._began = [], 0.0, time.monotonic()

    def repeat(self) -> object:
        """Repeat the last pass of the model."""
        return self._pass()

    def _with_steps(self, steps: int) -> Recipe:
        return Recipe(**{**self.recipe.to_dict(), "steps": steps})

    def _write_recipe(self) -> None:
        fields = self.recipe.to_dict()
        fields |= {"watched": type(self.model).__name__, "lr": self.optimiser.param_groups[0]["lr"]}
        fields |= {"planned": bool(self._steps)}
        write_state(
            self.out / RECIPE, to_json({name: fields[name] for name in fields if name not in ("clip", "held_out")})
        )

    def _before_pass(self, model: nn.Module, arguments: Any, named: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._pass = lambda: model(*arguments, **named)
        inputs = [value for value in (*arguments, *named.values()) if isinstance(value, Tensor)]
        self._tokens += inputs[0].numel() if inputs else 0

    def _after_pass(self, model: nn.Module, arguments: Any, named: Any, output: Any) -> None:
        loss = getattr(output, "loss", None)
        if loss is None and isinstance(output, (tuple, list)):
            loss = next((value for value in output if isinstance(value, Tensor) and value.dim() == 0), None)
        if torch.is_grad_enabled() and isinstance(loss, Tensor):
            self._losses.append(loss.detach())
            self._adds_up = named.get("num_items_in_batch") is not None  # each is a share of the loss

    def _before_step(self, *_: object) -> None:
        self.line = Metrics(self.progress.step + 1, lr=float(self.optimiser.param_groups[0]["lr"]))
        for observer in self.observers:
            observer.gradients(self.line)


watch = Watch
"""``with tinytf.watch(model, optimizer, run="runs/x") as w:`` around a loop, and ``w.step(loss)`` in it."""


def trainer_callback(run: Path | str, **settings: Any) -> Any:
    """A callback with which the Trainer of transformers writes the folder of a run, with the ``settings`` of ``watch``.

    The loss of a step is the mean of those of its passes. Raises UsageError if transformers is not installed.
    """
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise UsageError("transformers is not installed", 'pip install "tinytf[hf]"') from None

    class Watching(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **now: Any) -> None:
            planned = {"steps": state.max_steps, "done": state.global_step, **settings}
            self.watch = Watch(now["model"], now["optimizer"], run, **planned).__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **now: Any) -> None:
            self.watch.step()

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **now: Any) -> None:
            if "eval_loss" in (metrics or {}):
                self.watch.held_out(metrics["eval_loss"])

        def on_train_end(self, args: Any, state: Any, control: Any, **now: Any) -> None:
            self.watch.__exit__(None, None, None)

    return Watching()
