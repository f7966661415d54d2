"""The tokenizer of a model that came without one: a text is the ids themselves."""

import tokenizers
from tokenizers import models, pre_tokenizers

from tinytf.errors import TokenizerError
from tinytf.text.library import MOST, Limit
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Tokenizer


class IdTokenizer(Tokenizer):
    """Texts are ids between spaces, as ``464 3797``; TokenizerError for anything else."""

    def __init__(self, count: int) -> None:
        library = tokenizers.Tokenizer(models.WordLevel({str(number): number for number in range(count)}))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        super().__init__(library)
        self.kind = "ids"

    def encode(self, text: str, *, special: bool = True, limit: Limit = MOST) -> Encoding:
        for word in text.split():
            if self.id_of(word) is None:
                raise TokenizerError(
                    f"{printable(word)[:60]!r} is no id below {self.vocab_size:,}, and this model has no tokenizer",
                    "give it one, as tinytf.load(model, tokenizer), or a text of ids, as 464 3797",
                )
        return super().encode(text, special=special, limit=limit)
