"""All that can be asked of a model."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytf.lazy_methods import imported_when_called
from tinytf.model.turn import using
from tinytf.text_model import TextModel, in_turn_of_all

if TYPE_CHECKING:
    from tinytf.checkpoints.huggingface.export import Exported

with imported_when_called(__name__, in_turn_of_all):  # all of them at once would make every command a tenth slower
    from tinytf.bulk.record import record
    from tinytf.cause.blame import blame
    from tinytf.cause.budget import budget
    from tinytf.cause.circuit.finding import circuit
    from tinytf.cause.importance import importance
    from tinytf.cause.interventions import (
        ablate,
        ablate_sweep,
        ablated,
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
    from tinytf.cause.steer.curve import steer_curve
    from tinytf.cause.steer.steered_generation import steered_generation
    from tinytf.cause.steer.vector import steer
    from tinytf.cause.step_errors import step_errors
    from tinytf.cause.without import compare_without
    from tinytf.compare.diff import diff
    from tinytf.features.attribute_score import attribute_score
    from tinytf.features.feature_circuit.report import feature_circuit
    from tinytf.features.report import feature_examples, features
    from tinytf.features.train_crosscoder import train_crosscoder
    from tinytf.features.train_sae import train_sae
    from tinytf.features.train_transcoders import train_transcoders
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
    from tinytf.look.interaction import interaction
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

OLD_METHODS: Mapping[str, str] = {
    "ablation_sweep": "ablate_sweep",
    "record_corpus": "record",
    "steering": "steer",
    "steering_curve": "steer_curve",
}
"""Names that methods had until 0.1, which work for one release more."""


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

    if not TYPE_CHECKING:  # to a type checker there are no old names

        def __getattr__(self, name: str) -> Any:
            if name not in OLD_METHODS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warnings.warn(f"model.{name} is model.{OLD_METHODS[name]} now", FutureWarning, stacklevel=2)
            return getattr(self, OLD_METHODS[name])

    tokens = tokens
    record = record
    lens = lens
    train_lens = train_lens
    attribute = attribute
    attribute_score = attribute_score
    neighbours = neighbours
    similar = similar
    interaction = interaction
    most_similar = most_similar
    neurons = neurons
    experts = experts
    expert_load = expert_load
    top_examples = top_examples
    features = features
    feature_examples = feature_examples
    train_sae = train_sae
    feature_circuit = feature_circuit
    train_crosscoder = train_crosscoder
    train_transcoders = train_transcoders
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
    ablate_sweep = ablate_sweep
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
    steer = steer
    steered = steered
    steer_curve = steer_curve
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
