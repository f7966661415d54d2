"""GGUF tokenizers whose vocabulary is word pieces: SentencePiece BPE and Unigram, and WordPiece."""

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted
from tinytf.text.choice import NOTHING, Settings
from tinytf.text.library import library_errors
from tinytf.text.piece_file import LONGEST_PIECE, merges_of
from tinytf.text.tokenizer_classes import BERT, LLAMA

_NORMAL, _BYTE = 1, 6


class GgufTokenizer(NamedTuple):
    """A tokenizer, its vocabulary, whether it adds a start and an end token by default, and what was assumed."""

    library: Library
    tokens: list[str]
    start: bool = False
    end: bool = False
    assumed: Settings = NOTHING


def _scores(keys: Fields, tokens: list[str]) -> Sequence[float]:
    scores: Sequence[float] = keys.array("scores", float, (), len(tokens))
    if not scores:
        raise CheckpointError(f"{keys.source} lacks tokenizer.ggml.scores")
    longest = max(tokens, key=len)
    if len(longest) > LONGEST_PIECE:
        raise keys.fault(
            f"the piece {quoted(longest)} has {len(longest):,} characters, and at most {LONGEST_PIECE} are allowed"
        )
    return scores


def sentencepiece(keys: Fields, tokens: list[str]) -> GgufTokenizer:
    """SentencePiece BPE, which adds a start token.

    Spaces are ▁, one is prepended to the text, and characters without a piece become bytes, as in transformers'
    LlamaTokenizer. llama.cpp also prepends a space to a text that starts with one, and after every special token.
    """
    keys.text("pre", "")  # only byte-level BPE has pre-tokenizers
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    unknown = keys.index("unknown_token_id", len(tokens))
    model = models.BPE(
        vocabulary,
        merges_of(vocabulary, _scores(keys, tokens)),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    library = Library(model)
    parts = LLAMA.parts({"add_prefix_space": keys.flag("add_space_prefix", True)}, {})
    library.pre_tokenizer, library.decoder = parts.pre_tokenizer, parts.decoder
    return GgufTokenizer(library, tokens, start=True)


def unigram(keys: Fields, tokens: list[str]) -> GgufTokenizer:
    """SentencePiece Unigram (T5, XLM-RoBERTa): the most probable segmentation; adds an end token.

    A text is first normalised by the file's own character table, and runs of spaces usually become one.
    """
    keys.text("pre", "")
    scores = _scores(keys, tokens)
    unknown = keys.index("unknown_token_id", len(tokens))
    fallback = _BYTE in keys.array("token_type", float, (), len(tokens))
    table = bytes(int(byte) & 255 for byte in keys.array("precompiled_charsmap", float, ()))
    scheme = "always" if keys.flag("add_space_prefix", True) else "never"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    with library_errors(CheckpointError, f"{keys.source}: the pieces do not make a tokenizer"):
        library = Library(models.Unigram(list(zip(tokens, scores, strict=True)), unknown, fallback))
        if table:
            library.normalizer = normalizers.Precompiled(table)
    if keys.flag("remove_extra_whitespaces", False):
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    else:
        library.pre_tokenizer = spaces
    library.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return GgufTokenizer(library, tokens, end=True)


def wordpiece(keys: Fields, tokens: list[str]) -> GgufTokenizer:
    """WordPiece (BERT), between [CLS] and [SEP]. A vocabulary without capitals belongs to an uncased model.

    The file marks the first piece of a word with ▁, instead of the others with ##.
    """
    keys.text("pre", "")
    types = keys.array("token_type", float, (), len(tokens)) or [_NORMAL] * len(tokens)
    pieces = [_bert_spelling(token, kind) for token, kind in zip(tokens, types, strict=True)]
    unknown = keys.index("unknown_token_id", len(tokens))
    is_cased = any(piece != piece.lower() for piece in pieces if piece[:1] != "[")
    assumed = {} if f"{keys.prefix}do_lower_case" in keys.data else {"do_lower_case": not is_cased}
    parts = BERT.parts({"do_lower_case": keys.flag("do_lower_case", not is_cased)}, {})
    unknown_piece = pieces[unknown] if unknown is not None else "[UNK]"
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    library = Library(models.WordPiece(vocabulary, **{**parts.model, "unk_token": unknown_piece}))
    library.normalizer, library.pre_tokenizer, library.decoder = parts.normalizer, parts.pre_tokenizer, parts.decoder
    return GgufTokenizer(library, pieces, start=True, end=True, assumed=assumed)


def _bert_spelling(token: str, kind: float) -> str:
    if kind != _NORMAL or (token.startswith("[") and token.endswith("]")):
        return token
    return token[1:] if token.startswith("▁") else f"##{token}"
