"""Where two part: two texts, two models, or a model and the numbers of another program.

A file each question, imported when it is first asked.
"""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:  # those that Model has
    from tinytf.compare import difference

__getattr__ = lazy_modules.modules(__name__)
