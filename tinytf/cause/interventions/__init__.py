"""Interventions: take parts of a model out, or replace them by their values in another run."""

from tinytf.cause.interventions.ablate import Ablation, AblationSweep, ablate, ablate_sweep, ablated, without
from tinytf.cause.interventions.edits import edited
from tinytf.cause.interventions.hooks import HookPoint, Intervention, hook_points, intervened, intervening
from tinytf.cause.interventions.numbers import Target, assignment, number_at, number_before, with_numbers
from tinytf.cause.interventions.patch import Patched, PatchSweep, patch, patch_sweep, swept
from tinytf.cause.interventions.patch_estimate import EstimatedSweep, patch_estimate
from tinytf.cause.interventions.patch_paths import PathPatched, PathSweep, patch_path, patch_paths
from tinytf.cause.interventions.prediction import Choice, Contrast, Effect, UnevenTexts, compared, require_even
from tinytf.cause.interventions.values import Reference, reference, reference_of

__all__ = [
    "Ablation",
    "AblationSweep",
    "Choice",
    "Contrast",
    "Effect",
    "EstimatedSweep",
    "HookPoint",
    "Intervention",
    "PatchSweep",
    "Patched",
    "PathPatched",
    "PathSweep",
    "Reference",
    "Target",
    "UnevenTexts",
    "ablate",
    "ablate_sweep",
    "ablated",
    "assignment",
    "compared",
    "edited",
    "hook_points",
    "intervened",
    "intervening",
    "number_at",
    "number_before",
    "patch",
    "patch_estimate",
    "patch_path",
    "patch_paths",
    "patch_sweep",
    "reference",
    "reference_of",
    "require_even",
    "swept",
    "with_numbers",
    "without",
]
