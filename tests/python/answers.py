"""An answer of each kind, as Python asks for it."""

from collections.abc import Callable
from pathlib import Path

import tinytf
from tinytf.certification.card import card
from tinytf.doctor import checkup
from tinytf.features.train_transcoders import TranscoderTraining
from tinytf.features.transcoders import TranscoderSet
from tinytf.learn import LessonList
from tinytf.loading import info
from tinytf.look.probe import LabelledTexts
from tinytf.models import catalogue
from tinytf.report import Report
from tinytf.text.corpus import find_files

SAE = Path(__file__).parents[2] / "samples" / "sae"
LABELLED = LabelledTexts("texts", ("The cat", "A cat", "The dog", "A dog"), ("cat", "cat", "dog", "dog"))
TEXT, OTHER = "The cat sat on the mat.", "The dog sat on the mat."
PAIRS = [{"clean": "The cat sat on the", "corrupt": "The dog sat on the", "answer": " mat", "versus": " step"}]

STORIES = find_files("\n\n".join([TEXT] * 20))
MOODS = [("The dog was glad", "The dog was sad"), ("The cat was glad", "The cat was sad")]


def trained(model: tinytf.Model) -> TranscoderTraining:
    return model.train_transcoders(STORIES, "L*.ffn", features=16, k=2, tokens=64, batch=16)


def transcoders(model: tinytf.Model) -> TranscoderSet:
    return trained(model).transcoders


ANSWERS: dict[str, Callable[[tinytf.Model], Report]] = {
    "Ablation": lambda model: model.ablate(TEXT, "L0H1"),
    "AblationSweep": lambda model: model.ablate_sweep(TEXT),
    "Activations": lambda model: model.activations(TEXT),
    "Attended": lambda model: model.attention(TEXT),
    "AttributeScore": lambda model: model.attribute_score(TEXT, "L1H0.scores[1,0]"),
    "Attribution": lambda model: model.attribute(TEXT),
    "Backward": lambda model: model.backward(TEXT),
    "BeamSearch": lambda model: model.beam_search(TEXT, beams=2, max_tokens=2),
    "Budget": lambda model: model.budget(TEXT, 10**7),
    "CacheComparison": lambda model: model.compare_cache(TEXT, max_tokens=2),
    "Card": lambda model: card("tiny", context=16, pieces=1),
    "Catalogue": lambda model: catalogue(Path("/nowhere")),
    "Census": lambda model: model.heads(count=2, length=4),
    "Checkup": lambda model: checkup(Path("/nowhere")),
    "Code": lambda model: model.code(TEXT),
    "Composition": lambda model: model.composition("L0H1"),
    "CrosscoderTraining": lambda model: model.train_crosscoder(
        model, STORIES, "L1.out", features=16, tokens=64, batch=16
    ),
    "Difference": lambda model: model.diff(TEXT, OTHER),
    "Explained": lambda model: model.explain(TEXT, "L0H0.scores[1,0]"),
    "FeatureCircuit": lambda model: model.feature_circuit(TEXT, transcoders(model), left_out=2),
    "Features": lambda model: model.features(TEXT, SAE),
    "Generation": lambda model: model.generation(TEXT, max_tokens=2),
    "Grammar": lambda model: model.grammar(),
    "HeadWeights": lambda model: model.head_weights("L1H2"),
    "Info": lambda model: info("tiny"),
    "LeftOut": lambda model: model.compare_without(TEXT, "mask", top=4),
    "Lens": lambda model: model.lens(TEXT),
    "LessonList": lambda model: LessonList(),
    "Neighbours": lambda model: model.neighbours(["cat", "dog"]),
    "Neurons": lambda model: model.neurons(TEXT),
    "OverPairs": lambda model: model.attribute_over(PAIRS),
    "Parameters": lambda model: model.parameters("L0.W_Q"),
    "PatchSweep": lambda model: model.patch_sweep(TEXT, OTHER, answer="the", versus="cat"),
    "Patched": lambda model: model.patch(TEXT, OTHER, "L0.ffn", answer="the", versus="cat"),
    "Positions": lambda model: model.positions(),
    "Probe": lambda model: model.probe(LABELLED, at="L1.out"),
    "Ranked": lambda model: model.most_similar(TEXT, [OTHER], pooling="mean"),
    "Rollout": lambda model: model.rollout(TEXT),
    "SaeTraining": lambda model: model.train_sae(STORIES, "L1.out", features=16, k=2, tokens=64, batch=16),
    "Score": lambda model: model.score(TEXT),
    "Similar": lambda model: model.similar(TEXT, OTHER, pooling="mean"),
    "SteeredGeneration": lambda model: model.steered_generation(TEXT, add=model.steer(MOODS), max_tokens=2),
    "SteeringCurve": lambda model: model.steer_curve(TEXT, model.steer(MOODS, at="L1.out")),
    "SteeringVector": lambda model: model.steer(MOODS),
    "Tokenized": lambda model: model.tokens(TEXT),
    "Traced": lambda model: model.traced(TEXT),
    "TranscoderTraining": trained,
    "TunedLens": lambda model: model.train_lens(steps=1),
    "Weights": lambda model: model.weights(),
}
