"""One question asked of many pairs of prompts: means with intervals instead of the numbers of one text."""

from tinytf.cause.over_pairs.intervening import ablate_over, patch_estimate_pairs, patch_over
from tinytf.cause.over_pairs.over_pairs_versus import OverPairsVersus, versus_over
from tinytf.cause.over_pairs.reading import attention_over, attribute_over, heads_over, lens_over, score_over
from tinytf.cause.over_pairs.report import OverPairs

__all__ = [
    "OverPairs",
    "OverPairsVersus",
    "ablate_over",
    "attention_over",
    "attribute_over",
    "heads_over",
    "lens_over",
    "patch_estimate_pairs",
    "patch_over",
    "score_over",
    "versus_over",
]
