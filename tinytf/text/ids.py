"""The tokenizer for a model that comes without one: a text is a list of ids."""

import tokenizers
from tokenizers import models, pre_tokenizers

from tinytf.errors import TokenizerError
from tinytf.text.library import DEFAULT_LIMIT, Limit
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Tokenizer


class IdTokenizer(Tokenizer):
    """Texts are ids separated by spaces, such as ``464 3797``. Raises TokenizerError for anything else.

    There are ``count`` ids, and ``of_source`` in the encoder of two stacks, by default as many. ``why`` says why a text
    is not words.
    """

    def __init__(self, count: int, of_source: int | None = None, why: str = "this model has no tokenizer") -> None:
        library = tokenizers.Tokenizer(models.WordLevel({str(number): number for number in range(count)}))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        super().__init__(library, source=None if of_source in (None, count) else IdTokenizer(of_source, why=why))
        self.kind = "ids"
        self._why = why

    def encode(self, text: str, *, special: bool = True, limit: Limit = DEFAULT_LIMIT) -> Encoding:
        for word in text.split():
            if self.id_of(word) is None:
                raise TokenizerError(
                    f"{printable(word)[:60]!r} is not an id below {self.vocab_size:,}, and {self._why}",
                    "give it one: tinytf.load(model, tokenizer); or give a text of ids, such as 464 3797",
                )
        return super().encode(text, special=special, limit=limit)
