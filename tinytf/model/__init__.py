"""The model that runs: embeddings, blocks and heads, with its cache."""

from tinytf.model.transformer import Transformer

__all__ = ["Transformer"]
