"""Generation and scoring of texts."""
