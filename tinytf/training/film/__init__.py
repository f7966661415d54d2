"""Observe a model while it trains: frames of fixed texts, scores of heads, samples."""
