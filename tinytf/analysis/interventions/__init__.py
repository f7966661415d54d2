"""Interventions: parts of a model taken out, or replaced by what they are in another run."""

from tinytf.analysis.interventions.ablation import Ablation, AblationSweep, ablate, ablated, ablation_sweep, without
from tinytf.analysis.interventions.edits import edited
from tinytf.analysis.interventions.hooks import HookPoint, Intervention, hook_points, intervened, intervening
from tinytf.analysis.interventions.patching import Patched, PatchSweep, patch, patch_sweep
from tinytf.analysis.interventions.prediction import Choice, Contrast, Effect, UnevenTexts, require_even
from tinytf.analysis.interventions.values import Reference, reference, reference_of

__all__ = [
    "Ablation",
    "AblationSweep",
    "Choice",
    "Contrast",
    "Effect",
    "HookPoint",
    "Intervention",
    "PatchSweep",
    "Patched",
    "Reference",
    "UnevenTexts",
    "ablate",
    "ablated",
    "ablation_sweep",
    "edited",
    "hook_points",
    "intervened",
    "intervening",
    "patch",
    "patch_sweep",
    "reference",
    "reference_of",
    "require_even",
    "without",
]
