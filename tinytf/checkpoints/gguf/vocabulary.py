"""The tokenizer that the metadata of a GGUF file describes (``tokenizer.ggml.*``): byte-level or SentencePiece BPE.

Of byte-level BPE, ``tokenizer.ggml.pre`` only names how a text is cut before its merges; the expressions are those of
the named models' own tokenizers, which llama.cpp's table repeats (llama-vocab.cpp).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from tinytf.checkpoints.gguf.header import Header
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.tokenizer_classes import LLAMA, by_words, start_and_end

_LONGEST_PIECE = 512  # characters; SentencePiece makes them of 16 unless told otherwise
_TYPES = range(1, 7)  # normal, unknown, control, user-defined, unused, byte
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ONLY = {"add_sep_token": (False,), "remove_extra_whitespaces": (False,)}
_HARMLESS = ("add_space_prefix", "merges", "scores", "token_type_count")


class Cut(NamedTuple):
    """How a text is cut. With ``whole_words`` a piece that is a token is taken as one, whatever the merges say.

    With ``start`` a start token is added unless the file says otherwise.
    """

    pre_tokenizer: Any
    whole_words: bool = False
    start: bool = False


_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _LEVEL])
CUTS: Mapping[str, Cut] = {
    **dict.fromkeys(("gpt-2", "phi-2"), Cut(_LEVEL)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), Cut(_DIGITS)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), Cut(by_words(r"\p{N}{1,3}"), True, True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Cut(by_words(r"\p{N}"))),
}


def byte_level(keys: Fields, tokens: list[str]) -> tuple[Library, bool]:
    """The tokenizer of a file's vocabulary and merges, and whether a start token is added by default."""
    name = keys.text("pre")
    if name not in CUTS:
        raise keys.fault(
            f"the pre-tokenizer {quoted(name)} is not one that tinytf knows",
            f"known: {', '.join(CUTS)}",
        )
    cut = CUTS[name]
    merges = [_pair(keys, merge) for merge in keys.array("merges", str)]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    try:
        library = Library(models.BPE(vocabulary, merges, ignore_merges=cut.whole_words))
    except Exception as error:  # the library raises plain Exception
        raise keys.fault(f"the merges do not fit the vocabulary: {quoted(str(error))}") from None
    library.pre_tokenizer = cut.pre_tokenizer
    library.decoder = decoders.ByteLevel()
    return library, cut.start


def _pair(keys: Fields, merge: str) -> tuple[str, str]:
    """The two pieces of a merge; the space between them is never the first character, which can be a piece itself."""
    space = merge.find(" ", 1)
    if space < 0:
        raise keys.fault(f"the merge {quoted(merge)} is not two pieces with a space between")
    return merge[:space], merge[space + 1 :]


def sentencepiece(keys: Fields, tokens: list[str]) -> tuple[Library, bool]:
    """The tokenizer of a file's pieces, and that a start token is added by default.

    Spaces are ▁, one is put before the text, and characters without a piece become bytes, as in transformers'
    LlamaTokenizer. llama.cpp puts a space also before a text that starts with one, and after every special token.
    """
    scores = keys.array("scores", float, (), len(tokens))
    if not scores:
        raise CheckpointError(f"{keys.source} lacks tokenizer.ggml.scores")
    longest = max(tokens, key=len)
    if len(longest) > _LONGEST_PIECE:
        raise keys.fault(
            f"the piece {quoted(longest)} has {len(longest):,} characters, and at most {_LONGEST_PIECE} are expected"
        )
    vocabulary = {token: place for place, token in enumerate(tokens)}
    unknown = keys.index("unknown_token_id", len(tokens))
    model = models.BPE(
        vocabulary,
        _merges(vocabulary, scores),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    library = Library(model)
    prefix = keys.flag("add_space_prefix", True)
    parts = LLAMA.parts({"add_prefix_space": prefix}, {})
    library.pre_tokenizer, library.decoder = parts.pre_tokenizer, parts.decoder
    return library, True


def _merges(vocabulary: dict[str, int], scores: tuple[float, ...]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, the best piece first.

    SentencePiece joins whichever neighbours make the piece of the highest score. Among ways of the same score the order
    is that of transformers: longer left halves first, then earlier pieces.
    """
    ways: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(vocabulary, scores, strict=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                ways.append((score, len(left), len(right), left, right))
    ways.sort(key=lambda way: way[:3], reverse=True)
    return [(left, right) for *_, left, right in ways]


_BUILDERS: Mapping[str, Callable[[Fields, list[str]], tuple[Library, bool]]] = {
    "gpt2": byte_level,
    "llama": sentencepiece,
}


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
    """Add the tokens that a text can spell out: control tokens, and those that users defined."""
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
    """Add the tokens that ``add_bos_token`` and ``add_eos_token`` ask for around every text."""
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
