"""Text to tokens and back, and the printable form of tokens."""
