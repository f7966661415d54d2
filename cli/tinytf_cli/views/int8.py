"""What 8-bit weights cost, in words."""

from tinytf.generate.score import QuantizationCost


def cost_in_words(cost: QuantizationCost) -> str:
    """``+0.0017 nats a token on 22 tokens (loss 1.4718 becomes 1.4736; most for one token: 0.0189)``."""
    return (
        f"{cost.cost:+.4f} nats a token on {cost.tokens:,} tokens "
        f"(loss {cost.loss:.4f} becomes {cost.int8_loss:.4f}; most for one token: {cost.worst:.4f})"
    )
