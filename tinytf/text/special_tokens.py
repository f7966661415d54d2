"""The special and added tokens that a directory's files name, and putting them into a tokenizer in their order.

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
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class SpecialTokens:
    """``named`` are those with a role, ``extra`` those without, ``added`` the entries beside the model's vocabulary."""

    named: Mapping[str, AddedToken]
    extra: Sequence[AddedToken]
    added: Sequence[AddedToken]

    @property
    def names(self) -> dict[str, str]:
        return {role: token.content for role, token in self.named.items()}


def read_special_tokens(
    directory: Path, settings: Mapping[str, Any], in_tokenizer: Any, defaults: Mapping[str, str]
) -> SpecialTokens:
    """What the files of ``directory`` say; CheckpointError, naming the file, for what is no token.

    ``settings`` is tokenizer_config.json, ``in_tokenizer`` the added tokens of tokenizer.json, ``defaults`` the tokens
    of the roles that no file speaks of. Where the settings list the added tokens with their ids, that list is the whole
    truth; else special_tokens_map.json, added_tokens.json and tokenizer.json add to it, as older versions wrote them.
    """
    source = directory / "tokenizer_config.json"
    said = dict(settings)
    extra = said.get("extra_special_tokens") or said.get("additional_special_tokens") or []
    listed = said.get("added_tokens_decoder")
    if listed is None and (overlay := directory / "special_tokens_map.json").exists():
        source, over = overlay, read_json(overlay)
        said |= over
        extra = _joined(extra, over.get("extra_special_tokens") or ([] if extra else over.get(_OLD_EXTRA)) or [])

    _require(isinstance(extra, (list, dict)), source, "the extra special tokens are neither a list nor an object")
    roles = {role: said.get(role, defaults.get(role)) for role in _NAMED}
    roles |= {
        role: token
        for role, token in said.items()
        if role.endswith("_token") and role not in _NAMED and isinstance(token, (str, dict))
    }
    if isinstance(extra, dict):
        roles, extra = roles | extra, []
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
    """Add to the vocabulary what is not among its added tokens yet: first those with ids, then those with roles."""
    there = library.get_added_tokens_decoder().values()
    same = {repr(token) for token in there}
    missing = [token for token in tokens.added if repr(token) not in same]
    contents = {token.content for token in (*there, *missing)}
    for token in (*tokens.named.values(), *tokens.extra):
        if token.content not in contents:
            contents.add(token.content)
            missing.append(token)
    roles = set(tokens.names.values())
    for token in missing:
        token.special = token.special or token.content in roles
    library.add_tokens(missing)


_OLD_EXTRA = "additional_special_tokens"


def _joined(extra: Any, more: Any) -> Any:
    if isinstance(extra, list) and isinstance(more, list):
        return [*extra, *(token for token in more if token not in extra)]
    return more or extra


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
        raise CheckpointError(f"{source} names a token that is neither a text nor an object with content: {entry!r}")
    flags = {flag: entry[flag] for flag in _FLAGS if flag in entry}
    if special is not None:
        flags.setdefault("special", special)
    _require(
        all(isinstance(flag, bool) for flag in flags.values()), source, f"the flags of {content!r} are no booleans"
    )
    return AddedToken(content, **flags)


def _id(number: Any, source: Path) -> int:
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 11:
        return int(number)
    fits = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    _require(fits, source, f"{number!r} is no id of a token")
    return int(number)


def _require(holds: bool, source: Path, otherwise: str) -> None:
    if not holds:
        raise CheckpointError(f"{source}: {otherwise}")
