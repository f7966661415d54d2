"""What a model says after a text, and of one: a file each question, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:
    from tinytf.generate import continuing, report, score

__getattr__ = lazy_modules.modules(__name__)
