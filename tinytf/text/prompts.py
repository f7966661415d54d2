"""Prompts of embedding models: what stands before a text, by the use that its vector has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean

QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")
"""The names that sentence-transformers looks for, in order, for a search and for what is searched."""


@dataclass(frozen=True)
class Prompts:
    """The texts of ``named`` prompts; the one named ``default`` stands before a text for which none is chosen."""

    named: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def of(self, name: str | None = None) -> str:
        """The text of a prompt, or of the default one. Raises UsageError for an unknown name."""
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.named:
            known = f"it has {', '.join(self.named)}" if self.named else "it has none"
            raise UsageError(f"this model has no prompt {name!r}", did_you_mean(name, self.named, otherwise=known))
        return self.named[name]

    def first(self, names: tuple[str, ...]) -> str | None:
        """The first of some names that has a prompt; None where none of them has."""
        return next((name for name in names if name in self.named), None)


NO_PROMPTS = Prompts()
