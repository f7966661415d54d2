"""What a model does while it trains: frames of fixed texts, what its heads do, samples."""
