"""What llama.cpp does to a text, written out from llama-vocab.cpp: the reference for tokenizers of GGUF files."""

from collections.abc import Mapping
from itertools import pairwise

import regex

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "llama-bpe": [_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST],
    "qwen2": [_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST],
}
"""The expressions in llama-vocab.cpp; each cuts what the one before left, and what it does not match stays whole."""


def cut(text: str, expressions: list[str]) -> list[str]:
    pieces = [text]
    for expression in expressions:
        finer = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(expression, piece):
                finer += [piece[at : match.start()], match[0]]
                at = match.end()
            finer.append(piece[at:])
        pieces = [piece for piece in finer if piece]
    return pieces


def scored(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's own rule (llm_tokenizer_spm in llama-vocab.cpp): join the neighbours of the best score."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        best = max(
            (
                (scores[left + right], -place)
                for place, (left, right) in enumerate(pairwise(symbols))
                if left + right in scores
            ),
            default=None,
        )
        if best is None:
            return symbols
        place = -best[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
