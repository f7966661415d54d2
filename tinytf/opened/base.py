"""A transformer with its tokenizer: what it is, and how it takes a text."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf.checkpoints.weights import not_finite
from tinytf.config import ModelConfig
from tinytf.errors import TokenizerError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding, Tokenizer

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Opened:
    """A transformer with its tokenizer.

    ``source`` says what it is, ``tokenizer_note`` whose the vocabulary is, ``file_notes`` what was passed over in its
    files. ``corpus`` is a text of the kind that it was trained on, where one is known.
    """

    name: str
    transformer: Transformer
    tokenizer: Tokenizer
    source: str
    tokenizer_note: str = ""
    file_notes: tuple[str, ...] = ()
    corpus: Path | None = None

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a user should know: what was passed over in the files, and weights that are no finite numbers."""
        return (*self.file_notes, *not_finite(dict(self.transformer.named_parameters())))

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    @cached_property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.transformer.parameters())

    def encode(self, text: str, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` as this model takes them.

        Raises UsageError for a text without a word, or longer than the context; ``truncate`` cuts its end instead.
        """
        if not text.strip():
            what = "empty" if not text else "only white space"
            raise UsageError(f"the text is {what}", "give a few words, such as: The cat sat")
        encoding = self.tokenizer.encode(text)
        beyond = [token for token in encoding.tokens if token.id >= self.config.vocab_size]
        if beyond:
            raise TokenizerError(
                f"token {beyond[0].shown} has id {beyond[0].id}, and the model knows {self.config.vocab_size} tokens"
            )
        limit = self.config.context
        if len(encoding.tokens) <= limit:
            return encoding
        if not truncate:
            raise UsageError(
                f"the text has {len(encoding.tokens):,} tokens, and {self.name} takes at most {limit:,}",
                "shorten it, or cut it on purpose with --truncate",
            )
        return encoding.truncated(limit)

    def prompt(self, text: str, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` to go on from: no end token behind it, and the start token alone where it is empty.

        Errors as of ``encode``, and UsageError for an empty text without a start token.
        """
        if not text:
            start = self.tokenizer.start()
            if start is None:
                raise UsageError(
                    "the text is empty, and this model has no start token", "give a few words, such as: The cat sat"
                )
            return start
        return self.encode(text, truncate=truncate).open_ended(self.tokenizer.end_ids)

    def find_token(self, word: str, option: str = "target") -> int:
        """The id of the one token that ``word`` is where a text goes on, or in an encoder at a mask; ``#514`` is 514.

        Raises UsageError for what is not one token of the vocabulary; it names the ``option``.
        """
        from tinytf.gradients.targets import find_token

        count = self.config.vocab_size
        found = find_token(self.tokenizer, word, causal=self.config.causal, option=option, vocabulary=count)
        if found >= count:
            raise UsageError(f"{option} {word!r} has id {found}, and the model knows {count:,} tokens")
        return found
