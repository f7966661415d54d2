"""The tokenizer that the metadata of a GGUF file describes (``tokenizer.ggml.*``)."""

from collections.abc import Callable, Mapping

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from tinytf.checkpoints.gguf.byte_level import byte_level
from tinytf.checkpoints.gguf.header import Header
from tinytf.checkpoints.gguf.sentencepiece import sentencepiece
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.tokenizer_classes import start_and_end

_BUILDERS: Mapping[str, Callable[[Fields, list[str]], tuple[Library, bool]]] = {
    "gpt2": byte_level,
    "llama": sentencepiece,
}
_TYPES = range(1, 7)  # normal, unknown, control, user-defined, unused, byte
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ONLY = {"add_sep_token": (False,), "remove_extra_whitespaces": (False,)}
_HARMLESS = ("add_space_prefix", "merges", "scores", "token_type_count")


def tokenizer_of(header: Header) -> Tokenizer:
    """The tokenizer of a file; CheckpointError for a kind that is not implemented, or parts that do not fit."""
    keys = Fields(header.metadata, header.path, prefix="tokenizer.ggml.")
    kind = keys.text("model")
    if kind not in _BUILDERS:
        raise CheckpointError(
            f"{header.path}: the tokenizer {quoted(kind)} is not one that tinytf opens from GGUF files",
            f"known: {', '.join(_BUILDERS)}",
        )
    for key, only in _ONLY.items():
        keys.require(key, only)
    tokens = keys.array("tokens", str)
    _require_different(keys, tokens)
    library, starts = _BUILDERS[kind](keys, tokens)
    ends = tuple(dict.fromkeys(found for key in _ENDS if (found := keys.index(key, len(tokens))) is not None))
    _add_special(keys, library, tokens, ends)
    _add_start_and_end(keys, library, starts, tokens)
    keys.refuse_unknown(_HARMLESS, ("_token_id", "_token_ids"))
    return Tokenizer(library, ends, start=keys.index("bos_token_id", len(tokens)))


def _require_different(keys: Fields, tokens: list[str]) -> None:
    if not tokens:
        raise keys.fault("the vocabulary is empty")
    if len(set(tokens)) < len(tokens):
        seen: set[str] = set()
        twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise keys.fault(f"the vocabulary has {quoted(twice)} twice")


def _add_special(keys: Fields, library: Library, tokens: list[str], ends: tuple[int, ...]) -> None:
    """Tokens that stand for themselves when a text spells them out: control tokens, and those that users defined."""
    types = keys.array("token_type", float, (), len(tokens))
    wrong = next((kind for kind in types if kind not in _TYPES), None)
    if wrong is not None:
        raise keys.fault(f"the token type {wrong} is not one of 1 to 6")
    special = {place for place, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)}
    start = keys.index("bos_token_id", len(tokens))
    special |= {*ends} if start is None else {*ends, start}
    library.add_special_tokens([AddedToken(tokens[place], normalized=False, special=True) for place in sorted(special)])
    defined = [place for place, kind in enumerate(types) if kind == _USER_DEFINED and place not in special]
    library.add_tokens([AddedToken(tokens[place], normalized=False, special=False) for place in defined])


def _add_start_and_end(keys: Fields, library: Library, starts: bool, tokens: list[str]) -> None:
    """What ``add_bos_token`` and ``add_eos_token`` ask for around every text."""
    switches = {"add_bos_token": keys.flag("add_bos_token", starts), "add_eos_token": keys.flag("add_eos_token", False)}
    names = {}
    for name in ("bos", "eos"):
        token_id = keys.index(f"{name}_token_id", len(tokens))
        if token_id is not None:
            names[f"{name}_token"] = tokens[token_id]
        elif switches[f"add_{name}_token"]:
            raise keys.fault(f"add_{name}_token is true, and there is no {name}_token_id")
    if any(switches.values()):
        library.post_processor = start_and_end(switches, names, library)
