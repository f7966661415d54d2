"""One process's part in a run: steps, metrics, checkpoints. A run stopped at any moment resumes bit for bit."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_ as clip

from tinytf.checkpoints.run import load_run
from tinytf.errors import CheckpointError, TrainingError, UsageError
from tinytf.files import to_json
from tinytf.model.transformer import Transformer
from tinytf.outputs import appending, require_unfenced, write_state, writing
from tinytf.report import Progress as OnProgress
from tinytf.report import ignore_progress
from tinytf.sentences import sign_of
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.examples import Batch
from tinytf.training.data.setup import Setup, fingerprint_of, first_fault, prepare, sizes_of
from tinytf.training.data.tokens import Stage
from tinytf.training.folder.history import Thorough
from tinytf.training.folder.lines import append_line, keep_lines, number_or_nan, rows_in, sync_lines
from tinytf.training.folder.remembered import remember
from tinytf.training.folder.run_files import METRICS, RECIPE, SAMPLES, SIZES, SPEED, TOKENS, clear_leftovers, remove_run
from tinytf.training.recipe import FEW_BATCHES, Recipe, resumed_recipe, stored_recipe
from tinytf.training.run.branch import block_gradients
from tinytf.training.run.checkpoints import (
    Progress,
    RunState,
    keep_checkpoints,
    newest_intact,
    publish,
    read_progress,
    restore,
    save_checkpoint,
)
from tinytf.training.run.metrics import Metrics, Pace
from tinytf.training.run.observer import Observer
from tinytf.training.run.peak import matrix_peak, peak_dtype, slower_dtype, training_flops
from tinytf.training.run.speed import Speed, candidates, fastest
from tinytf.training.run.tensorboard import FOLDER, EventFiles
from tinytf.training.tuning.health import StepHealth, groups_of
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.losses import (
    BatchLoss,
    backward,
    exact_share,
    held_out_loss,
    seen_loss,
    shift_losses,
    thorough_batches,
)
from tinytf.training.tuning.optimiser import describe_changes, learning_rate, make_optimiser
from tinytf.training.tuning.parts import freeze, recompute
from tinytf.training.tuning.processes import Processes
from tinytf.training.tuning.sharding import gather, local_part, reshard_model, shard_model
from tinytf.training.tuning.update import Update, UpdateWatch, choose_weight


class Trainer:
    """Trains in one process of a run, from its newest checkpoint or from the start; arguments as for ``train``."""

    def __init__(
        self,
        corpus: Corpus,
        recipe: Recipe,
        out: Path,
        device: torch.device,
        group: Processes,
        *,
        resume: bool,
        overwrite: bool,
        tokenizer: Tokenizer | None,
        model: Transformer | None,
        explain: int = 0,
        explained: Sequence[str] = (),
        tensorboard: bool = False,
        choose_speed: bool = False,
        on_progress: Stage = lambda *_: None,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.on_note = on_note
        self.corpus, self.recipe, self.out, self.device, self.group = corpus, recipe, out, device, group
        if group.writes:
            clear_leftovers(out)
        checkpoint = None if overwrite else newest_intact(out, on_note)
        stored = stored_recipe(out) if resume else None
        if stored is not None:
            self.recipe = recipe = resumed_recipe(out, stored, recipe.to_dict())
        torch.manual_seed(recipe.seed)
        if checkpoint:
            if read_progress(checkpoint).corpus != fingerprint_of(corpus):
                raise UsageError(f"{out} was trained on another text", "give the same files, in the same order")
            tokenizer = Tokenizer.load(checkpoint / "tokenizer.json")
            if not recipe.lora:
                model = load_run(checkpoint) if model is not None or recipe.begun_from else None
        if not group.writes:
            group.wait()  # the first process writes the tokens for all
        self.setup = prepare(corpus, recipe, out / TOKENS, tokenizer, model, on_progress)
        if group.writes:
            if overwrite:
                remove_run(out)
            group.wait()
        if not checkpoint and (note := self.setup.held_out_note):
            on_note(note)
        model = self.setup.model
        block_gradients(model, recipe.without)
        freeze(model, recipe.freeze)
        self.adapters = Adapters(model, recipe) if recipe.lora else None
        adapters = () if self.adapters is None else (self.adapters.to(device),)
        if recipe.recompute:
            recompute(model)
        self.model = (shard_model(model, device) if group.shard else model.to(device)).train()
        self.optimiser = make_optimiser(self.model, recipe, *adapters)
        self.parameters = [parameter for module in (self.model, *adapters) for parameter in module.parameters()]
        self.progress = Progress(corpus=self.setup.fingerprint, processes=group.count)
        torch.manual_seed(recipe.seed + group.rank)  # dropout differs between the processes
        if checkpoint:
            self.progress = restore(checkpoint, self.model, self.optimiser, group.rank, self.adapters)
            if self.progress.processes != group.count:
                raise UsageError(
                    f"{out} was trained by {self.progress.processes} processes, but there are {group.count} now",
                    f"torchrun --nproc-per-node {self.progress.processes} -m tinytf_cli train …",
                )
            if stored is not None:
                for note in describe_changes(out, stored, recipe, self.progress.step):
                    on_note(note)
        self.saved, self.saved_at = self.progress.step, time.monotonic()
        self.on_progress = on_progress
        self.explain, self.updates = explain, list[Update]()
        self.explained = [choose_weight(self.model, text) for text in explained]
        self.tensorboard = tensorboard and group.writes
        self.events: EventFiles | None = None
        self.pace = Pace(out / SPEED, self._peak)
        milestones = self.progress.milestones
        self.observer = Observer(self.model, self.adapters, self.setup, recipe, out, group, milestones)
        self.loss = group.averaging(BatchLoss(self.model, self.adapters, recipe.label_smoothing))
        if choose_speed and not checkpoint:
            self._choose_speed()
        if recipe.compile:
            require_unfenced("compile kernels")
            self.loss = torch.compile(self.loss)  # type: ignore[assignment]
            on_progress("compiling the model, which takes minutes", 0, 0)

    def _choose_speed(self) -> None:
        """Measure threads and kernels, and put the fastest into the recipe: the last bits of sums depend on them."""
        settings = candidates(self.speed, self.recipe.dtype)
        if len(settings) == 1 or self.device.type != "cpu" or self.group.count > 1 or self.recipe.compile:
            return
        batch = self.setup.examples.batch(0)
        best, summary = fastest(lambda: self._backward(batch, 0), settings)
        self.optimiser.zero_grad(set_to_none=True)
        self.recipe = replace(self.recipe, threads=best.threads, kernel=best.kernel)
        self.on_note(summary)

    @property
    def speed(self) -> Speed:
        """How every step of ``run`` is computed."""
        return Speed(self.recipe.threads, self.recipe.kernel)

    def _peak(self) -> dict[str, float]:
        """The work per token, and the peak of all processes together, in operations per second."""
        peak = matrix_peak(self.device, peak_dtype(self.recipe.dtype))
        if note := slower_dtype(self.recipe.dtype, self.device, peak):
            self.on_note(note)
        work = training_flops(self.model.config, self.recipe.block)
        return {"flops_per_token": work, "peak_flops": round(self.group.count * peak)}

    def run(self, on_metrics: Callable[[Metrics, Setup], None], interrupted: Callable[[], bool]) -> Metrics:
        """Run all remaining steps."""
        with self.speed.used():
            return self._run(on_metrics, interrupted)

    def _run(self, on_metrics: Callable[[Metrics, Setup], None], interrupted: Callable[[], bool]) -> Metrics:
        pending = self._pending_metrics()
        metrics = Metrics(self.progress.step, math.nan, 0.0, math.nan, stopped=self._stop_reason())
        last_written = self.progress.step - (pending is not None)
        self.begin_files(last_written)
        if self.recipe.probe_every and (reason := self.observer.no_noise):
            self.on_note(f"the noise of the gradient is not measured: {reason}")
        if self.progress.step == self.recipe.at_step:
            self.observer.observe(self.progress.step, None)
            self.observer.sample(self.progress.step)
            reshard_model(self.model)
        events = EventFiles(self.out / FOLDER, last_written) if self.tensorboard else None
        with nullcontext() if events is None else closing(events) as self.events:
            if pending is not None:
                metrics = self._measure(pending, self.setup.examples.batch(pending.step - 1))
                on_metrics(metrics, self.setup)
            while self.progress.step < self.recipe.steps and metrics.stopped is None:
                metrics = self.step()
                stops = interrupted() or metrics.stopped is not None
                if self.group.any(stops or self._save_is_due()):
                    stops = self.group.any(stops)
                    self._save()
                on_metrics(metrics, self.setup)
                if stops:
                    break
        if self.adapters is not None:
            self.adapters.merge_into_model()
        self.model.eval()
        return metrics

    def begin_files(self, step: int) -> None:
        """Write paths and sizes of the text and the recipe; remove lines after ``step``, which will be repeated."""
        if not self.group.writes:
            return
        with self._writing():
            remember(self.out, self.corpus)  # before the recipe, with which the folder is a run that can be resumed
            write_state(self.out / RECIPE, to_json(self.recipe.to_dict()))
            write_state(self.out / SIZES, to_json(sizes_of(self.setup, self.recipe)))
            keep_lines(self.out / SPEED, step)
            if self.recipe.probe_every:
                self.observer.camera.begin(self.progress.step)
            with appending(self.out / METRICS):  # create it now, even if empty
                pass
            begins = self.progress.step == self.recipe.at_step  # its first sample is written again
            counts = {
                METRICS: keep_lines(self.out / METRICS, step),
                SAMPLES: keep_lines(self.out / SAMPLES, step - begins),
            }
            if self.progress.step:
                self._publish()
        measured = (
            sum("held_out_loss" in row for row in rows_in(self.out / METRICS)) if self.observer.sampler.prompt else 0
        )
        for name, expected in ((METRICS, step - self.recipe.at_step), (SAMPLES, measured)):
            if counts[name] < expected:
                self.on_note(f"{self.out / name} has {counts[name]:,} of {expected:,} lines; the rest are lost")
        if step < self.recipe.steps:
            self.pace.begin(self.progress.step)

    def step(self) -> Metrics:
        """One step of the optimiser, and everything due after it."""
        recipe, step, group = self.recipe, self.progress.step, self.group
        held_out_before = thorough_before = None
        if not step and recipe.begun_from:
            held_out_before = self._held_out(FEW_BATCHES)
            thorough_before = self._thorough(held_out_before)
            reshard_model(self.model)
        noise = self.observer.noise(step)
        heads_before = None if step else self.observer.heads_before
        self.pace.step_begins()
        lr = learning_rate(step, recipe)
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = lr
        batch = self.setup.examples.batch(step)
        loss = self._backward(batch, step)
        health = StepHealth(self.model, group) if self.observer.due(done := step + 1) else None
        watch = UpdateWatch(self.model, self.optimiser, self.explained) if done == self.explain else None
        norm = gather(clip(self.parameters, recipe.clip)).item()
        if not math.isfinite(norm):
            self._stop(f"the gradient norm is {sign_of(norm)}", batch, step)
        self.optimiser.step()
        self.pace.step_ends(batch.ids.numel())
        if watch is not None:
            self.updates = watch.updates(norm, recipe.clip)
        self.progress.step, self.progress.pending = done, {}
        observed = self.observer.observe(done, None if health is None else health.after())
        metrics = Metrics(
            done, loss, lr, norm, None, *observed, None, held_out_before, noise=noise, heads_before=heads_before,
            thorough_before=thorough_before,
        )  # fmt: skip
        if health is not None and metrics.heads is not None:
            metrics = replace(
                metrics,
                copying=self.observer.probe.copying(self.model),
                updates=health.by_matrix() or None,
                shifts=shift_losses(self.model, batch),
            )
        if done == recipe.steps:  # save before the longest measurement
            reshard_model(self.model)
            self.progress.pending = metrics.to_dict()
            self._save()
        metrics = self._measure(metrics, batch)
        if done % (recipe.save_every or recipe.eval_every) == 0:
            self._save()
        return metrics

    def _measure(self, metrics: Metrics, batch: Batch) -> Metrics:
        """Measure what is due after a step, add it to its metrics, and write them to the files of the run."""
        recipe, done, last = self.recipe, metrics.step, metrics.step == self.recipe.steps
        speed = None
        if last or done % recipe.eval_every == 0:
            held_out = self._held_out(FEW_BATCHES, self._measuring if last else ignore_progress)
            if held_out is not None and not math.isfinite(held_out):
                self._stop(f"the held-out loss is {sign_of(held_out)}", batch, done - 1)
            self._note_best(held_out, done)
            seen = seen_loss(self.model, self.setup.examples, recipe, self.group)
            exact = None
            if recipe.objective == "translate":
                exact = self._exact(FEW_BATCHES)
            thorough = self._thorough(held_out) if last else None
            stopped = None if last else self._stop_reason()
            metrics = replace(
                metrics,
                held_out_loss=held_out,
                held_out_exact=exact,
                seen_loss=seen,
                thorough=thorough,
                stopped=stopped,
            )
            self.group.wait()
        sample = self.observer.sample(done)  # before the metrics that announce it
        reshard_model(self.model)
        if self.group.writes:
            append_line(self.out / METRICS, metrics.to_dict(), sync=last)
            speed = self.pace.write(done, last=last)
            if last:
                with self._writing():
                    self._prune()
        if self.events is not None:
            self.events.add(metrics, speed, sample)
        return metrics

    def _held_out(self, limit: int, on_progress: OnProgress = ignore_progress) -> float | None:
        """Measure the loss of the held-out text with all processes."""
        examples, parts = self.setup.examples, self.recipe.accumulate
        return held_out_loss(self.model, examples, limit, on_progress, accumulate=parts, group=self.group)

    def _measuring(self, done: int, total: int) -> None:
        self.on_progress("measuring the held-out text", done, total)

    def _exact(self, limit: int) -> float | None:
        return exact_share(self.model, self.setup.examples.held_out(limit), self.recipe.accumulate, self.group)

    def _thorough(self, few: float | None) -> Thorough | None:
        """Measure many held-out batches; ``few`` is the loss of FEW_BATCHES, None without held-out text."""
        if few is None:
            return None
        limit = min(thorough_batches(self.recipe), self.setup.examples.held_out_batches)
        loss = few if limit <= FEW_BATCHES else self._held_out(limit, self._measuring)
        assert loss is not None  # there is held-out text
        return Thorough(loss, limit, self._exact(limit) if self.recipe.objective == "translate" else None)

    def _note_best(self, held_out: float | None, step: int) -> None:
        if held_out is not None and (self.progress.best is None or held_out < self.progress.best):
            self.progress.best, self.progress.best_step = held_out, step

    def _pending_metrics(self) -> Metrics | None:
        """Metrics of a saved last step whose line was never written, because the process ended first."""
        if not self.progress.pending:
            return None
        try:
            pending = Metrics.read(self.progress.pending, tuple(groups_of(self.model)))
            if pending.step != self.progress.step:
                raise ValueError
        except (TypeError, KeyError, ValueError, AttributeError):
            message = f"{self.out}: 'pending' of training.json is not a line of metrics"
            raise CheckpointError(
                message, "remove the last checkpoint; --resume continues from the one before it"
            ) from None
        line = next((row for row in rows_in(self.out / METRICS) if row["step"] == pending.step), None)
        if line is None:
            return pending
        held_out = number_or_nan(line.get("held_out_loss"))
        self._note_best(held_out if math.isfinite(held_out) else None, pending.step)
        return None

    def _stop_reason(self) -> str | None:
        """Why the run ends before its last step: its held-out loss has not fallen for ``patience`` measurements."""
        recipe, progress = self.recipe, self.progress
        waited = (progress.step - progress.best_step) // recipe.eval_every
        if not recipe.patience or progress.best is None or waited < recipe.patience:
            return None
        return f"held-out has been above {progress.best:.4f}, at step {progress.best_step:,}, {waited:,} times in a row"

    def _backward(self, batch: Batch, step: int) -> float:
        """Compute the mean loss of a batch; leaves its gradients in the parameters."""
        self.optimiser.zero_grad(set_to_none=True)
        total = backward(self.loss, batch, self.recipe, self.group)
        if not math.isfinite(total):
            self._stop(f"the loss is {sign_of(total)}", batch, step)
        return total

    def _stop(self, fault: str, batch: Batch, step: int) -> None:
        """Raise TrainingError with the step, the example and the first forward step whose numbers are not finite.

        Where those of the forward pass are, it names the first of the gradients, from the loss backwards.
        """
        saved = f"; the checkpoint of step {self.saved:,} stays" if self.saved else ""
        where = first_fault(self.model, batch) or self._gradient_fault(batch)
        raise TrainingError(f"{fault} at step {step + 1:,}{where}{saved}", "try a smaller --lr")

    def _gradient_fault(self, batch: Batch) -> str:
        """``, first in the gradient of blocks.2.ffn.down.weight``; empty where all gradients of a batch are finite."""
        self.optimiser.zero_grad(set_to_none=True)
        backward(self.loss, batch, self.recipe, self.group)  # again, since clipping has made them all alike
        gradients = [(name, x.grad) for name, x in self.model.named_parameters() if x.grad is not None]
        lost = [name for name, gradient in gradients if not bool(local_part(gradient).isfinite().all())]
        return f", first in the gradient of {lost[-1]}" if lost else ""

    def _save_is_due(self) -> bool:
        """Whether the last checkpoint is older than ``save_minutes``, by the clock of the process that writes."""
        minutes = self.recipe.save_minutes
        return self.group.writes and bool(minutes) and not 0 <= time.monotonic() - self.saved_at <= 60 * minutes

    def _save(self) -> None:
        if self.saved == self.progress.step:
            return
        self._save_checkpoint()
        self.group.wait()

    def _save_checkpoint(self) -> None:
        finite = all(torch.isfinite(local_part(parameter)).all() for parameter in self.parameters)
        if self.group.any(not finite):
            raise TrainingError(f"a weight is not finite after step {self.progress.step}", "try a smaller --lr")
        self.saved, self.saved_at = self.progress.step, time.monotonic()
        random = self.group.gather_from_all(torch.get_rng_state())
        if not self.group.measures:
            return
        state = RunState.of(self.model, self.optimiser, random, self.adapters)
        if not self.group.writes:
            return
        sync_lines(self.out / METRICS)
        if self.events is not None:
            self.events.flush()
        save_checkpoint(self.out, state, self.setup.tokenizer, self.progress)
        with self._writing():
            self._publish()

    def _publish(self) -> None:
        """Give the run itself its newest model and adapters, and remove old checkpoints."""
        publish(self.out, self.progress.step)
        if self.adapters is not None:
            self.adapters.save(self.out)
        self._prune()

    def _prune(self) -> None:
        keep_checkpoints(self.out, self.progress.step, self.recipe.keep, {self.progress.best_step})

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.out, "continue with --resume", TrainingError)
