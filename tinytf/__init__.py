"""tinytf: see every number inside a transformer.

``load`` opens a model, ``Model.trace`` records a text, ``Model.generate`` goes on from one; answers are a ``Report``.
What is named here imports torch only when it is first used.
"""

from typing import TYPE_CHECKING, Any

from tinytf.config import ModelConfig
from tinytf.errors import TinytfError
from tinytf.version import __version__

if TYPE_CHECKING:
    from tinytf.analysis.activations import Activations as Activations
    from tinytf.analysis.arithmetic.data import Explained as Explained
    from tinytf.analysis.attended import Attended as Attended
    from tinytf.analysis.attribution import Attribution as Attribution
    from tinytf.analysis.blame import Blame as Blame
    from tinytf.analysis.budget import Budget as Budget
    from tinytf.analysis.census import Census as Census
    from tinytf.analysis.code import Code as Code
    from tinytf.analysis.difference import Difference as Difference
    from tinytf.analysis.experts import Experts as Experts
    from tinytf.analysis.interventions.ablation import Ablation as Ablation
    from tinytf.analysis.interventions.ablation import AblationSweep as AblationSweep
    from tinytf.analysis.interventions.patching import Patched as Patched
    from tinytf.analysis.interventions.patching import PatchSweep as PatchSweep
    from tinytf.analysis.left_out import LeftOut as LeftOut
    from tinytf.analysis.lens import Lens as Lens
    from tinytf.analysis.neighbours import Neighbours as Neighbours
    from tinytf.analysis.neurons import Neurons as Neurons
    from tinytf.analysis.parameters import Parameters as Parameters
    from tinytf.analysis.positions import Positions as Positions
    from tinytf.analysis.rollout import Rollout as Rollout
    from tinytf.analysis.size import Info as Info
    from tinytf.analysis.splits import Splits as Splits
    from tinytf.analysis.tokens import Tokenized as Tokenized
    from tinytf.analysis.traced import Traced as Traced
    from tinytf.analysis.values import AddressValues as AddressValues
    from tinytf.catalogue import Catalogue as Catalogue
    from tinytf.certification.certify import Certificate as Certificate
    from tinytf.checkpoints.huggingface.export import Exported as Exported
    from tinytf.doctor import Checkup as Checkup
    from tinytf.dumps.capture import capture as capture
    from tinytf.generate.decoder import Kind as Kind
    from tinytf.generate.loop import Looking as Looking
    from tinytf.generate.report import BeamSearch as BeamSearch
    from tinytf.generate.report import CacheComparison as CacheComparison
    from tinytf.generate.report import Generation as Generation
    from tinytf.generate.samplers import Sampling as Sampling
    from tinytf.generate.score import Score as Score
    from tinytf.gradients.report import Backward as Backward
    from tinytf.gradients.trace import GradientTrace as GradientTrace
    from tinytf.lessons import LessonList as LessonList
    from tinytf.lessons.course import Course as Course
    from tinytf.loading import Model as Model
    from tinytf.loading import load as load
    from tinytf.report import Report as Report
    from tinytf.student.checked import Checked as Checked
    from tinytf.text.chat import Conversation as Conversation
    from tinytf.text.tokenizer import Encoding as Encoding
    from tinytf.trace.record import record as record
    from tinytf.trace.trace import Trace as Trace
    from tinytf.training.film import Film as Film
    from tinytf.training.film import Films as Films
    from tinytf.training.plan import TrainingPlan as TrainingPlan
    from tinytf.training.report import Training as Training
    from tinytf.training.run_report import RunReport as RunReport
    from tinytf.training.run_report import RunsReport as RunsReport
    from tinytf.worked.verify import ExampleScores as ExampleScores
    from tinytf.worked.verify import Verification as Verification

_LAZY = {
    "Ablation": "tinytf.analysis.interventions.ablation",
    "AblationSweep": "tinytf.analysis.interventions.ablation",
    "Activations": "tinytf.analysis.activations",
    "AddressValues": "tinytf.analysis.values",
    "Attended": "tinytf.analysis.attended",
    "Attribution": "tinytf.analysis.attribution",
    "Backward": "tinytf.gradients.report",
    "BeamSearch": "tinytf.generate.report",
    "Blame": "tinytf.analysis.blame",
    "Budget": "tinytf.analysis.budget",
    "CacheComparison": "tinytf.generate.report",
    "Catalogue": "tinytf.catalogue",
    "Census": "tinytf.analysis.census",
    "Certificate": "tinytf.certification.certify",
    "Checked": "tinytf.student.checked",
    "Checkup": "tinytf.doctor",
    "Code": "tinytf.analysis.code",
    "Conversation": "tinytf.text.chat",
    "Course": "tinytf.lessons.course",
    "Difference": "tinytf.analysis.difference",
    "Encoding": "tinytf.text.tokenizer",
    "ExampleScores": "tinytf.worked.verify",
    "Experts": "tinytf.analysis.experts",
    "Explained": "tinytf.analysis.arithmetic.data",
    "Exported": "tinytf.checkpoints.huggingface.export",
    "Film": "tinytf.training.film",
    "Films": "tinytf.training.film",
    "Generation": "tinytf.generate.report",
    "GradientTrace": "tinytf.gradients.trace",
    "Info": "tinytf.analysis.size",
    "Kind": "tinytf.generate.decoder",
    "LeftOut": "tinytf.analysis.left_out",
    "Lens": "tinytf.analysis.lens",
    "LessonList": "tinytf.lessons",
    "Looking": "tinytf.generate.loop",
    "Model": "tinytf.loading",
    "Neighbours": "tinytf.analysis.neighbours",
    "Neurons": "tinytf.analysis.neurons",
    "Parameters": "tinytf.analysis.parameters",
    "Patched": "tinytf.analysis.interventions.patching",
    "PatchSweep": "tinytf.analysis.interventions.patching",
    "Positions": "tinytf.analysis.positions",
    "Report": "tinytf.report",
    "Rollout": "tinytf.analysis.rollout",
    "RunReport": "tinytf.training.run_report",
    "RunsReport": "tinytf.training.run_report",
    "Sampling": "tinytf.generate.samplers",
    "Score": "tinytf.generate.score",
    "Splits": "tinytf.analysis.splits",
    "Tokenized": "tinytf.analysis.tokens",
    "Trace": "tinytf.trace.trace",
    "Traced": "tinytf.analysis.traced",
    "Training": "tinytf.training.report",
    "TrainingPlan": "tinytf.training.plan",
    "Verification": "tinytf.worked.verify",
    "capture": "tinytf.dumps.capture",
    "load": "tinytf.loading",
    "record": "tinytf.trace.record",
}

__all__ = ["ModelConfig", "TinytfError", "__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
