"""The special and added tokens in the files of a directory, added to a tokenizer in the order of transformers.

Source: ``PreTrainedTokenizerBase._from_pretrained`` and ``TokenizersBackend.__init__`` in transformers 5.23. The order
matters: a token that the vocabulary lacks gets the next free id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError
from tinytf.files import read_json
from tinytf.text.choice import NOTHING

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA, _LEGACY_EXTRA = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class SpecialTokens:
    """``named`` tokens have a role, ``extra`` ones do not; ``added`` are the entries outside the model's vocabulary."""

    named: Mapping[str, AddedToken]
    extra: Sequence[AddedToken]
    added: Sequence[AddedToken]

    @property
    def names(self) -> dict[str, str]:
        return {role: token.content for role, token in self.named.items()}


def read_special_tokens(
    directory: Path,
    settings: Mapping[str, Any],
    in_tokenizer: Any,
    defaults: Mapping[str, str] = NOTHING,
    flags: Mapping[str, Mapping[str, bool]] = NOTHING,
    extras: Sequence[AddedToken | str] = (),
) -> SpecialTokens:
    """The tokens in the files of ``directory``. Raises CheckpointError, with the file, for an invalid token.

    ``settings`` is tokenizer_config.json, ``in_tokenizer`` the added tokens of tokenizer.json, ``defaults`` the tokens
    of roles that no file names, ``flags`` those of roles for which a text stands alone, ``extras`` the further tokens
    if no file lists any. If the settings list the added tokens with their ids, that list is complete; otherwise
    special_tokens_map.json, added_tokens.json and tokenizer.json add tokens, as older versions wrote them.
    """
    source = directory / "tokenizer_config.json"
    merged = dict(settings)
    extra_roles = _normalise_extras(merged)
    decoder_entries = merged.get("added_tokens_decoder")
    if decoder_entries is None and (overlay := directory / "special_tokens_map.json").exists():
        source, overrides = overlay, read_json(overlay)
        base_extra, more_extra = merged.get(_EXTRA), overrides.get(_EXTRA)
        merged |= overrides
        if isinstance(base_extra, list) and isinstance(more_extra, list):
            merged[_EXTRA] = [*base_extra, *(token for token in more_extra if token not in base_extra)]
    extra_roles |= _normalise_extras(merged)
    extra = merged.get(_EXTRA) or []
    _require(isinstance(extra, list), source, "the extra special tokens are not a list")

    roles = {role: merged.get(role, defaults.get(role)) for role in ROLES}
    roles |= {
        role: token
        for role, token in merged.items()
        if role.endswith("_token") and role not in ROLES and isinstance(token, (str, dict))
    }
    roles |= extra_roles
    named = {
        role: AddedToken(token, special=True, **{"normalized": False, **flags.get(role, {})})
        if isinstance(token, str)
        else _token(token, source, special=True)
        for role, token in roles.items()
        if token is not None
    }
    listed = [_token(token, source, special=True) for token in (extra if _EXTRA in merged else extras)]
    if decoder_entries is None:
        special = {token.content for token in (*named.values(), *listed)}
        added = _legacy_additions(directory / "added_tokens.json", special)
        added |= _stored_additions(directory / "tokenizer.json", in_tokenizer)
    else:
        _require(isinstance(decoder_entries, dict), source, "added_tokens_decoder is not an object")
        added = {_id(number, source): _token(entry, source) for number, entry in decoder_entries.items()}
    return SpecialTokens(named, listed, [token for _, token in sorted(added.items())])


def add_special_tokens(library: Library, tokens: SpecialTokens) -> None:
    """Add the tokens that the vocabulary lacks: first those with ids, then those with roles."""
    existing = library.get_added_tokens_decoder().values()
    existing_reprs = {repr(token) for token in existing}
    missing = [token for token in tokens.added if repr(token) not in existing_reprs]
    known_contents = {token.content for token in (*existing, *missing)}
    for token in (*tokens.named.values(), *tokens.extra):
        if token.content not in known_contents and token not in missing:
            missing.append(token)
    roles = set(tokens.names.values())
    for token in missing:
        token.special = token.special or token.content in roles
    library.add_tokens(missing)


def _normalise_extras(settings: dict[str, Any]) -> dict[str, Any]:
    """Move extra tokens to the current name of their key; remove and return them if they are an object of roles."""
    if not settings.get(_EXTRA) and settings.get(_LEGACY_EXTRA):
        settings[_EXTRA] = settings.pop(_LEGACY_EXTRA)
    return settings.pop(_EXTRA) if isinstance(settings.get(_EXTRA), dict) else {}


def _legacy_additions(path: Path, special: set[str]) -> dict[int, AddedToken]:
    entries = read_json(path) if path.exists() else {}
    return {
        _id(number, path): AddedToken(content, normalized=content not in special, special=content in special)
        for content, number in entries.items()
    }


def _stored_additions(path: Path, entries: Any) -> dict[int, AddedToken]:
    _require(
        isinstance(entries, list) and all(isinstance(e, dict) for e in entries), path, "added_tokens is not a list"
    )
    return {_id(entry.get("id"), path): _token(entry, path) for entry in entries}


def _token(entry: Any, source: Path, special: bool | None = None) -> AddedToken:
    """A token from its text, or from an object with the text as ``content``."""
    if isinstance(entry, AddedToken):
        return entry
    if isinstance(entry, str):
        return AddedToken(entry, special=True, normalized=False)
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(content, str):
        raise CheckpointError(
            f"{source} names a token that is neither a text nor an object with content: {entry!r:.60}"
        )
    flags = {flag: entry[flag] for flag in _FLAGS if flag in entry}
    if special is not None:
        flags.setdefault("special", special)
    _require(
        all(isinstance(flag, bool) for flag in flags.values()), source, f"the flags of {content!r:.60} are not booleans"
    )
    return AddedToken(content, **flags)


def _id(number: Any, source: Path) -> int:
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 11:
        return int(number)
    fits = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    _require(fits, source, f"{number!r:.60} is not a token id")
    return int(number)


def _require(condition: bool, source: Path, message: str) -> None:
    if not condition:
        raise CheckpointError(f"{source}: {message}")
