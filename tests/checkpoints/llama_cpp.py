"""What llama.cpp does to a text, written out from llama-vocab.cpp: the reference for tokenizers of GGUF files."""

from collections.abc import Mapping
from itertools import pairwise

import regex

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WITH_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "llama-bpe": [_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST],
    "qwen2": [_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        _SIGNS + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "tekken": [_UPPER + r"*" + _LOWER + r"+|" + _UPPER + r"+" + _LOWER + r"*|\p{N}" + _WITH_SLASHES],
    "gpt-4o": [
        f"{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|" + r"\p{N}{1,3}" + _WITH_SLASHES
    ],
    "seed-coder": [
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "bailingmoe": [r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])" + _WORDS + r"|\s*[\r\n]|\s+(?!\S)|\s+"],
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
