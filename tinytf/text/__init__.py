"""Text to tokens and back, and how a token is shown."""

from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Token, Tokenizer

__all__ = ["Encoding", "Token", "Tokenizer", "printable"]
