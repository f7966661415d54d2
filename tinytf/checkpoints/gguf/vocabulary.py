"""The tokenizer that the metadata of a GGUF file describes (``tokenizer.ggml.*``)."""

from collections.abc import Callable, Mapping

from tokenizers import AddedToken

from tinytf.checkpoints.gguf.byte_level import byte_level
from tinytf.checkpoints.gguf.header import Header
from tinytf.checkpoints.gguf.pieces import GgufTokenizer, sentencepiece, unigram, wordpiece
from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields, quoted
from tinytf.nearest import did_you_mean
from tinytf.text.chat import ChatTemplate
from tinytf.text.choice import NOTHING, Settings
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.tokenizer_classes import start_and_end

_TYPES = range(1, 7)  # normal, unknown, control, user-defined, unused, byte
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_STARTS = ("bos_token_id", "cls_token_id")
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SEPARATORS = ("seperator_token_id", "sep_token_id")  # the first is ggml's spelling
_HARMLESS = ("add_sep_token", "add_space_prefix", "merges", "scores", "token_type_count")

_BUILDERS: Mapping[str, Callable[[Fields, list[str]], GgufTokenizer]] = {
    "gpt2": byte_level,
    "llama": sentencepiece,
    "t5": unigram,
    "bert": wordpiece,
}


def tokenizer_of(header: Header, given: Settings = NOTHING) -> Tokenizer:
    """The tokenizer of a file. Settings that are ``given`` replace keys of its metadata, without their prefix.

    Raises CheckpointError for a kind or setting that is not implemented, or inconsistent parts.
    """
    prefix = "tokenizer.ggml."
    said = {prefix + key: value for key, value in given.items()}
    keys = Fields({**header.metadata, **said}, header.path, prefix=prefix)
    kind = keys.text("model")
    if kind not in _BUILDERS:
        raise CheckpointError(
            f"{header.path}: the tokenizer {quoted(kind)} is not one that tinytf opens from GGUF files",
            f"known: {', '.join(_BUILDERS)}",
        )
    if kind != "t5":
        keys.require("remove_extra_whitespaces", (False,))
    tokens = keys.array("tokens", str)
    _require_unique(keys, tokens)
    base = _BUILDERS[kind](keys, tokens)
    if base.tokens is not tokens:
        _require_unique(keys, base.tokens)
    start, separator, mask = (_first_id(keys, names, tokens) for names in (_STARTS, _SEPARATORS, ("mask_token_id",)))
    ends = tuple(dict.fromkeys(token_id for key in _ENDS if (token_id := keys.index(key, len(tokens))) is not None))
    if kind == "bert" and separator is not None:
        ends = (separator, *(end for end in ends if end != separator))
    _add_special(keys, base, {token_id for token_id in (start, separator, mask, *ends) if token_id is not None})
    _add_start_and_end(keys, base, start, next(iter(ends), None))
    if unread := [key for key in given if prefix + key not in keys.asked]:
        known = [key.removeprefix(prefix) for key in sorted(keys.asked)]
        raise UsageError(f"the tokenizer of {header.path} has no setting {unread[0]!r}", did_you_mean(unread[0], known))
    keys.refuse_unknown(_HARMLESS, ("_token_id", "_token_ids"))
    roles = {"bos_token": start, "eos_token": next(iter(ends), None), "sep_token": separator, "mask_token": mask}
    chat = _chat(header, {role: base.tokens[token_id] for role, token_id in roles.items() if token_id is not None})
    mask_token = None if mask is None else base.tokens[mask]
    return Tokenizer(base.library, ends, mask_token, start, chat, assumed=base.assumed, start_source="the file")


def _chat(header: Header, names: Mapping[str, str]) -> ChatTemplate | None:
    """The default and the named chat templates of a file; None if it has none."""
    keys = Fields(header.metadata, header.path, prefix="tokenizer.")
    texts = {"default": keys.text("chat_template", "")}
    texts |= {name: keys.text(f"chat_template.{name}", "") for name in keys.array("chat_templates", str, ())}
    templates = {name: template for name, template in texts.items() if template}
    return ChatTemplate(templates, names) if templates else None


def _first_id(keys: Fields, names: tuple[str, ...], tokens: list[str]) -> int | None:
    return next((token_id for name in names if (token_id := keys.index(name, len(tokens))) is not None), None)


def _require_unique(keys: Fields, tokens: list[str]) -> None:
    if not tokens:
        raise keys.fault("the vocabulary is empty")
    if len(set(tokens)) < len(tokens):
        seen: set[str] = set()
        duplicate = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise keys.fault(f"the vocabulary has {quoted(duplicate)} twice")


def _add_special(keys: Fields, base: GgufTokenizer, named: set[int]) -> None:
    """Add the tokens that a text can spell out: control tokens, the ``named`` ones, and user-defined ones."""
    tokens, library = base.tokens, base.library
    types = keys.array("token_type", float, (), len(tokens))
    unknown_type = next((kind for kind in types if kind not in _TYPES), None)
    if unknown_type is not None:
        raise keys.fault(f"the token type {unknown_type} is not one of 1 to 6")
    special = named | {i for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)}
    library.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in sorted(special)])
    user_defined = [i for i, kind in enumerate(types) if kind == _USER_DEFINED and i not in special]
    library.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in user_defined])


def _add_start_and_end(keys: Fields, base: GgufTokenizer, start: int | None, end: int | None) -> None:
    """Make the tokenizer add the tokens that ``add_bos_token`` and ``add_eos_token`` ask for."""
    switches, names = {}, {}
    for name, default, token_id in (("bos", base.start, start), ("eos", base.end, end)):
        switches[f"add_{name}_token"] = keys.flag(f"add_{name}_token", default)
        if token_id is not None:
            names[f"{name}_token"] = base.tokens[token_id]
        elif switches[f"add_{name}_token"]:
            raise keys.fault(f"add_{name}_token is true, but there is no {name}_token_id")
    if any(switches.values()):
        base.library.post_processor = start_and_end(switches, names, base.library)
