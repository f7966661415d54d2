"""What a token's vector begins as."""

from dataclasses import dataclass

from tinytf.errors import ConfigError
from tinytf.parts.part import ABOVE_ZERO, COUNT, POSITIVE, SHARE, Part, leaf, listed


@dataclass(frozen=True, kw_only=True)
class Embedding(Part):
    """Embeddings of tokens, and what is added to them.

    ``embed_scale`` multiplies those of tokens (√d_model in the paper). With a ``masked_share``, that of training, those
    of ``mask_id`` are 0, and the others are multiplied by (1 − ``masked_share``) / (1 − the share of masks in the text)
    (ESM). Token embeddings that are ``d_embed`` wide (0: d_model) are projected to d_model, with a ``projection_bias``
    or without; where the embeddings are normed, positions and types are as narrow, and the projection follows the norm.
    The head then unembeds hidden states that it has made ``d_embed`` wide. ``position_offset`` rows of the position
    table come before that of the first token (RoBERTa has 2).
    """

    vocab_size: int = leaf(limits=POSITIVE)
    n_token_types: int = leaf(0, COUNT)
    position_offset: int = leaf(0, COUNT)
    d_embed: int = leaf(0, COUNT)
    projection_bias: bool = leaf(False)
    embed_scale: float = leaf(1.0, ABOVE_ZERO)
    masked_share: float = leaf(0.0, SHARE)
    mask_id: int = leaf(0, COUNT)
    embed_norm: bool = leaf(False)

    def words(self, causal: bool) -> dict[str, str]:
        bias = " with a bias" if self.projection_bias else ""
        return {
            "embeddings": listed(
                bool(self.d_embed) and f"{self.d_embed} wide and projected to d_model{bias}",
                self.embed_scale != 1 and f"times {self.embed_scale:.4g}",
                bool(self.n_token_types) and f"{self.n_token_types:,} token type{'s' * (self.n_token_types > 1)}",
                self.embed_norm and "normed",
                bool(self.masked_share)
                and f"those of the mask (token {self.mask_id}) 0 and the others scaled to {1 - self.masked_share:g}",
            ),
            "positions": f"the first at row {self.position_offset}" if self.position_offset else "",
        }

    def fit(self, d_model: int, causal: bool) -> None:
        if self.masked_share and (causal or self.d_embed or self.mask_id >= self.vocab_size):
            raise ConfigError(
                f"masked_share {self.masked_share:g} needs an encoder with embeddings as wide as the stream, "
                f"and a mask_id below {self.vocab_size:,}"
            )
