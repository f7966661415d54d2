"""An open model, and all that can be asked of it."""

from dataclasses import dataclass

from tinytf.opened.generating import Generating
from tinytf.opened.inspecting import named_places
from tinytf.opened.intervening import Intervening

__all__ = ["Model", "named_places"]


@dataclass(frozen=True)
class Model(Intervening, Generating):
    """A transformer with its tokenizer, as ``tinytf.load`` opens it."""
