"""Interventions: parts of a model taken out, or exchanged for what they are in another run."""

from tinytf.analysis.interventions.ablation import Ablation, AblationSweep, ablate, ablation_sweep
from tinytf.analysis.interventions.exchange import Intervention, ablated
from tinytf.analysis.interventions.pair import Contrast, UnevenTexts
from tinytf.analysis.interventions.patching import Patched, PatchSweep, patch, patch_sweep
from tinytf.analysis.interventions.prediction import Effect
from tinytf.analysis.interventions.reference import Reference, read_reference, reference_of
from tinytf.analysis.interventions.sites import Site, parse_sites, sites_of
from tinytf.analysis.interventions.values import values_for

__all__ = [
    "Ablation",
    "AblationSweep",
    "Contrast",
    "Effect",
    "Intervention",
    "PatchSweep",
    "Patched",
    "Reference",
    "Site",
    "UnevenTexts",
    "ablate",
    "ablated",
    "ablation_sweep",
    "parse_sites",
    "patch",
    "patch_sweep",
    "read_reference",
    "reference_of",
    "sites_of",
    "values_for",
]
