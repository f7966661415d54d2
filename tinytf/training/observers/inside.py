"""What a step does inside the model: gradients and updates, heads, frames of the film, noise, and Adam's arithmetic."""

from collections.abc import Sequence

from tinytf.errors import TrainingError
from tinytf.outputs import writing
from tinytf.training.film.frames import Camera
from tinytf.training.film.probe import HeadProbe, HeadScores, update_milestones
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.tuning.experts import expert_shares
from tinytf.training.tuning.health import StepHealth
from tinytf.training.tuning.losses import shift_losses
from tinytf.training.tuning.noise import Noise, gradient_noise
from tinytf.training.tuning.update import Update, UpdateWatch, choose_weight


class Heads(Observer):
    """Adds scores of the heads and the health of a step every ``probe_every`` steps, and takes the frames of the film.

    The kinds that heads have before the first step are no news.
    """

    def __init__(self, loop: Loop) -> None:
        self.camera = Camera(loop.setup, loop.recipe, loop.out)
        self.probe = HeadProbe(loop.setup.model.config, block=loop.recipe.block, seed=loop.recipe.seed)
        self.health: StepHealth | None = None
        self.before: HeadScores | None = None

    def due(self, done: int) -> bool:
        """Whether heads are scored or a frame is taken after ``done`` steps; never if ``probe_every`` is 0."""
        interval = self.loop.recipe.probe_every
        return bool(self.loop.group.measures and interval and (done % interval == 0 or self.camera.due(done)))

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        recipe, done = loop.recipe, loop.progress.step
        if not recipe.probe_every:
            return
        if loop.group.writes:
            with writing(loop.out, "continue with --resume", TrainingError):
                self.camera.begin(done)
        if not loop.progress.milestones:
            update_milestones(loop.progress.milestones, self.probe.measure(loop.setup.model), 0)
        if done == recipe.at_step and self.due(done):
            self.before = self._observe(Metrics(done))

    def gradients(self, line: Metrics) -> None:
        if line.step == 1:
            line.heads_before = self.before
        if self.due(line.step):
            self.health = StepHealth(self.loop.model, self.loop.group)

    def step(self, line: Metrics) -> None:
        if self.health is None:
            return
        line.health = self.health.after()
        scores = self._observe(line)
        if line.step % self.loop.recipe.probe_every:  # only the frame has it
            line.health = None
        else:
            line.heads = scores
            line.milestones = tuple(update_milestones(self.loop.progress.milestones, scores, line.step))
            line.copying = self.probe.copying(self.loop.setup.model)
            line.updates = self.health.by_matrix() or None
            line.shifts = shift_losses(self.loop.setup.model, self.loop.batch)
            line.experts = expert_shares(self.loop.setup.model, self.loop.batch)
        self.health = None

    def _observe(self, line: Metrics) -> HeadScores:
        """Score the heads, add activations to the health of the line, and take a frame if one is due."""
        loop, camera = self.loop, self.camera
        scores, frame = self.probe.measure(loop.setup.model), camera.measure(loop.setup.model)
        if line.health is not None:
            line.health = line.health.with_activations(frame.tensors)
        if camera.due(line.step):
            weights = camera.weights(loop.setup.model) if loop.recipe.frames else {}
            if loop.group.writes:
                with writing(loop.out, "continue with --resume", TrainingError):
                    camera.write(line.step, frame, scores, line.health)
                    if weights:
                        camera.write_weights(line.step, weights)
        return scores


class GradientNoise(Observer):
    """Adds the noise of the gradient to lines with heads or a frame, computed before the step itself."""

    noise: Noise | None = None

    def __init__(self, heads: Heads) -> None:
        self.heads = heads

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        self._measure(loop.progress.step)

    def step(self, line: Metrics) -> None:
        line.noise, self.noise = self.noise or line.noise, None
        self._measure(line.step)

    def _measure(self, done: int) -> None:
        """Measure the noise of the next step."""
        loop = self.loop
        if done < loop.recipe.steps and self.heads.due(done + 1):
            self.noise = gradient_noise(loop.batch_loss, loop.setup.examples.batch(done), loop.recipe)


class Explanation(Observer):
    """Records every number of the update of some weights at one step: those named, or some default ones."""

    def __init__(self, loop: Loop, step: int, weights: Sequence[str]) -> None:
        self.at, self.updates = step, list[Update]()
        self.weights = [choose_weight(loop.model, name) for name in weights]
        self.watch: UpdateWatch | None = None

    def gradients(self, line: Metrics) -> None:
        if line.step == self.at:
            self.watch = UpdateWatch(self.loop.model, self.loop.optimiser, self.weights)

    def step(self, line: Metrics) -> None:
        if self.watch is not None:
            self.updates, self.watch = self.watch.updates(line.grad_norm, self.loop.recipe.clip), None
