"""All that can be asked of a model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf.lazy_methods import imported_when_called
from tinytf.model.turn import using
from tinytf.text_model import TextModel, in_turn_of_all

if TYPE_CHECKING:
    from tinytf.checkpoints.huggingface.export import Exported

with imported_when_called(__name__, in_turn_of_all):  # all of them at once would make every command a tenth slower
    from tinytf.bulk.record import record_corpus
    from tinytf.cause.blame import blame
    from tinytf.cause.budget import budget
    from tinytf.cause.circuit.finding import circuit
    from tinytf.cause.importance import importance
    from tinytf.cause.interventions import (
        ablate,
        ablated,
        ablation_sweep,
        edited,
        patch,
        patch_estimate,
        patch_path,
        patch_paths,
        patch_sweep,
        reference,
        with_numbers,
        without,
    )
    from tinytf.cause.over_pairs import (
        ablate_over,
        attention_over,
        attribute_over,
        heads_over,
        lens_over,
        patch_estimate_pairs,
        patch_over,
        score_over,
    )
    from tinytf.cause.repair import repair
    from tinytf.cause.restoring import restoring
    from tinytf.cause.steer.applying import steered
    from tinytf.cause.steer.curve import steering_curve
    from tinytf.cause.steer.generation import steered_generation
    from tinytf.cause.steer.vector import steering
    from tinytf.cause.step_errors import step_errors
    from tinytf.cause.without import compare_without
    from tinytf.compare.diff import diff
    from tinytf.features.report import feature_examples, features
    from tinytf.features.train_sae import train_sae
    from tinytf.generate.continuing import beams, generate, samples, stream, text_after
    from tinytf.generate.score import score
    from tinytf.generate.underway import beam_search, compare_cache, generation
    from tinytf.gradients.grad import backward
    from tinytf.gradients.trace import grad
    from tinytf.look.activations import activations
    from tinytf.look.attention import attention
    from tinytf.look.attribute import attribute
    from tinytf.look.code import code
    from tinytf.look.examples import top_examples
    from tinytf.look.experts import expert_load, experts
    from tinytf.look.explain import explain
    from tinytf.look.grammar import grammar
    from tinytf.look.heads.census import heads
    from tinytf.look.lens import lens
    from tinytf.look.neighbours import neighbours
    from tinytf.look.neurons import neurons
    from tinytf.look.page import page
    from tinytf.look.parameters import parameters
    from tinytf.look.positions import positions
    from tinytf.look.probe import probe
    from tinytf.look.ranked import most_similar
    from tinytf.look.rollout import rollout
    from tinytf.look.similar import similar
    from tinytf.look.state import state
    from tinytf.look.tokens import tokens
    from tinytf.look.trace import traced
    from tinytf.look.tuned_lens import train_lens
    from tinytf.look.weights.composition import composition
    from tinytf.look.weights.copying import weights
    from tinytf.look.weights.head import head_weights
    from tinytf.pairs.tasks import pairs


@dataclass(frozen=True)
class Model(TextModel):
    """A transformer with its tokenizer, as ``tinytf.load`` opens it, and all that can be asked of it."""

    def export(self, directory: str | Path) -> "Exported":
        """Write model and tokenizer to a new or empty ``directory``, as transformers opens them.

        Raises UsageError for an architecture that transformers has no family for, and for a directory with files.
        """
        from tinytf.checkpoints.huggingface.export import export

        with using(self.transformer):
            exported = export(self.transformer, self.tokenizer, Path(directory), self.prompts)
        return replace(exported, model=self.name)

    tokens = tokens
    record_corpus = record_corpus
    lens = lens
    train_lens = train_lens
    attribute = attribute
    neighbours = neighbours
    similar = similar
    most_similar = most_similar
    neurons = neurons
    experts = experts
    expert_load = expert_load
    top_examples = top_examples
    features = features
    feature_examples = feature_examples
    train_sae = train_sae
    heads = heads
    weights = weights
    head_weights = head_weights
    composition = composition
    grammar = grammar
    probe = probe
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
    pairs = pairs

    grad = grad
    backward = backward

    blame = blame
    budget = budget
    circuit = circuit
    importance = importance
    repair = repair
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
    patch_estimate = patch_estimate
    patch_estimate_pairs = patch_estimate_pairs
    patch_path = patch_path
    patch_paths = patch_paths
    patch_sweep = patch_sweep
    steering = steering
    steered = steered
    steering_curve = steering_curve
    steered_generation = steered_generation

    attribute_over = attribute_over
    ablate_over = ablate_over
    patch_over = patch_over
    lens_over = lens_over
    attention_over = attention_over
    heads_over = heads_over
    score_over = score_over

    stream = stream
    generate = generate
    samples = samples
    beams = beams
    text_after = text_after
    generation = generation
    beam_search = beam_search
    compare_cache = compare_cache
    score = score
