"""What a user says about the tokenizer of a model whose files leave it open."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from tinytf.errors import UsageError

Settings = Mapping[str, Any]
"""Settings of a tokenizer, by their keys in tokenizer_config.json."""
NOTHING: Settings = MappingProxyType({})


@dataclass(frozen=True)
class TokenizerChoice:
    """The ``place`` of another tokenizer, empty for the model's own, and ``settings`` as in tokenizer_config.json."""

    place: str = ""
    settings: Settings = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The choice that ``PLACE``, ``KEY=VALUE``, or several of these separated by commas, describe.

        Raises UsageError for a second place.
        """
        parts = [part.strip() for part in text.split(",")]
        settings = dict(part.split("=", 1) for part in parts if re.match(r"\w+=", part))
        places = [part for part in parts if part and not re.match(r"\w+=", part)]
        if len(places) > 1:
            raise UsageError(
                f"the tokenizer is {places[0]!r} or {places[1]!r}, not both", "settings are KEY=VALUE, such as " + _SUCH
            )
        return cls("".join(places), {key: _WORDS.get(value, value) for key, value in settings.items()})


_SUCH = "do_lower_case=false"
_WORDS: Settings = {"true": True, "false": False}


def setting_words(settings: Settings) -> str:
    """Settings as ``TokenizerChoice.parse`` takes them."""
    words = {value: word for word, value in _WORDS.items()}
    return ",".join(f"{key}={words.get(value, value)}" for key, value in settings.items())
