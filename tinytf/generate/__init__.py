"""Generation and scoring of texts: one file per question, imported on first use."""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:
    from tinytf.generate import continuing, report, score

__getattr__ = lazy_modules.modules(__name__)
