"""Where two runs part: two texts, two models, or a model and the numbers of another program.

One file a question, imported on first use.
"""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:  # the modules that Model uses
    from tinytf.compare import difference

__getattr__ = lazy_modules.modules(__name__)
