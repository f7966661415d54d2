"""Byte-level BPE from a GGUF file: its merges, and how texts are cut before them.

``tokenizer.ggml.pre`` only names the cut; the expressions are those that the named models' own tokenizers have, which
llama.cpp's table repeats (llama-vocab.cpp).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from tinytf.fields import Fields, quoted
from tinytf.text.tokenizer_classes import words_of


@dataclass(frozen=True)
class Cut:
    """How a text is cut; ``whole_words``: a cut that is a token is taken as it is, whatever the merges would make.

    ``start``: a start token is added where the file does not say.
    """

    pre_tokenizer: Callable[[], Any]
    whole_words: bool = False
    start: bool = False


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _words(numbers: str) -> Callable[[], Any]:
    expression = words_of(numbers)

    def build() -> Any:
        split = pre_tokenizers.Split(Regex(expression), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


_GPT2, _DIGITS = Cut(_gpt2), Cut(_single_digits)
_LLAMA3, _QWEN2 = Cut(_words(r"\p{N}{1,3}"), whole_words=True, start=True), Cut(_words(r"\p{N}"))

CUTS: Mapping[str, Cut] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def byte_level(keys: Fields, tokens: list[str]) -> tuple[Library, bool]:
    """The tokenizer of a file's vocabulary and merges, and whether texts start with a start token unless it says so."""
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
    library.pre_tokenizer = cut.pre_tokenizer()
    library.decoder = decoders.ByteLevel()
    return library, cut.start


def _pair(keys: Fields, merge: str) -> tuple[str, str]:
    """The two pieces of a merge; the space between them is not the first character, which can be a piece itself."""
    space = merge.find(" ", 1)
    if space < 0:
        raise keys.fault(f"the merge {quoted(merge)} is not two pieces with a space between")
    return merge[:space], merge[space + 1 :]
