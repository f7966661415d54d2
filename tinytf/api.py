"""All that can be asked of a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tinytf import analysis, generate, gradients
from tinytf.text_model import TextModel

if TYPE_CHECKING:
    from tinytf.checkpoints.huggingface.export import Exported

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Question(Generic[P, Answer]):
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

    tokens = Question(lambda: analysis.tokens.tokens)
    lens = Question(lambda: analysis.lens.lens)
    attribute = Question(lambda: analysis.attribution.attribute)
    neurons = Question(lambda: analysis.neurons.neurons)
    top_examples = Question(lambda: analysis.examples.top_examples)
    heads = Question(lambda: analysis.census.heads)
    rollout = Question(lambda: analysis.rollout.rollout)
    explain = Question(lambda: analysis.arithmetic.explain)
    traced = Question(lambda: analysis.traced.traced)
    attention = Question(lambda: analysis.attended.attention)

    grad = Question(lambda: gradients.trace.grad)
    backward = Question(lambda: gradients.report.backward)

    diff = Question(lambda: analysis.difference.diff)
    reference = Question(lambda: analysis.interventions.reference)
    ablate = Question(lambda: analysis.interventions.ablate)
    ablation_sweep = Question(lambda: analysis.interventions.ablation_sweep)
    ablated = Question(lambda: analysis.interventions.ablated)
    without = Question(lambda: analysis.interventions.without)
    patch = Question(lambda: analysis.interventions.patch)
    patch_sweep = Question(lambda: analysis.interventions.patch_sweep)

    stream = Question(lambda: generate.continuing.stream)
    generate = Question(lambda: generate.continuing.generate)
    samples = Question(lambda: generate.continuing.samples)
    beams = Question(lambda: generate.continuing.beams)
    text_after = Question(lambda: generate.continuing.text_after)
    generation = Question(lambda: generate.report.generation)
    beam_search = Question(lambda: generate.report.beam_search)
    compare_cache = Question(lambda: generate.report.compare_cache)
    score = Question(lambda: generate.score.score)
