"""Tokenizers of GGUF files whose vocabulary is pieces of words: SentencePiece BPE and Unigram, and WordPiece."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted
from tinytf.text.library import library_errors
from tinytf.text.tokenizer_classes import BERT, LLAMA

_LONGEST_PIECE = 512  # characters; SentencePiece makes them of 16 unless told otherwise
_NORMAL, _BYTE = 1, 6


class Built(NamedTuple):
    """A tokenizer, its vocabulary, and whether a start and an end token are added unless the file says otherwise."""

    library: Library
    tokens: list[str]
    start: bool = False
    end: bool = False


def _scores(keys: Fields, tokens: list[str]) -> Sequence[float]:
    scores: Sequence[float] = keys.array("scores", float, (), len(tokens))
    if not scores:
        raise CheckpointError(f"{keys.source} lacks tokenizer.ggml.scores")
    longest = max(tokens, key=len)
    if len(longest) > _LONGEST_PIECE:
        raise keys.fault(
            f"the piece {quoted(longest)} has {len(longest):,} characters, and at most {_LONGEST_PIECE} are expected"
        )
    return scores


def sentencepiece(keys: Fields, tokens: list[str]) -> Built:
    """SentencePiece BPE: a start token is added.

    Spaces are ▁, one is put before the text, and characters without a piece become bytes, as in transformers'
    LlamaTokenizer. llama.cpp puts a space also before a text that starts with one, and after every special token.
    """
    keys.text("pre", "")  # only byte-level BPE cuts a text first
    vocabulary = {token: place for place, token in enumerate(tokens)}
    unknown = keys.index("unknown_token_id", len(tokens))
    model = models.BPE(
        vocabulary,
        _merges(vocabulary, _scores(keys, tokens)),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    library = Library(model)
    parts = LLAMA.parts({"add_prefix_space": keys.flag("add_space_prefix", True)}, {})
    library.pre_tokenizer, library.decoder = parts.pre_tokenizer, parts.decoder
    return Built(library, tokens, start=True)


def _merges(vocabulary: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, the best piece first.

    SentencePiece joins whichever neighbours make the piece of the highest score. Among ways of the same score the order
    is that of transformers: longer left halves first, then longer right ones, then earlier pieces.
    """
    pieces, merges = list(vocabulary), list[tuple[str, str]]()
    own = dict(zip(pieces, pieces, strict=True)).get  # one string for a piece, however many merges it is in
    best_first = sorted(range(len(pieces)), key=scores.__getitem__, reverse=True)
    for _, places in groupby(best_first, scores.__getitem__):
        alike, start = list(places), len(merges)
        for place in alike:
            piece = pieces[place]
            for cut in range(len(piece) - 1, 0, -1):
                if (left := own(piece[:cut])) and (right := own(piece[cut:])):
                    merges.append((left, right))
        if len(alike) > 1:
            merges[start:] = sorted(merges[start:], key=lambda way: (len(way[0]), len(way[1])), reverse=True)
    return merges


def unigram(keys: Fields, tokens: list[str]) -> Built:
    """SentencePiece Unigram (T5, XLM-RoBERTa): the most probable pieces; an end token is added.

    A text is first normalised by the file's own table of characters, and usually its runs of spaces become one.
    """
    keys.text("pre", "")
    scores = _scores(keys, tokens)
    unknown = keys.index("unknown_token_id", len(tokens))
    fallback = _BYTE in keys.array("token_type", float, (), len(tokens))
    table = bytes(int(byte) & 255 for byte in keys.array("precompiled_charsmap", float, ()))
    scheme = "always" if keys.flag("add_space_prefix", True) else "never"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    with library_errors(CheckpointError, f"{keys.source}: the pieces make no tokenizer"):
        library = Library(models.Unigram(list(zip(tokens, scores, strict=True)), unknown, fallback))
        if table:
            library.normalizer = normalizers.Precompiled(table)
    if keys.flag("remove_extra_whitespaces", False):
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    else:
        library.pre_tokenizer = spaces
    library.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return Built(library, tokens, end=True)


def wordpiece(keys: Fields, tokens: list[str]) -> Built:
    """WordPiece (BERT), between [CLS] and [SEP]. A vocabulary without capitals is that of a model of lower case.

    In the file ▁ stands before the first piece of a word, instead of ## before the others.
    """
    keys.text("pre", "")
    types = keys.array("token_type", float, (), len(tokens)) or [_NORMAL] * len(tokens)
    pieces = [_as_bert_writes_it(token, kind) for token, kind in zip(tokens, types, strict=True)]
    unknown = keys.index("unknown_token_id", len(tokens))
    capitals = any(piece != piece.lower() for piece in pieces if piece[:1] != "[")
    parts = BERT.parts({"do_lower_case": not capitals}, {})
    name = pieces[unknown] if unknown is not None else "[UNK]"
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    library = Library(models.WordPiece(vocabulary, **{**parts.model, "unk_token": name}))
    library.normalizer, library.pre_tokenizer, library.decoder = parts.normalizer, parts.pre_tokenizer, parts.decoder
    return Built(library, pieces, start=True, end=True)


def _as_bert_writes_it(token: str, kind: float) -> str:
    if kind != _NORMAL or (token.startswith("[") and token.endswith("]")):
        return token
    return token[1:] if token.startswith("▁") else f"##{token}"
