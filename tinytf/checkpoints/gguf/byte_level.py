"""Pre-tokenization for byte-level BPE, by the names in ``tokenizer.ggml.pre`` (llama-vocab.cpp).

The regular expressions come from the tokenizers of the named models.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from tinytf.checkpoints.gguf.pieces import GgufTokenizer
from tinytf.fields import Fields, quoted
from tinytf.text.tokenizer_classes import GPT2_WORDS, byte_level_after, words_and, words_by_case


class Split(NamedTuple):
    """Regular expressions, each applied to what the previous ones left. ``whole_words`` in the vocabulary skip merges.

    ``start`` and ``end`` add a start and an end token unless the file says otherwise.
    """

    expressions: tuple[str, ...]
    whole_words: bool = False
    start: bool = False
    end: bool = False


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"


_DIGIT, _UP_TO_3 = r"\p{N}", r"\p{N}{1,3}"
_NO_PUNCTUATION = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CHINESE = "[一-龥ࠀ-一가-퟿]+"
_SIGNS_AND_WORDS = (
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER = words_and(_DIGIT).replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SPLITS: Mapping[str, Split] = {
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling", "gigachat", "mellum",
         "modern-bert", "a.x-4.0", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"),
        Split((GPT2_WORDS,)),
    ),
    **dict.fromkeys(("roberta-bpe", "jina-v1-en", "jina-v2-code"), Split((GPT2_WORDS,), start=True, end=True)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), Split((_DIGIT, GPT2_WORDS))
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        Split((words_and(_UP_TO_3),), whole_words=True, start=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Split((words_and(_UP_TO_3),))),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "grok-2"), Split((words_and(_DIGIT),))
    ),
    "tekken": Split((words_by_case(_DIGIT),), whole_words=True, start=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Split((words_by_case(_UP_TO_3, after=f"{_CONTRACTION}?"),))),
    "falcon": Split((r"[\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), Split((_NO_PUNCTUATION,))),
    "viking": Split((_NO_PUNCTUATION, _DIGIT)),
    "deepseek-llm": Split(
        (r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CHINESE, r"\p{N}+")
    ),
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, _DIGIT)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Split((_UP_TO_3, "[一-龥぀-ゟ゠-ヿ]+", _SIGNS_AND_WORDS))),
    "seed-coder": Split((_SEED_CODER,)),
    "bailingmoe": Split((_BAILING,)),
}  # fmt: skip


def byte_level(keys: Fields, tokens: list[str]) -> GgufTokenizer:
    """The byte-level BPE tokenizer with a file's vocabulary and merges."""
    name = keys.text("pre")
    if name not in SPLITS:
        raise keys.fault(f"the pre-tokenizer {quoted(name)} is unknown", f"known: {', '.join(SPLITS)}")
    split = SPLITS[name]
    merges = [_pair(keys, merge) for merge in keys.array("merges", str)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        library = Library(models.BPE(vocabulary, merges, ignore_merges=split.whole_words))
    except Exception as error:  # the library raises plain Exception
        raise keys.fault(f"the merges do not fit the vocabulary: {quoted(str(error))}") from None
    library.pre_tokenizer = byte_level_after(*split.expressions)
    library.decoder = decoders.ByteLevel()
    return GgufTokenizer(library, tokens, split.start, split.end)


def _pair(keys: Fields, merge: str) -> tuple[str, str]:
    """The two pieces of a merge, split at the first space that is not the first character, which may be a piece."""
    space = merge.find(" ", 1)
    if space < 0:
        raise keys.fault(f"the merge {quoted(merge)} is not two pieces separated by a space")
    return merge[:space], merge[space + 1 :]
