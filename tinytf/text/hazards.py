"""Hazards in a tokenizer.json, judged from the file alone: which parts are known to be harmless, which are bombs.

The library's own parts are harmless; what the file puts into them may not be: regular expressions can backtrack
forever, and replacements can grow a text without bound. Those of well-known tokenizers run in linear time.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError
from tinytf.text.tokenizer_classes import GPT2_WORDS, words_and, words_by_case

_TIMES, _CHARACTERS = 1000, 2**16
"""The most characters that the parts before the vocabulary may make of one, and that a part may put in."""
_HARMLESS_TIMES, _HARMLESS_CHARACTERS = 8, 1024
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_PLAIN = frozenset((
    "Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt", "Prepend", "Replace",
    "ByteLevel", "BertNormalizer", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "Split",
    "Punctuation", "Digits", "CharDelimiterSplit", "UnicodeScripts", "TemplateProcessing", "BertProcessing",
    "RobertaProcessing", "WordPiece", "ByteFallback", "Fuse", "BPEDecoder", "CTC",
))  # fmt: skip
_NUMBERS = (r"\p{N}", r"\p{N}{1,3}", r"\p{N}+")
_BY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_EXPRESSIONS = frozenset(
    (
        *_NUMBERS, *map(words_and, _NUMBERS), GPT2_WORDS,
        *(words_by_case(number, after) for number in _NUMBERS for after in ("", _BY_CASE)),
        words_and(r"\p{N}").replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}"),  # Qwen 3.5
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
        " {2,}", r"\s+", r"\s{2,}|[\n\r\t]", r"[\n\r\t]", r"[\r\n]", r"\n", "[0-9][0-9][0-9]", r"[\s\S]", r"\d{1,3}",
    )
)  # fmt: skip


def is_hazardous(data: Mapping[str, Any], path: Path) -> bool:
    """Whether a tokenizer.json has what is not known to be harmless: it is read in a process of its own.

    Raises CheckpointError, with file and field, where a text of some characters would become one of millions.
    """
    strange = not _is_plain_vocabulary(data)
    for key in _PARTS:
        times = 1.0
        for field, part in _parts(key, data.get(key)):
            more, put_in = _growth(part)
            times *= more
            if times > _TIMES:
                raise _bomb(path, field, f"makes {times:,.0f} characters or more of one")
            if put_in > _CHARACTERS:
                raise _bomb(path, field, f"puts in {put_in:,} characters")
            strange |= times > _HARMLESS_TIMES or put_in > _HARMLESS_CHARACTERS or not _is_plain(part)
    return strange


def _bomb(path: Path, field: str, does: str) -> CheckpointError:
    most = f"the most is {_TIMES:,} for one, and {_CHARACTERS:,} put in"
    return CheckpointError(f"{path}: {field} {does}, and {most}", "no sound tokenizer does: is it to be trusted?")


def _parts(key: str, stored: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts under a key in their order, each with its place; those of a sequence one by one."""
    waiting = [(key, stored)]
    while waiting:
        field, part = waiting.pop()
        if not isinstance(part, dict):
            continue
        lists = [(name, value) for name, value in part.items() if name in _SEQUENCES and isinstance(value, list)]
        waiting += reversed([(f"{field}.{name}[{n}]", one) for name, each in lists for n, one in enumerate(each)])
        yield field, {name: value for name, value in part.items() if name not in _SEQUENCES}


_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")


def _growth(part: Mapping[str, Any]) -> tuple[float, int]:
    """At most how many characters it makes of one, and how many it puts in that no character asked for."""
    content, pattern = part.get("content"), part.get("pattern")
    if part.get("type") == "Replace" and isinstance(content, str):
        said = pattern if isinstance(pattern, dict) else {}
        least = len(str(said["String"])) if "String" in said else str(said.get("Regex")) in _EXPRESSIONS
        # An unknown expression, or no text at all, may be found before every character.
        return max(1.0, len(content) / least) if least else 1.0 + len(content), 0
    if part.get("type") == "Prepend" and isinstance(part.get("prepend"), str):
        return 1.0, len(part["prepend"])
    return 1.0, len(json.dumps(part)) if part.get("type") == "TemplateProcessing" else 0


def _is_plain(part: Mapping[str, Any]) -> bool:
    pattern = part.get("pattern")
    if isinstance(pattern, dict):
        found = pattern.get("Regex", pattern.get("String"))
        if not isinstance(found, str) or not found or ("Regex" in pattern and found not in _EXPRESSIONS):
            return False
    return str(part.get("type")) in _PLAIN


def _is_plain_vocabulary(data: Mapping[str, Any]) -> bool:
    """Whether no entry is long: long ones are looked for at every place of a text, or written for every character."""
    model, added = data.get("model"), data.get("added_tokens")
    if not isinstance(model, dict) or ("merges" in model and model.get("continuing_subword_prefix")):
        return False  # of a piece that is shorter than its prefix, the library panics
    entries = model.get("vocab") or {}
    if not isinstance(entries, dict):  # pieces of a Unigram, each with its score
        entries = [one[0] for one in entries if isinstance(one, list) and one] if isinstance(entries, list) else [0]
    names = [model.get(name) for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")]
    names += [one.get("content") for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    widest = model.get("max_input_chars_per_word", 100)
    texts = [one for one in (*entries, *names) if one is not None]
    return (
        all(isinstance(one, str) and len(one) <= _HARMLESS_CHARACTERS for one in texts)
        and isinstance(widest, int)
        and widest <= _HARMLESS_CHARACTERS
    )
