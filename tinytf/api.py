"""All that can be asked of a model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf.lazy_methods import imported_when_called
from tinytf.text_model import TextModel

if TYPE_CHECKING:
    from tinytf.checkpoints.huggingface.export import Exported

with imported_when_called(__name__):  # all of them at once would make every command a tenth slower
    from tinytf.cause.blame import blame
    from tinytf.cause.budget import budget
    from tinytf.cause.compare_without import compare_without
    from tinytf.cause.importance import importance
    from tinytf.cause.interventions import (
        ablate,
        ablated,
        ablation_sweep,
        edited,
        patch,
        patch_sweep,
        reference,
        with_numbers,
        without,
    )
    from tinytf.cause.restoring import restoring
    from tinytf.cause.step_errors import step_errors
    from tinytf.compare.difference import diff
    from tinytf.generate.continuing import beams, generate, samples, stream, text_after
    from tinytf.generate.score import score
    from tinytf.generate.underway import beam_search, compare_cache, generation
    from tinytf.gradients.report import backward
    from tinytf.gradients.trace import grad
    from tinytf.look.activations import activations
    from tinytf.look.arithmetic import explain
    from tinytf.look.attended import attention
    from tinytf.look.attribution import attribute
    from tinytf.look.census import heads
    from tinytf.look.code import code
    from tinytf.look.examples import top_examples
    from tinytf.look.experts import expert_load, experts
    from tinytf.look.grammar import grammar
    from tinytf.look.lens import lens
    from tinytf.look.neighbours import neighbours
    from tinytf.look.neurons import neurons
    from tinytf.look.page import page
    from tinytf.look.parameters import parameters
    from tinytf.look.positions import positions
    from tinytf.look.ranked import most_similar
    from tinytf.look.rollout import rollout
    from tinytf.look.similar import similar
    from tinytf.look.state import state
    from tinytf.look.tokens import tokens
    from tinytf.look.traced import traced


@dataclass(frozen=True)
class Model(TextModel):
    """A transformer with its tokenizer, as ``tinytf.load`` opens it, and all that can be asked of it."""

    def export(self, directory: str | Path) -> "Exported":
        """Write model and tokenizer to a new or empty ``directory``, as transformers opens them.

        Raises UsageError for an architecture that transformers has no family for, and for a directory with files.
        """
        from tinytf.checkpoints.huggingface.export import export

        return replace(export(self.transformer, self.tokenizer, Path(directory), self.prompts), model=self.name)

    tokens = tokens
    lens = lens
    attribute = attribute
    neighbours = neighbours
    similar = similar
    most_similar = most_similar
    neurons = neurons
    experts = experts
    expert_load = expert_load
    top_examples = top_examples
    heads = heads
    grammar = grammar
    rollout = rollout
    state = state
    parameters = parameters
    explain = explain
    traced = traced
    page = page
    attention = attention
    code = code
    activations = activations
    positions = positions

    grad = grad
    backward = backward

    blame = blame
    budget = budget
    importance = importance
    restoring = restoring
    step_errors = step_errors
    diff = diff
    reference = reference
    ablate = ablate
    ablation_sweep = ablation_sweep
    ablated = ablated
    edited = edited
    without = without
    with_numbers = with_numbers
    compare_without = compare_without
    patch = patch
    patch_sweep = patch_sweep

    stream = stream
    generate = generate
    samples = samples
    beams = beams
    text_after = text_after
    generation = generation
    beam_search = beam_search
    compare_cache = compare_cache
    score = score
