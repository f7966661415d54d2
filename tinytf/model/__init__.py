"""The transformer itself: parts, attention, blocks, heads."""

from tinytf.model.transformer import Transformer

__all__ = ["Transformer"]
