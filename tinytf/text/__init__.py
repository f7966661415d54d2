"""Text to tokens and back, and how a token is shown."""
