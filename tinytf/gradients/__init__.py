"""The backward pass of a text, with one file per question, imported on first use."""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:
    from tinytf.gradients import report, trace

__getattr__ = lazy_modules.modules(__name__)
