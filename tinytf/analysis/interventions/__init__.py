"""Interventions: parts of a model taken out, or replaced by what they are in another run."""

from tinytf.analysis.interventions.ablation import Ablation, AblationSweep, ablate, ablation_sweep
from tinytf.analysis.interventions.hooks import HookPoint, Intervention, ablated, hook_points, without
from tinytf.analysis.interventions.patching import Patched, PatchSweep, patch, patch_sweep
from tinytf.analysis.interventions.prediction import Choice, Contrast, Effect, UnevenTexts, require_even
from tinytf.analysis.interventions.values import Reference, read_reference, reference_of, values_for

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
    "hook_points",
    "patch",
    "patch_sweep",
    "read_reference",
    "reference_of",
    "require_even",
    "values_for",
    "without",
]
