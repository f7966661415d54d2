"""Why a model predicts what it does: take out or replace a part, and measure its predictions.

One file a question, imported on first use.
"""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:  # the modules that Model uses
    from tinytf.cause import blame, budget, compare_without, interventions, restoring, step_errors

__getattr__ = lazy_modules.modules(__name__)
