"""Observe the model of a run beside its loss: heads, frames of the film, samples, the noise of the gradient."""

from pathlib import Path

from tinytf.errors import TrainingError
from tinytf.model.transformer import Transformer
from tinytf.outputs import writing
from tinytf.training.data.setup import Setup
from tinytf.training.film.frames import Camera
from tinytf.training.film.probe import HeadProbe, HeadScores, update_milestones
from tinytf.training.film.sampler import Sampler
from tinytf.training.folder.history import Sample
from tinytf.training.folder.lines import append_line
from tinytf.training.folder.run_files import SAMPLES
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.health import Health
from tinytf.training.tuning.lora import Adapters
from tinytf.training.tuning.losses import BatchLoss
from tinytf.training.tuning.noise import Noise, gradient_noise, why_no_noise
from tinytf.training.tuning.processes import Processes


class Observer:
    """What one process of a run observes, and writes if it is the first; ``milestones`` is updated in place.

    The model is observed after every ``probe_every`` steps and at the frames of the film; never if that is 0.
    ``heads_before`` are the scores before the first step of this process.
    """

    def __init__(
        self,
        model: Transformer,
        adapters: Adapters | None,
        setup: Setup,
        recipe: Recipe,
        out: Path,
        group: Processes,
        milestones: dict[str, dict[str, int]],
    ) -> None:
        self.model, self.setup, self.recipe, self.out, self.group = model, setup, recipe, out, group
        self.milestones = milestones
        self.probe = HeadProbe(model.config, block=recipe.block, seed=recipe.seed)
        self.sampler = Sampler(setup, recipe)
        self.camera = Camera(setup, recipe, out)
        self.loss = BatchLoss(model, adapters, recipe.label_smoothing)
        self.no_noise = why_no_noise(recipe, group)
        self.heads_before: HeadScores | None = None
        if recipe.probe_every and not milestones:  # kinds that heads have before training are no news
            update_milestones(milestones, self.probe.measure(model), 0)

    def due(self, done: int) -> bool:
        """Whether heads are scored or a frame is taken after ``done`` steps."""
        interval = self.recipe.probe_every
        return bool(self.group.measures and interval and (done % interval == 0 or self.camera.due(done)))

    def noise(self, step: int) -> Noise | None:
        """The noise of the gradient of the step after ``step``, if the model is observed after it."""
        if self.no_noise or not self.due(step + 1):
            return None
        return gradient_noise(self.loss, self.setup.examples.batch(step), self.recipe)

    def observe(self, done: int, health: Health | None) -> tuple[HeadScores | None, tuple[str, ...], Health | None]:
        """Take a frame after ``done`` steps if due; return scores of the heads, sentences about changes, and health."""
        if not self.due(done):
            return None, (), None
        scores = self.probe.measure(self.model)
        frame = self.camera.measure(self.model)
        if health is not None:
            health = health.with_activations(frame.tensors)
        if self.camera.due(done):
            weights = self.camera.weights(self.model) if self.recipe.frames else {}
            if self.group.writes:
                with writing(self.out, "continue with --resume", TrainingError):
                    self.camera.write(done, frame, scores, health)
                    if weights:
                        self.camera.write_weights(done, weights)
        if health is None:  # before the first step
            self.heads_before = scores
        if done % self.recipe.probe_every or health is None:
            return None, (), None
        return scores, tuple(update_milestones(self.milestones, scores, done)), health

    def sample(self, done: int) -> Sample | None:
        """What the model writes after ``done`` steps, where held-out text is measured or a frame is taken."""
        recipe = self.recipe
        due = done == recipe.steps or (done and done % recipe.eval_every == 0)
        due = due or (recipe.probe_every and self.camera.due(done))
        sample = self.sampler.sample(done) if due and self.group.measures else None
        if sample is not None and self.group.writes:
            append_line(self.out / SAMPLES, vars(sample), sync=True)
        return sample
