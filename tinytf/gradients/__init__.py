"""The backward pass of a text: a file each question, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazily

if TYPE_CHECKING:
    from tinytf.gradients import report, trace

__getattr__ = lazily.modules(__name__)
