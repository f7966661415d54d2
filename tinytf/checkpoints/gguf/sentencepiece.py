"""SentencePiece BPE from a GGUF file: pieces with scores, and no merges (Kudo and Richardson 2018)."""

from tokenizers import Tokenizer as Library
from tokenizers import models

from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted
from tinytf.text.tokenizer_classes import LLAMA

_LONGEST_PIECE = 512  # characters; SentencePiece makes them of 16 unless told otherwise


def sentencepiece(keys: Fields, tokens: list[str]) -> tuple[Library, bool]:
    """The tokenizer of a file's pieces, and that texts start with a start token unless the file says so.

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
    """Every way to put a piece together from two others, the best piece first.

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
