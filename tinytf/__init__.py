"""tinytf: see every number inside a transformer.

``load`` opens a model, ``Model.trace`` records a text, ``Model.generate`` goes on from one; answers are a ``Report``.
What is named here imports torch only when it is first used.
"""

from typing import TYPE_CHECKING, Any

from tinytf.config import ModelConfig
from tinytf.errors import TinytfError
from tinytf.version import __version__

if TYPE_CHECKING:
    from tinytf.bulk.folder import RecordedCorpus as RecordedCorpus
    from tinytf.bulk.folder import recorded as recorded
    from tinytf.bulk.record import CorpusRecording as CorpusRecording
    from tinytf.cause.blame import Blame as Blame
    from tinytf.cause.budget import Budget as Budget
    from tinytf.cause.circuit.finding import Circuit as Circuit
    from tinytf.cause.interventions.ablate import Ablation as Ablation
    from tinytf.cause.interventions.ablate import AblationSweep as AblationSweep
    from tinytf.cause.interventions.patch import Patched as Patched
    from tinytf.cause.interventions.patch import PatchSweep as PatchSweep
    from tinytf.cause.interventions.patch_estimate import EstimatedSweep as EstimatedSweep
    from tinytf.cause.interventions.patch_paths import PathPatched as PathPatched
    from tinytf.cause.interventions.patch_paths import PathSweep as PathSweep
    from tinytf.cause.over_pairs.over_pairs_versus import OverPairsVersus as OverPairsVersus
    from tinytf.cause.over_pairs.over_pairs_versus import versus_over as versus_over
    from tinytf.cause.over_pairs.report import OverPairs as OverPairs
    from tinytf.cause.repair import Repair as Repair
    from tinytf.cause.steer.curve import SteeringCurve as SteeringCurve
    from tinytf.cause.steer.steered_generation import SteeredGeneration as SteeredGeneration
    from tinytf.cause.steer.vector import SteeringVector as SteeringVector
    from tinytf.cause.steer.vector import steering_vector as steering_vector
    from tinytf.cause.without import LeftOut as LeftOut
    from tinytf.certification.card import Card as Card
    from tinytf.certification.certify import Certificate as Certificate
    from tinytf.check.checked import Checked as Checked
    from tinytf.checkpoints.huggingface.export import Exported as Exported
    from tinytf.compare.diff import Difference as Difference
    from tinytf.compare.dumps.capture import capture as capture
    from tinytf.compare.logprobs import LogprobDifference as LogprobDifference
    from tinytf.compare.printed import PrintedDifference as PrintedDifference
    from tinytf.compare.sampling import SamplingDifference as SamplingDifference
    from tinytf.compare.tokenizers import Splits as Splits
    from tinytf.doctor import Checkup as Checkup
    from tinytf.features.attribute_score import AttributeScore as AttributeScore
    from tinytf.features.coder import SparseCoder as SparseCoder
    from tinytf.features.crosscoder import Crosscoder as Crosscoder
    from tinytf.features.crosscoder import open_crosscoder as open_crosscoder
    from tinytf.features.feature_circuit.report import FeatureCircuit as FeatureCircuit
    from tinytf.features.layouts import open_sae as open_sae
    from tinytf.features.report import Features as Features
    from tinytf.features.train_crosscoder import CrosscoderTraining as CrosscoderTraining
    from tinytf.features.train_sae import SaeTraining as SaeTraining
    from tinytf.features.train_transcoders import TranscoderTraining as TranscoderTraining
    from tinytf.features.transcoders import TranscoderSet as TranscoderSet
    from tinytf.features.transcoders import open_transcoders as open_transcoders
    from tinytf.generate.cache_comparison import CacheComparison as CacheComparison
    from tinytf.generate.decoder import Kind as Kind
    from tinytf.generate.loop import Looking as Looking
    from tinytf.generate.report import BeamSearch as BeamSearch
    from tinytf.generate.report import Generation as Generation
    from tinytf.generate.samplers import Sampling as Sampling
    from tinytf.generate.score import Score as Score
    from tinytf.glossary import Glossary as Glossary
    from tinytf.glossary import Meanings as Meanings
    from tinytf.gradients.grad import Backward as Backward
    from tinytf.gradients.trace import GradientTrace as GradientTrace
    from tinytf.learn import LessonList as LessonList
    from tinytf.learn.course import Course as Course
    from tinytf.learn.teach import Taught as Taught
    from tinytf.loading import Model as Model
    from tinytf.loading import load as load
    from tinytf.look.activations import Activations as Activations
    from tinytf.look.attention import Attended as Attended
    from tinytf.look.attribute import Attribution as Attribution
    from tinytf.look.code import Code as Code
    from tinytf.look.experts import Experts as Experts
    from tinytf.look.explain.data import Explained as Explained
    from tinytf.look.grammar import Grammar as Grammar
    from tinytf.look.heads.census import Census as Census
    from tinytf.look.info import Info as Info
    from tinytf.look.interaction import Interaction as Interaction
    from tinytf.look.lens import Lens as Lens
    from tinytf.look.neighbours import Neighbours as Neighbours
    from tinytf.look.neurons import Neurons as Neurons
    from tinytf.look.page import TracePage as TracePage
    from tinytf.look.parameters import Parameters as Parameters
    from tinytf.look.positions import Positions as Positions
    from tinytf.look.probe import Probe as Probe
    from tinytf.look.ranked import Ranked as Ranked
    from tinytf.look.rollout import Rollout as Rollout
    from tinytf.look.similar import Similar as Similar
    from tinytf.look.state import State as State
    from tinytf.look.tokens import Tokenized as Tokenized
    from tinytf.look.trace import Traced as Traced
    from tinytf.look.tuned_lens import TunedLens as TunedLens
    from tinytf.look.values import AddressValues as AddressValues
    from tinytf.look.weights.composition import Composition as Composition
    from tinytf.look.weights.copying import Weights as Weights
    from tinytf.look.weights.head import HeadWeights as HeadWeights
    from tinytf.models import Catalogue as Catalogue
    from tinytf.pairs.pair import PairSet as PairSet
    from tinytf.pairs.tasks import TaskList as TaskList
    from tinytf.recorders import Recorder as Recorder
    from tinytf.recorders import Recorders as Recorders
    from tinytf.report import Report as Report
    from tinytf.runs.film import Film as Film
    from tinytf.runs.film import Films as Films
    from tinytf.runs.runs import RunReport as RunReport
    from tinytf.runs.runs import RunsReport as RunsReport
    from tinytf.text.chat import Conversation as Conversation
    from tinytf.text.tokenizer import Encoding as Encoding
    from tinytf.through.changed import Changed as Changed
    from tinytf.through.diff import ModuleDifferences as ModuleDifferences
    from tinytf.through.model import open_through as open_through
    from tinytf.through.same import Same as Same
    from tinytf.through.traced import ThroughTrace as ThroughTrace
    from tinytf.trace.record import record as record
    from tinytf.trace.trace import Trace as Trace
    from tinytf.training.data.examples import Batch as Batch
    from tinytf.training.data.examples import Examples as Examples
    from tinytf.training.loop import Observer as Observer
    from tinytf.training.plan import TrainingPlan as TrainingPlan
    from tinytf.training.recipe import Recipe as Recipe
    from tinytf.training.train import Run as Run
    from tinytf.training.train import Training as Training
    from tinytf.training.train import train as train
    from tinytf.training.watch import trainer_callback as trainer_callback
    from tinytf.training.watch import watch as watch
    from tinytf.verify.paper import PaperCheck as PaperCheck
    from tinytf.verify.verify import ExampleScores as ExampleScores
    from tinytf.verify.verify import Verification as Verification

_LAZY = {
    "Ablation": "tinytf.cause.interventions.ablate",
    "AblationSweep": "tinytf.cause.interventions.ablate",
    "Activations": "tinytf.look.activations",
    "AddressValues": "tinytf.look.values",
    "Attended": "tinytf.look.attention",
    "AttributeScore": "tinytf.features.attribute_score",
    "Attribution": "tinytf.look.attribute",
    "Backward": "tinytf.gradients.grad",
    "Batch": "tinytf.training.data.examples",
    "BeamSearch": "tinytf.generate.report",
    "Blame": "tinytf.cause.blame",
    "Budget": "tinytf.cause.budget",
    "CacheComparison": "tinytf.generate.cache_comparison",
    "Card": "tinytf.certification.card",
    "Catalogue": "tinytf.models",
    "Census": "tinytf.look.heads.census",
    "Certificate": "tinytf.certification.certify",
    "Changed": "tinytf.through.changed",
    "Checked": "tinytf.check.checked",
    "Checkup": "tinytf.doctor",
    "Circuit": "tinytf.cause.circuit.finding",
    "Code": "tinytf.look.code",
    "Composition": "tinytf.look.weights.composition",
    "Conversation": "tinytf.text.chat",
    "CorpusRecording": "tinytf.bulk.record",
    "Course": "tinytf.learn.course",
    "Crosscoder": "tinytf.features.crosscoder",
    "CrosscoderTraining": "tinytf.features.train_crosscoder",
    "Difference": "tinytf.compare.diff",
    "Encoding": "tinytf.text.tokenizer",
    "ExampleScores": "tinytf.verify.verify",
    "Examples": "tinytf.training.data.examples",
    "Experts": "tinytf.look.experts",
    "Explained": "tinytf.look.explain.data",
    "Exported": "tinytf.checkpoints.huggingface.export",
    "FeatureCircuit": "tinytf.features.feature_circuit.report",
    "Features": "tinytf.features.report",
    "Film": "tinytf.runs.film",
    "Films": "tinytf.runs.film",
    "Generation": "tinytf.generate.report",
    "Glossary": "tinytf.glossary",
    "GradientTrace": "tinytf.gradients.trace",
    "Grammar": "tinytf.look.grammar",
    "HeadWeights": "tinytf.look.weights.head",
    "Info": "tinytf.look.info",
    "Kind": "tinytf.generate.decoder",
    "LeftOut": "tinytf.cause.without",
    "Lens": "tinytf.look.lens",
    "LessonList": "tinytf.learn",
    "LogprobDifference": "tinytf.compare.logprobs",
    "PrintedDifference": "tinytf.compare.printed",
    "SamplingDifference": "tinytf.compare.sampling",
    "Looking": "tinytf.generate.loop",
    "Meanings": "tinytf.glossary",
    "Model": "tinytf.loading",
    "ModuleDifferences": "tinytf.through.diff",
    "Neighbours": "tinytf.look.neighbours",
    "Neurons": "tinytf.look.neurons",
    "Observer": "tinytf.training.loop",
    "OverPairs": "tinytf.cause.over_pairs.report",
    "OverPairsVersus": "tinytf.cause.over_pairs.over_pairs_versus",
    "versus_over": "tinytf.cause.over_pairs.over_pairs_versus",
    "PaperCheck": "tinytf.verify.paper",
    "PairSet": "tinytf.pairs.pair",
    "Parameters": "tinytf.look.parameters",
    "EstimatedSweep": "tinytf.cause.interventions.patch_estimate",
    "PatchSweep": "tinytf.cause.interventions.patch",
    "PathPatched": "tinytf.cause.interventions.patch_paths",
    "PathSweep": "tinytf.cause.interventions.patch_paths",
    "Patched": "tinytf.cause.interventions.patch",
    "Positions": "tinytf.look.positions",
    "Probe": "tinytf.look.probe",
    "Repair": "tinytf.cause.repair",
    "Report": "tinytf.report",
    "Ranked": "tinytf.look.ranked",
    "Recipe": "tinytf.training.recipe",
    "Recorder": "tinytf.recorders",
    "Recorders": "tinytf.recorders",
    "RecordedCorpus": "tinytf.bulk.folder",
    "Rollout": "tinytf.look.rollout",
    "Run": "tinytf.training.train",
    "Interaction": "tinytf.look.interaction",
    "Similar": "tinytf.look.similar",
    "RunReport": "tinytf.runs.runs",
    "RunsReport": "tinytf.runs.runs",
    "SaeTraining": "tinytf.features.train_sae",
    "Sampling": "tinytf.generate.samplers",
    "SparseCoder": "tinytf.features.coder",
    "Score": "tinytf.generate.score",
    "Splits": "tinytf.compare.tokenizers",
    "Same": "tinytf.through.same",
    "State": "tinytf.look.state",
    "TaskList": "tinytf.pairs.tasks",
    "SteeredGeneration": "tinytf.cause.steer.steered_generation",
    "SteeringCurve": "tinytf.cause.steer.curve",
    "SteeringVector": "tinytf.cause.steer.vector",
    "Taught": "tinytf.learn.teach",
    "ThroughTrace": "tinytf.through.traced",
    "Tokenized": "tinytf.look.tokens",
    "Trace": "tinytf.trace.trace",
    "TracePage": "tinytf.look.page",
    "Traced": "tinytf.look.trace",
    "Training": "tinytf.training.train",
    "TranscoderSet": "tinytf.features.transcoders",
    "TranscoderTraining": "tinytf.features.train_transcoders",
    "open_transcoders": "tinytf.features.transcoders",
    "TrainingPlan": "tinytf.training.plan",
    "TunedLens": "tinytf.look.tuned_lens",
    "Verification": "tinytf.verify.verify",
    "Weights": "tinytf.look.weights.copying",
    "capture": "tinytf.compare.dumps.capture",
    "load": "tinytf.loading",
    "open_crosscoder": "tinytf.features.crosscoder",
    "open_sae": "tinytf.features.layouts",
    "open_through": "tinytf.through.model",
    "record": "tinytf.trace.record",
    "steering_vector": "tinytf.cause.steer.vector",
    "recorded": "tinytf.bulk.folder",
    "train": "tinytf.training.train",
    "trainer_callback": "tinytf.training.watch",
    "watch": "tinytf.training.watch",
}

__all__ = ["ModelConfig", "TinytfError", "__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Add ``%tinytf``, ``%trace`` and ``%diff`` to a notebook: ``%load_ext tinytf``."""
    from importlib import import_module

    import_module("tinytf_cli.magics").load(shell)
