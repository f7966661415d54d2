"""All that can be asked of a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tinytf import cause, compare, generate, gradients, look
from tinytf.text_model import TextModel

if TYPE_CHECKING:
    from tinytf.checkpoints.huggingface.export import Exported

P = ParamSpec("P")
Answer = TypeVar("Answer")


class LazyMethod(Generic[P, Answer]):
    """A function of a model, as a method of it; its file is imported when it is first asked."""

    def __init__(self, find: Callable[[], Callable[Concatenate["Model", P], Answer]]) -> None:
        self._find = find

    @overload
    def __get__(self, model: None, of: type) -> Callable[Concatenate["Model", P], Answer]: ...
    @overload
    def __get__(self, model: "Model", of: type) -> Callable[P, Answer]: ...
    def __get__(self, model: "Model | None", of: type) -> Any:
        function: Any = self._find()
        return function.__get__(model, of)


@dataclass(frozen=True)
class Model(TextModel):
    """A transformer with its tokenizer, as ``tinytf.load`` opens it, and all that can be asked of it."""

    def export(self, directory: str | Path) -> "Exported":
        """Write model and tokenizer to a new or empty ``directory``, as transformers opens them.

        Raises UsageError for an architecture that transformers has no family for, and for a directory with files.
        """
        from tinytf.checkpoints.huggingface.export import export

        return replace(export(self.transformer, self.tokenizer, Path(directory)), model=self.name)

    tokens = LazyMethod(lambda: look.tokens.tokens)
    lens = LazyMethod(lambda: look.lens.lens)
    attribute = LazyMethod(lambda: look.attribution.attribute)
    neighbours = LazyMethod(lambda: look.neighbours.neighbours)
    neurons = LazyMethod(lambda: look.neurons.neurons)
    experts = LazyMethod(lambda: look.experts.experts)
    expert_load = LazyMethod(lambda: look.experts.expert_load)
    top_examples = LazyMethod(lambda: look.examples.top_examples)
    heads = LazyMethod(lambda: look.census.heads)
    rollout = LazyMethod(lambda: look.rollout.rollout)
    parameters = LazyMethod(lambda: look.parameters.parameters)
    explain = LazyMethod(lambda: look.arithmetic.explain)
    traced = LazyMethod(lambda: look.traced.traced)
    attention = LazyMethod(lambda: look.attended.attention)
    code = LazyMethod(lambda: look.code.code)
    activations = LazyMethod(lambda: look.activations.activations)
    positions = LazyMethod(lambda: look.positions.positions)

    grad = LazyMethod(lambda: gradients.trace.grad)
    backward = LazyMethod(lambda: gradients.report.backward)

    blame = LazyMethod(lambda: cause.blame.blame)
    budget = LazyMethod(lambda: cause.budget.budget)
    restoring = LazyMethod(lambda: cause.restoring.restoring)
    step_errors = LazyMethod(lambda: cause.step_errors.step_errors)
    diff = LazyMethod(lambda: compare.difference.diff)
    reference = LazyMethod(lambda: cause.interventions.reference)
    ablate = LazyMethod(lambda: cause.interventions.ablate)
    ablation_sweep = LazyMethod(lambda: cause.interventions.ablation_sweep)
    ablated = LazyMethod(lambda: cause.interventions.ablated)
    edited = LazyMethod(lambda: cause.interventions.edited)
    without = LazyMethod(lambda: cause.interventions.without)
    compare_without = LazyMethod(lambda: cause.compare_without.compare_without)
    patch = LazyMethod(lambda: cause.interventions.patch)
    patch_sweep = LazyMethod(lambda: cause.interventions.patch_sweep)

    stream = LazyMethod(lambda: generate.continuing.stream)
    generate = LazyMethod(lambda: generate.continuing.generate)
    samples = LazyMethod(lambda: generate.continuing.samples)
    beams = LazyMethod(lambda: generate.continuing.beams)
    text_after = LazyMethod(lambda: generate.continuing.text_after)
    generation = LazyMethod(lambda: generate.report.generation)
    beam_search = LazyMethod(lambda: generate.report.beam_search)
    compare_cache = LazyMethod(lambda: generate.report.compare_cache)
    score = LazyMethod(lambda: generate.score.score)
