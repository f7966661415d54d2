"""The backward pass of a text: a file each question, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazily

__all__ = ["report", "trace"]

if not TYPE_CHECKING:
    __getattr__ = lazily.modules(__name__, __all__)
else:  # so mypy knows these before it reads what asks them
    from tinytf.gradients import report, trace
