"""The special and added tokens that a directory's files name, added to a tokenizer in their order.

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

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA, _OLDER_EXTRA = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class SpecialTokens:
    """``named`` tokens have a role, ``extra`` ones none; ``added`` are the entries outside the model's vocabulary."""

    named: Mapping[str, AddedToken]
    extra: Sequence[AddedToken]
    added: Sequence[AddedToken]

    @property
    def names(self) -> dict[str, str]:
        return {role: token.content for role, token in self.named.items()}


def read_special_tokens(
    directory: Path, settings: Mapping[str, Any], in_tokenizer: Any, defaults: Mapping[str, str]
) -> SpecialTokens:
    """The tokens of the files of ``directory``. Raises CheckpointError, with the file, for what is no token.

    ``settings`` is tokenizer_config.json, ``in_tokenizer`` the added tokens of tokenizer.json, ``defaults`` the tokens
    of roles that no file names. Where the settings list the added tokens with their ids, that list is complete; else
    special_tokens_map.json, added_tokens.json and tokenizer.json add to it, as older versions wrote them.
    """
    source = directory / "tokenizer_config.json"
    said = dict(settings)
    more_roles = _settle_extras(said)
    listed = said.get("added_tokens_decoder")
    if listed is None and (overlay := directory / "special_tokens_map.json").exists():
        source, over = overlay, read_json(overlay)
        before, after = said.get(_EXTRA), over.get(_EXTRA)
        said |= over
        if isinstance(before, list) and isinstance(after, list):
            said[_EXTRA] = [*before, *(token for token in after if token not in before)]
    more_roles |= _settle_extras(said)
    extra = said.get(_EXTRA) or []
    _require(isinstance(extra, list), source, "the extra special tokens are no list")

    roles = {role: said.get(role, defaults.get(role)) for role in _NAMED}
    roles |= {
        role: token
        for role, token in said.items()
        if role.endswith("_token") and role not in _NAMED and isinstance(token, (str, dict))
    }
    roles |= more_roles
    named = {role: _token(token, source, special=True) for role, token in roles.items() if token is not None}
    extras = [_token(token, source, special=True) for token in extra]
    if listed is None:
        special = {token.content for token in (*named.values(), *extras)}
        added = _older_additions(directory / "added_tokens.json", special)
        added |= _stored_additions(directory / "tokenizer.json", in_tokenizer)
    else:
        _require(isinstance(listed, dict), source, "added_tokens_decoder is no object")
        added = {_id(number, source): _token(entry, source) for number, entry in listed.items()}
    return SpecialTokens(named, extras, [token for _, token in sorted(added.items())])


def put_in(library: Library, tokens: SpecialTokens) -> None:
    """Add the tokens that the vocabulary lacks: first those with ids, then those with roles."""
    there = library.get_added_tokens_decoder().values()
    same = {repr(token) for token in there}
    missing = [token for token in tokens.added if repr(token) not in same]
    contents = {token.content for token in (*there, *missing)}
    for token in (*tokens.named.values(), *tokens.extra):
        if token.content not in contents and token not in missing:
            missing.append(token)
    roles = set(tokens.names.values())
    for token in missing:
        token.special = token.special or token.content in roles
    library.add_tokens(missing)


def _settle_extras(said: dict[str, Any]) -> dict[str, Any]:
    """Move extra tokens to the newer name of their key; return those that are an object, as roles and tokens."""
    if not said.get(_EXTRA) and said.get(_OLDER_EXTRA):
        said[_EXTRA] = said.pop(_OLDER_EXTRA)
    return said.pop(_EXTRA) if isinstance(said.get(_EXTRA), dict) else {}


def _older_additions(path: Path, special: set[str]) -> dict[int, AddedToken]:
    entries = read_json(path) if path.exists() else {}
    return {
        _id(number, path): AddedToken(content, normalized=content not in special, special=content in special)
        for content, number in entries.items()
    }


def _stored_additions(path: Path, entries: Any) -> dict[int, AddedToken]:
    _require(isinstance(entries, list) and all(isinstance(e, dict) for e in entries), path, "added_tokens is no list")
    return {_id(entry.get("id"), path): _token(entry, path) for entry in entries}


def _token(entry: Any, source: Path, special: bool | None = None) -> AddedToken:
    """A token from its text, or from an object with its text in ``content``."""
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
        all(isinstance(flag, bool) for flag in flags.values()), source, f"the flags of {content!r:.60} are no booleans"
    )
    return AddedToken(content, **flags)


def _id(number: Any, source: Path) -> int:
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 11:
        return int(number)
    fits = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    _require(fits, source, f"{number!r:.60} is no id of a token")
    return int(number)


def _require(holds: bool, source: Path, otherwise: str) -> None:
    if not holds:
        raise CheckpointError(f"{source}: {otherwise}")
