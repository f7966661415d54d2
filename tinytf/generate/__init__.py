"""What a model says after a text, and of one: a file each question, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazily

__all__ = ["continuing", "report", "score"]

if not TYPE_CHECKING:
    __getattr__ = lazily.modules(__name__, __all__)
else:  # so mypy knows these before it reads what asks them
    from tinytf.generate import continuing, report, score
